"""Plans whose ranks have roles: sends between them, repeated collectives, shared links, and what makes that cheap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import graph, shipped, uniform, wired
from stage_plans import axes, boundary, pipeline_plan, send, stages

from simulator.collectives import algorithms_of, bounds, make_schedule
from simulator.collectives.busbw import bus_factor
from simulator.collectives.check import check, check_data
from simulator.collectives.layout import Layout
from simulator.engine.coflow import Coflow, make_coflow
from simulator.engine.collective import simulate_collective
from simulator.engine.maker import CoflowMaker
from simulator.engine.run import simulate
from simulator.engine.sharing import Sharing, filled
from simulator.mesh import make_mesh
from simulator.pipelines import pipeline_schedule
from simulator.pipelines.playing import StageTimes, play
from simulator.plan import Buffer, Communicate, Compute, Plan, PlanError, RankClass, Task, unfolded, with_classes
from simulator.rank_classes import ALL_RANKS, classes_of_roles, fold_ranks
from simulator.timeline import CollectiveCost, Timeline

FIDELITIES = ("coflow", "message")
#: 1 s of latency a message, 1 byte a second.
SLOW = uniform(4, 1.0, 1.0)
#: Bytes and messages that take no time to speak of.
FREE = uniform(8, 1e-18, 1e30)


def compute(name: str, seconds: float, role: str, *after: str) -> Compute:
    return Compute(name=name, kind="forward", classes=(role,), seconds=seconds, after=after)


def when(timeline: Timeline) -> dict[tuple[str, str], tuple[float, float]]:
    return {(span.task.name, span.ranks): (span.start_s, span.end_s) for span in timeline.spans}


def plan(*tasks: Task, count: int = 2, width: int = 1) -> Plan:
    return Plan(title="a test", classes=stages(count, width), axes=axes(count, width), tasks=tasks)


# ------------------------------------------------------------------------------------------------------------ one send


def test_a_send_gives_the_buffer_to_the_second_rank_in_alpha_plus_n_over_beta() -> None:
    schedule = make_schedule("send", "direct", Layout(num_ranks=2), 8e6)
    check(schedule)
    check_data(schedule, np.random.default_rng(1).normal(size=(2, 1, 3)))
    assert (schedule.sent_bytes().tolist(), schedule.received_bytes().tolist()) == ([8e6, 0.0], [0.0, 8e6])
    with pytest.raises(AssertionError, match="chunk 0 on rank 1 holds rank 0's data 0 times instead of 1"):
        check(replace(schedule, phases=()))
    rates = np.full(2, 1e9)
    assert bounds.bandwidth_s(schedule, rates, rates) == pytest.approx(8e-3)
    assert bus_factor("send", 2) == 1.0
    for fidelity in ("vector", "message"):
        outcome = simulate_collective(schedule, wired(uniform(2, 5e-6, 1e9)), fidelity=fidelity)
        assert outcome.time_s == pytest.approx(5e-6 + 8e6 / 1e9, rel=1e-12)


def test_sends_are_for_plans_alone() -> None:
    """A group of any size cannot send one way, so the operations that users name do not have it."""
    assert algorithms_of("send") == ("direct",)
    with pytest.raises(AssertionError, match="one sender and one receiver"):
        make_schedule("send", "direct", Layout(num_ranks=3), 1.0)


def test_the_price_of_a_send_is_that_of_one_way_of_send_recv() -> None:
    """Between two ranks both ways of NCCL's sendrecv run at once (nccl-tests, doc/PERFORMANCE.md), on links of their
    own; a send loads one of them."""
    for group in ((0, 1), (0, 8)):
        maker = CoflowMaker(shipped("dgx-h100", nodes=2))
        one, both = (maker.coflow(op, "auto", 32e6, (group,)) for op in ("send", "send_recv"))
        assert (one.latency_s, one.work_s) == pytest.approx((both.latency_s, both.work_s))
        assert one.link_bytes.sum() == pytest.approx(both.link_bytes.sum() / 2)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_receiver_that_waits_for_its_sender_spends_the_transfer_alone(fidelity: str) -> None:
    """3 s of compute, then 1 s of latency and 4 bytes at 1 byte/s."""
    found = simulate(
        plan(compute("a", 3.0, "stage 0"), send("x", 0, 1, 4.0, "a"), compute("b", 2.0, "stage 1", "x")),
        SLOW,
        fidelity=fidelity,
    )
    times = {(name, ranks.removeprefix("rank ")[-1]): span for (name, ranks), span in when(found).items()}
    assert times["x", "0"] == times["x", "1"] == pytest.approx((3.0, 8.0))
    assert times["b", "1"] == pytest.approx((8.0, 10.0))


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_receiver_waits_for_the_sender_in_its_own_group_only(fidelity: str) -> None:
    """Two pipelines side by side: the slow first stage of one does not keep the other's second stage waiting."""
    slow, quick = (RankClass(name=f"first {r}", role="first", ranks=(r,), speed=1.0 - 0.5 * r) for r in (1, 0))
    classes = (quick, slow, *(RankClass(name=f"second {r}", role="second", ranks=(r,)) for r in (2, 3)))
    tasks = (
        Compute(name="a", kind="forward", classes=("first 0", "first 1"), seconds=2.0),
        replace(send("x", 0, 1, 4.0, "a"), classes=tuple(c.name for c in classes)),
    )
    made = Plan(title="x", classes=classes, axes={"pp 0>1": boundary(0, 1, 2)}, tasks=tasks)
    ends = {
        ranks[-1]: span for (name, ranks), span in when(simulate(made, SLOW, fidelity=fidelity)).items() if name == "x"
    }
    assert ends["2"] == pytest.approx((2.0, 7.0))
    assert ends["3"] == pytest.approx((4.0, 9.0))


