"""Mixtures of experts against first principles: what is counted, computed, moved and kept, and how long it takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import simulator
from hypothesis import given
from hypothesis import strategies as st

from simulator.load import load_device, load_preset
from simulator.model_spec import ArchitectureModel, HfModel, PresetModel
from simulator.training.architecture import (
    Architecture,
    Experts,
    num_active_parameters,
    num_parameters,
    parameter_tensors,
)
from simulator.training.attention import keys_computed
from simulator.training.batch import Batch
from simulator.training.compute import operation_time
from simulator.training.families.llama import GATED_MLP, decoder
from simulator.training.families.llama import LAYOUT as LLAMA
from simulator.training.families.mixtral import LAYOUT as MIXTRAL
from simulator.training.families.qwen_moe import QWEN2
from simulator.training.flop import attention_flop_per_token, model_flop_per_token
from simulator.training.hf_config import architecture_from_config
from simulator.training.layout import matrix
from simulator.training.operations import Operation, ParameterTensor, TrainingModel
from simulator.training.precision import PRECISIONS
from simulator.training.presets import build_model
from simulator.training.transformer import transformer

FILES = Path(__file__).parent / "data" / "hf_configs"
PRESETS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")
S, B = 512, 2
T = S * B
SMALL = Architecture(
    name="small", layout=MIXTRAL, num_layers=2, hidden_size=256, num_heads=4, num_kv_heads=2, head_dim=64,
    intermediate_size=0, vocab_size=1000, experts=Experts(count=8, top_k=2, intermediate_size=384),
)  # fmt: skip


def batch(**changes: Any) -> Batch:
    settings = {"seq_len": S, "micro_batch": B, "precision": PRECISIONS["bf16-mixed"], "attention": "flash"} | changes
    return Batch(**settings)


def preset(name: str, **changes: Any) -> TrainingModel:
    settings = {"seq_len": S, "micro_batch": B, "precision": "bf16-mixed", "attention": "flash"} | changes
    return build_model(PresetModel(preset=name), **settings)


def block(model: TrainingModel, layer: str) -> dict[str, Operation]:
    return {op.name.removeprefix(f"{layer}."): op for op in model.operations if op.layer == layer}


# --------------------------------------------------------------------------------------------------------- arithmetic


def test_a_block_computes_6_t_k_h_f_and_the_router() -> None:
    """Forward: gate, up and down of k experts for each token, 2 T h E scores."""
    experts, h = replace(SMALL.experts or Experts(count=1, top_k=1, intermediate_size=1)), SMALL.hidden_size
    parts = block(transformer(SMALL, batch()), "layers.1")
    assert parts["mlp.router"].forward_flop == 2 * T * h * experts.count
    routed = parts["mlp.experts.up"].forward_flop + parts["mlp.experts.down"].forward_flop
    assert routed == 6 * T * experts.top_k * h * experts.intermediate_size
    assert parts["mlp.experts.up"].gemm == ((T * experts.top_k, 2 * experts.intermediate_size, h),)
    assert parts["mlp.experts.up"].gemm_groups == experts.count


@pytest.mark.parametrize("name", PRESETS)
def test_matmul_flop_is_two_per_active_weight_and_token(name: str) -> None:
    """2 N T with N the active parameters, without the input table and the vectors: norms and biases."""
    model = preset(name)
    vectors = sum(t.numel for t in model.parameters if t.rows == t.numel)
    matrices = model.num_active_parameters - model.num_embedding_parameters - vectors
    flop = sum(op.forward_flop for op in model.operations if op.kind == "gemm")
    assert flop == pytest.approx(2 * matrices * model.tokens, rel=1e-12)
    assert sum(op.backward_flop for op in model.operations if op.kind == "gemm") == pytest.approx(2 * flop)


def test_a_token_of_deepseek_v3_attends_with_192_wide_keys_and_128_wide_values() -> None:
    """Multi-head latent attention, arXiv:2412.19437, section 4.2: 128 heads of 128 + 64 and of 128; causal half."""
    core = block(preset("deepseek-v3"), "layers.5")["attn.core"]
    assert core.forward_flop == 2 * T * (S / 2) * 128 * (192 + 128)
    assert core.backward_flop == 2 * T * (S / 2) * 128 * (3 * 192 + 2 * 128)


@pytest.mark.parametrize("window", [1, 100, 511, 512, 5000, 0])
def test_a_window_computes_the_keys_that_a_count_of_them_gives(window: int) -> None:
    """Each query sees itself and the window - 1 keys before it; our integral is off by half a key at most."""
    counted = sum(min(query + 1, window or S) for query in range(S)) / S
    assert keys_computed(S, window) == pytest.approx(counted, abs=0.5)


def test_gemma_2_alternates_windows_and_full_attention() -> None:
    config = json.loads((FILES / "gemma-2-9b.json").read_text(encoding="utf-8"))
    arch = architecture_from_config(config, where="gemma-2-9b")
    model = transformer(arch, batch(seq_len=8192, micro_batch=1))
    cores = [block(model, f"layers.{layer}")["attn.core"].forward_flop for layer in range(4)]
    assert cores[0] == cores[2] == 0.75 * cores[1] == 0.75 * cores[3]
    assert attention_flop_per_token(model) == 12 * 42 * 16 * 256 * (4096 + 8192) / 2


# ---------------------------------------------------------------------------------------------------------- counting


def brute_force(arch: Architecture) -> tuple[int, int]:
    """All and active parameters of a sized mixture, term by term."""
    experts, h = arch.experts, arch.hidden_size
    assert experts is not None
    attention = h * (2 * arch.query_size + 2 * arch.kv_size)
    one, shared = 3 * h * experts.intermediate_size, 3 * h * experts.shared_size
    dense, sparse = len(experts.dense_layers), arch.num_layers - len(experts.dense_layers)
    same = arch.num_layers * (attention + 2 * h) + h + 2 * arch.vocab_size * h + dense * 3 * h * arch.intermediate_size
    beside = sparse * (h * experts.count + shared + (h if experts.shared_gate else 0))
    return same + beside + sparse * experts.count * one, same + beside + sparse * experts.top_k * one


@st.composite
def mixtures(draw: st.DrawFn) -> Architecture:
    layers, count = draw(st.integers(1, 4)), draw(st.integers(1, 16))
    kv = draw(st.sampled_from((1, 2, 4)))
    shared = draw(st.sampled_from((0, 48)))
    return Architecture(
        name="any", layout=QWEN2, num_layers=layers, hidden_size=draw(st.integers(1, 8)) * 16, num_heads=4,
        num_kv_heads=kv, head_dim=draw(st.sampled_from((8, 32))), intermediate_size=80, vocab_size=100,
        experts=Experts(
            count=count, top_k=draw(st.integers(1, count)), intermediate_size=draw(st.integers(1, 64)),
            shared_size=shared, shared_gate=bool(shared) and draw(st.booleans()),
            dense_layers=frozenset(draw(st.sets(st.integers(0, layers - 1)))),
        ),
    )  # fmt: skip


@given(mixtures())
def test_all_parameters_are_the_dense_part_and_the_experts(arch: Architecture) -> None:
    total, active = brute_force(arch)
    assert num_parameters(arch) == total
    sparse = arch.num_layers - len(arch.experts.dense_layers) if arch.experts else 0
    assert num_active_parameters(arch) == (active if sparse else total)
    names = [tensor.name for tensor in parameter_tensors(arch)]
    assert len(set(names)) == len(names)


@given(mixtures(), st.sampled_from(("eager", "fused")), st.sampled_from(("none", "selective-op", "full")))
def test_every_tensor_of_a_mixture_has_one_owner_and_its_flop_lie_between_its_dense_twins(
    arch: Architecture, kernels: str, recompute: str
) -> None:
    """Active twin: an MLP as wide as the chosen experts together; total twin: as all of them."""
    experts = arch.experts
    assert experts is not None
    model = transformer(arch, batch(kernels=kernels, recompute=recompute))
    owned = [tensor.name for operation in model.operations for tensor in operation.parameters]
    assert sorted(owned) == sorted(tensor.name for tensor in model.parameters)
    routed = sum(op.forward_flop for op in model.operations if ".experts." in op.name)
    sparse = arch.num_layers - len(experts.dense_layers)
    per_width = 6 * T * arch.hidden_size * experts.intermediate_size * sparse
    assert routed == experts.top_k * per_width <= experts.count * per_width


@pytest.mark.parametrize(
    ("model_type", "key"),
    [("mixtral", "num_local_experts"), ("qwen3_moe", "num_experts"), ("deepseek_v3", "n_routed_experts")],
)
def test_every_family_reads_all_three_spellings_of_the_number_of_experts(model_type: str, key: str) -> None:
    name = {"mixtral": "mixtral-8x7b", "qwen3_moe": "qwen3-30b-a3b", "deepseek_v3": "deepseek-v3"}[model_type]
    config = dict(load_preset(name).config or {})
    count = config.pop(key)
    spelt = [
        architecture_from_config({**config, spelling: count}, where="x")
        for spelling in ("num_local_experts", "num_experts", "n_routed_experts")
    ]
    assert spelt[0] == spelt[1] == spelt[2]
    assert spelt[0].experts is not None
    assert spelt[0].experts.count == count


@pytest.mark.parametrize(
    ("preset_name", "keys", "dense"),
    [
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, set(range(0, 48, 2))),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0, 47]}, {0, 47}),
        ("deepseek-v3", {}, {0, 1, 2}),
        ("deepseek-v3", {"first_k_dense_replace": 0, "moe_layer_freq": 2}, set(range(1, 61, 2))),
        ("deepseek-v3", {"moe_layer_freq": [0] * 4 + [1] * 57}, {0, 1, 2, 3}),
    ],
)
def test_dense_layers_are_where_the_file_says(preset_name: str, keys: dict[str, Any], dense: set[int]) -> None:
    arch = architecture_from_config({**(load_preset(preset_name).config or {}), **keys}, where="x")
    assert arch.experts is not None
    assert arch.experts.dense_layers == dense
    parts = {layer: set(block(transformer(arch, batch()), f"layers.{layer}")) for layer in (0, 4)}
    for layer, names in parts.items():
        assert ("mlp.up" in names) == (layer in dense)
        assert ("mlp.experts.up" in names) == (layer not in dense)


# --------------------------------------------------------------------------------------------------- the lone expert

_FUSED_MLP = (matrix("up", "mlp.gate_up_proj", "gate_up", "hidden"), *(row for row in GATED_MLP if row.part == "down"))
DENSE = decoder(tuple(row for row in MIXTRAL.block if "expert" not in row.part and row.part != "router"), _FUSED_MLP)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-master", "fp32"])
@pytest.mark.parametrize("kernels", ["eager", "fused"])
def test_one_expert_without_a_router_is_the_dense_model_to_1e_9(kernels: str, precision: str) -> None:
    """The twin has gate and up in one matrix, as a stack of experts has."""
    lone = replace(SMALL, experts=Experts(count=1, top_k=1, intermediate_size=384, router=False))
    dense = replace(SMALL, layout=DENSE, experts=None, intermediate_size=384)
    device = load_device("h100-sxm5-80gb")
    pair = [
        transformer(arch, batch(kernels=kernels, precision=PRECISIONS[precision])) for arch in (lone, dense)
    ]  # fmt: skip
    measures = [
        (
            model.num_parameters, model.num_active_parameters, model.forward_flop, model.backward_flop,
            model.saved_bytes, sum(operation_time(op, device, PRECISIONS[precision])[0] for op in model.operations),
            sum(operation_time(op, device, PRECISIONS[precision])[1] for op in model.operations),
            *(model_flop_per_token(model, convention) for convention in ("6N", "6N+attention")),
        )
        for model in pair
    ]  # fmt: skip
    assert measures[0] == pytest.approx(measures[1], rel=1e-9)


# ------------------------------------------------------------------------------------------------ memory and traffic


def test_all_experts_are_read_when_every_one_has_a_token_and_only_those_hit_otherwise() -> None:
    """T k rows over E experts: at least min(E, T k) weights of 2 bytes go over the memory bus."""
    for seq, hit in ((512, 8), (1, 2)):
        model = transformer(SMALL, batch(seq_len=seq, micro_batch=1, precision=PRECISIONS["bf16"]))
        up = block(model, "layers.0")["mlp.experts.up"]
        weights = 2 * hit * 2 * 384 * 256
        rows = 2 * (2 * seq) * (256 + 2 * 384)
        assert up.forward_bytes == weights + rows


SAVED = {
    "mixtral": (54.305, 100.305), "qwen3_moe": (68.594, 120.610), "qwen2_moe": (66.473, 124.493),
    "gemma": (50.109, 84.109), "olmo2": (66.094, 100.094), "phi3": (52.078, 96.078), "deepseek_v3": (78.899, 138.399),
}  # fmt: skip
"""Bytes that a decoder layer keeps for backward, over T h, in bf16 and fp32. Source: transformers 5.24 on torch 2.13,
CPU (``saved_tensors_hooks``, unique storages; weights and rotary tables left out), experts as ``grouped_mm``, attention
as scaled dot product; T 256, h 512, 8 heads of 64 of each, MLP 1408, as ``LAYERS`` says."""
_BASE = {
    "vocab_size": 64, "hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8,
    "intermediate_size": 1408,
}  # fmt: skip
_FINE = {"num_experts_per_tok": 4, "moe_intermediate_size": 256}
LAYERS = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 704},
    "qwen3_moe": {**_FINE, "num_experts": 16, "head_dim": 64},
    "qwen2_moe": {**_FINE, "num_experts": 16, "shared_expert_intermediate_size": 512},
    "gemma": {"head_dim": 64}, "olmo2": {}, "phi3": {},
    "deepseek_v3": {
        **_FINE, "n_routed_experts": 16, "n_shared_experts": 1, "first_k_dense_replace": 0, "q_lora_rank": 192,
        "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 96,
    },
}  # fmt: skip


@pytest.mark.parametrize("place", [0, 1], ids=["bf16", "fp32"])
@pytest.mark.parametrize("model_type", SAVED)
def test_a_layer_keeps_what_torch_saves(model_type: str, place: int) -> None:
    """Within half a percent, from below (statistics, indices); 5 for the two whose attention output torch's CPU kernel
    copies, or whose halves of a rotated matrix it keeps: DeepSeek and Phi-3."""
    arch = architecture_from_config({"model_type": model_type, **_BASE, **LAYERS[model_type]}, where=model_type)
    precision = PRECISIONS[("bf16", "fp32")[place]]
    model = transformer(arch, batch(seq_len=256, micro_batch=1, precision=precision))
    kept = sum(op.saved_bytes for op in block(model, "layers.0").values()) / 256 / 512
    slack = 0.05 if model_type in ("deepseek_v3", "phi3") else 0.005
    assert (1 - slack) * SAVED[model_type][place] <= kept <= SAVED[model_type][place]


@pytest.mark.parametrize(("kernels", "each"), [("eager", 4 * 384 + 2 * 256), ("fused", 3 * 384 + 256)])
def test_routed_activations_are_those_of_k_copies(kernels: str, each: int) -> None:
    """T k (4 f + 2 h) e beside the router's: gate, up, activated gate and down's input, and the rows that go in and
    come out. Fused, the activation starts again from gate and up and applies the weights (Megatron-LM,
    ``weighted_bias_swiglu_impl``): T k (3 f + h) e.
    """
    parts = block(transformer(SMALL, batch(kernels=kernels, precision=PRECISIONS["bf16"])), "layers.0")
    kept = sum(op.saved_bytes for name, op in parts.items() if name.startswith("mlp.") and name != "mlp.router")
    assert kept == T * 2 * each * 2


def test_experts_are_cut_inside_where_ranks_outnumber_them() -> None:
    """torchtitan's placement; without it, one expert a rank would be padded to as many as there are ranks."""
    stack = ParameterTensor(name="mlp.experts.gate_up_proj", numel=8 * 28672 * 4096, rows=8, columns=28672)
    assert [stack.rows_over(ranks) for ranks in (2, 8, 16, 64)] == [8, 8, 28672, 28672]
    assert ParameterTensor(name="w", numel=12, rows=3).rows_over(64) == 3


