"""What is told of a pipeline's step: bubble against exposed communication, stage by stage, and of whom."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from command_line import simulator
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import uniform
from stage_plans import axes, pipeline_plan, send, stages

from simulator.engine.run import simulate
from simulator.pipelines import pipeline_schedule
from simulator.pipelines.playing import StageTimes, play
from simulator.plan import Buffer, Compute, Plan, Task
from simulator.report.lanes import slowest, waiting_of
from simulator.report.memory import class_memory, memory_of
from simulator.report.rank_time import Breakdown, RankTime, rank_times
from simulator.timeline import Timeline

#: 1 s of latency a message, 1 byte a second; and bytes and messages that take no time to speak of.
SLOW, FREE = uniform(4, 1.0, 1.0), uniform(8, 1e-18, 1e30)


def compute(name: str, seconds: float, stage: int, *after: str, kind: str = "forward", host_s: float = 0.0) -> Compute:
    return Compute(
        name=name, kind=kind, classes=(f"stage {stage}",), seconds=seconds, after=after, part=name, host_s=host_s
    )


def plan(*tasks: Task) -> Plan:
    return Plan(title="a test", classes=stages(2), axes=axes(2), tasks=tasks)


def times(timeline: Timeline) -> tuple[RankTime, ...]:
    return rank_times(timeline, timeline.plan.classes)


def parts(found: Breakdown) -> tuple[float, ...]:
    return (found.compute, found.exposed_comm, found.bubble, found.optimizer, found.other)


#: Forward and backward of one micro-batch through two stages: 3 s, a send of 1 + 4 s, 2 s, 4 s, a send back, 6 s.
ONE_MICRO_BATCH = (
    compute("F0", 3.0, 0), send("x", 0, 1, 4.0, "F0"), compute("F1", 2.0, 1, "x"),
    compute("B1", 4.0, 1, kind="backward"), send("dx", 1, 0, 4.0, "B1"), compute("B0", 6.0, 0, "dx", kind="backward"),
    compute("O0", 1.0, 0, kind="optimizer"), compute("O1", 1.5, 1, "dx", kind="optimizer"),
)  # fmt: skip


@pytest.mark.parametrize("fidelity", ["coflow", "message"])
def test_two_stages_add_up_to_the_step_with_transfers_exposed_and_waiting_as_bubble(fidelity: str) -> None:
    """The step is 3 + 5 + 2 + 4 + 5 + 6 + 1 = 26 s. Stage 0 waits while stage 1 computes (6 s), stage 1 while stage 0
    does (3 s), and after its optimizer (26 - 20.5 = 5.5 s); both transfers are in the open on both.
    """
    timeline = simulate(plan(*ONE_MICRO_BATCH), SLOW, fidelity=fidelity)
    assert timeline.end_s == pytest.approx(26.0)
    first, second = times(timeline)
    assert parts(first.breakdown) == pytest.approx((9.0, 10.0, 6.0, 1.0, 0.0))
    assert parts(second.breakdown) == pytest.approx((6.0, 10.0, 3.0 + 5.5, 1.5, 0.0))


def test_a_receiver_that_is_there_early_waits_in_a_bubble_all_the_same() -> None:
    """Both compute before the send, the receiver thrice as fast: it has called it for 2 s before anything is sent."""
    first, second = stages(2)
    both = Compute(name="a", kind="forward", classes=("stage 0", "stage 1"), seconds=3.0)
    made = replace(plan(both, send("x", 0, 1, 4.0, "a")), classes=(first, replace(second, speed=3.0)))
    timeline = simulate(made, SLOW)
    assert [span.start_s for span in timeline.spans if span.task.name == "x"] == [1.0, 3.0]
    sender, receiver = times(timeline)
    assert parts(sender.breakdown) == pytest.approx((3.0, 5.0, 0.0, 0.0, 0.0))
    assert parts(receiver.breakdown) == pytest.approx((1.0, 5.0, 2.0, 0.0, 0.0))


def test_hidden_transfers_are_neither_exposed_nor_bubble() -> None:
    """Stage 1 has work of its own while 4 bytes come; 1 s of the transfer is in the open."""
    found = times(simulate(plan(send("x", 0, 1, 4.0), compute("a", 4.0, 1), compute("b", 1.0, 1, "x")), SLOW))
    assert parts(found[1].breakdown) == pytest.approx((5.0, 1.0, 0.0, 0.0, 0.0))
    assert found[0].breakdown.bubble == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zbv"])
@settings(max_examples=8)
@given(data=st.data())
def test_without_communication_the_bubble_is_the_idle_time_of_the_schedule(name: str, data: st.DataObject) -> None:
    """(p - 1) / (m + p - 1) for 1F1B with even stages (arXiv:2104.04473, section 2.2.1), and as played for all."""
    p, rounds = data.draw(st.sampled_from([2, 4])), data.draw(st.integers(1, 3))
    schedule = pipeline_schedule(name, p, p * rounds)
    seconds = st.floats(0.1, 3.0)
    given_times = [
        StageTimes(*data.draw(st.tuples(seconds, seconds, seconds))) for _ in range(schedule.stages_per_chain)
    ]
    timeline, played = simulate(pipeline_plan(schedule, given_times), FREE), play(schedule, given_times)
    for rank, found in enumerate(times(timeline)):
        assert found.breakdown.bubble == pytest.approx(played.idle(rank), abs=1e-9)
        assert sum(parts(found.breakdown)) == pytest.approx(timeline.end_s, rel=1e-9)


def test_the_bubble_of_even_stages_is_that_of_the_formula() -> None:
    p, m = 4, 12
    timeline = simulate(pipeline_plan(pipeline_schedule("1f1b", p, m), [StageTimes(1.0, 1.0, 1.0)] * p), FREE)
    for found in times(timeline):
        assert found.breakdown.bubble / timeline.end_s == pytest.approx((p - 1) / (m + p - 1))


def test_waiting_for_a_launch_is_no_bubble() -> None:
    """Stage 1 could start at once, but its host thread needs 2 s to issue the task."""
    found = times(simulate(plan(compute("a", 3.0, 0), compute("b", 1.0, 1, host_s=2.0)), SLOW))[1]
    assert (found.breakdown.bubble, found.idle.host_s) == pytest.approx((0.0, 2.0))
    assert found.breakdown.other == pytest.approx(2.0)


def test_what_waits_for_a_task_of_another_stage_is_in_a_bubble_unless_its_launch_comes_later_still() -> None:
    """Stage 1 waits 3 s for stage 0; where its host thread needs 5 s to issue the task, that is what it waits for."""
    for host_s, bubble_s, waits_s in ((0.0, 3.0, 0.0), (2.0, 3.0, 0.0), (5.0, 0.0, 5.0)):
        found = times(simulate(plan(compute("a", 3.0, 0), compute("b", 1.0, 1, "a", host_s=host_s)), SLOW))[1]
        assert (found.breakdown.bubble, found.idle.host_s) == pytest.approx((bubble_s, waits_s))


def test_the_report_tells_the_stage_that_computes_longest() -> None:
    """All others wait for it in every micro-batch; it need not end last."""
    uneven = [StageTimes(1.0, 1.0, 0.0), StageTimes(2.0, 2.0, 0.0), StageTimes(1.0, 1.0, 0.0)]
    timeline = simulate(pipeline_plan(pipeline_schedule("1f1b", 3, 6), uneven), FREE)
    assert slowest(waiting_of(timeline)).ranks.name == "stage 1"
    assert max(waiting_of(timeline), key=lambda one: one.end_s).ranks.name == "stage 0"


def test_memory_is_told_stage_by_stage() -> None:
    """Buffers of one name are of each stage's own size; the peak is that of the larger stage."""
    kept = Buffer(name="w", kind="params", size_bytes=10.0)
    made = replace(
        plan(*ONE_MICRO_BATCH),
        resident=(Buffer(name="context", kind="workspace", size_bytes=1.0),),
        resident_of={"stage 0": (kept,), "stage 1": (replace(kept, size_bytes=30.0),)},
    )
    timeline = simulate(made, SLOW)
    assert [class_memory(timeline, ranks).peak_bytes for ranks in made.classes] == [11.0, 31.0]
    assert memory_of(timeline).ranks == "stage 1"


