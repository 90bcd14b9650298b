"""The step engine: lanes, waits, collectives that share links, slowed compute, and the two fidelities side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import ALPHA_S, BETA_BYTES_PER_S, graph, played, uniform
from strategies import examples

from simulator.engine.interference import Interference
from simulator.engine.maker import CoflowMaker
from simulator.engine.run import simulate
from simulator.errors import DeadlockError, UnsupportedError
from simulator.network.graph import Network
from simulator.plan import Communicate, Compute, Plan, PlanError, RankClass, Task, comm_lane
from simulator.timeline import Span, Timeline

#: Slow links and short numbers: 1 s of latency a message, 1 byte a second.
SLOW = graph([(f"gpu{i}", "switch", 1.0, 0.5) for i in range(4)])
FIDELITIES = ("coflow", "message")

ONE = {"all": (0, 1, 2, 3)}
TWO = {"left": (0, 1), "right": (2, 3)}


def compute(name: str, seconds: float, *classes: str, after: tuple[str, ...] = ()) -> Compute:
    return Compute(name=name, kind="forward", classes=classes or ("all",), seconds=seconds, after=after)


def collective(
    name: str, size_bytes: float, *, axis: str = "dp", classes: tuple[str, ...] = ("all",), after: tuple[str, ...] = ()
) -> Communicate:
    return Communicate(
        name=name, op="all_reduce", axis=axis, algorithm="ring", message_bytes=size_bytes, classes=classes, after=after
    )  # fmt: skip


def plan(
    *tasks: Task,
    classes: Mapping[str, tuple[int, ...]] = ONE,
    axes: dict[str, tuple[tuple[int, ...], ...]] | None = None,
) -> Plan:
    everyone = tuple(rank for ranks in classes.values() for rank in ranks)
    made = tuple(RankClass(name=name, ranks=ranks) for name, ranks in classes.items())
    return Plan(title="a test", classes=made, axes=axes or {"dp": (everyone,)}, tasks=tasks)


def spans(timeline: Timeline) -> dict[str, tuple[float, float]]:
    """Task -> (start, end), for plans of one rank class."""
    return {span.task.name: (span.start_s, span.end_s) for span in timeline.spans}


def taking(core_share: float) -> Interference:
    """Each collective takes this share of the cores from the compute beside it."""
    return Interference(core_share=core_share)


def ring_s(size_bytes: float) -> float:
    """All-reduce of four ranks on SLOW: 6 steps of 1 s and a quarter of the bytes."""
    return 6 * (1 + size_bytes / 4)


# ----------------------------------------------------------------------------------------------- lanes and waits


def test_a_lane_does_one_thing_at_a_time_in_the_order_of_the_plan() -> None:
    ran = spans(simulate(plan(compute("a", 2.0), compute("b", 1.0), compute("c", 3.0)), SLOW))
    assert ran == {"a": (0.0, 2.0), "b": (2.0, 3.0), "c": (3.0, 6.0)}


def test_a_task_that_waits_holds_up_those_behind_it_on_its_lane() -> None:
    """As a CUDA stream does: c could run at 2, but b stands before it and waits for the collective."""
    tasks = (compute("a", 2.0), collective("x", 8.0), compute("b", 1.0, after=("x",)), compute("c", 1.0))
    ran = spans(simulate(plan(*tasks), SLOW))
    end = ring_s(8.0)
    assert ran == {"a": (0.0, 2.0), "x": (0.0, end), "b": (end, end + 1), "c": (end + 1, end + 2)}


def test_lanes_run_side_by_side_and_after_joins_them() -> None:
    tasks = (compute("a", 2.0), collective("x", 8.0, after=("a",)), compute("b", 5.0), compute("c", 1.0, after=("x",)))
    ran = spans(simulate(plan(*tasks), SLOW))
    assert ran["x"] == (2.0, 2.0 + ring_s(8.0))
    assert ran["b"] == (2.0, 7.0)
    assert ran["c"] == (2.0 + ring_s(8.0), 3.0 + ring_s(8.0))


def test_one_communicator_runs_one_collective_at_a_time() -> None:
    ran = spans(simulate(plan(collective("x", 4.0), collective("y", 4.0)), SLOW))
    assert ran == {"x": (0.0, ring_s(4.0)), "y": (ring_s(4.0), 2 * ring_s(4.0))}


def test_the_step_ends_with_its_last_task() -> None:
    timeline = simulate(plan(compute("a", 2.0), collective("x", 8.0)), SLOW)
    assert timeline.end_s == ring_s(8.0)
    assert simulate(plan(), SLOW).end_s == 0.0


def test_a_task_without_work_takes_no_time() -> None:
    assert spans(simulate(plan(compute("a", 0.0), compute("b", 1.0), compute("c", 0.0)), SLOW))["c"] == (1.0, 1.0)


def test_spans_come_in_start_order_and_ties_in_plan_order() -> None:
    both = collective("x", 4.0, classes=("left", "right"))
    tasks = (compute("late", 1.0, "right"), compute("early", 1.0, "left"), both)
    timeline = simulate(plan(*tasks, classes=TWO), SLOW)
    assert [span.task.name for span in timeline.spans] == ["late", "early", "x", "x"]
    assert [span.ranks for span in timeline.of_class("left")] == ["left", "left"]


# ----------------------------------------------------------------------------------------------------- collectives


def test_a_collective_alone_takes_what_its_schedule_takes() -> None:
    timeline = simulate(plan(collective("x", 1e8), classes={"all": tuple(range(8))}), uniform(8))
    expected = 14 * (ALPHA_S + 1e8 / (8 * BETA_BYTES_PER_S))
    cost = timeline.costs["x"]
    assert timeline.end_s == pytest.approx(expected, rel=1e-9)
    assert cost.alone_s == pytest.approx(expected, rel=1e-9)
    assert cost.latency_s == pytest.approx(14 * ALPHA_S, rel=1e-9)
    assert cost.sent_bytes_per_rank == pytest.approx(2 * 7 / 8 * 1e8)
    assert (cost.num_steps, cost.num_messages, cost.group_size) == (14, 14 * 8, 8)
    np.testing.assert_allclose(timeline.link_bytes, 2 * 7 / 8 * 1e8)


def test_collectives_of_other_sizes_share_the_patterns_of_the_first_and_so_their_routes() -> None:
    maker = CoflowMaker(uniform(8))
    small, large = (maker.schedule("all_gather", "ring", size, tuple(range(8))) for size in (1001.0, 1e8))
    assert small.phases is large.phases
    assert (small.size_bytes, small.padding_bytes, large.size_bytes) == (1001.0, 7.0, 1e8)


PAIRS = {"x": ((0, 1),), "y": ((0, 1),)}
PAIR = {"all": (0, 1)}


def test_two_collectives_on_the_same_links_share_them_by_half() -> None:
    """Two ranks: 2 s of latency, then n bytes each way. Together 4 and 10 bytes: 8 s at half speed, then 6 alone."""
    tasks = (collective("small", 4.0, axis="x"), collective("large", 10.0, axis="y"))
    ran = spans(simulate(plan(*tasks, classes=PAIR, axes=PAIRS), SLOW))
    assert ran["small"] == pytest.approx((0.0, 2 + 8.0))
    assert ran["large"] == pytest.approx((0.0, 2 + 8.0 + 6.0))


def test_a_collective_in_its_latency_takes_no_bandwidth() -> None:
    """y starts 4 s after x and pays 2 s of latency: x has 4 s of bytes to itself, then both halve."""
    tasks = (collective("x", 6.0, axis="x"), compute("wait", 4.0), collective("y", 6.0, axis="y", after=("wait",)))
    ran = spans(simulate(plan(*tasks, classes=PAIR, axes=PAIRS), SLOW))
    assert ran["x"] == pytest.approx((0.0, 2 + 4 + 2 * 2))
    assert ran["y"] == pytest.approx((4.0, 10 + 4))


def test_collectives_on_other_links_do_not_disturb_each_other() -> None:
    tasks = (collective("x", 4.0, axis="x", classes=("left",)), collective("y", 10.0, axis="y", classes=("right",)))
    ran = spans(simulate(plan(*tasks, classes=TWO, axes={"x": ((0, 1),), "y": ((2, 3),)}), SLOW))
    assert ran == {"x": (0.0, 2 + 4.0), "y": (0.0, 2 + 10.0)}


def test_three_collectives_share_max_min_not_by_their_number() -> None:
    """x is on ranks 0, 1 and z on 2, 3 only; y is on all four. Links of 0, 1 carry x and y; both halve."""
    tasks = (
        collective("x", 30.0, axis="x", classes=("left",)),
        collective("y", 20.0, axis="y", classes=("left", "right")),
        collective("z", 30.0, axis="z", classes=("right",)),
    )
    axes = {"x": ((0, 1),), "y": ((0, 1, 2, 3),), "z": ((2, 3),)}
    timeline = simulate(plan(*tasks, classes=TWO, axes=axes), SLOW)
    ends = {span.task.name: span.end_s for span in timeline.spans}
    # x and z flow alone from 2 s to 6 s (4 bytes), then share with y: half each until y's 30 s of work are through.
    # 26 bytes of x at half speed end at 58; y has 26 of its 30 done by then and runs alone: 62.
    assert ends == {"x": pytest.approx(58.0), "z": pytest.approx(58.0), "y": pytest.approx(62.0)}


def test_what_three_collectives_leave_on_a_link_a_fourth_takes() -> None:
    """a, b, c all cross rank 0's link: a third each. d is on ranks 1 and 2, where a and b leave it two thirds."""
    pairs = {"a": (0, 1), "b": (0, 2), "c": (0, 3), "d": (1, 2)}
    each = {f"r{rank}": (rank,) for rank in range(4)}
    tasks = [
        collective(name, 24.0 if name == "d" else 12.0, axis=name, classes=tuple(f"r{rank}" for rank in pair))
        for name, pair in pairs.items()
    ]
    timeline = simulate(plan(*tasks, classes=each, axes={name: (pair,) for name, pair in pairs.items()}), SLOW)
    assert {span.task.name: span.end_s for span in timeline.spans} == dict.fromkeys("abcd", pytest.approx(2 + 36.0))


