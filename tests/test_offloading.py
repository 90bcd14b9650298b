"""Activations in host memory: what is copied when, what hides, what a rank then holds."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import simulator
from networks import uniform
from pydantic import ValidationError
from stepping import inputs_of, memory_in, plan_of, planned

from simulator.answer import StepAnswer, answer_step
from simulator.device import DeviceSpec
from simulator.engine.interference import Interference
from simulator.engine.run import simulate
from simulator.errors import ScenarioError, UnsupportedError
from simulator.importing.draft import Extras
from simulator.importing.kinds import import_file
from simulator.importing.writer import scenario_text
from simulator.load import load_device, load_scenario
from simulator.mesh import make_mesh
from simulator.plan import HOST_COPY, Compute, RankClass, seconds_on
from simulator.report.memory import memory_of
from simulator.shipped import device_file, names
from simulator.strategies import STRATEGIES
from simulator.strategies.composed import drafts
from simulator.strategies.offloading import loads_of
from simulator.strategies.step import StepInputs
from simulator.timeline import Timeline
from simulator.training.operations import Operation, ParameterTensor, TrainingModel

#: Bytes that a layer keeps, and its seconds forward and backward.
A, F, B = 1e6, 1.0, 2.0
LAYERS = 6


def layers(count: int = LAYERS, *, head: bool = False) -> TrainingModel:
    """Equal measured layers. head: an operation behind them that keeps nothing and is no layer."""
    operations = [
        Operation(
            name=f"layers.{n}", layer=f"layers.{n}", kind="measured", forward_s=F, backward_s=B, saved_bytes=A,
            parameters=(ParameterTensor(name=f"layers.{n}.weight", numel=1000),),
        )
        for n in range(count)
    ]  # fmt: skip
    if head:
        operations.append(Operation(name="head", layer="head", kind="elementwise", forward_s=F, backward_s=B))
    parameters = tuple(t for o in operations for t in o.parameters)
    return TrainingModel(
        name="layers", operations=tuple(operations), parameters=parameters, num_parameters=1000 * count,
        num_layers=count,
    )  # fmt: skip


def inputs(copy_s: float, share: float = 1.0, *, model: TrainingModel | None = None, **changed: Any) -> StepInputs:
    """One rank; a copy of a layer takes ``copy_s`` each way."""
    changed = {"offloaded_share": share, "host_bytes_per_s": A / copy_s, "optimizer_s": 0.0} | changed
    return inputs_of(model or layers(), 1, {"gradient_as_bucket_view": True}, **changed)


def played(step: StepInputs, **how: Any) -> Timeline:
    return simulate(planned(drafts(step)[0], step.num_ranks), uniform(step.num_ranks), **how)


def copies(timeline: Timeline, word: str) -> list[tuple[str, float, float]]:
    return [
        (span.task.name, span.start_s, span.end_s) for span in timeline.spans
        if span.task.kind == HOST_COPY and span.task.name.startswith(word)
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ time


@pytest.mark.parametrize("copy_s", [0.01, 0.5, 1.0])
def test_copies_that_fit_beside_compute_expose_those_of_the_last_layer_alone(copy_s: float) -> None:
    """c <= F <= B: L (F + B), and the last layer's way out and back, which nothing runs beside."""
    assert played(inputs(copy_s)).end_s == pytest.approx(LAYERS * (F + B) + 2 * copy_s, rel=1e-9)


def test_a_share_that_leaves_the_last_layer_hides_all_of_it() -> None:
    """Megatron-LM takes fewer layers than there are (``cpu_offloading_num_layers``) for that very reason."""
    for kept in range(1, LAYERS):
        made = played(inputs(1.0, share=1 - kept / LAYERS))
        assert made.end_s == pytest.approx(LAYERS * (F + B), rel=1e-9)


@pytest.mark.parametrize("copy_s", [2.0, 3.0, 10.0])
def test_a_slow_link_bounds_the_step(copy_s: float) -> None:
    """c >= B >= F: the first forward, all layers out, all layers back, the last backward: F + 2 L c + B."""
    assert played(inputs(copy_s)).end_s == pytest.approx(F + 2 * LAYERS * copy_s + B, rel=1e-9)


def test_forward_waits_when_two_layers_are_on_their_way() -> None:
    """Double buffering: layer u starts when layer u - 2 is out."""
    made = played(inputs(3.0))
    out = {name: end for name, _, end in copies(made, "offload")}
    starts = {span.task.name: span.start_s for span in made.spans}
    for number in range(2, LAYERS):
        assert starts[f"forward 0: layers.{number}"] >= out[f"offload 0: layers.{number - 2}"]
    assert starts["forward 0: layers.1"] == F


