"""Full recomputation of some layers, and of several at once: Megatron-LM's methods ``block`` and ``uniform``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import simulator
from stepping import inputs_of, memory_in, plan_of
from test_pipelined_steps import played

from simulator.answer import StepAnswer, answer_step
from simulator.checking.changes import changes_of, recomputing
from simulator.errors import ScenarioError
from simulator.importing.draft import Extras
from simulator.importing.kinds import import_file
from simulator.importing.writer import scenario_text
from simulator.load import load_device, load_scenario
from simulator.mesh import make_mesh
from simulator.model_spec import ArchitectureModel
from simulator.parallel_spec import Parallel
from simulator.pipelines import pipeline_schedule
from simulator.pipelines.holding import peak_held
from simulator.pipelines.playing import StageTimes, play
from simulator.plan import Communicate
from simulator.report.memory import class_memory
from simulator.strategies import STRATEGIES
from simulator.strategies.stages import cut
from simulator.strategies.step import StepInputs
from simulator.training.compute import operation_time, weight_gradient_time_s
from simulator.training.operations import TrainingModel
from simulator.training.precision import PRECISIONS
from simulator.training.presets import build_model
from simulator.training.recompute import Checkpoints

S, B, H, A, LAYERS = 1024, 2, 512, 8, 12
#: GPT-2 without dropout: 32 s b h and the statistics of flash attention (``training.transformer``), 2 s b h of input.
WHOLE, INPUT = 32 * S * B * H + 4 * A * S * B, 2 * S * B * H
BF16 = PRECISIONS["bf16-master"]
GPT = ArchitectureModel(
    family="gpt2", num_layers=LAYERS, hidden_size=H, num_attention_heads=A, vocab_size=512, tie_word_embeddings=False,
    max_position_embeddings=S,
)  # fmt: skip


def build(recompute: str = "full", **checkpoints: Any) -> TrainingModel:
    return build_model(
        GPT, seq_len=S, micro_batch=B, precision="bf16-master", attention="flash", kernels="fused",
        recompute=recompute, checkpoints=Checkpoints(**checkpoints),
    )  # fmt: skip


def of_blocks(model: TrainingModel) -> float:
    return sum(operation.saved_bytes for operation in model.operations if operation.layer.startswith("layers."))


# ----------------------------------------------------------------------------------------------- what is kept and alive


@pytest.mark.parametrize("layers", [1, 5, LAYERS])
def test_block_keeps_2_sbh_of_the_first_layers_and_all_of_the_rest(layers: int) -> None:
    """Korthikanti et al. 2022, table 2: 2 s b h for each layer that is recomputed; the others as without."""
    model = build(layers=layers)
    assert of_blocks(model) == layers * INPUT + (LAYERS - layers) * WHOLE
    assert model.replayed_bytes == WHOLE


@pytest.mark.parametrize("group", [1, 2, 3, 4, 6, LAYERS])
def test_uniform_keeps_an_input_for_each_group_and_has_one_group_alive(group: int) -> None:
    """L/g inputs of 2 s b h, and g whole layers while a group runs again."""
    model = build(group=group)
    assert of_blocks(model) == LAYERS / group * INPUT
    assert model.replayed_bytes == group * WHOLE


@pytest.mark.parametrize(("group", "layers"), [(1, None), (3, None), (LAYERS, None), (1, 4), (1, LAYERS)])
def test_the_peak_of_a_step_is_that_of_the_formula(group: int, layers: int | None) -> None:
    """Uniform: L/g inputs and one group at the first replay, when the head's are gone and its logits' gradient is too;
    block, with layers that keep all: all that forward kept, at its end.
    """
    model = build(group=group, layers=layers)
    memory = memory_in(inputs_of(model, 2, {"gradient_as_bucket_view": True}))
    head = sum(operation.saved_bytes for operation in model.operations[-3:])
    at_replay = of_blocks(model) + group * WHOLE if layers in (None, LAYERS) else 0.0
    at_the_end = of_blocks(model) + head + model.loss_gradient_bytes
    assert memory.of_kind("activations").max() == pytest.approx(max(at_replay, at_the_end), rel=1e-12)


def test_of_layers_that_keep_32_sbh_groups_of_one_need_least() -> None:
    """2 L/g + 32 g (s b h) is least at g = sqrt(L/16): Chen et al. 2016 (arXiv:1604.06174) have sqrt(L) where a layer
    keeps no more than its input.
    """
    models = {group: build(group=group) for group in (1, 2, 3, 4, 6, 12)}
    peaks = [of_blocks(model) + model.replayed_bytes for model in models.values()]
    assert peaks == sorted(peaks)


# --------------------------------------------------------------------------------------------------- what it takes


def step_of(model: TrainingModel, micro_batches: int = 1, **parallel: Any) -> StepInputs:
    """Real times of an H100; the optimizer takes none."""
    device, pp = load_device("h100-sxm5-80gb"), parallel.get("pp", 1)
    times = [operation_time(operation, device, BF16) for operation in model.operations]
    return StepInputs(
        model=model, precision=BF16, parallel=Parallel.model_validate({"strategy": "ddp", **parallel}),
        forward_s=tuple(f for f, _ in times), backward_s=tuple(b for _, b in times), num_ranks=1,
        weight_grad_s=tuple(weight_gradient_time_s(operation, device, BF16) for operation in model.operations),
        mesh=make_mesh(pp, tp=1, cp=1, pp=pp, ep=1, etp=1, order="tp-cp-ep-dp-pp"), micro_batches=micro_batches,
    )  # fmt: skip


def forward_s(layers: range) -> float:
    """Forward of some layers, once."""
    model, device = build("none"), load_device("h100-sxm5-80gb")
    names = {f"layers.{layer}" for layer in layers}
    return sum(operation_time(o, device, BF16)[0] for o in model.operations if o.layer in names)


@pytest.mark.parametrize("how", [{"layers": 1}, {"layers": 7}, {"group": 1}, {"group": 4}])
def test_recomputation_takes_exactly_the_forward_of_the_layers_that_run_again(how: dict[str, Any]) -> None:
    more = sum(step_of(build(**how)).backward_s) - sum(step_of(build("none")).backward_s)
    assert more == pytest.approx(forward_s(range(how.get("layers", LAYERS))), rel=1e-9)


def test_a_group_runs_again_before_the_backward_of_its_last_layer() -> None:
    """No gradient of the group is ready before all of it has run; the other layers' backward is as ever."""
    grouped, plain = step_of(build(group=4)), step_of(build("none"))
    for number, operation in enumerate(plain.model.operations):
        more = grouped.backward_s[number] - plain.backward_s[number]
        is_last = operation.name in {f"layers.{layer}.mlp.down" for layer in (3, 7, 11)}
        assert more == pytest.approx(forward_s(range(4)) if is_last else 0.0, rel=1e-9, abs=1e-15), operation.name