def test_groups_of_one_axis_that_cross_one_uplink_share_it() -> None:
    """0-2 and 1-3 both cross the uplink: twice the time of one group, in both fidelities."""
    network = graph([
        ("gpu0", "leaf0", 1.0, 0.5), ("gpu1", "leaf0", 1.0, 0.5), ("leaf0", "leaf1", 1.0, 0.0),
        ("gpu2", "leaf1", 1.0, 0.5), ("gpu3", "leaf1", 1.0, 0.5),
    ])  # fmt: skip
    crossing = plan(collective("x", 8.0), axes={"dp": ((0, 2), (1, 3))})
    inside = plan(collective("x", 8.0), axes={"dp": ((0, 1), (2, 3))})
    for fidelity in FIDELITIES:
        assert simulate(crossing, network, fidelity=fidelity).end_s == pytest.approx(2 + 16)
        assert simulate(inside, network, fidelity=fidelity).end_s == pytest.approx(2 + 8)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_collective_of_one_group_is_no_business_of_the_others(fidelity: str) -> None:
    """Ranks 2 and 3 are another group of the axis and never call: nobody waits for them."""
    crossing = plan(collective("x", 8.0, classes=("left",)), classes=TWO, axes={"dp": ((0, 1), (2, 3))})
    assert simulate(crossing, SLOW, fidelity=fidelity).end_s == pytest.approx(2 + 8.0)