def test_what_goes_the_other_way_takes_other_links() -> None:
    """Activations one way and gradients the other, at once, each as fast as alone."""
    found = when(simulate(plan(send("x", 0, 1, 4.0), send("y", 1, 0, 4.0)), SLOW))
    assert set(found.values()) == {(0.0, 5.0)}


# ------------------------------------------------------------------------------------------- pipelines without messages


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zbv"])
@settings(max_examples=8)
@given(data=st.data())
def test_without_communication_a_step_is_the_schedule_played_alone(name: str, data: st.DataObject) -> None:
    p, rounds = data.draw(st.sampled_from([2, 3, 4])), data.draw(st.integers(1, 3))
    schedule = pipeline_schedule(name, p, p * rounds)
    seconds = st.floats(0.1, 3.0)
    times = [StageTimes(*data.draw(st.tuples(seconds, seconds, seconds))) for _ in range(schedule.stages_per_chain)]
    found = {n: span for (n, _), span in when(simulate(pipeline_plan(schedule, times), FREE)).items()}
    for span in (span for row in play(schedule, times).spans for span in row):
        assert found[str(span.step)] == pytest.approx((span.start, span.end), abs=1e-9)


@pytest.mark.parametrize(("name", "p"), [("1f1b", 2), ("gpipe", 3), ("interleaved-1f1b", 2)])
def test_the_oracle_agrees_with_coflows_on_pipelines_with_messages(name: str, p: int) -> None:
    """Two ranks a stage, sends between stages and three all-reduces in a row inside, message by message."""
    network = graph([(f"gpu{i}", "switch", 1e9, 1e-6) for i in range(2 * p)])
    schedule = pipeline_schedule(name, p, 2 * p)
    times = [StageTimes(1e-3, 1.5e-3, 0.5e-3)] * schedule.stages_per_chain
    made = pipeline_plan(schedule, times, size_bytes=2e5, width=2, tp=1e5)
    coflow, oracle = (simulate(made, network, fidelity=fidelity) for fidelity in FIDELITIES)
    assert coflow.end_s == pytest.approx(oracle.end_s, rel=1e-9)
    np.testing.assert_allclose(coflow.link_bytes, oracle.link_bytes)
    assert coflow.end_s > 1.02 * play(schedule, times).makespan


def test_the_same_plan_gives_the_same_timeline_to_the_bit() -> None:
    schedule = pipeline_schedule("1f1b", 4, 8)
    made = pipeline_plan(schedule, [StageTimes(1e-3, 1e-3, 1e-3)] * 4, size_bytes=1e6, width=2, tp=1e6)
    one, two = (simulate(made, shipped("dgx-h100", nodes=1)) for _ in range(2))
    assert when(one) == when(two)
    assert one.link_bytes.tobytes() == two.link_bytes.tobytes()


