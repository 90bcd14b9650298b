"""Parts of a block recomputed by name (``train.recompute_modules``): what is kept, run again, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from command_line import ROOT, simulator
from stepping import inputs_of, memory_in

from simulator.answer import answer_step
from simulator.errors import ScenarioError
from simulator.load import load_scenario
from simulator.model_spec import PresetModel
from simulator.train_spec import Module
from simulator.training.operations import Operation, TrainingModel
from simulator.training.presets import build_model
from simulator.training.recompute import Checkpoints
from simulator.training.recompute_modules import MODULES
from simulator.training.shards import Shards

S = 512
H, KV, F, A = 4096, 1024, 14336, 32
"""Llama-3-8B: hidden size (that of the queries too), of keys and values, of the MLP, and heads."""


def build(preset: str, *modules: str, **changes: object) -> TrainingModel:
    more = {"recompute": "selective", "checkpoints": Checkpoints(modules=modules)} if modules else {}
    settings = {
        "seq_len": S, "micro_batch": 1, "precision": "bf16-master", "attention": "flash", "kernels": "fused", **more,
    }  # fmt: skip
    return build_model(PresetModel(preset=preset), **settings | changes)  # type: ignore[arg-type]


def block(model: TrainingModel, layer: str = "layers.5") -> dict[str, Operation]:
    return {o.name.removeprefix(f"{layer}."): o for o in model.operations if o.layer == layer}


def kept(model: TrainingModel) -> float:
    return sum(operation.saved_bytes for operation in block(model).values())


def spared(preset: str, *modules: str, **changes: object) -> float:
    return kept(build(preset, **changes)) - kept(build(preset, *modules, **changes))


def run_again(preset: str, *modules: str) -> list[str]:
    parts = block(build(preset, *modules)).values()
    return [again.name.partition(".5.")[2] for operation in parts for again in operation.replayed]


def test_the_scenario_takes_the_names_that_there_are() -> None:
    assert sorted(get_args(Module)) == sorted(MODULES)


@pytest.mark.parametrize(("kernels", "norms", "product"), [("fused", 4, 2), ("eager", 8, 4)])
def test_norms_and_activations_are_not_kept(kernels: str, norms: int, product: int) -> None:
    """Bytes of a token. Two norms of 2 h each, in fp32 too if eager (2 x 4 h more, less the input of 2 h that stays);
    down's input of 2 f, and eager the activated gate.
    """
    assert spared("llama-3-8b", "layernorm", kernels=kernels) == S * norms * H + (
        S * 4 * H if kernels == "eager" else 0
    )
    assert spared("llama-3-8b", "mlp_act", kernels=kernels) == S * product * F


def test_what_xformers_keeps_of_a_swiglu_is_gate_and_up() -> None:
    """``_SwiGLUFusedFunc`` (xformers/ops/swiglu_op.py) saves x, x1 and x2: 4 f beside the input of 2 h."""
    parts = block(build("llama-3-8b", "mlp_act"))
    assert sum(o.saved_bytes for name, o in parts.items() if name.startswith("mlp.")) == S * (2 * H + 4 * F)
    assert [again.name for again in parts["mlp.down"].replayed] == ["layers.5.mlp.activation"]
    assert parts["mlp.down"].replayed[0].saved_bytes == S * 2 * F


def test_q_k_and_v_of_latent_attention_come_back_from_latents() -> None:
    """DeepSeek-V3: 128 heads of 192 wide queries and keys and 128 wide values; latents of 1536 + 512 stay, normed ones
    go (arXiv:2412.19437, section 3.2.3).
    """
    assert spared("deepseek-v3", "mla_up_proj") == S * 2 * (128 * (192 + 192 + 128) + 1536 + 512)
    assert run_again("deepseek-v3", "mla_up_proj") == ["attn.latent_norm", "attn.qkv", "attn.rotary"]


def test_activations_of_experts_come_back_from_gate_and_up() -> None:
    """8 experts of 2,048 and a shared one for each token: 2 f bytes each."""
    assert spared("deepseek-v3", "moe_act") == S * 2 * 9 * 2048
    assert run_again("deepseek-v3", "moe_act") == ["mlp.experts.activation", "mlp.shared.activation"]


@pytest.mark.parametrize(("preset", "module", "again"), [
    ("llama-3-8b", "mlp", ["mlp.up", "mlp.activation", "mlp.down"]),
    ("mixtral-8x7b", "moe", ["mlp.router", "mlp.dispatch", "mlp.experts.up", "mlp.experts.activation",
                             "mlp.experts.down", "mlp.combine"]),
])  # fmt: skip
def test_a_whole_mlp_keeps_its_input_alone(preset: str, module: str, again: list[str]) -> None:
    parts = block(build(preset, module))
    assert run_again(preset, module) == again
    assert sum(o.saved_bytes for name, o in parts.items() if name.startswith("mlp.")) == S * 2 * H


def test_experts_run_again_send_again() -> None:
    """Dispatch and combine cross the ranks of ep twice forward; of what is recomputed inside an expert nothing does."""
    sends = {}
    for module in ("moe", "moe_act"):
        model = build("mixtral-8x7b", module, shards=Shards(ep=8, node_size=8))
        again = [again for o in block(model).values() for again in o.replayed]
        sends[module] = sum(e.op == "all_to_all" and "forward" in e.when for o in again for e in o.exchanges)
    assert sends == {"moe": 3, "moe_act": 0}


def test_parts_add_up_with_the_attention_core() -> None:
    """All that is named at once spares what each spares: 4 a of statistics beside the others."""
    each = [spared("llama-3-8b", module) for module in ("layernorm", "mlp_act", "core_attn")]
    assert each[2] == S * 4 * A
    assert spared("llama-3-8b", "layernorm", "mlp_act", "core_attn") == sum(each)
    both = block(build("deepseek-v3", "mla_up_proj", "core_attn"))["attn.core"]
    assert (both.saved_bytes, len(both.replayed)) == (0.0, 4)


def test_scores_that_attention_keeps_stay() -> None:
    """Without a flash kernel only q, k and v come back from latents."""
    core = block(build("deepseek-v3", "mla_up_proj", attention="eager"))["attn.core"]
    assert (
        core.saved_bytes == block(build("deepseek-v3", attention="eager"))["attn.core"].saved_bytes - S * 2 * 128 * 512
    )


def test_shares_of_the_sequence_are_run_again_as_shares() -> None:
    shards = Shards(tp=4, sequence_parallel=True)
    model = build("llama-3-8b", "layernorm", "mlp_act", shards=shards)
    assert kept(build("llama-3-8b", shards=shards)) - kept(model) == S * (4 * H + 2 * F) / 4
    norm, whole = (block(m)["attn.qkv"].replayed[0] for m in (model, build("llama-3-8b", "layernorm")))
    assert norm.forward_bytes == whole.forward_bytes / 4


@pytest.mark.parametrize("kernels", ["eager", "fused"])
@pytest.mark.parametrize("preset", ["llama-3-8b", "deepseek-v3", "mixtral-8x7b"])
def test_running_again_brings_back_what_was_not_kept(preset: str, kernels: str) -> None:
    latent = ("mla_up_proj",) if preset == "deepseek-v3" else ()
    act = "mlp_act" if preset == "llama-3-8b" else "moe_act"
    plain, model = (build(preset, *named, kernels=kernels) for named in ((), ("layernorm", act, *latent)))
    assert model.forward_flop == plain.forward_flop
    again = [again for o in model.operations for again in o.replayed]
    assert model.replayed_flop == sum(o.forward_flop for o in again)
    assert bool(model.replayed_flop) == bool(latent)
    assert sum(again.saved_bytes for again in again) == pytest.approx(plain.saved_bytes - model.saved_bytes)


def test_the_peak_of_a_step_falls_by_what_is_not_kept() -> None:
    """At the loss, when all is kept and nothing runs again yet, of 32 layers with 8,192 tokens."""
    models = [build("llama-3-8b", *named, seq_len=8192) for named in ((), ("layernorm", "mlp_act"))]
    plain, less = (memory_in(inputs_of(model, 8, {})) for model in models)
    assert plain.peak_at == less.peak_at == "backward 0: loss"
    assert plain.peak_bytes - less.peak_bytes == 32 * 8192 * (4 * H + 2 * F)


@pytest.mark.parametrize(
    ("preset", "keys", "message"),
    [
        (
            "llama-3-8b",
            ["train.recompute_modules=[mla_up_proj]"],
            "llama-3-8b has no latent attention; leave mla_up_proj",
        ),
        ("llama-3-8b", ["train.recompute_modules=[moe]"], "llama-3-8b has no experts; leave moe out"),
        ("mixtral-8x7b", ["train.recompute_modules=[moe, moe_act]"], "moe runs moe_act again already"),
        ("llama-3-8b", ["train.recompute_modules=[mlp_akt]"], "did you mean 'mlp_act'?"),
        ("llama-3-8b", ["train.recompute_modules=[]"], "at least 1"),
        ("llama-3-8b", ["train.recompute_modules=[mlp, mlp]"], "names a part twice; got [mlp, mlp]"),
        ("llama-3-8b", ["train.recompute=full", "train.recompute_modules=[mlp]"], "needs recompute selective; got"),
    ],
)
def test_what_a_model_does_not_have_is_refused(preset: str, keys: list[str], message: str) -> None:
    given = (f"model.preset={preset}", *(() if "full" in keys[0] else ("train.recompute=selective",)), *keys)
    with pytest.raises(ScenarioError, match=r"recompute_modules") as caught:
        answer_step(load_scenario("scenarios/fsdp-llama-8b-128xh100.yaml", given), with_startup=False)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("core_attn moe_act", 'recompute_modules: ["core_attn", "moe_act"]'),
        ("core_attn", "'core_attn' - the attention core, as the simulator does it unasked"),
        ("shared_experts moe", "shared_experts is not simulated apart; it is kept"),
    ],
)
def test_import_reads_them_from_megatrons_flags(flag: str, line: str, tmp_path: Path) -> None:
    script = (ROOT / "tests/data/imports/megatron-mixtral-8x7b.sh").read_text(encoding="utf-8")
    more = f"--recompute-granularity selective\n    --recompute-modules {flag}\n    --micro-batch-size 1"
    path = tmp_path / "train.sh"
    path.write_text(script.replace("--micro-batch-size 1", more), encoding="utf-8")
    assert line in simulator("import", "megatron", str(path)).out