def test_a_collective_starts_when_its_last_rank_class_arrives() -> None:
    """'ready' ends at 1 s on the left and at 7 s on the right: the left waits in the collective."""
    tasks = (
        compute("quick", 1.0, "left"),
        compute("slow", 7.0, "right"),
        compute("ready", 0.0, "left", "right"),
        collective("x", 8.0, classes=("left", "right"), after=("ready",)),
    )
    for fidelity in FIDELITIES:
        timeline = simulate(plan(*tasks, classes=TWO), SLOW, fidelity=fidelity)
        joined = {span.ranks: (span.start_s, span.end_s) for span in timeline.spans if span.task.name == "x"}
        left, right = ("left", "right") if fidelity == "coflow" else ("rank 0", "rank 2")
        assert joined[left] == pytest.approx((1.0, 7 + ring_s(8.0)), rel=1e-12)
        assert joined[right] == pytest.approx((7.0, 7 + ring_s(8.0)), rel=1e-12)


# ---------------------------------------------------------------------------------------------- slowed compute


def test_compute_slows_while_a_collective_is_active_and_only_then() -> None:
    """20 s of work, 25 % lost during the 12 s of the collective: 9 done in them, 11 after."""
    assert ring_s(4.0) == 12.0
    for fidelity in FIDELITIES:
        of = plan(compute("a", 20.0), collective("x", 4.0))
        timeline = simulate(of, SLOW, interference=taking(0.25), fidelity=fidelity)
        assert timeline.end_s == pytest.approx(12 + 11)


def test_a_collective_that_starts_in_the_middle_slows_the_rest() -> None:
    """a: 2 s alone; b starts with x: 12 s at 3/4 do 9 of its 10, the last at full speed."""
    tasks = (compute("a", 2.0), collective("x", 4.0, after=("a",)), compute("b", 10.0))
    ran = spans(simulate(plan(*tasks), SLOW, interference=taking(0.25)))
    assert ran["b"] == pytest.approx((2.0, 2 + 12 + 1))