# ------------------------------------------------------------------------------------------------- equal ones in a row


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_n_equal_collectives_in_a_row_are_one_task_that_takes_n_times_as_long(fidelity: str) -> None:
    one = Communicate(
        name="x", op="all_reduce", axis="dp", algorithm="ring", message_bytes=8.0, classes=("all",), repeat=5
    )
    several = [replace(one, name=f"x{n}", repeat=1) for n in range(5)]
    made = Plan(
        title="x", classes=(RankClass(name="all", ranks=(0, 1, 2, 3)),), axes={"dp": ((0, 1, 2, 3),)}, tasks=(one,)
    )
    together, apart = (simulate(p, SLOW, fidelity=fidelity) for p in (made, replace(made, tasks=tuple(several))))
    assert together.end_s == pytest.approx(apart.end_s, rel=1e-12)
    np.testing.assert_allclose(together.link_bytes, apart.link_bytes)
    whole, each = together.costs["x"], apart.costs["x0"]
    assert (whole.num_messages, whole.num_steps) == (5 * each.num_messages, 5 * each.num_steps)
    for what in ("sent_bytes_per_rank", "alone_s", "latency_s"):
        assert getattr(whole, what) == pytest.approx(5 * getattr(each, what))
    assert whole.busiest_s == pytest.approx({tier: 5 * seconds for tier, seconds in each.busiest_s.items()})


# --------------------------------------------------------------------------------------------------------- shared links

COST = CollectiveCost(
    algorithm="x", group_size=2, num_steps=1, num_messages=1, sent_bytes_per_rank=1.0, alone_s=1.0, latency_s=0.0,
    fidelity="x", handed_over="",
)  # fmt: skip


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[list[Coflow]], np.ndarray]:
    """Lanes of coflows over a few links, each of which asks at most all of a link."""
    capacity = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=6, max_size=6)))
    shares = st.lists(st.sampled_from([0.0, 0.0, 0.25, 0.5, 0.9, 1.0]), min_size=6, max_size=6)
    lanes = draw(st.lists(st.lists(shares, min_size=1, max_size=2), min_size=1, max_size=6))
    return [
        [make_coflow(COST, latency_s=0.0, work_s=1.0, link_bytes=np.array(one) * capacity) for one in lane]
        for lane in lanes
    ], capacity


@settings(max_examples=60)
@given(traffic(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=16))
def test_sharing_by_joined_sets_is_sharing_all_links_among_all(
    found: tuple[list[list[Coflow]], np.ndarray], moves: list[tuple[int, int]]
) -> None:
    """Starts and ends in any order: at every moment the speeds are those of progressive filling over everything."""
    lanes, capacity = found
    sharing: Sharing[int] = Sharing(lanes, capacity)
    running: dict[int, Coflow] = {}
    slowed: set[int] = set()
    speed: dict[int, float] = {}
    for lane, which in moves:
        if lane >= len(lanes):
            continue
        if lane in running:
            del running[lane], speed[lane]
            if lane in slowed:
                slowed.remove(lane)
                sharing.end(lane)
        else:
            running[lane] = lanes[lane][which % len(lanes[lane])]
            speed[lane] = 1.0
            if sharing.start(lane, running[lane]):
                slowed.add(lane)
        speed |= dict(sharing.changed())
        asked = np.array([one.asked_bytes_per_s for one in running.values()]).reshape(-1, len(capacity))
        assert [speed[lane] for lane in running] == pytest.approx(filled(asked, capacity), rel=1e-9)


def test_only_what_is_joined_to_a_change_is_set_anew() -> None:
    """Two pairs that share a link each: what happens in one does not touch the other."""

    def over(*links: int) -> Coflow:
        return make_coflow(COST, latency_s=0.0, work_s=1.0, link_bytes=np.isin(np.arange(4), links).astype(float))

    a, b, c, d, alone = over(0), over(0), over(1), over(1), over(3)
    sharing: Sharing[str] = Sharing([[a], [b], [c], [d], [alone]], np.ones(4))
    assert not sharing.start("alone", alone)
    for name, one in (("a", a), ("b", b), ("c", c)):
        sharing.start(name, one)
    assert dict(sharing.changed()) == {"a": 0.5, "b": 0.5, "c": 1.0}
    sharing.start("d", d)
    assert dict(sharing.changed()) == {"c": 0.5, "d": 0.5}
    sharing.end("a")
    assert dict(sharing.changed()) == {"b": 1.0}
    assert not sharing.changed()


