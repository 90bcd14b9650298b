"""One collective over ranks, sizes and algorithms: rows in nccl-tests' terms, who wins, and where that changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simulator.collectives import AUTO, algorithms_of, make_schedule
from simulator.collectives.busbw import bus_factor
from simulator.collectives.layout import Layout
from simulator.engine.coflow import candidates, layout_of
from simulator.engine.collective import times_by_size
from simulator.engine.wires import Wires, make_wires
from simulator.errors import ScenarioError
from simulator.network.graph import Network
from simulator.rows import Crossover, Row
from simulator.schedule import ROOTED, Floats, Schedule

#: 'all' leaves 'direct' out above this many ranks; by name it is played whatever it costs.
MAX_DIRECT_IN_ALL = 128
#: Sizes looked at in one pass when a crossover is narrowed down.
_POINTS = 33
#: A crossover is found once its interval is this narrow, relative to its size.
_NARROW = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """The algorithms of one collective on p ranks of a network, ready to be timed at any size."""

    op: str
    p: int
    schedules: dict[str, Schedule]
    wires: Wires
    fidelity: str
    starts_s: Floats

    def times(self, algorithm: str, sizes: Sequence[float]) -> tuple[Floats, str, str]:
        """(times in s, fidelity, why the vector engine handed over) of one algorithm at several sizes."""
        schedule = self.schedules[algorithm]
        return times_by_size(
            schedule, self.wires, np.array(sizes, dtype=np.float64), fidelity=self.fidelity, starts_s=self.starts_s
        )


def make_field(
    op: str,
    p: int,
    network: Network,
    algorithms: Sequence[str],
    root: int = 0,
    fidelity: str = "auto",
    skew_s: float = 0.0,
) -> Field:
    """Ranks 0 .. p-1 sit on the network's first p gpus. 'all' stands for the whole table, 'auto' for what fits. Rank r
    calls the collective at ``(r + 1) * skew_s``.

    Raises ScenarioError for an unknown operation or algorithm.
    """
    gpus = np.arange(p, dtype=np.int64)
    layout = replace(layout_of(network, gpus), root=root)
    names: list[str] = []
    for name in algorithms:
        wanted = candidates(op, network, gpus) if name == AUTO else _all(op, layout) if name == "all" else (name,)
        names += [n for n in wanted if n not in names]
    if "torus" in names and layout.torus_shape is None:
        raise ScenarioError(f"algorithm 'torus' needs all the chips of a torus; '{network.name}' is {network.kind}")
    schedules = {name: make_schedule(op, name, layout, 0.0) for name in names}
    return Field(
        op=op,
        p=p,
        schedules=schedules,
        wires=make_wires(network, gpus),
        fidelity=fidelity,
        starts_s=((gpus + 1) * skew_s).astype(np.float64),
    )


def _all(op: str, layout: Layout) -> tuple[str, ...]:
    """The whole table, but the torus ring off a torus, and direct where p**2 messages at once would take minutes."""
    left_out = {"torus"} if layout.torus_shape is None else set()
    if layout.num_ranks > MAX_DIRECT_IN_ALL:
        left_out.add("direct")
    return tuple(name for name in algorithms_of(op) if name not in left_out)


def rows_of(field: Field, sizes: Sequence[float]) -> list[Row]:
    """One row per size and algorithm, sizes first; the fastest of each size is marked."""
    timed = {name: field.times(name, sizes) for name in field.schedules}
    rows: list[Row] = []
    for number, size in enumerate(sizes):
        best = min(timed, key=lambda name: float(timed[name][0][number]))
        for name, (times, fidelity, why) in timed.items():
            rows.append(_row(field, name, size, float(times[number]), fidelity, why, name == best))
    return rows


def _row(field: Field, name: str, size: float, time_s: float, fidelity: str, why: str, fastest: bool) -> Row:
    schedule = field.schedules[name].resized(size)
    algbw = size / time_s if time_s > 0 else 0.0
    return Row(
        op=field.op, p=field.p, root=schedule.root if field.op in ROOTED else -1, size_bytes=size,
        padding_bytes=schedule.padding_bytes,
        algorithm=name, time_s=time_s, algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * bus_factor(field.op, field.p), steps=schedule.num_steps,
        messages=schedule.num_messages, wire_bytes_per_rank=float(schedule.sent_bytes().max()), fidelity=fidelity,
        handed_over=why, fastest=fastest,
    )  # fmt: skip


def crossovers(field: Field, rows: Sequence[Row]) -> Iterator[Crossover]:
    """Where the winner changes between two neighbouring sizes of ``rows``, narrowed down by more simulation."""
    best = [row for row in rows if row.fastest]
    for low, high in pairwise(best):
        if low.algorithm != high.algorithm:
            size = _meeting(field, low.algorithm, high.algorithm, low.size_bytes, high.size_bytes)
            yield Crossover(op=field.op, p=field.p, size_bytes=size, below=low.algorithm, above=high.algorithm)


def _meeting(field: Field, below: str, above: str, low: float, high: float) -> float:
    """Size at which ``above`` becomes as fast as ``below``, by repeated division of the interval."""
    while high - low > max(_NARROW * high, 0.5):
        sizes = np.linspace(low, high, _POINTS)
        ahead = field.times(above, list(sizes))[0] <= field.times(below, list(sizes))[0]
        first = int(np.argmax(ahead)) if ahead.any() else len(sizes) - 1
        low, high = float(sizes[max(first - 1, 0)]), float(sizes[max(first, 1)])
    return (low + high) / 2
