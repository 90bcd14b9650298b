"""Steps of pipelines: times of the schedules alone, what is sent, what is held, and what strategies do around it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import uniform

from simulator.answer import answer_step
from simulator.engine.run import simulate
from simulator.errors import ScenarioError, UnsupportedError
from simulator.load import load_scenario
from simulator.mesh import make_mesh
from simulator.parallel_spec import Parallel
from simulator.pipelines import PIPELINES, pipeline_schedule, refusal
from simulator.pipelines.claims import Shape
from simulator.pipelines.holding import peak_held
from simulator.pipelines.playing import StageTimes, play
from simulator.plan import Communicate, Plan, with_classes
from simulator.rank_classes import classes_of_roles, fold_ranks
from simulator.report.memory import class_memory
from simulator.strategies.composed import drafts
from simulator.strategies.step import StepInputs
from simulator.timeline import Timeline
from simulator.training.operations import Exchange, Operation, ParameterTensor, TrainingModel
from simulator.training.precision import PRECISIONS

MB = 1e6
#: Latency and rate of links so fast that they take no time beside seconds of compute.
FAST = {"alpha_s": 1e-15, "bytes_per_s": 1e30}


def layers(count: int, *, forward: float = 1.0, output: float = MB, **more: Any) -> TrainingModel:
    """Equal layers of measured times; backward takes twice as long as forward, half of it for weights."""
    operations = tuple(
        Operation(
            name=f"layer.{n}", layer=f"layer.{n}", kind="measured", forward_s=forward, backward_s=2 * forward,
            parameters=(ParameterTensor(name=f"layer.{n}.weight", numel=1000),), output_bytes=output, saved_bytes=MB,
            **more,
        )
        for n in range(count)
    )  # fmt: skip
    parameters = tuple(t for o in operations for t in o.parameters)
    return TrainingModel(
        name="layers", operations=operations, parameters=parameters, num_parameters=1000 * count, num_layers=count
    )


def step_inputs(model: TrainingModel, ranks: int, micro_batches: int, **parallel: Any) -> StepInputs:
    """A job of measured layers; copies and the optimizer take no time."""
    asked = Parallel.model_validate({"strategy": "ddp", **parallel})
    mesh = make_mesh(ranks, tp=asked.tp, cp=asked.cp, pp=asked.pp, ep=asked.ep, etp=asked.expert_tp, order=asked.order)
    backward = tuple(o.backward_s or 0.0 for o in model.operations)
    return StepInputs(
        model=model, precision=PRECISIONS["fp32"], parallel=asked,
        forward_s=tuple(o.forward_s or 0.0 for o in model.operations),
        backward_s=backward, weight_grad_s=tuple(b / 2 for b in backward), num_ranks=mesh.size("dp", "cp"), mesh=mesh,
        micro_batches=micro_batches,
    )  # fmt: skip


def planned(inputs: StepInputs) -> Plan:
    draft = drafts(inputs)[0]
    classes = fold_ranks([(1.0, 1.0)] * inputs.world_size, draft.axes, draft.roles or None)
    of_role = classes_of_roles(classes)
    held = {name: draft.resident_of[role] for role in draft.resident_of for name in of_role[role]}
    return Plan(
        title="a step", classes=classes, axes=draft.axes, tasks=with_classes(draft.tasks, of_role),
        resident=draft.resident, resident_of=held,
    )  # fmt: skip


def played(inputs: StepInputs, **link: float) -> Timeline:
    return simulate(planned(inputs), uniform(inputs.world_size, **(FAST | link)))


# -------------------------------------------------------------------------------------------------------------- times

shapes = st.tuples(st.sampled_from(sorted(PIPELINES)), st.integers(1, 4), st.integers(1, 8))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(shapes)
def test_without_communication_a_step_takes_what_its_schedule_takes(shape: tuple[str, int, int]) -> None:
    """The makespan of ``pipelines.playing`` to 1e-9, for every schedule; DualPipe's pairs run one after the other."""
    name, p, m = shape
    chunks = PIPELINES[name].chunks
    if p == 1 or refusal(name, Shape(p, m, chunks)):
        return
    schedule = pipeline_schedule(name, p, m)
    model = layers(schedule.stages_per_chain)
    made = played(step_inputs(model, p, m, pp=p, schedule=name))
    expected = play(schedule, [StageTimes(1.0, 1.0, 1.0)] * schedule.stages_per_chain).makespan
    assert made.end_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (8, 16)])