def test_a_layer_is_fetched_while_the_one_behind_it_runs_backward() -> None:
    """One layer ahead, no more: its fetch starts with the backward of the layer behind, its backward waits for it."""
    made = played(inputs(0.5, model=layers(head=True)))
    starts = {span.task.name: span.start_s for span in made.spans}
    fetched = {name: (start, end) for name, start, end in copies(made, "fetch")}
    assert fetched[f"fetch 0: layers.{LAYERS - 1}"][0] == starts["backward 0: head"]
    for number in range(LAYERS - 1):
        start, end = fetched[f"fetch 0: layers.{number}"]
        assert start == pytest.approx(starts[f"backward 0: layers.{number + 1}"])
        assert end <= starts[f"backward 0: layers.{number}"]


def test_both_ways_are_full_duplex_and_each_copies_one_layer_at_a_time() -> None:
    made = played(inputs(1.5, micro_batches=5))
    for word in ("offload", "fetch"):
        spans = copies(made, word)
        assert len(spans) == 5 * LAYERS
        assert all(one[2] <= other[1] + 1e-12 for one, other in pairwise(spans))


def test_what_ranks_send_slows_no_copy_and_compute_is_slowed_as_ever() -> None:
    """Copies run on engines of their own, over links of their own."""
    settings: dict[str, Any] = {"offloaded_share": 1.0, "host_bytes_per_s": A / 1.5}
    plan = planned(drafts(inputs_of(layers(), 4, {"strategy": "fsdp"}, **settings))[0], 4)
    alone = simulate(plan, uniform(4, 0.0, 3e3))
    slowed = simulate(plan, uniform(4, 0.0, 3e3), interference=Interference(core_share=0.5))
    assert {round(end - start, 9) for _, start, end in copies(slowed, "")} == {1.5}
    assert slowed.end_s > alone.end_s


def test_a_slow_rank_copies_as_fast_and_a_larger_batch_copies_more() -> None:
    task = Compute(name="x", kind=HOST_COPY, classes=("all",), seconds=2.0)
    assert seconds_on(task, RankClass(name="slow", ranks=(0,), speed=0.5)) == 2.0
    assert seconds_on(task, RankClass(name="more", ranks=(0,), work=1.5)) == 3.0


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("copy_s", [0.01, 1.0, 3.0])
def test_the_device_holds_two_layers_and_the_host_all(copy_s: float) -> None:
    """The layer at work and the one that leaves or comes; without offloading all L."""
    assert memory_in(inputs(copy_s, share=0.0)).of_kind("activations").max() == LAYERS * A
    memory = memory_of(played(inputs(copy_s)))
    assert memory.of_kind("activations").max() == 2 * A
    assert memory.host_bytes == LAYERS * A


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_layers_that_stay_are_held_as_ever(kept: int) -> None:
    """At the end of a forward whose copies keep up: the layers that stay, or two where fewer do."""
    memory = memory_of(played(inputs(0.5, share=1 - kept / LAYERS)))
    assert memory.host_bytes == (LAYERS - kept) * A
    assert memory.of_kind("activations").max() == max(2, kept) * A


def test_nothing_is_left_anywhere_when_the_step_ends() -> None:
    for micro_batches in (1, 3, 5):
        memory = memory_of(played(inputs(0.5, micro_batches=micro_batches)))
        assert memory.of_kind("activations")[-1] == 0.0
        assert memory.host_bytes == LAYERS * A


def test_a_checkpoint_of_several_layers_is_one_load() -> None:
    """Its input alone is copied, after the operation that keeps it, and is back before the last layer's backward."""
    plain = layers()
    operations = list(plain.operations)
    for last in (2, 5):
        group = operations[last - 2 : last + 1]
        operations[last - 2] = replace(operations[last - 2], saved_bytes=10.0)
        operations[last - 1] = replace(operations[last - 1], saved_bytes=0.0)
        operations[last] = replace(operations[last], saved_bytes=0.0, replayed=tuple(group))
    model = replace(plain, operations=tuple(operations))
    loads = loads_of(model, 1.0)
    assert [(load.name, load.first, load.last, load.size_bytes) for load in loads] == [
        ("layers.0 .. layers.2", 0, 2, 10.0), ("layers.3 .. layers.5", 3, 5, 10.0),
    ]  # fmt: skip
    made = played(inputs(1.0, model=model))
    starts = {span.task.name: span.start_s for span in made.spans}
    ends = {span.task.name: span.end_s for span in made.spans}
    for name, first, last in (("layers.0 .. layers.2", 0, 2), ("layers.3 .. layers.5", 3, 5)):
        assert starts[f"offload 0: {name}"] == ends[f"forward 0: layers.{first}"]
        assert ends[f"fetch 0: {name}"] <= starts[f"backward 0: layers.{last}"]