# -------------------------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize("device_name", ["h100-sxm5-80gb", "a100-sxm4-80gb", "b200-sxm-180gb"])
@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_computing_takes_longer_than_the_active_twin_and_less_than_the_total_twin(name: str, device_name: str) -> None:
    """8,192 tokens fill the device; small products need not obey: many experts fill it where one product does not."""
    arch = replace(architecture_from_config(load_preset(name).config or {}, where=name), num_layers=1, windows=())
    experts, device = arch.experts, load_device(device_name)
    assert experts is not None
    twins = [
        replace(arch, layout=LLAMA, experts=None, intermediate_size=count * experts.intermediate_size)
        for count in (experts.top_k, experts.count)
    ]
    active, mixture, total = (
        sum(sum(operation_time(op, device, PRECISIONS["bf16"])) for op in transformer(each, large).operations)
        for large in (batch(seq_len=8192, micro_batch=1, precision=PRECISIONS["bf16"], kernels="fused"),)
        for each in (twins[0], arch, twins[1])
    )
    assert active < mixture < 0.6 * total


MAXTEXT = {
    # model: tokens/s per chip, peak of the chip, published MFU in percent
    ("mixtral-8x7b", "v5p"): (2909, 459e12, 52.56), ("mixtral-8x7b", "v6e"): (3899, 918e12, 35.23),
    ("mixtral-8x22b", "v6e"): (1326, 918e12, 36.20),
}  # fmt: skip
"""Source: AI-Hypercomputer/maxtext docs/reference/models/tiering.md at e591f30cbbf2, sequences of 4,096."""


