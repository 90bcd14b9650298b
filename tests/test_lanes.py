"""Lanes that wait: for the host thread, for copies, for slower ranks; each second of a step is told once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import graph
from strategies import examples

from simulator.engine.run import simulate, simulate_steady
from simulator.plan import Communicate, Compute, Plan, RankClass, Task
from simulator.report.lanes import host_lane, idle_of, launch_gaps, slowest, waiting_of
from simulator.timeline import Timeline

#: 0.5 s to the switch and 0.5 s from it, 1 byte a second.
SLOW = graph([(f"gpu{i}", "switch", 1.0, 0.5) for i in range(4)])


def work(name: str, seconds: float = 1.0, **more: object) -> Compute:
    made = {"kind": "forward", "classes": ("all",)} | more
    return Compute(name=name, seconds=seconds, **made)  # type: ignore[arg-type]


def reduce(name: str, size_bytes: float = 4.0, **more: object) -> Communicate:
    made = {"op": "all_reduce", "axis": "dp", "algorithm": "ring", "classes": ("all",)} | more
    return Communicate(name=name, message_bytes=size_bytes, **made)  # type: ignore[arg-type]


def run(*tasks: Task, classes: tuple[RankClass, ...] = (RankClass(name="all", ranks=(0, 1, 2, 3)),)) -> Timeline:
    return simulate(Plan(title="a test", classes=classes, axes={"dp": ((0, 1, 2, 3),)}, tasks=tasks), SLOW)


def told(timeline: Timeline) -> tuple[float, float, float]:
    """Host, copies and other idle time of the first class."""
    ranks = timeline.plan.classes[0]
    idle = idle_of(timeline.of_class(ranks.name), host_lane(timeline, ranks), timeline.end_s)
    return idle.host_s, idle.copies_s, idle.other_s


@st.composite
def issued_plans(draw: st.DrawFn) -> Plan:
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 10))):
        before = [task.name for task in tasks]
        some = st.lists(st.sampled_from(before), max_size=2, unique=True) if before else st.just([])
        more = {"after": tuple(draw(some)), "host_after": tuple(draw(some)), "host_s": draw(st.floats(0, 3))}
        if draw(st.booleans()):
            tasks.append(work(
                f"t{number}", draw(st.floats(0, 3)), lane=draw(st.sampled_from(["compute", "copy-in"])),
                launches=draw(st.integers(1, 3)), **more,
            ))  # fmt: skip
        else:
            tasks.append(reduce(f"t{number}", **more))
    classes = (RankClass(name="all", ranks=(0, 1, 2, 3), speed=draw(st.sampled_from([1.0, 0.5]))),)
    return Plan(title="any", classes=classes, axes={"dp": ((0, 1, 2, 3),)}, tasks=tuple(tasks))


@settings(max_examples=examples(80))
@given(issued_plans(), st.sampled_from([simulate, simulate_steady]))
def test_a_task_starts_when_it_is_issued_and_all_before_it_is_over(plan: Plan, play: Callable[..., Timeline]) -> None:
    """So what the report says of the host thread is what the engine played."""
    timeline = play(plan, SLOW)
    (ranks,) = plan.classes
    ends = {span.task.name: span.end_s for span in timeline.spans}
    starts = {span.task.name: span.start_s for span in timeline.spans}
    first = {issue.task.name: issue.first_s for issue in host_lane(timeline, ranks)}
    lanes: dict[str, float] = {}
    for task in plan.tasks:
        earliest = max([0.0, lanes.get(task.lane, 0.0), first.get(task.name, 0.0), *(ends[n] for n in task.after)])
        assert starts[task.name] == pytest.approx(earliest, abs=1e-9)
        lanes[task.lane] = ends[task.name]


@settings(max_examples=examples(80))
@given(issued_plans())
def test_every_second_is_told_once(plan: Plan) -> None:
    """Compute without its gaps, collectives in the open and the idle parts add up to the step."""
    timeline = simulate(plan, SLOW)
    (ranks,) = plan.classes
    spans, issues = timeline.of_class(ranks.name), host_lane(timeline, ranks)
    gaps = launch_gaps([s for s in spans if s.task.lane == "compute"], issues)
    working = sum(s.duration_s - gaps.get(s.task.name, 0.0) for s in spans if s.task.lane == "compute")
    cuts = sorted({0.0, timeline.end_s, *(t for s in spans for t in (s.start_s, s.end_s))})
    exposed = sum(
        b - a for a, b in pairwise(cuts)
        if {"comm dp"} == {s.task.lane for s in spans if s.start_s <= (a + b) / 2 < s.end_s} - {"copy-in"}
    )  # fmt: skip
    parts = told(timeline)
    assert min(parts) >= -1e-9
    assert working + exposed + sum(parts) == pytest.approx(timeline.end_s, abs=1e-6)


def test_tiny_kernels_take_what_launching_them_takes() -> None:
    """100 kernels of 1 ms each, issued in 3 ms each: 0.3 s, of which the GPU works for 0.1 s."""
    timeline = run(work("layer", 0.1, host_s=0.3, launches=100))
    assert timeline.end_s == pytest.approx(0.3)
    host_s, copies_s, other_s = told(timeline)
    assert host_s == pytest.approx(0.2)
    assert (copies_s, other_s) == (0.0, pytest.approx(0.0))


def test_a_host_that_waits_for_the_device_leaves_it_idle_until_it_has_issued_the_next_kernel() -> None:
    """``.item()`` after a 2 s kernel: the next, issued in 0.5 s, starts at 2.5 s; the device is idle for 0.5 s."""
    timeline = run(work("a", 2.0), work("b", 1.0, host_s=0.5, host_after=("a",)))
    issue = host_lane(timeline, timeline.plan.classes[0])[1]
    assert (issue.ready_s, issue.start_s, issue.end_s) == (0.0, 2.0, 2.5)
    assert (timeline.end_s, told(timeline)[0]) == (3.5, 0.5)


def test_without_costs_the_host_has_no_lane() -> None:
    timeline = run(work("a"), work("b"))
    assert host_lane(timeline, timeline.plan.classes[0]) == ()
    assert told(timeline) == (0.0, 0.0, 0.0)


def test_a_copy_on_its_own_lane_that_compute_waits_for_is_told_as_such() -> None:
    timeline = run(work("copy", 2.0, lane="copy-in", kind="copy"), work("a", 1.0, after=("copy",)))
    assert told(timeline) == (0.0, 2.0, 0.0)


@pytest.mark.parametrize("straggler", [0, 3])
def test_ranks_wait_in_collectives_for_the_slowest_which_sets_the_pace(straggler: int) -> None:
    """2 s of work, on half the speed 4 s: three ranks wait 2 s in the all-reduce, the straggler not at all."""
    others = tuple(rank for rank in range(4) if rank != straggler)
    either = (RankClass(name="fast", ranks=others), RankClass(name="slow", ranks=(straggler,), speed=0.5))
    classes = tuple(sorted(either, key=lambda c: c.ranks))
    names = tuple(c.name for c in classes)
    timeline = run(work("a", 2.0, classes=names), reduce("r", classes=names, after=("a",)), classes=classes)
    waits = {one.ranks.name: one.waits_s for one in waiting_of(timeline)}
    assert waits == {"fast": pytest.approx(2.0), "slow": pytest.approx(0.0)}
    assert slowest(waiting_of(timeline)).ranks.name == "slow"  # though all end together


def test_equal_ranks_wait_for_nobody() -> None:
    (one,) = waiting_of(run(work("a"), reduce("r", after=("a",))))
    assert one.waits_s == 0.0


def test_without_collectives_the_rank_that_ends_last_sets_the_pace() -> None:
    classes = (RankClass(name="slow", ranks=(0,), speed=0.5), RankClass(name="fast", ranks=(1, 2, 3)))
    timeline = run(work("a", 2.0, classes=("slow", "fast")), classes=classes)
    assert (slowest(waiting_of(timeline)).ranks.name, timeline.end_s) == ("slow", 4.0)