def test_1f1b_idles_as_narayanan_says(p: int, m: int) -> None:
    """(m + p - 1)(tF + tB), of which (p - 1)/(m + p - 1) is bubble (arXiv:2104.04473, section 2.2.1)."""
    made = played(step_inputs(layers(p), p, m, pp=p))
    assert made.end_s == pytest.approx((m + p - 1) * 3.0, rel=1e-9)


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    """(p - 1)(tF + tB)/v beyond m(tF + tB) (arXiv:2104.04473, section 2.2.2)."""
    for chunks in (1, 2, 4):
        name = {"schedule": "interleaved-1f1b", "chunks": chunks} if chunks > 1 else {}
        made = played(step_inputs(layers(16), 4, 8, pp=4, **name))
        assert made.end_s == pytest.approx(8 * 12.0 + 3 * 12.0 / chunks, rel=1e-9)


def test_sends_that_overlap_delay_only_the_fill() -> None:
    """A message of t each way: 1F1B that waits pays for it at each pass, one that overlaps hides most of it."""
    t = 0.25
    waits, hides = (
        played(step_inputs(layers(2), 2, 8, pp=2, overlap_p2p=overlap), bytes_per_s=MB / t).end_s
        for overlap in (False, True)
    )
    alone = played(step_inputs(layers(2), 2, 8, pp=2)).end_s
    assert alone < hides < waits
    assert waits >= alone + 2 * t


# --------------------------------------------------------------------------------------------------------- what is sent


@pytest.mark.parametrize(("name", "p", "m", "v"), [("1f1b", 4, 8, 1), ("interleaved-1f1b", 4, 8, 2), ("zb1p", 2, 4, 2)])
def test_each_boundary_is_crossed_once_each_way_by_each_micro_batch(name: str, p: int, m: int, v: int) -> None:
    """2 m (p v - 1) messages of s b h bytes (torch.distributed.pipelining; arXiv:2104.04473, section 3.2)."""
    chunks = {"chunks": v} if v > 1 else {}
    plan = planned(step_inputs(layers(p * v, output=3 * MB), p, m, pp=p, schedule=name, **chunks))
    sends = [task for task in plan.tasks if isinstance(task, Communicate) and task.op == "send"]
    assert len(sends) == 2 * m * (p * v - 1)
    assert {task.message_bytes for task in sends} == {3 * MB}


def test_exchanges_of_a_stage_run_as_often_as_its_passes() -> None:
    """Two all-reduces forward and one backward in each layer and micro-batch, whatever joins them."""
    sent = (
        Exchange(axis="tp", op="all_reduce", size_bytes=MB, when="after forward", purpose="activations", count=2),
        Exchange(axis="tp", op="all_reduce", size_bytes=MB, when="before backward", purpose="gradients"),
    )
    plan = planned(step_inputs(layers(8, exchanges=sent), 8, 6, pp=4, tp=2))
    counts: Counter[str] = Counter()
    for task in plan.tasks:
        if isinstance(task, Communicate) and task.axis == "tp":
            counts[task.classes[0]] += task.repeat
    assert set(counts.values()) == {2 * 6 * 3}


