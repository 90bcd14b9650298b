"""Plans refuse what cannot be played, like groups run together and apart from others, and memory is kept whole."""

from __future__ import annotations

import pytest
from networks import graph

from simulator.engine.run import simulate
from simulator.kin import kin_of
from simulator.plan import (
    Buffer,
    Communicate,
    Compute,
    Plan,
    PlanError,
    RankClass,
    Task,
    one_at_a_time,
    seconds_on,
    unfolded,
)
from simulator.rank_classes import ALL_RANKS, fold_ranks
from simulator.report.memory import class_memory, memory_of

#: 1 s of latency a message, 1 byte a second.
SLOW = graph([(f"gpu{i}", "switch", 1.0, 0.5) for i in range(4)])
GRID = {"shard": ((0, 1), (2, 3)), "replicate": ((0, 2), (1, 3))}


def work(name: str, seconds: float = 1.0, **more: object) -> Compute:
    made = {"kind": "forward", "classes": ("all",)} | more
    return Compute(name=name, seconds=seconds, **made)  # type: ignore[arg-type]


def reduce(name: str, axis: str, classes: tuple[str, ...] = ("all",), after: tuple[str, ...] = ()) -> Communicate:
    return Communicate(
        name=name, op="all_reduce", axis=axis, algorithm="ring", message_bytes=4.0, classes=classes, after=after
    )  # fmt: skip


def plan(*tasks: Task, resident: tuple[Buffer, ...] = ()) -> Plan:
    everyone = RankClass(name="all", ranks=(0, 1, 2, 3))
    return Plan(title="a test", classes=(everyone,), axes={"dp": ((0, 1, 2, 3),)}, tasks=tasks, resident=resident)


