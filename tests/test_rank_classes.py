"""Ranks that differ by chance: what may be merged without changing the step, and how many classes are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import graph

from simulator.engine.interference import Interference
from simulator.engine.run import simulate
from simulator.plan import Buffer, Communicate, Compute, Plan, Task
from simulator.rank_classes import FEW_LOOKS, Look, fold_ranks, jitter_speed, merge_looks
from simulator.report.lanes import slowest, waiting_of
from simulator.report.memory import memory_of

DP = {"dp": (tuple(range(12)),)}
#: Shards over 4 neighbours, replicas over every 4th of 12.
HSDP = {
    "shard": tuple(tuple(range(4 * g, 4 * g + 4)) for g in range(3)),
    "replicate": tuple(tuple(range(g, 12, 4)) for g in range(4)),
}
#: A link to the other ranks of each group, so that nobody shares one: 50 GB/s, 5 us.
NETWORK = graph(
    [(f"gpu{i}", f"node{i // 4}", 50e9, 2.5e-6) for i in range(12)]
    + [(f"gpu{i}", f"rail{i % 4}", 50e9, 2.5e-6) for i in range(12)]
)
#: Large enough to take its time beside tasks of 0.1 to 1 ms: 50 GB/s.
MESSAGE_BYTES = 10e6


# ----------------------------------------------------------------------------------------------------------- the jitter


def test_jitter_is_lognormal_with_the_share_as_its_spread() -> None:
    logs = -np.log([jitter_speed(0.03, 1, rank) for rank in range(16_384)])
    assert logs.mean() == pytest.approx(0.0, abs=3 * 0.03 / math.sqrt(16_384))
    assert logs.std() == pytest.approx(0.03, rel=3 / math.sqrt(2 * 16_384))
    below = (logs[:, None] < 0.03 * np.array([-2.0, -1.0, 0.0, 1.0, 2.0])).mean(axis=0)
    assert below == pytest.approx([0.0228, 0.1587, 0.5, 0.8413, 0.9772], abs=0.01)


def test_a_rank_draws_its_own_jitter_from_the_seed_and_its_number() -> None:
    seeds = [[jitter_speed(0.03, seed, rank) for rank in range(100)] for seed in (1, 2, 12)]
    assert len({speed for seed in seeds for speed in seed}) == 300
    assert seeds[0][3] == jitter_speed(0.03, 1, 3)
    assert jitter_speed(0.06, 1, 3) == pytest.approx(seeds[0][3] ** 2, rel=1e-12)  # twice the spread, the same draw


# ------------------------------------------------------------------------------------------------------- what is merged


def test_few_looks_stay_as_they_are() -> None:
    looks = [(1.0 - 0.1 * (rank % FEW_LOOKS), 1.0) for rank in range(100)]
    assert merge_looks(looks) == looks


def test_with_equal_batches_the_slowest_stays_and_all_others_become_their_median() -> None:
    looks = [(jitter_speed(0.03, 1, rank), 1.0) for rank in range(101)]
    slow = min(looks)
    found = merge_looks(looks)
    assert [rank for rank in range(101) if found[rank] == slow] == [looks.index(slow)]
    assert set(found) == {slow, (sorted(speed for speed, _ in looks if (speed, 1.0) != slow)[49], 1.0)}


def test_a_fast_rank_with_a_large_batch_is_not_taken_for_a_fast_one() -> None:
    """The slowest is last in the optimizer, another with twice the batch in forward and backward: both stay."""
    looks = [(jitter_speed(0.03, 1, rank), 2.0 if rank < 20 else 1.0) for rank in range(100)]
    found = merge_looks(looks)
    slowest_of_all, longest = min(looks), max(looks, key=lambda look: look[1] / look[0])
    assert slowest_of_all in found
    assert longest in found
    assert [work for _, work in found] == [work for _, work in looks]  # samples and memory are never changed
    assert len(set(found)) <= 5


@pytest.mark.parametrize(("axes", "most"), [("dp", 2), ("hsdp", 5)])
def test_jitter_over_16384_ranks_leaves_few_classes(axes: str, most: int) -> None:
    shard = tuple(tuple(range(8 * g, 8 * g + 8)) for g in range(2048))
    replicate = tuple(tuple(range(g, 16_384, 8)) for g in range(8))
    groups = {"dp": (tuple(range(16_384)),)} if axes == "dp" else {"shard": shard, "replicate": replicate}
    looks = merge_looks([(jitter_speed(0.03, 1, rank), 1.0) for rank in range(16_384)])
    classes = fold_ranks(looks, groups)
    assert len(classes) <= most
    assert sum(len(ranks.ranks) for ranks in classes) == 16_384
    assert min(ranks.speed for ranks in classes) == min(jitter_speed(0.03, 1, rank) for rank in range(16_384))


# ------------------------------------------------------------------------------------------- the step stays what it was


def planned(looks: Sequence[Look], axes: dict[str, tuple[tuple[int, ...], ...]], tasks: Sequence[Task]) -> Plan:
    classes = fold_ranks(looks, axes)
    everywhere = tuple(ranks.name for ranks in classes)
    return Plan(
        title="a test", classes=classes, axes=axes, tasks=tuple(replace(task, classes=everywhere) for task in tasks)
    )


@st.composite
def steps(draw: st.DrawFn, axes: dict[str, tuple[tuple[int, ...], ...]]) -> list[Task]:
    """Tasks on several lanes, each waiting for some of those before it."""
    tasks: list[Task] = []
    for number in range(draw(st.integers(3, 12))):
        after = tuple({draw(st.sampled_from([t.name for t in tasks])) for _ in range(draw(st.integers(0, 2)))} if tasks
                      else ())  # fmt: skip
        host_s = draw(st.sampled_from([0.0, 0.0, 2e-4]))
        if draw(st.booleans()):
            kind = draw(st.sampled_from(["forward", "backward", "copy", "optimizer"]))
            held = Buffer(name=f"activations {number}", kind="activations", size_bytes=1e6 * (number + 1))
            tasks.append(Compute(
                name=f"task {number}", kind=kind, classes=(), seconds=draw(st.integers(0, 10)) * 1e-4, after=after,
                lane=draw(st.sampled_from(["compute", "copy-in"])), host_s=host_s,
                allocates=(held,) if kind == "forward" else (),
            ))  # fmt: skip
        else:
            tasks.append(Communicate(
                name=f"task {number}", op="all_reduce", axis=draw(st.sampled_from(sorted(axes))), algorithm="ring",
                message_bytes=MESSAGE_BYTES, classes=(), after=after, host_s=host_s,
            ))  # fmt: skip
    return tasks


@st.composite
def looks(draw: st.DrawFn, *, uneven: bool) -> list[Look]:
    """12 ranks of which more than FEW_LOOKS differ in speed, and also in their batches if ``uneven``."""
    speeds = draw(st.lists(st.floats(0.3, 1.2), min_size=12, max_size=12, unique=True))
    works = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=12, max_size=12)) if uneven else [1.0] * 12
    return list(zip(speeds, works, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [DP, HSDP], ids=["dp", "hsdp"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_merged_ranks_change_neither_the_step_nor_the_memory(
    axes: dict[str, tuple[tuple[int, ...], ...]], data: st.DataObject
) -> None:
    """Uneven batches in one group of all ranks; equal ones in several groups."""
    found, tasks = data.draw(looks(uneven=axes is DP)), data.draw(steps(axes))
    each, few = (simulate(planned(held, axes, tasks), NETWORK) for held in (found, merge_looks(found)))
    assert len(few.plan.classes) <= len(each.plan.classes)
    assert few.end_s == pytest.approx(each.end_s, rel=1e-9)
    assert memory_of(few).peak_bytes == pytest.approx(memory_of(each).peak_bytes)
    waits = [slowest(waiting_of(timeline)).waits_s for timeline in (few, each)]
    assert waits[0] == pytest.approx(waits[1], abs=1e-9 * each.end_s)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [DP, HSDP], ids=["dp", "hsdp"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_merged_ranks_stay_within_what_collectives_can_slow(
    axes: dict[str, tuple[tuple[int, ...], ...]], data: st.DataObject
) -> None:
    """How long a collective runs beside which compute depends on when all others begin it. Two lanes of collectives at
    once slow compute to (1 - 0.2)^2 (1 - 1e-12 s/B x 2 x 50e9 B/s) of its speed at most; both steps lie between.
    """
    found, tasks = data.draw(looks(uneven=axes is DP)), data.draw(steps(axes))
    slowed = Interference(core_share=0.2, memory_s_per_byte=1e-12)
    alone_s = simulate(planned(found, axes, tasks), NETWORK).end_s
    most_s = alone_s / (0.8**2 * (1 - 1e-12 * 2 * 50e9))
    for held in (found, merge_looks(found)):
        end_s = simulate(planned(held, axes, tasks), NETWORK, interference=slowed).end_s
        assert alone_s * (1 - 1e-9) <= end_s <= most_s * (1 + 1e-9)


def test_each_rank_alone_and_the_merged_classes_end_at_the_same_time() -> None:
    """The oracle plays all 12 ranks and every message; the two engines agree to 1e-6 with and without merging."""
    found: list[Look] = [(jitter_speed(0.1, 5, rank), 1.0) for rank in range(12)]
    step: Callable[[], list[Task]] = lambda: [  # noqa: E731
        Compute(name="forward", kind="forward", classes=(), seconds=1e-3),
        Communicate(name="scatter", op="reduce_scatter", axis="shard", algorithm="ring", message_bytes=MESSAGE_BYTES,
                    classes=(), after=("forward",)),
        Compute(name="backward", kind="backward", classes=(), seconds=2e-3),
        Communicate(name="reduce", op="all_reduce", axis="replicate", algorithm="ring", message_bytes=MESSAGE_BYTES,
                    classes=(), after=("scatter", "backward")),
        Compute(name="optimizer", kind="optimizer", classes=(), seconds=1e-3, after=("reduce",)),
    ]  # fmt: skip
    unmerged, merged = planned(found, HSDP, step()), planned(merge_looks(found), HSDP, step())
    assert (len(unmerged.classes), len(merged.classes)) == (12, 4)
    oracle = simulate(unmerged, NETWORK, fidelity="message").end_s
    assert simulate(unmerged, NETWORK).end_s == pytest.approx(oracle, rel=1e-6)
    assert simulate(merged, NETWORK).end_s == pytest.approx(oracle, rel=1e-6)