@pytest.mark.parametrize(("name", "chip"), MAXTEXT)
def test_mfu_counts_active_parameters_as_maxtext_does(name: str, chip: str) -> None:
    """To the last printed digit: 6 x (active - input table) + 12 L d s."""
    tokens, peak, mfu = MAXTEXT[name, chip]
    model = build_model(
        HfModel(hf=str(FILES / f"{name}.json")), seq_len=4096, micro_batch=1, precision="bf16", attention="flash"
    )
    found = model_flop_per_token(model, "6N-no-embedding+attention") * tokens / peak * 100
    assert found == pytest.approx(mfu, abs=0.006)


SIZES = "num_layers: 2, hidden_size: 2048, num_attention_heads: 16, vocab_size: 32000"
EXPERTS = "num_experts: 16, num_experts_per_tok: 2, moe_intermediate_size: 4096"


def scenario(tmp_path: Path, sizes: str, more: str = "") -> str:
    """FSDP on 16 H100."""
    path = tmp_path / "scenario.yaml"
    path.write_text(
        f"cluster: {{topology: dgx-h100, nodes: 2}}\nmodel: {sizes}\nparallel: {{strategy: fsdp}}\n"
        f"train: {{seq_len: 2048, micro_batch: 4, precision: bf16-mixed, kernels: fused}}\n{more}",
        encoding="utf-8",
    )
    return str(path)