def test_a_stretch_takes_as_long_as_its_operations_one_by_one() -> None:
    """Exchanges before, beside and after, in a pipeline of one stage after the other and woven in without one."""
    sent = tuple(
        Exchange(axis="tp", op="all_reduce", size_bytes=size * MB, when=when, purpose="x")
        for size, when in (
            (1, "before forward"), (2, "beside forward"), (1, "after forward"), (1, "before backward"),
            (3, "beside input"), (4, "beside weights"), (1, "after backward"),
        )
    )  # fmt: skip
    model, link = layers(4, exchanges=sent), {"bytes_per_s": 2 * MB}
    woven = played(step_inputs(model, 2, 1, tp=2), **link)
    staged = played(replace(step_inputs(model, 4, 1, tp=2, pp=2)), **link)
    alone = played(step_inputs(layers(4), 4, 1, tp=2, pp=2)).end_s
    crossing = 2 * 0.5  # one message of 1 MB each way at 2 MB/s
    assert alone == pytest.approx(12.0)
    assert staged.end_s == pytest.approx(woven.end_s + crossing, rel=1e-6)


# --------------------------------------------------------------------------------------------------------- what is held


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zbv"])
def test_ranks_hold_the_micro_batches_that_the_schedule_says(name: str) -> None:
    """Activations at the peak are those of the live micro-batches of ``pipelines.holding``."""
    p, m = 4, 8
    schedule = pipeline_schedule(name, p, m)
    made = played(step_inputs(layers(schedule.stages_per_chain), p, m, pp=p, schedule=name, deallocate_outputs=True))
    for rank, ranks in enumerate(made.plan.classes):
        held = class_memory(made, ranks).of_kind("activations").max()
        live = peak_held(schedule, rank) * schedule.chunks
        assert held == pytest.approx(live * MB), rank


@pytest.mark.parametrize(
    ("strategy", "schedule", "kept"),
    [
        ({"strategy": "ddp"}, "1f1b", True), ({"strategy": "zero1", "implementation": "deepspeed"}, "gpipe", True),
        ({"strategy": "zero1", "implementation": "megatron"}, "1f1b", False),
        ({"strategy": "ddp"}, "interleaved-1f1b", True), ({"strategy": "ddp"}, "zb-h1", True),
        ({"strategy": "ddp"}, "dualpipe", False),
    ],
)  # fmt: skip
def test_what_was_sent_lives_until_the_backward_unless_it_is_freed(
    strategy: dict[str, Any], schedule: str, kept: bool
) -> None:
    """PyTorch (pipelining/stage.py, ``fwd_cache``) and DeepSpeed (runtime/pipe/engine.py, ``pipe_buffers``) keep it;
    Megatron-LM and DualPipe free it. The first rank's stages all send on: each live micro-batch has 3 MB more.
    """
    p, m = 4, 8
    stages = pipeline_schedule(schedule, p, m).stages_per_chain
    peaks = {}
    for told in (None, True, False):
        inputs = step_inputs(
            layers(stages, output=3 * MB), p, m, pp=p, schedule=schedule, deallocate_outputs=told, **strategy
        )
        made = played(inputs)
        peaks[told] = class_memory(made, made.plan.classes[0]).of_kind("activations").max()
    assert peaks[None] == peaks[not kept]
    assert peaks[False] == pytest.approx(4 * peaks[True]) or schedule == "dualpipe"


def test_a_stage_beside_the_next_one_keeps_no_output_of_its_own() -> None:
    """In a V the last rank has two stages in a row: what one returns is what the other keeps as its input."""
    made = played(step_inputs(layers(8, output=3 * MB), 4, 8, pp=4, schedule="zbv"))
    held = class_memory(made, made.plan.classes[-1])
    freed = played(step_inputs(layers(8, output=3 * MB), 4, 8, pp=4, schedule="zbv", deallocate_outputs=True))
    more = held.of_kind("activations").max() - class_memory(freed, freed.plan.classes[-1]).of_kind("activations").max()
    assert 0 < more <= 3 * MB * peak_held(pipeline_schedule("zbv", 4, 8), 3)


def test_autocast_copies_weights_once_for_all_micro_batches() -> None:
    """``torch.autocast`` around the step keeps its copies until it ends: 2 bytes a parameter of the stage."""
    inputs = replace(step_inputs(layers(4), 2, 8, pp=2), precision=PRECISIONS["bf16-mixed"])
    made = simulate(planned(inputs), uniform(2, **FAST))
    held = class_memory(made, made.plan.classes[0]).of_kind("params").max()
    assert held == 2000 * (4 + 2)