# -------------------------------------------------------------------------------------------------------- the command

PIPELINE = ("run", "ddp-llama-1b-16xh100", "parallel.pp=4", "parallel.tp=2", "train.grad_accumulation=4")


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(simulator(*PIPELINE, "--json").out)
    return found


def test_each_stage_has_a_row_that_adds_up_to_the_step(answer: dict[str, Any]) -> None:
    assert [stage["count"] for stage in answer["stages"]] == [4] * 4
    assert [stage["layers"] for stage in answer["stages"]] == [4] * 4  # 16 blocks of Llama 3.2 1B
    for stage in answer["stages"]:
        assert sum(stage["breakdown_s"].values()) == pytest.approx(answer["step_time_s"])
        assert stage["breakdown_s"]["bubble"] > 0
    assert max(stage["peak_bytes"] for stage in answer["stages"]) == answer["memory"]["peak_bytes"]
    told = max(answer["stages"], key=lambda stage: stage["breakdown_s"]["compute"] + stage["breakdown_s"]["optimizer"])
    assert told["breakdown_s"] == answer["breakdown_s"]


def test_ranks_of_a_replica_count_its_samples_once(answer: dict[str, Any]) -> None:
    """16 ranks, tp 2 x pp 4: two replicas, each with 4 micro-batches; parameters are those of the whole model."""
    alone = json.loads(simulator("run", "ddp-llama-1b-16xh100", "--json").out)
    assert answer["tokens_per_step"] == alone["tokens_per_step"] // 16 * 2 * 4
    assert answer["num_parameters"] == alone["num_parameters"]
    assert answer["tflops_per_gpu"] / answer["tokens_per_s_per_gpu"] == pytest.approx(
        alone["tflops_per_gpu"] / alone["tokens_per_s_per_gpu"]
    )
    assert "stages" not in alone


def test_the_text_names_degrees_and_the_stage_of_the_peak() -> None:
    out = " ".join(simulator(*PIPELINE).out.split())
    assert "DDP, tp 2 x pp 4 x dp 2, on 16 GPUs" in out
    assert "pipeline bubble" in out
    assert "stage 3" in out
    assert any(f"micro-batch {micro} on pp " in out for micro in range(4))