# ---------------------------------------------------------------------------------------------------------------- roles


def test_ranks_of_unlike_roles_are_never_equal_and_classes_are_named_after_them() -> None:
    """A slow rank of stage 1 of 4 splits it by who is in its groups: itself, its pair, its replicas, and theirs."""
    mesh = make_mesh(32, tp=2, pp=4)
    roles = [f"stage {place}" for place in mesh.along("pp")]
    groups = {"tp": mesh.groups("tp"), "dp": mesh.groups("dp")}
    even = fold_ranks([(1.0, 1.0)] * 32, groups, roles)
    assert [(c.name, c.role, c.ranks) for c in even] == [
        (f"stage {s}", f"stage {s}", tuple(range(8 * s, 8 * s + 8))) for s in range(4)
    ]
    assert [c.name for c in fold_ranks([(1.0, 1.0)] * 32, groups)] == [ALL_RANKS]
    split = fold_ranks([(0.5 if rank == 9 else 1.0, 1.0) for rank in range(32)], groups, roles)
    names = ("stage 1, rank 8", "stage 1, rank 9", "stage 1, 3 ranks like 10", "stage 1, 3 ranks like 11")
    assert classes_of_roles(split)["stage 1"] == names
    assert [c.name for c in split] == ["stage 0", *names, "stage 2", "stage 3"]
    assert sorted(rank for c in split for rank in c.ranks) == list(range(32))


@settings(max_examples=20)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([2, 4]))
def test_roles_of_a_mesh_need_no_refinement(tp: int, dp: int, pp: int) -> None:
    """Left to colour refinement the classes are the same: ranks of a stage differ in their place only."""
    mesh = make_mesh(tp * dp * pp, tp=tp, pp=pp)
    groups = {axis: mesh.groups(axis) for axis in ("tp", "dp", "pp")}
    roles = [f"stage {place}" for place in mesh.along("pp")]
    shortcut = fold_ranks([(1.0, 1.0)] * mesh.num_ranks, groups, roles)
    refined = fold_ranks([(1.0 + place, 1.0) for place in mesh.along("pp")], groups)
    assert [c.ranks for c in shortcut] == [c.ranks for c in refined]


def test_tasks_of_a_role_run_on_all_of_its_classes() -> None:
    tasks = (compute("a", 1.0, "x"), compute("b", 1.0, "y"), compute("c", 1.0, ALL_RANKS))
    found = with_classes(
        tasks, {"x": ("x",), "y": ("y, rank 1", "y, rank 2"), ALL_RANKS: ("x", "y, rank 1", "y, rank 2")}
    )
    assert [task.classes for task in found] == [
        ("x",), ("y, rank 1", "y, rank 2"), ("x", "y, rank 1", "y, rank 2"),
    ]  # fmt: skip
    assert found[0] is tasks[0]


def test_memory_of_a_class_comes_beside_what_all_hold() -> None:
    common, own = Buffer(name="c", kind="workspace", size_bytes=1.0), Buffer(name="w", kind="params", size_bytes=2.0)
    held = {"stage 0": (own,), "stage 1": (replace(own, size_bytes=3.0),)}
    made = replace(plan(compute("a", 1.0, "stage 0")), resident=(common,), resident_of=held)
    assert [sum(b.size_bytes for b in made.resident_by(f"stage {s}")) for s in range(2)] == [3.0, 4.0]
    assert unfolded(made).resident_by("rank 1") == made.resident_by("stage 1")
    with pytest.raises(PlanError, match="memory is resident on the unknown class 'stage 7'"):
        replace(made, resident_of={"stage 7": (own,)})
    gone = replace(compute("b", 1.0, "stage 1"), frees=("w",))
    with pytest.raises(PlanError, match="'b' frees what nobody holds: w"):
        replace(made, resident_of={"stage 0": (own,)}, tasks=(*made.tasks, gone))