# ---------------------------------------------------------------------------------------------------- around the passes


@pytest.mark.parametrize("strategy", [
    {"strategy": "ddp"}, {"strategy": "zero1", "implementation": "megatron"}, {"strategy": "zero1"},
    {"strategy": "zero1", "implementation": "torch"}, {"strategy": "zero1", "implementation": "textbook"},
    {"strategy": "fsdp"},
])  # fmt: skip
def test_gradients_are_reduced_once_for_each_stage_whatever_the_micro_batches(strategy: dict[str, Any]) -> None:
    """``no_sync`` until the last backward: bytes over dp do not depend on m (torch: backward_maybe_with_nosync)."""
    sent = [
        Counter(
            {task.name: task.message_bytes for task in planned(step_inputs(layers(4), 8, m, pp=4, **strategy)).tasks
             if isinstance(task, Communicate) and task.op != "send"}
        ).total()
        for m in (4, 16)
    ]  # fmt: skip
    assert sent[0] == sent[1] > 0


def test_stages_of_uneven_layers_are_those_asked_for() -> None:
    """1F1B of stages of 3, 2, 2 and 1 layers, as ``pipelines.playing`` plays it; even stages take 11 x 6 s."""
    even = played(step_inputs(layers(8), 4, 8, pp=4)).end_s
    uneven = played(step_inputs(layers(8), 4, 8, pp=4, stages=[3, 2, 2, 1])).end_s
    times = [StageTimes(size, size, size) for size in (3.0, 2.0, 2.0, 1.0)]
    assert even == pytest.approx(11 * 6.0)
    assert uneven == pytest.approx(play(pipeline_schedule("1f1b", 4, 8), times).makespan)