def test_two_collectives_at_once_each_take_their_share_of_what_is_left() -> None:
    """Both occupy cores of their own (an NCCL channel is an SM): compute keeps (1 - 0.25)^2 of its speed."""
    tasks = (compute("a", 20.0), collective("x", 4.0, axis="x"), collective("y", 4.0, axis="y"))
    timeline = simulate(plan(*tasks, classes=PAIR, axes=PAIRS), SLOW, interference=taking(0.25))
    active = 2 + 2 * 4
    assert timeline.end_s == pytest.approx(active + 20 - 0.75**2 * active)


def test_compute_of_ranks_outside_the_collective_keeps_its_speed() -> None:
    tasks = (compute("a", 20.0, "left"), compute("b", 20.0, "right"), collective("x", 4.0, axis="x", classes=("left",)))
    timeline = simulate(plan(*tasks, classes=TWO, axes={"x": ((0, 1),)}), SLOW, interference=taking(0.5))
    ends = {span.task.name: span.end_s for span in timeline.spans}
    assert ends == {"x": 6.0, "b": 20.0, "a": pytest.approx(6 + 17)}


# ------------------------------------------------------------------------------------------ the two fidelities


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Computes on one or both classes and collectives of both on one communicator, with waits on anything before."""
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 7))):
        names = [task.name for task in tasks]
        after = tuple(draw(st.lists(st.sampled_from(names), max_size=2, unique=True))) if names else ()
        if draw(st.booleans()):
            seconds = draw(st.sampled_from([0.0, 0.5, 3.0, 10.0]))
            classes = draw(st.sampled_from([("left",), ("right",), ("left", "right")]))
            tasks.append(compute(f"t{number}", seconds, *classes, after=after))
        else:
            size = draw(st.sampled_from([0.0, 4.0, 40.0]))
            tasks.append(collective(f"t{number}", size, classes=("left", "right"), after=after))
    return plan(*tasks, classes=TWO)


def ends_by_rank(timeline: Timeline, of: Plan) -> dict[tuple[str, int], float]:
    """(task, rank) -> end, whatever classes the engine ran."""
    ranks = {c.name: c.ranks for c in timeline.plan.classes}
    ends: dict[tuple[str, int], float] = {}
    for span in timeline.spans:
        for rank in ranks[span.ranks]:
            ends[span.task.name, rank] = span.end_s
    assert set(ends) == {(task.name, rank) for task in of.tasks for name in task.classes for rank in TWO[name]}
    return ends


@given(plans(), st.sampled_from([0.0, 0.25]))
@settings(max_examples=examples(100))
def test_every_rank_alone_ends_every_task_when_its_class_does(of: Plan, core_share: float) -> None:
    """Folding equal ranks into classes and collectives into coflows changes nothing where links are not shared."""
    folded = ends_by_rank(simulate(of, SLOW, interference=taking(core_share)), of)
    every_rank = ends_by_rank(simulate(of, SLOW, interference=taking(core_share), fidelity="message"), of)
    for key, end_s in folded.items():
        assert every_rank[key] == pytest.approx(end_s, rel=1e-9), key


def test_a_class_can_wait_for_another_in_both_fidelities() -> None:
    """Ranks of the right class wait for all of the left, not only for themselves."""
    across = plan(compute("a", 3.0, "left"), compute("b", 1.0, "right", after=("a",)), classes=TWO)
    for fidelity in FIDELITIES:
        assert simulate(across, SLOW, fidelity=fidelity).end_s == 4.0


CLUSTERS: dict[str, Network] = {
    "uniform": uniform(8),
    "one node": played("dgx-h100", nodes=1),
    "two nodes": played("dgx-h100", nodes=2),
}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("core_share", [0.0, 0.2])
def test_coflows_take_what_messages_take(cluster: str, core_share: float) -> None:
    """Communication that hides, that does not, and that queues: the same within 1e-6."""
    network = CLUSTERS[cluster]
    everyone = {"all": tuple(range(network.num_gpus))}
    tasks = [compute("first", 3e-3)]
    for number, size in enumerate((1e6, 1e8, 25 * 2**20, 3.0)):
        tasks.append(collective(f"x{number}", size, after=("first",)))
        tasks.append(compute(f"c{number}", 1.7e-3))
    tasks.append(compute("last", 1e-3, after=("x3",)))
    of = plan(*tasks, classes=everyone)
    ends = [simulate(of, network, interference=taking(core_share), fidelity=fidelity).end_s for fidelity in FIDELITIES]
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)


def test_message_fidelity_is_for_small_clusters() -> None:
    many = plan(collective("x", 1.0), classes={"all": tuple(range(65))})
    with pytest.raises(UnsupportedError, match=r"at most 64; this plan has 65; use 'auto' or 'coflow'"):
        simulate(many, uniform(65), fidelity="message")
    assert simulate(many, uniform(65)).end_s == pytest.approx(128 * (ALPHA_S + 1 / (65 * BETA_BYTES_PER_S)))


def test_the_same_plan_gives_the_same_spans() -> None:
    def one_run() -> tuple[Span, ...]:
        tasks = [compute("a", 2.0), *(collective(f"x{i}", float(i)) for i in range(5)), compute("b", 9.0)]
        return simulate(plan(*tasks), SLOW, interference=taking(0.1)).spans

    assert one_run() == one_run()


# ---------------------------------------------------------------------------------------- what a plan may not say


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ((compute("a", 1.0), compute("a", 1.0)), "task 'a' is listed twice"),
        ((compute("a", 1.0, after=("b",)), compute("b", 1.0)), "'a' waits for 'b', not listed before it"),
        ((compute("a", 1.0, after=("a",)),), "'a' waits for 'a', not listed before it"),
        ((collective("x", 1.0, axis="tp"),), "'x' runs on the unknown axis 'tp'"),
        ((compute("a", 1.0, "nobody"),), "'a' runs on the unknown class 'nobody'"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_when_made(tasks: tuple[Task, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(*tasks)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_collective_that_not_every_rank_calls_is_a_deadlock_that_names_who_waits(fidelity: str) -> None:
    """REQUIREMENTS 31: ranks 2 and 3 never call, and what stands behind the collective waits too."""
    x = collective("x", 8.0, classes=("left",))
    tasks = (x, compute("b", 1.0, "left", after=("x",)), compute("c", 1.0, "right"))
    with pytest.raises(DeadlockError) as stopped:
        simulate(plan(*tasks, classes=TWO), SLOW, fidelity=fidelity)
    for rank_class in ("left",) if fidelity == "coflow" else ("rank 0", "rank 1"):
        assert f"x on {rank_class}" in str(stopped.value)
    assert "'x' is never called by rank 2, rank 3" in str(stopped.value)


@given(
    num_ranks=st.integers(2, 9), size=st.floats(1.0, 1e12), op=st.sampled_from(["all_reduce", "all_gather"]),
    rate=st.floats(1e6, 1e12),
)  # fmt: skip
def test_without_latency_a_collective_is_all_bytes(num_ranks: int, size: float, op: str, rate: float) -> None:
    """What is left of its time once its bytes are counted is nothing, and rounding makes no negative wait of it."""
    coflow = CoflowMaker(uniform(num_ranks, 0.0, rate)).coflow(op, "ring", size, (tuple(range(num_ranks)),))
    assert 0.0 <= coflow.latency_s <= 1e-12 * coflow.work_s
    whole = replace(collective("x", size), op=op)
    classes = {"all": tuple(range(num_ranks))}
    end_s = simulate(plan(whole, classes=classes), uniform(num_ranks, 0.0, rate)).end_s
    assert end_s == pytest.approx(coflow.work_s, rel=1e-9)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_bytes_on_links_add_up_over_collectives(fidelity: str) -> None:
    """A ring all-reduce of n bytes over four ranks puts 2 x 3/4 n on each rank's links."""
    carried = simulate(plan(collective("x", 8.0), collective("y", 16.0)), SLOW, fidelity=fidelity).link_bytes
    np.testing.assert_allclose(carried, 1.5 * (8.0 + 16.0))


@pytest.mark.parametrize("slow", ["left", "right"])
def test_the_cost_of_a_collective_is_that_of_its_slowest_groups(slow: str) -> None:
    """Groups of unlike classes run it apart; whichever of them comes first, the slowest one is told."""
    rates = [0.25 if name == slow else 1.0 for name, ranks in TWO.items() for _ in ranks]
    network = graph([(f"gpu{i}", "switch", rate, 0.5) for i, rate in enumerate(rates)])
    x = collective("x", 8.0, classes=("left", "right"))
    timeline = simulate(plan(x, classes=TWO, axes={"dp": ((0, 1), (2, 3))}), network)
    ends = {span.ranks: span.end_s for span in timeline.spans}
    assert ends[slow] == max(ends.values()) > min(ends.values())
    assert timeline.costs["x"].alone_s == pytest.approx(ends[slow], rel=1e-9)


def test_the_lane_of_a_communicator_is_named_after_its_axis() -> None:
    assert collective("x", 1.0, axis="dp").lane == comm_lane("dp") == "comm dp"