STAGED = [
    ("1f1b", 1, {"layers": 2}), ("1f1b", 1, {"group": 3}), ("interleaved-1f1b", 2, {"layers": 1}),
    ("interleaved-1f1b", 2, {"group": 3}), ("zb1p", 2, {"layers": 2}), ("dualpipev", 2, {"layers": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "chunks", "how"), STAGED)
def test_every_stage_of_a_pipeline_recomputes_its_own_first_layers(name: str, chunks: int, how: dict[str, Any]) -> None:
    """``--recompute-num-layers`` counts in each stage, of each chunk; the makespan is that of stages whose backward
    takes that forward longer, without communication.
    """
    pp, micro_batches = 2, 8
    each = LAYERS // (pp * chunks)
    schedule = pipeline_schedule(name, pp, micro_batches, chunks)
    settings: dict[str, Any] = {"pp": pp, "schedule": name, "chunks": chunks, "overlap_p2p": True}
    model = build(**how, stages=(each,) * schedule.stages_per_chain)
    plain = cut(step_of(build("none"), micro_batches, **settings), schedule.stages_per_chain)
    again_s = forward_s(range(how.get("layers", each)))
    times = [
        StageTimes(sum(i.forward_s), sum(i.backward_s) - sum(i.weight_grad_s) + again_s, sum(i.weight_grad_s))
        for i in (stage.inputs for stage in plain)
    ]
    made = played(step_of(model, micro_batches, **settings))
    assert made.end_s == pytest.approx(play(schedule, times).makespan, rel=1e-9)


@pytest.mark.parametrize(
    ("how", "alive"), [({"layers": 2}, 0), ({"layers": 6}, 1), ({"group": 1}, 1), ({"group": 3}, 3)]
)
def test_a_stage_holds_what_its_live_micro_batches_keep_and_what_runs_again(how: dict[str, Any], alive: int) -> None:
    """Stage 0 of 1F1B: p micro-batches, each of L/p layers (Narayanan et al. 2021, section 2.2), and the layers of a
    checkpoint. Where some layers keep all, one of these has been given back by the time that another runs again.
    """
    pp, micro_batches = 2, 4
    ours = {"strategy": "zero1", "implementation": "megatron"}  # which frees what it has sent
    made = played(step_of(build(**how, stages=(6, 6)), micro_batches, pp=pp, schedule="1f1b", **ours))
    again = how.get("layers", 6)
    kept = 6 / how["group"] * INPUT if "group" in how else again * INPUT + (6 - again) * WHOLE
    embedding = build().operations[0].saved_bytes
    live = peak_held(pipeline_schedule("1f1b", pp, micro_batches), 0)
    held = class_memory(made, made.plan.classes[0]).of_kind("activations").max()
    assert live == 2
    assert held == pytest.approx(live * (kept + embedding) + alive * WHOLE, rel=1e-12)


# ------------------------------------------------------------------------------------------------ beside strategies


def _slug(key: tuple[str, str]) -> str:
    return "-".join(key)


@pytest.mark.parametrize("key", list(STRATEGIES), ids=_slug)
@pytest.mark.parametrize("how", [{"group": 3}, {"layers": 5}])
def test_any_strategy_gives_back_what_a_group_brings_back(key: tuple[str, str], how: dict[str, Any]) -> None:
    strategy, implementation = key
    named = {} if strategy == "ddp" else {"implementation": implementation}
    more = {"shard_size": 2} if strategy == "hsdp" else {}
    inputs = inputs_of(build(**how), 4, {"strategy": strategy, **named, **more}, micro_batches=2)
    memory = memory_in(inputs)
    held = memory.of_kind("activations")
    assert held.max() >= of_blocks(inputs.model) * 0.9
    assert held[-1] == pytest.approx(0.0, abs=1.0)


@pytest.mark.parametrize("implementation", ["fsdp2", "fsdp1"])
def test_all_layers_of_a_group_are_whole_before_it_runs_again(implementation: str) -> None:
    """The replay calls the forward of each layer, whose hook gathers."""
    inputs = inputs_of(
        build(group=3), 4, {"strategy": "fsdp", "implementation": implementation, "backward_prefetch": 0}
    )
    names = [task.name for task in plan_of(inputs).tasks]
    for last in (11, 8, 5, 2):
        replay = names.index(f"backward 0: layers.{last}.mlp.down")
        gathered = [
            task.purpose for task in plan_of(inputs).tasks[:replay]
            if isinstance(task, Communicate) and task.op == "all_gather" and ", backward 0" in task.name
        ]  # fmt: skip
        assert {f"weights layers.{layer}" for layer in range(last - 2, last + 1)} <= set(gathered)


SCENARIO = """\
cluster: {topology: dgx-h100, nodes: 1}
model: {preset: llama-3-8b}
parallel: {strategy: zero1, implementation: megatron, tp: 2, pp: 4}
train: {seq_len: 4096, micro_batch: 1, grad_accumulation: 8, precision: bf16-master, recompute: full}
"""


def answered(tmp_path: Path, *overrides: str) -> StepAnswer:
    (tmp_path / "step.yaml").write_text(SCENARIO)
    return answer_step(load_scenario(tmp_path / "step.yaml", overrides))


def test_what_runs_again_sends_again(tmp_path: Path) -> None:
    """Tensor parallelism: a layer that is recomputed repeats its gathers and scatters, 4 of them with sequence
    parallelism, in each micro-batch and stage; the others do not.
    """

    def sent(*overrides: str) -> int:
        tasks = answered(tmp_path, *overrides).job.step.tasks
        return sum(
            task.repeat * len(task.classes) for task in tasks if isinstance(task, Communicate) and task.axis == "tp"
        )

    none = sent("train.recompute=none")
    stages, micro_batches = 4, 8
    classes = sent() - none
    assert classes == 4 * 8 * stages * micro_batches
    assert sent("train.recompute_layers=3") - none == 4 * 3 * stages * micro_batches
    assert sent("train.recompute_group=4") == sent()


def test_all_layers_and_groups_of_one_are_what_full_does_anyway(tmp_path: Path) -> None:
    plain = answered(tmp_path).timeline.end_s
    assert answered(tmp_path, "train.recompute_layers=8").timeline.end_s == plain
    assert answered(tmp_path, "train.recompute_group=1").timeline.end_s == plain


def test_fewer_layers_are_faster_and_need_more(tmp_path: Path) -> None:
    found = [answered(tmp_path, f"train.recompute_layers={n}").report for n in (1, 3, 5, 8)]
    assert [r.step_time_s for r in found] == sorted(r.step_time_s for r in found)
    assert [r.memory.peak_bytes for r in found] == sorted((r.memory.peak_bytes for r in found), reverse=True)


# ------------------------------------------------------------------------------------------------- what to change


def test_other_modes_are_proposed_without_the_keys_that_they_refuse(tmp_path: Path) -> None:
    """Each change of the search loads; all layers again is one of them where some are not."""
    found = answered(tmp_path, "train.recompute_layers=3")
    proposed = [change.overrides for change in changes_of(found.job, found.network)
                if any("recompute" in override for override in change.overrides)]  # fmt: skip
    assert proposed == [
        ("train.recompute=none", "train.recompute_layers=null"),
        ("train.recompute=selective", "train.recompute_layers=null"),
        ("train.recompute=selective-op", "train.recompute_layers=null"), ("train.recompute_layers=null",),
    ]  # fmt: skip
    for overrides in proposed:
        written = tmp_path / "three.yaml"
        written.write_text(SCENARIO.replace("recompute: full", "recompute: full, recompute_layers: 3"))
        train = load_scenario(written, overrides).train
        assert train is not None
        assert train.recompute_layers is None


def test_a_group_goes_with_full_recomputation_alone(tmp_path: Path) -> None:
    found = answered(tmp_path, "train.recompute_group=2")
    assert list(recomputing(found.job, "none")) == ["train.recompute=none", "train.recompute_group=null"]
    assert list(recomputing(found.job, "full")) == []


def test_a_step_that_does_not_fit_is_told_to_run_all_layers_again(tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(SCENARIO)
    settings = ("model.preset=llama-3-70b", "parallel={strategy: fsdp}", "train.grad_accumulation=1")
    told = simulator("run", str(path), *settings, "train.recompute_layers=5").out
    assert "train.recompute_layers=null: at most -" in told
    assert "train.recompute_layers=null" not in simulator("run", str(path), *settings).out


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["train.recompute_layers=9"], "recompute_layers=9: 9 layers; a stage of the pipeline has at most 8; accepted: "
         "1 to 8, or leave it out for all"),
        (["train.recompute_layers=5", "parallel.chunks=2"], "a stage of the pipeline has at most 4; accepted: 1 to 4"),
        (["train.recompute_layers=33", "parallel.pp=1"], "33 layers; the model has 32; accepted: 1 to 32"),
        (["train.recompute_group=3"], "groups of 3 do not divide the 8 layers of a stage of the pipeline; accepted: "
         "1, 2, 4, 8"),
        (["train.recompute_group=2", "parallel.stages=[7, 9, 8, 8]"], "groups of 2 do not divide all stages; "
         "accepted: 1"),
        (["train.recompute_group=2", "train.recompute=none"], "group=2: needs recompute full; got recompute none"),
        (["train.recompute_layers=2", "train.recompute=selective"], "needs recompute full; got recompute selective"),
        (["train.recompute_layers=2", "train.recompute_group=2"], "cannot stand beside recompute_layers"),
        (["train.recompute_layers=0"], "recompute_layers=0"),
        (["train.recompute_num_layers=2"], "did you mean 'recompute_layers'?"),
        (["train.recompute_method=uniform"], "did you mean 'recompute_group'?"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, overrides: list[str], told: str) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(SCENARIO)
    done = simulator("run", str(path), *overrides)
    assert done.code == 2
    assert told in " ".join(done.err.split())
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_measured_layers_have_no_forward_to_run_again(tmp_path: Path) -> None:
    path = tmp_path / "measured.yaml"
    path.write_text(
        "cluster: {topology: uniform}\nmodel: {layers: [{name: one, params: 10, forward: 1 ms, backward: 2 ms}]}\n"
        "train: {micro_batch: 1, recompute: full, recompute_layers: 1}\n"
    )
    done = simulator("run", str(path))
    assert done.code == 2
    assert "measured.yaml:3: train.recompute_layers: measured layers has no transformer layers" in done.err


# --------------------------------------------------------------------------------------------------------------- import

FLAGS = (
    "--num-layers 24 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 1 --global-batch-size 32 --bf16 --nproc-per-node 8 --pipeline-model-parallel-size 4 "
)


@pytest.mark.parametrize(
    ("flags", "expected", "warned"),
    [
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", ("full", None, None), ""),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 3", ("full", None, 3), ""),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2", ("full", 2, None), ""),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 6", ("full", None, None), ""),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2 "
         "--num-layers-per-virtual-pipeline-stage 2", ("full", None, None), ""),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", ("full", None, 2),
         "does not divide the layers of each stage (6); groups of 2 are taken"),
        ("--recompute-granularity full --recompute-num-layers 4", ("full", None, None), "takes --recompute-method and"),
        ("--recompute-granularity selective --recompute-num-layers 4", ("selective", None, None), ""),
        ("--recompute-activations", ("selective", None, None), ""),
        ("", ("none", None, None), ""),
    ],
)  # fmt: skip
def test_megatrons_flags_become_the_keys(
    tmp_path: Path, flags: str, expected: tuple[str, int | None, int | None], warned: str
) -> None:
    path = tmp_path / "flags.sh"
    path.write_text(FLAGS + flags)
    draft = import_file("megatron", str(path), Extras())
    assert (
        tuple(draft.value(f"train.{key}") for key in ("recompute", "recompute_layers", "recompute_group")) == expected
    )
    told = " ".join(draft.warnings)
    assert warned in told
    if not warned:
        assert "recompute" not in told
    scenario = tmp_path / "imported.yaml"
    scenario.write_text(scenario_text(draft))
    train = load_scenario(scenario).train
    assert train is not None
    assert (train.recompute, train.recompute_layers, train.recompute_group) == expected


def test_a_method_of_another_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flags.sh"
    path.write_text(f"{FLAGS} --recompute-granularity full --recompute-method blocks --recompute-num-layers 2")
    with pytest.raises(ScenarioError, match="recompute-method = 'blocks': accepted: uniform, block; did you mean 'bl"):
        import_file("megatron", str(path), Extras())