@pytest.mark.parametrize(
    ("model", "ranks", "asked", "told"),
    [
        (layers(8), 4, {"pp": 4, "stages": [4, 4]}, "parallel.stages: has 2 numbers; 4 stages need one each"),
        (layers(8), 4, {"pp": 4, "stages": [4, 4, 1, 1]}, "parallel.stages: add up to 10 layers; the model has 8"),
        (layers(8, output=0.0), 4, {"pp": 4}, "parallel.pp: nothing is known of what 'layer.1' sends"),
        (layers(2), 8, {"pp": 8}, "parallel.pp: 8 stages are more than layers has layers"),
        (layers(3), 4, {"pp": 4}, "parallel.pp: stage 3 of 4 would be empty: 3 layers of layers make at most 3 stages"),
        (layers(8), 4, {"pp": 4, "schedule": "interleaved"}, "parallel.schedule: no pipeline schedule is called"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_key(
    model: TrainingModel, ranks: int, asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(ScenarioError, match=told):
        planned(step_inputs(model, ranks, 8, **asked))


def test_strategies_that_no_framework_pipelines_are_refused() -> None:
    """DeepSpeed: 'ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism' (deepspeed/runtime/pipe/engine.py)."""
    with pytest.raises(UnsupportedError, match=r"parallel.strategy: zero3 \(deepspeed\) has no plan for pp 4"):
        planned(step_inputs(layers(8), 8, 8, pp=4, strategy="zero3"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("recompute", ["full", "selective-op"])
def test_experts_apart_are_gathered_once_also_where_passes_run_again(
    recompute: str, tied: bool, tmp_path: Path
) -> None:
    """FSDP keeps weights in several micro-batches: what is recomputed finds them, dense ones and experts alike."""
    sizes = "num_layers: 4, hidden_size: 64, num_attention_heads: 4, vocab_size: 128, intermediate_size: 128"
    some = "num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 32"
    path = tmp_path / "experts.yaml"
    path.write_text(
        "cluster: {topology: dgx-h100, nodes: 1}\n"
        f"model: {{{sizes}, {some}, tie_word_embeddings: {str(tied).lower()}}}\n"
        "parallel: {strategy: fsdp, ep: 4, reshard_after_forward: false}\n"
        "train: {seq_len: 64, micro_batch: 1, grad_accumulation: 2}\n", encoding="utf-8",
    )  # fmt: skip
    plans = [answer_step(load_scenario(path, [f"train.recompute={how}"])).job.step for how in ("none", recompute)]
    sent = [
        Counter({
            task.name: task.message_bytes for task in plan.tasks
            if isinstance(task, Communicate) and task.axis in ("shard", "expert shard")
        })
        for plan in plans
    ]  # fmt: skip
    assert sent[0].total() == sent[1].total() > 0
    assert {name.startswith("experts' ") for name in sent[1]} == {True, False}


def test_two_copies_of_the_model_reduce_their_gradients_together() -> None:
    """DualPipe holds every layer twice: gradients are reduced over dp and both copies (arXiv:2412.19437, 3.2.1)."""
    plan = planned(step_inputs(layers(4), 8, 8, pp=4, schedule="dualpipe", strategy="zero1", implementation="megatron"))
    assert set(plan.axes["dp"]) == {(0, 1, 6, 7), (2, 3, 4, 5)}
    reduces = [task for task in plan.tasks if isinstance(task, Communicate) and task.op == "reduce_scatter"]
    assert [task.classes for task in reduces] == [
        ("pp 0", "pp 3"), ("pp 1", "pp 2"), ("pp 1", "pp 2"), ("pp 0", "pp 3"),
    ]  # fmt: skip


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"pp": 4}, {"tp": 2, "pp": 2}])
def test_the_norm_of_the_gradients_is_that_of_all_parts(degrees: dict[str, int]) -> None:
    """One sum of 4 bytes over the ranks of a replica before any part is scaled (Megatron-LM, clip_grads.py)."""
    inputs = replace(step_inputs(layers(4), 8, 8, **degrees), clip_grad_norm=True)
    plan = planned(inputs)
    sums = [task for task in plan.tasks if isinstance(task, Communicate) and task.axis == "replica"]
    assert [task.message_bytes for task in sums] == [4.0]
    names = [task.name for task in plan.tasks]
    scaled = [number for number, name in enumerate(names) if name.startswith("scale gradients")]
    assert len(scaled) == degrees.get("pp", 1)
    assert all(sums[0].name in plan.tasks[number].after for number in scaled)
    assert simulate(plan, uniform(8)).end_s > 0


def test_both_copies_of_a_stage_start_up_together() -> None:
    """DualPipe's two copies of a layer get the same weights from one broadcast."""
    inputs = step_inputs(layers(4), 8, 8, pp=4, schedule="dualpipe")
    draft = drafts(inputs)[1]
    assert {task.classes for task in draft.tasks} == {("pp 0", "pp 3"), ("pp 1", "pp 2")}


MEASURED = """\
cluster: {topology: uniform, nodes: 4}
model:
  layers:
    - {name: block, repeat: 4, params: 1000, forward: 1 s, backward: 2 s, output: 1 MB,
       exchanges: [{axis: tp, op: all_reduce, size: 2 MB, when: after forward, count: 3}]}
parallel: {strategy: ddp, tp: 2, pp: 2}
train: {micro_batch: 1, grad_accumulation: 4, precision: fp32}
"""


def test_measured_layers_say_what_they_send(tmp_path: Path) -> None:
    """3 calls of 2 MB in each of 2 layers for each of 4 micro-batches, and messages of 1 MB between stages."""
    path = tmp_path / "s.yaml"
    path.write_text(MEASURED)
    uses = answer_step(load_scenario(path)).report.collectives
    assert sum(use.count for use in uses if use.axis == "tp") == 3 * 2 * 4
    assert {use.message_bytes for use in uses if use.op == "send"} == {1e6}
    with pytest.raises(ScenarioError, match=r"parallel.tp=1: must be above 1: 'block.0' sends"):
        answer_step(load_scenario(path, ["parallel.tp=1"]))
