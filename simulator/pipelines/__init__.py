"""Pipeline schedules: plain functions (ranks, micro-batches, chunks) -> order of every rank. No network, no clock.

``PIPELINES`` is the one place to add one. Law tests and the comparison with torch run over the whole table, so a new
line is tested the moment it exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.errors import ScenarioError
from simulator.pipelines import both_ways, claims, limits, one_way, placement, zero_bubble
from simulator.pipelines.claims import Claim, Shape
from simulator.pipelines.limits import Rule
from simulator.pipelines.order import Order, PipelineSchedule
from simulator.problems import nearest


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A kind of schedule: what it is, its name in ``torch.distributed.pipelining`` (empty: it has none), who orders
    actions, where stages stand, which chunks it has unless told, what it cannot take, and what is published of it."""

    title: str
    torch_name: str
    orders: Callable[[int, int, int], tuple[Order, ...]]
    placement: Callable[[int, int], tuple[int, ...]]
    chunks: int
    rules: tuple[Rule, ...]
    claim: Claim


_ONE, _TWO, _ROUNDS = (limits.one_chunk,), (limits.two_chunks,), (limits.equal_rounds,)
_PAIRS = (limits.two_chunks, limits.two_for_each_rank)
_WAYS = (limits.one_chunk, limits.two_ways, limits.two_for_each_rank)
_LOOP, _V = placement.loop, placement.v_shape

PIPELINES: dict[str, Pipeline] = {
    "gpipe": Pipeline("all forwards, then all backwards", "GPipe", one_way.gpipe, _LOOP, 1, _ONE, claims.GPIPE),
    "1f1b": Pipeline("a forward, a backward in turn", "1F1B", one_way.one_f_one_b, _LOOP, 1, _ONE, claims.ONE_F_ONE_B),
    "looped-bfs": Pipeline(
        "GPipe over several chunks, a chunk at a time", "LoopedBFS", one_way.looped_bfs, _LOOP, 2, (), claims.LOOPED
    ),
    "interleaved-1f1b": Pipeline(
        "1F1B over several chunks", "Interleaved1F1B", one_way.interleaved_1f1b, _LOOP, 2, _ROUNDS, claims.INTERLEAVED
    ),
    "zb-h1": Pipeline("1F1B with late weight gradients", "", zero_bubble.zb1p, _LOOP, 1, _ONE, claims.ZB1P),
    "zb1p": Pipeline(
        "ZB-H1 over several chunks", "InterleavedZeroBubble", zero_bubble.zb1p, _LOOP, 2, _ROUNDS, claims.ZB1P
    ),
    "zbv": Pipeline("zero bubble over the chunks of a V", "ZBVZeroBubble", zero_bubble.zbv, _V, 2, _TWO, claims.ZBV),
    "dualpipe": Pipeline(
        "two models in opposite directions, in pairs", "", both_ways.dualpipe, placement.two_way, 1, _WAYS,
        claims.DUALPIPE,
    ),
    "dualpipe-v": Pipeline(
        "half of DualPipe, folded into a V", "DualPipeV", both_ways.dualpipe_v, _V, 2, _PAIRS, claims.DUALPIPE_V
    ),
}  # fmt: skip


def named(name: str) -> str:
    """The name in ``PIPELINES`` of a schedule, in any case, or as torch spells it. Raises ScenarioError."""
    plain = _plain(name)
    for known, kind in PIPELINES.items():
        if plain in (_plain(known), _plain(kind.torch_name)):
            return known
    hint = nearest(name, PIPELINES)
    raise ScenarioError(f"no pipeline schedule is called '{name[:60]}': schedules are {', '.join(PIPELINES)}{hint}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").removeprefix("schedule") or "?"


def refusal(name: str, shape: Shape) -> str:
    """Why a schedule cannot take these numbers, and the nearest that it can; empty where it can."""
    rules = PIPELINES[name].rules
    why = limits.why_not(rules, shape)
    return f"{name} with {shape}: {why}; possible: {limits.nearest(rules, shape)}" if why else ""


def pipeline_schedule(
    name: str, num_ranks: int, num_micro_batches: int, chunks: int | None = None
) -> PipelineSchedule:  # fmt: skip
    """The orders of all ranks. chunks: stages on each rank, None for what the schedule usually has.

    Raises ScenarioError for an unknown name and for numbers that it cannot take, with the nearest that it can.
    """
    known = named(name)
    kind = PIPELINES[known]
    shape = Shape(num_ranks, num_micro_batches, kind.chunks if chunks is None else chunks)
    for words, value in (("ranks", shape.p), ("micro-batches", shape.m), ("chunks", shape.v)):
        if value < 1:
            raise ScenarioError(f"{known}: {value} {words}: expected at least 1")
    if problem := refusal(known, shape):
        raise ScenarioError(problem)
    homes = kind.placement(shape.p, shape.v)
    return PipelineSchedule(
        name=known, chunks=shape.v, num_micro_batches=shape.m, orders=kind.orders(shape.p, shape.m, shape.v),
        ranks_of_stages=homes, stages_per_chain=shape.p * shape.v,
    )  # fmt: skip