@pytest.mark.parametrize("key", list(STRATEGIES), ids="-".join)
def test_any_strategy_sends_what_it_sends_and_holds_less(key: tuple[str, str]) -> None:
    named = {} if key[0] == "ddp" else {"implementation": key[1]}
    more = {"shard_size": 2} if key[0] == "hsdp" else {}
    step = inputs_of(layers(), 4, {"strategy": key[0], **named, **more}, micro_batches=2)
    away = replace(step, offloaded_share=1.0, host_bytes_per_s=A / 0.5)
    plain, other = plan_of(step), planned(drafts(away)[0], 4)
    own = {task.name for task in plain.tasks if "all operations" not in task.name}
    assert own <= {task.name for task in other.tasks}
    memory = memory_of(simulate(other, uniform(4)))
    assert memory.of_kind("activations").max() == 2 * A
    assert memory.of_kind("activations")[-1] == 0.0
    assert memory.host_bytes == LAYERS * A


def test_messages_and_coflows_tell_the_same() -> None:
    step = replace(inputs(1.5), num_ranks=2)
    assert played(step, fidelity="message").end_s == pytest.approx(played(step).end_s, rel=1e-9)


# --------------------------------------------------------------------------------------------------- whole scenarios

SCENARIO = """\
cluster: {topology: dgx-h100, nodes: 1, gpus_per_node: 8}
model: {preset: llama-3-8b}
parallel: {strategy: fsdp}
train: {seq_len: 8192, micro_batch: 1, precision: bf16-mixed}
"""
PCIE = 55.4e9


def answered(tmp_path: Path, *overrides: str) -> StepAnswer:
    (tmp_path / "step.yaml").write_text(SCENARIO)
    return answer_step(load_scenario(tmp_path / "step.yaml", overrides))


@pytest.mark.parametrize(("share", "count"), [("true", 32), ("50%", 16), ("0.25", 8)])
def test_bytes_and_times_are_those_of_the_layers_kept(tmp_path: Path, share: str, count: int) -> None:
    """Each layer's kept bytes cross PCIe once each way: 52 GiB of Llama 3 8B with 8,192 tokens, a second each way."""
    found = answered(tmp_path, f"train.offload_activations={share}")
    kept = [0.0] * 32
    for operation in found.job.model.operations:
        if operation.layer.startswith("layers."):
            kept[int(operation.layer.split(".")[1])] += operation.saved_bytes
    tasks = [task for task in found.job.step.tasks if isinstance(task, Compute) and task.kind == HOST_COPY]
    assert sum(task.seconds for task in tasks) == pytest.approx(2 * sum(kept[:count]) / PCIE, rel=1e-12)
    assert found.report.memory.host_bytes == pytest.approx(sum(kept[:count]))
    plain = answered(tmp_path)
    less = plain.report.memory.by_kind_bytes["activations"] - found.report.memory.by_kind_bytes["activations"]
    assert sum(kept[: count - 2]) <= less <= sum(kept[:count])


def test_tensor_and_context_parallel_layers_are_offloaded_too(tmp_path: Path) -> None:
    """A rank's share of what each layer keeps; what it sends stays the same."""
    degrees = ("parallel.tp=2", "parallel.cp=2", "parallel.strategy=zero1", "parallel.implementation=megatron")
    plain, found = answered(tmp_path, *degrees), answered(tmp_path, *degrees, "train.offload_activations=true")
    assert found.report.memory.host_bytes == pytest.approx(
        sum(o.saved_bytes for o in found.job.model.operations if o.layer.startswith("layers."))
    )
    sent = [[(use.op, use.axis, use.message_bytes, use.count) for use in one.report.collectives]
            for one in (plain, found)]  # fmt: skip
    assert sorted(sent[0]) == sorted(sent[1])