def buffer(name: str, size_bytes: float, kind: str = "gathered") -> Buffer:
    return Buffer(name=name, kind=kind, size_bytes=size_bytes)


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ((work("a", host_after=("b",)),), "'a' waits for 'b', not listed before it"),
        ((work("a", frees=("x",)),), "'a' frees what nobody holds: x"),
        ((work("a", allocates=(buffer("x", 1),)), work("b", allocates=(buffer("x", 1),))), "b: buffer 'x' is held"),
        ((work("a", allocates=(buffer("x", 1, "gold"),)),), "a: buffer 'x' is of no kind: 'gold'"),
        ((work("a", allocates=(buffer("x", 1),)), work("b", frees=("x",)), work("c", frees=("x",))), "'c' frees what"),
    ],
)
def test_a_plan_that_cannot_be_played_is_refused(tasks: tuple[Task, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(*tasks)


def test_a_buffer_may_be_held_again_once_it_is_free() -> None:
    plan(work("a", allocates=(buffer("x", 1),), frees=("x",)), work("b", allocates=(buffer("x", 1),), frees=("x",)))


# ------------------------------------------------------------------------------------------------ groups that are alike


def split() -> tuple[RankClass, ...]:
    """Rank 0 is slow: its shard group waits for it, its replica does too, and rank 3 sees neither at first hand."""
    return fold_ranks([(0.5, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)], GRID)


def test_equal_ranks_are_one_class_and_a_straggler_splits_off_those_that_meet_it() -> None:
    assert [c.name for c in fold_ranks([(1.0, 1.0)] * 4, GRID)] == [ALL_RANKS]
    assert [(c.ranks, c.speed) for c in split()] == [((0,), 0.5), ((1,), 1.0), ((2,), 1.0), ((3,), 1.0)]


def test_a_straggler_among_1024_leaves_four_classes_however_many_groups_there_are() -> None:
    """128 shard groups of 8: the straggler, the others of its group, the other ends of its replicas, and the rest."""
    shard = tuple(tuple(range(first, first + 8)) for first in range(0, 1024, 8))
    replicate = tuple(tuple(range(place, 1024, 8)) for place in range(8))
    looks = [(0.5 if rank == 13 else 1.0, 1.0) for rank in range(1024)]
    found = fold_ranks(looks, {"shard": shard, "replicate": replicate})
    assert sorted(len(c.ranks) for c in found) == [1, 7, 127, 889]


def test_groups_of_like_ranks_do_not_wait_for_others() -> None:
    """Rank 0 takes twice as long; the group (2, 3) reduces when its own ranks are ready, not when rank 0 is."""
    classes = split()
    names = tuple(c.name for c in classes)
    tasks = (work("a", 4.0, classes=names), reduce("x", "shard", names, after=("a",)))
    made = Plan(title="a test", classes=classes, axes=GRID, tasks=tasks)
    ends = {span.ranks: span.end_s for span in simulate(made, SLOW).spans if span.task.name == "x"}
    ring_s = 2 * (1 + 2)  # two steps: latency and half of 4 bytes
    assert ends == {"rank 0": 8 + ring_s, "rank 1": 8 + ring_s, "rank 2": 4 + ring_s, "rank 3": 4 + ring_s}
    every_rank = {span.ranks: span.end_s for span in simulate(unfolded(made), SLOW).spans if span.task.name == "x"}
    assert every_rank == ends


def test_ranks_in_unlike_groups_are_not_one_class() -> None:
    classes = (RankClass(name="left", ranks=(0, 2)), RankClass(name="right", ranks=(1, 3)))
    made = Plan(title="a test", classes=classes, axes={"x": ((0, 1), (2,), (3,))}, tasks=())
    with pytest.raises(PlanError, match="ranks of class 'left' are in unlike groups of axis 'x'"):
        kin_of(made, "x")


def test_work_stretches_what_grows_with_the_batch_and_speed_all() -> None:
    slow = RankClass(name="slow", ranks=(0,), speed=0.5, work=3.0)
    assert seconds_on(work("a", 2.0), slow) == 2.0 * 3.0 / 0.5
    assert seconds_on(work("a", 2.0, kind="optimizer"), slow) == 2.0 / 0.5


def test_calls_that_return_when_done_leave_nothing_beside_them() -> None:
    tasks = (work("a", 2.0), reduce("x", "dp"), work("b", 1.0))
    ring_s = 6 * (1 + 1)
    assert simulate(plan(*tasks), SLOW).end_s == ring_s
    assert simulate(plan(*one_at_a_time(tasks)), SLOW).end_s == 2 + ring_s + 1


# --------------------------------------------------------------------------------------------------------------- memory


def test_memory_is_what_tasks_hold_from_start_to_end_and_the_earlier_frees_first() -> None:
    """a holds x (3) until b ends; c, after b, starts at the instant x is gone: 10 + 3 + 4 is the peak, not + 5."""
    tasks = (
        work("a", 2.0, allocates=(buffer("x 1", 3),)),
        work("b", 1.0, allocates=(buffer("y 1", 4, "grads"),), frees=("x 1",)),
        work("c", 1.0, allocates=(buffer("x 2", 5),), frees=("x 2",)),
    )
    made = plan(*tasks, resident=(buffer("weights", 10, "params"),))
    memory = memory_of(simulate(made, SLOW))
    assert memory.times_s.tolist() == [0.0, 0.0, 2.0, 3.0, 3.0, 4.0]
    assert memory.curve_bytes.sum(axis=1).tolist() == [10, 13, 17, 14, 19, 14]
    assert (memory.peak_bytes, memory.peak_at, memory.peak_s) == (19, "c", 3.0)
    assert {kind: size for kind, size in memory.by_kind_bytes.items() if size} == {
        "params": 10, "grads": 4, "gathered": 5,
    }  # fmt: skip
    assert [(holder.name, holder.size_bytes) for holder in memory.holders] == [("weights", 10), ("x 2", 5), ("y 1", 4)]


def test_a_rank_with_more_samples_keeps_more_activations_and_only_these() -> None:
    tasks = (work("a", allocates=(buffer("a", 4, "activations"), buffer("g", 6, "grads"))),)
    more = RankClass(name="all", ranks=(0, 1, 2, 3), work=1.5)
    made = Plan(title="a test", classes=(more,), axes={}, tasks=tasks)
    assert class_memory(simulate(made, SLOW), more).peak_bytes == 1.5 * 4 + 6
