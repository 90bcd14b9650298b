"""DeepSpeed's ZeRO against traces of DeepSpeed 0.19.6 itself, and what follows from its rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from deepspeed_traces import TRACES, planned, step, traced
from networks import uniform
from stepping import collectives_of, inputs_of, memory_in, plan_of, played

from simulator.plan import Buffer, Compute
from simulator.report.memory import class_memory
from simulator.strategies.deepspeed_buckets import partition
from simulator.strategies.step import StepInputs
from simulator.training.operations import Operation, ParameterTensor, TrainingModel


def _told(row: dict[str, Any]) -> str:
    return f"stage {row['zero']['stage']}, {row['world']} ranks, {row['micro_batches']} micro-batches"


def the_linears(*, layers: int = 6, size: int = 1000, kept: float = 0.0) -> TrainingModel:
    """Layers of one tensor each."""
    names = [f"layers.{number}" for number in range(layers)]
    operations = tuple(
        Operation(
            name=name, layer=name, kind="gemm", saved_bytes=kept,
            parameters=(ParameterTensor(name=f"{name}.weight", numel=size),),
        )
        for name in names
    )  # fmt: skip
    return TrainingModel(
        name="linears", operations=operations, parameters=tuple(op.parameters[0] for op in operations),
        num_parameters=layers * size, num_layers=layers,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- against DeepSpeed itself


@pytest.mark.parametrize("streams", [True, False], ids=["gpu", "cpu"])
@pytest.mark.parametrize("row", TRACES, ids=_told)
def test_a_step_sends_what_deepspeed_sends_call_by_call(row: dict[str, Any], streams: bool) -> None:
    """Operations, bytes and order, and which of them are in which pass. Streams move work, not calls."""
    assert planned(row, streams=streams) == traced(row)


def test_the_traces_cover_all_stages_and_both_ways_to_reduce() -> None:
    assert {row["zero"]["stage"] for row in TRACES} == {1, 2, 3}
    assert {row["zero"].get("use_multi_rank_bucket_allreduce") for row in TRACES} == {None, True, False}
    assert {row["world"] for row in TRACES} == {2, 3, 4}
    assert {row["micro_batches"] for row in TRACES} >= {1, 2, 3}


@pytest.mark.parametrize("row", TRACES[::6], ids=_told)
def test_all_ranks_message_by_message_take_as_long_as_the_one_they_fold_into(row: dict[str, Any]) -> None:
    """Large messages, as a byte is not cut further; where all ranks send alike (a reduce to one rank is not)."""
    large = {**row, **{key: 120 * row[key] for key in ("hidden", "out")}, "mlps": [120 * mlp for mlp in row["mlps"]]}
    if not row["zero"].get("use_multi_rank_bucket_allreduce", True):
        large["zero"] = {**row["zero"], "use_multi_rank_bucket_allreduce": True}
    inputs = replace(step(large), copy_bytes_per_s=float("inf"))
    folded, messages = played(inputs), played(inputs, fidelity="message")
    assert folded.end_s == pytest.approx(messages.end_s, rel=1e-6)


# --------------------------------------------------------------------------------------------------- stages 1 and 2


def test_stage_1_reduces_after_the_last_backward_and_stage_2_in_each_while_it_runs() -> None:
    for strategy, micro_batches in (("zero1", {1}), ("zero2", {0, 1})):
        inputs = inputs_of(
            the_linears(), 4, {"strategy": strategy, "reduce_bucket_size": 1000}, micro_batches=2
        )  # fmt: skip
        names = [task.name for task in plan_of(inputs).tasks]
        reduces = [name for name in names if name.startswith("all-reduce bucket")]
        assert {int(name[-1]) for name in reduces} == micro_batches
        ended = names.index(f"backward {max(micro_batches)}: layers.0")
        before = [name for name in reduces if name.endswith("1") and names.index(name) < ended]
        assert bool(before) == (strategy == "zero2")


def test_a_bucket_of_several_owners_is_all_reduced_or_reduced_to_each_owner() -> None:
    """``dist.reduce(.., dst=owner)``: by default every owner gets the whole bucket, 2 Psi; else its slice, Psi."""
    model = the_linears()
    ways = {}
    for together in (True, False):
        parallel = {"strategy": "zero2", "use_multi_rank_bucket_allreduce": together}
        ways[together] = [t for t in collectives_of(plan_of(inputs_of(model, 4, parallel))) if t.message_bytes > 8]
    elements = partition(model, 4).padded
    assert [(t.op, t.message_bytes) for t in ways[True]] == [("all_reduce", 12e3), ("all_gather", 2 * elements)]
    # In the order of the bucket, from the last tensor to the first.
    assert [(t.op, t.root, t.message_bytes) for t in ways[False]][:-1] == [
        ("reduce", owner, 3000.0) for owner in (3, 2, 1, 0)
    ]  # fmt: skip


def test_with_overlap_a_second_bucket_fills_while_the_first_is_reduced() -> None:
    """A bucket a layer. The compute stream waits for the bucket before the one it hands over, not for that."""
    settings = {"strategy": "zero2", "reduce_bucket_size": 1000}
    found = {}
    for overlap in (False, True):
        inputs = inputs_of(the_linears(), 4, {**settings, "overlap_comm": overlap}, precision="fp32")
        found[overlap] = played(inputs, uniform(4, 0.0, 4e3))  # an all-reduce of 4 kB: 1.5 s beside 2 s of backward
        buckets = [b for task in plan_of(inputs).tasks for b in task.allocates if b.name.startswith("bucket")]
        assert [b.size_bytes for b in buckets] == [4000.0] * (2 if overlap else 1)
    all_reduce_s, small_s = 1.5, 2e-3
    assert found[False].end_s - found[True].end_s == pytest.approx(5 * all_reduce_s, abs=2 * small_s)


def test_compute_that_fills_a_third_bucket_waits_for_the_first() -> None:
    """An all-reduce of 12 s under backwards of 2 s: when a bucket is handed over, the one before has to be over."""
    settings = {"strategy": "zero2", "reduce_bucket_size": 1000, "overlap_comm": True}
    timeline = played(inputs_of(the_linears(), 4, settings, precision="fp32"), uniform(4, 0.0, 500.0))
    seen = {span.task.name: (span.start_s, span.end_s) for span in timeline.spans}
    tasks = timeline.plan.tasks
    for bucket in range(1, 5):
        handed_over = next(n for n, task in enumerate(tasks) if task.name == f"average bucket {bucket} @0")
        then = next(task for task in tasks[handed_over:] if task.lane == "compute")
        assert seen[then.name][0] >= seen[f"keep own part of bucket {bucket - 1} @0"][1]
        assert seen[then.name][0] < seen[f"keep own part of bucket {bucket} @0"][1]


def test_the_optimizer_holds_a_rank_s_part_in_fp32_and_weights_come_back_in_16_bits() -> None:
    """2 Psi + 12 Psi / W at rest; master gradients of 4 Psi / W while the optimizer runs."""
    inputs = inputs_of(the_linears(layers=8), 4, {"strategy": "zero1", "reduce_bucket_size": 1000})
    plan = plan_of(inputs)
    assert {b.name: b.size_bytes for b in plan.resident} == {"weights": 2 * 8000.0, "optimizer states": 12 * 2000.0}
    master = next(b for task in plan.tasks for b in task.allocates if b.name == "master gradients")
    assert master.size_bytes == 4 * 2000.0
    assert collectives_of(plan)[-1].message_bytes == 2 * 8000.0


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_a_step_gives_back_all_that_it_took(strategy: str) -> None:
    for changed in ({}, {"overlap_comm": True}, {"overlap_comm": False}):
        settings = {"strategy": strategy, "reduce_bucket_size": 1500, **changed}
        inputs = inputs_of(the_linears(kept=100.0), 4, settings, micro_batches=3)
        memory = class_memory(played(inputs), plan_of(inputs).classes[0])
        assert memory.curve_bytes[-1].tolist() == pytest.approx(memory.curve_bytes[0].tolist())


# ---------------------------------------------------------------------------------------------------------- stage 3


def zero3(model: TrainingModel, **changed: Any) -> StepInputs:
    """Nothing is small; no limit unless told."""
    settings = {"strategy": "zero3", "param_persistence_threshold": 0, **changed}
    return inputs_of(model, 4, settings, precision="bf16-master")


def test_what_is_used_again_soon_is_not_gathered_again() -> None:
    """Layers of 1,000 elements. After the forward of layer 3 the trace goes on with layers 4, 5, 5 and 4, 4,000
    elements, and comes back: it is kept where ``max_reuse_distance`` is more.
    """
    for distance, again in ((4001, (2, 1, 0)), (4000, (3, 2, 1, 0)), (0, (5, 4, 3, 2, 1, 0))):
        plan = plan_of(zero3(the_linears(), max_reuse_distance=distance, prefetch_bucket_size=0))
        gathered = [task.purpose for task in collectives_of(plan) if task.op == "all_gather"]
        assert gathered == [f"weights layers.{number}" for number in (*range(6), *again)]


def test_small_tensors_stay_whole_and_are_gathered_after_the_step() -> None:
    inputs = inputs_of(the_linears(), 4, {"strategy": "zero3", "param_persistence_threshold": 1000})
    plan = plan_of(inputs)
    gathers = [task for task in collectives_of(plan) if task.op == "all_gather"]
    assert [task.after for task in gathers] == [("optimizer",)] * 6
    assert Buffer(name="persistent weights", kind="gathered", size_bytes=2 * 6000.0) in plan.resident


@pytest.mark.parametrize("live", [1, 2, 4])
def test_no_more_parameters_are_there_than_may_be(live: int) -> None:
    """The stream of gathers does not wait for compute: what bounds it is ``max_live_parameters``, here all day long."""
    memory = memory_in(zero3(
        the_linears(), prefetch_bucket_size=0, max_live_parameters=1000 * live, max_reuse_distance=0
    ))  # fmt: skip
    assert memory.of_kind("gathered").max() == live * 2000.0


def test_gathers_wait_for_room_when_few_parameters_may_be_live() -> None:
    """With room for one layer each gather waits until the layer before is freed: nothing overlaps."""
    model, network = the_linears(), uniform(4, 0.0, 1500.0)  # 3/4 of 2,000 bytes: 1 s
    free = played(zero3(model, prefetch_bucket_size=1000, max_reuse_distance=0), network)
    full = played(zero3(model, prefetch_bucket_size=1000, max_live_parameters=1000, max_reuse_distance=0), network)
    assert full.end_s > free.end_s + 5.0


def test_the_host_waits_for_the_answer_whether_gradients_overflowed() -> None:
    """``.item()`` on the sum over ranks: the optimizer is issued after it, so a slow launch is exposed once more."""
    inputs = inputs_of(the_linears(), 4, {"strategy": "zero2"}, precision="bf16-master")
    plan = plan_of(inputs)
    asked = [t for t in collectives_of(plan) if t.message_bytes in (1.0, 4.0)]
    assert [t.purpose for t in asked] == ["check overflow", "norm of gradients"]
    flatten = next(t for t in plan.tasks if t.name == "flatten gradients")
    assert isinstance(flatten, Compute)
    assert flatten.after[-1:] == (asked[-1].name,)