def test_what_hides_and_what_does_not_is_told(tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(SCENARIO)
    done = simulator("run", str(path), "train.offload_activations=true")
    assert "The host link bounds the step: for 45." in done.out
    assert "host memory" in done.out
    hidden = simulator("run", str(path), "train.offload_activations=true", "train.recompute=full")
    assert "The host link bounds" not in hidden.out
    told = json.loads(simulator("run", str(path), "train.offload_activations=true", "--json").out)
    assert told["memory"]["host_bytes"] == pytest.approx(52.0 * 2**30, rel=1e-2)
    assert told["idle_s"]["copies"] > 0.4 * told["step_time_s"]
    assert json.loads(simulator("run", str(path), "--json").out)["memory"]["host_bytes"] == 0.0


def test_a_trace_has_a_stream_for_each_way(tmp_path: Path) -> None:
    path, trace = tmp_path / "step.yaml", tmp_path / "trace.json"
    path.write_text(SCENARIO)
    assert simulator("run", str(path), "train.offload_activations=true", "--trace", str(trace)).code == 0
    text = trace.read_text()
    assert "copies to the host" in text
    assert "copies from the host" in text


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["train.offload_activations=1%"], "1.000% of 32 layers (or checkpoints) is none; accepted: 3.12% or more, or"),
        (["train.offload_activations=maybe"], "expected true, false, or a share of the layers from 0% to 100%"),
        (["train.offload_activations=150%"], "expected true, false, or a share of the layers from 0% to 100%"),
        (["train.offload_activations=true", "parallel={strategy: zero1, implementation: megatron, pp: 2}",
          "train.grad_accumulation=2"], "offload_activations=true: not beside pp 2: a stage's pass is planned as a"),
        (["train.offload_activations=true", "model.preset=mixtral-8x7b",
          "parallel={strategy: zero1, implementation: megatron, ep: 8}"], "not beside experts that are reduced over"),
        (["train.offload_activations=true", "cluster={topology: dgx-spark}"], "as gb10 has no 'host_link'"),
        (["train.activation_offloading=true"], "did you mean 'offload_activations'?"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, overrides: list[str], told: str) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(SCENARIO)
    done = simulator("run", str(path), *overrides)
    assert done.code == 2
    assert told in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_layers_that_keep_nothing_have_nothing_to_copy() -> None:
    model = layers()
    bare = replace(model, operations=tuple(replace(o, saved_bytes=0.0) for o in model.operations))
    with pytest.raises(ScenarioError, match="layers has no layers that keep activations; accepted: false"):
        drafts(inputs(1.0, model=bare))


def test_stages_refuse_it_whatever_the_strategy() -> None:
    step = replace(inputs(1.0), mesh=make_mesh(2, tp=1, cp=1, pp=2, ep=1, etp=1, order="tp-cp-ep-dp-pp"))
    with pytest.raises(UnsupportedError, match="offload_activations: not beside pp 2"):
        drafts(step)


def test_every_device_but_those_that_share_their_memory_knows_its_link() -> None:
    assert [name for name in names("device") if load_device(name).host_link is None] == ["gb10"]


def test_a_rate_without_a_source_is_refused() -> None:
    written = yaml.safe_load(device_file("h100-sxm5-80gb").read_text())
    assert DeviceSpec.model_validate(written).host_link == PCIE
    del written["host_link_source"]
    with pytest.raises(ValidationError, match=r"host_link_source\s+missing key"):
        DeviceSpec.model_validate(written)


# ------------------------------------------------------------------------------------------------------------- import

FLAGS = (
    "--num-layers 24 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 1 --global-batch-size 32 --bf16 --nproc-per-node 8 "
)


@pytest.mark.parametrize(
    ("flags", "share", "warned"),
    [
        ("--cpu-offloading --cpu-offloading-num-layers 8", "33.33%", ""),
        ("--cpu-offloading-num-layers 23", "95.83%", ""),
        ("--cpu-offloading-num-layers 0", None, ""),
        ("--cpu-offloading-num-layers 8 --pipeline-model-parallel-size 2", None, "refuses it beside pipeline"),
        ("", None, ""),
    ],
)
def test_megatrons_number_of_layers_becomes_a_share(tmp_path: Path, flags: str, share: str | None, warned: str) -> None:
    path, written = tmp_path / "flags.sh", tmp_path / "imported.yaml"
    path.write_text(FLAGS + flags)
    draft = import_file("megatron", str(path), Extras())
    assert draft.value("train.offload_activations") == share
    assert [warned in warning for warning in draft.warnings if "offload" in warning] == ([True] if warned else [])
    written.write_text(scenario_text(draft))
    scenario = load_scenario(written)
    assert scenario.train is not None
    if share:
        loads = loads_of(layers(24), scenario.train.offload_activations)
        assert len(loads) == int(flags.split()[-1])