def step(tmp_path: Path, sizes: str) -> dict[str, Any]:
    told = simulator("run", scenario(tmp_path, sizes), "--json")
    assert told.code in (0, 1), told.err
    return dict(json.loads(told.out))


def test_a_mixtures_step_takes_longer_than_its_active_twin_and_less_than_its_total_twin(tmp_path: Path) -> None:
    """Twins with one MLP in place of the experts: as wide as the two chosen ones, and as all sixteen."""
    mixture = step(tmp_path, f"{{{SIZES}, {EXPERTS}}}")
    active = step(tmp_path, f"{{{SIZES}, intermediate_size: {2 * 4096}}}")
    total = step(tmp_path, f"{{{SIZES}, intermediate_size: {16 * 4096}}}")
    assert active["step_time_s"] < mixture["step_time_s"] < total["step_time_s"]
    routers = 2 * 2048 * 16
    assert mixture["num_active_parameters"] == active["num_parameters"] + routers
    assert mixture["num_parameters"] == total["num_parameters"] + routers
    states = [report["memory"]["by_kind_bytes"]["optimizer"] for report in (mixture, total)]
    assert states[0] == pytest.approx(states[1], rel=1e-3), "the optimizer keeps states of all experts"
    assert active["num_active_parameters"] == active["num_parameters"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("mixtral-8x7b", "46.7B parameters, 12.9B active"), ("llama-3.2-1b", "1.24B parameters")],
)
def test_the_headline_tells_active_parameters_of_a_mixture_alone(name: str, told: str, tmp_path: Path) -> None:
    out = simulator("run", scenario(tmp_path, f"{{preset: {name}}}")).out
    assert out.startswith(f"{name} ({told}), FSDP2 on 16 GPUs")


@pytest.mark.slow
def test_the_days_of_a_run_by_6nd_count_active_parameters(tmp_path: Path) -> None:
    """Mixtral 8x7B has 12.88e9 of them: 6 N D over 16 H100 at 40 %."""
    path = scenario(tmp_path, "{preset: mixtral-8x7b}", "goal: {tokens: 1T}\n")
    days = 6 * 12_879_925_248 * 1e12 / (16 * 989e12 * 0.4) / 86400
    assert f"{days:,.1f} days by 6ND at 40% MFU" in simulator("check", path).out.replace("\n", " ")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 2}, "moe_intermediate_size"),
        ({"num_experts_per_tok": 2}, "needs num_experts"),
        ({"num_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 8}, "at most num_experts .2.; got 3"),
        (
            {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 9},
            "at most num_layers .4.; got 9",
        ),
        ({"num_experts": 2, "family": "gpt2"}, "gpt2 has no experts"),
    ],
)  # fmt: skip
def test_sizes_of_experts_that_do_not_go_together_are_named(keys: dict[str, Any], message: str) -> None:
    sizes = {
        "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 128,
        "max_position_embeddings": 64,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        ArchitectureModel.model_validate(sizes | keys)
