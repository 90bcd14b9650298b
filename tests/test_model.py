"""Parameters, FLOP and activation bytes of the models, against model cards and the papers' formulas."""

from __future__ import annotations

import pytest
from published import PARAMETERS, RESNET18_GMAC, YEARS_FOR_405B

from simulator import shipped
from simulator.errors import ScenarioError
from simulator.load import load_preset
from simulator.model_spec import ArchitectureModel, LayersModel, MeasuredLayer, PresetModel
from simulator.strategies.buckets import ready_order
from simulator.training.architecture import Architecture
from simulator.training.batch import Batch
from simulator.training.families import gpt2, llama
from simulator.training.flop import CONVENTIONS, model_flop_per_token, training_flop, training_time_s
from simulator.training.operations import KINDS, TrainingModel, num_elements
from simulator.training.precision import PRECISIONS
from simulator.training.presets import build_model, model_precision
from simulator.training.transformer import transformer

YEAR_S = 365.25 * 86400
LAYOUTS = {"llama": llama.LAYOUT, "gpt2": gpt2.LAYOUT}


def build(preset: str, **changes: object) -> TrainingModel:
    settings = {"seq_len": 512, "micro_batch": 2, "precision": "bf16-mixed", "attention": "flash"} | changes
    return build_model(PresetModel(preset=preset), **settings)  # type: ignore[arg-type]


def matmul_flop(model: TrainingModel) -> float:
    return sum(operation.forward_flop for operation in model.operations if operation.kind == "gemm")


def test_every_shipped_preset_has_a_published_count() -> None:
    assert set(shipped.names("preset")) == set(PARAMETERS)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameter_count_is_the_published_one_to_the_last_parameter(name: str) -> None:
    model = build(name)
    assert model.num_parameters == PARAMETERS[name].value == load_preset(name).parameters
    assert num_elements(model.parameters) == model.num_parameters


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_every_tensor_belongs_to_exactly_one_operation(name: str) -> None:
    model = build(name)
    owned = [tensor.name for operation in model.operations for tensor in operation.parameters]
    assert sorted(owned) == sorted(tensor.name for tensor in model.parameters)
    assert len(set(owned)) == len(owned)
    assert {operation.kind for operation in model.operations} <= set(KINDS)
    assert len({operation.name for operation in model.operations}) == len(model.operations)


def test_tensor_counts_are_those_of_the_frameworks() -> None:
    """ResNet-18 has 62, the lecture's MLP 34, GPT-2 148 (12 x 12 + 4), Llama-3-8B 291 (32 x 9 + 3)."""
    counts = {name: len(build(name).parameters) for name in ("resnet-18", "cs-mlp-8x1024", "gpt2", "llama-3-8b")}
    assert counts == {"resnet-18": 62, "cs-mlp-8x1024": 34, "gpt2": 148, "llama-3-8b": 291}


def test_llama_tensors_are_registered_as_hugging_face_registers_them() -> None:
    """LlamaDecoderLayer: attention, MLP, then the two norms, although the norms run first."""
    names = [tensor.name for tensor in build("llama-3-8b").parameters]
    assert names[0] == "model.embed_tokens.weight"
    assert [name.removeprefix("model.layers.0.").removesuffix(".weight") for name in names[1:10]] == [
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
    ]  # fmt: skip
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]


def block_ready(preset: str, precision: str, prefix: str) -> list[str]:
    """The gradients of one block in the order in which they are ready, names without the block's."""
    names = [ready.tensor.name for ready in ready_order(build(preset, precision=precision), 4)]
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32"])
def test_gradients_of_a_qwen3_block_are_ready_in_the_order_of_a_real_backward(precision: str) -> None:
    """Post-accumulate hooks of torch 2.13, the block written in the order of Hugging Face's Qwen3DecoderLayer."""
    found = block_ready("qwen3-8b", precision, "model.layers.7.")
    assert [name.removesuffix(".weight").rpartition(".")[2] for name in found] == [
        "down_proj", "up_proj", "gate_proj", "post_attention_layernorm", "o_proj",
        "v_proj", "k_norm", "k_proj", "q_norm", "q_proj", "input_layernorm",
    ]  # fmt: skip


@pytest.mark.parametrize(("precision", "linear"), [("fp32", ("bias", "weight")), ("bf16-mixed", ("weight", "bias"))])
def test_a_norm_is_ready_weight_first_and_a_linear_layer_so_only_under_autocast(
    precision: str, linear: tuple[str, str]
) -> None:
    """Post-accumulate hooks of torch 2.13 on a GPT-2 block, which has both kinds with biases."""
    layers = ["mlp.c_proj", "mlp.c_fc", "ln_2", "attn.c_proj", "attn.c_attn", "ln_1"]
    assert block_ready("gpt2", precision, "transformer.h.3.") == [
        f"{layer}.{part}" for layer in layers for part in (("weight", "bias") if "ln_" in layer else linear)
    ]


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32"])
@pytest.mark.parametrize("name", ["gpt2", "cs-mlp-8x1024", "resnet-18"])
def test_parameters_stay_in_registration_order_whatever_is_ready_first(name: str, precision: str) -> None:
    """A layer's weight is registered right before its bias."""
    names = [tensor.name for tensor in build(name, precision=precision).parameters]
    for place, bias in enumerate(names):
        if bias.endswith(".bias"):
            assert names[place - 1] == bias.removesuffix("bias") + "weight"


def test_a_tied_gradient_is_ready_last() -> None:
    """Llama-3.2-1B's head uses the embedding's tensor, whose gradient waits for the last backward of all."""
    model = build("llama-3.2-1b")
    assert model.tied == (("lm_head", "model.embed_tokens.weight"),)
    head = next(operation for operation in model.operations if operation.name == "lm_head")
    assert head.parameters == ()
    assert model.operations[0].parameters[0].name == "model.embed_tokens.weight"


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-8b", "gpt2"])
def test_matmul_flop_is_two_per_weight_and_token(name: str) -> None:
    """Every weight matrix meets every token once: 2 N T, N without tables, norms and biases, but with the head."""
    model = build(name)
    vectors = sum(
        tensor.numel
        for tensor in model.parameters
        if tensor.name.endswith("bias") or "norm" in tensor.name or ".ln_" in tensor.name
    )
    head = next(tensor.numel for tensor in model.parameters if "lm_head" in tensor.name) if not model.tied else 0
    matrices = model.num_parameters - model.num_embedding_parameters - vectors - head
    table = model.parameters[0].numel
    assert matmul_flop(model) == 2 * (matrices + table) * model.tokens
    assert sum(o.backward_flop for o in model.operations if o.kind == "gemm") == 2 * matmul_flop(model)


def test_attention_counts_the_causal_half_for_flash_and_all_of_it_for_eager() -> None:
    """Full: 4 s d per token and layer forward (scores and values)."""
    full = 4 * 512 * 4096 * 32 * 1024
    flash, eager = build("llama-3-8b"), build("llama-3-8b", attention="eager")
    assert sum(o.forward_flop for o in flash.operations if o.kind == "attention") == full / 2
    assert matmul_flop(eager) - matmul_flop(flash) == full
    backward = sum(o.backward_flop for o in flash.operations if o.kind == "attention")
    assert backward == 2.5 * full / 2  # five products instead of two: the scores are computed again


def test_mfu_conventions_differ_by_their_definitions() -> None:
    """torchtitan drops the embedding table; PaLM's attention term is 12 L d s."""
    model = build("llama-3-8b", seq_len=8192)
    plain, attention, bare = (model_flop_per_token(model, convention) for convention in CONVENTIONS)
    assert plain == 6 * 8_030_261_248
    assert attention - plain == 12 * 32 * 4096 * 8192
    assert attention - bare == 6 * 128_256 * 4096


def test_405b_takes_about_three_thousand_years_on_one_h100() -> None:
    """CS336 lecture 7: 6 N D = 3.8e25 FLOP at 40% of 989 TFLOP/s."""
    assert training_flop(405e9, 15.6e12) == pytest.approx(3.8e25, rel=0.005)
    years = training_time_s(3.8e25, 989e12, 0.40) / YEAR_S
    assert years == pytest.approx(YEARS_FOR_405B.value, rel=YEARS_FOR_405B.tolerance)
    assert training_time_s(3.8e25, 989e12, 0.40, 16_384) * 16_384 == pytest.approx(years * YEAR_S)


@pytest.mark.parametrize(("attention", "score"), [("flash", 0.0), ("eager", 5.0)])
def test_gpt2_block_keeps_34_sbh_plus_the_scores(attention: str, score: float) -> None:
    """Korthikanti et al. 2022, equation 1: s b h (34 + 5 a s / h); flash drops the score term and adds 4 a s b."""
    s, b, h, a = 512, 2, 768, 12
    model = build("gpt2", attention=attention, precision="bf16-master")
    block = sum(operation.saved_bytes for operation in model.operations if operation.layer == "layers.5")
    statistics = 4 * a * s * b if attention == "flash" else 0
    assert block == pytest.approx(s * b * (34 * h + score * a * s) + statistics, rel=1e-12)


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-2-7b"])
def test_llama_block_keeps_12h_4hkv_6f_4a(name: str) -> None:
    """s b (12 h + 4 h kv/a + 6 f + 4 a), 16-bit, fused SwiGLU and norms, flash attention. Traced with torch 2.13: an
    MLP with SwiGLU keeps 8 f beside its input, compiled (aot_eager_decomp_partition) 6 f.
    """
    config = load_preset(name).config or {}
    h, f = config["hidden_size"], config["intermediate_size"]
    a, kv = config["num_attention_heads"], config["num_key_value_heads"]
    model = build(name, precision="bf16-master", kernels="fused")
    block = sum(operation.saved_bytes for operation in model.operations if operation.layer == "layers.0")
    assert block == pytest.approx(model.tokens * (12 * h + 4 * h * kv / a + 6 * f + 4 * a), rel=1e-12)


SAVED_BY_TORCH = {
    # precision: Llama, Llama with norms of q and k, Llama with eager attention, GPT-2, GPT-2 with eager attention
    "bf16-mixed": (56.078, 63.656, 80.016, 36.094, 60.031),
    "bf16": (46.078, 53.656, 70.016, 32.078, 40.016),
    "fp32": (84.078, 94.156, 100.016, 64.094, 80.031),
}
"""Bytes a block keeps, over T h. Source: torch 2.13 CPU saved tensors (``saved_tensors_hooks``, unique storages).

h 512, 8 heads, T 256 in one sequence, no dropout; Llama: kv 2 (repeated for all heads), f 1408; scaled dot product
attention (flash). Weights, their 16-bit copies and the tables of rotary positions are not counted.
"""


@pytest.mark.parametrize("precision", SAVED_BY_TORCH)
@pytest.mark.parametrize(
    ("place", "family", "qk_norm", "attention"),
    [(0, "llama", False, "flash"), (1, "llama", True, "flash"), (2, "llama", False, "eager"),
     (3, "gpt2", False, "flash"), (4, "gpt2", False, "eager")],
)  # fmt: skip
def test_an_eager_block_keeps_what_torch_saves(
    precision: str, place: int, family: str, qk_norm: bool, attention: str
) -> None:
    """Less the statistics of norms, which we leave out: at most 8 bytes a token for each of two, and 4 a head."""
    hidden, heads, seq = 512, 8, 256
    kv, ffn = (heads, 4 * hidden) if family == "gpt2" else (2, 1408)
    arch = Architecture(
        name="one block", layout=LAYOUTS[family], num_layers=1, hidden_size=hidden, num_heads=heads, num_kv_heads=kv,
        head_dim=hidden // heads, intermediate_size=ffn, vocab_size=64, max_positions=seq, qk_norm=qk_norm,
    )  # fmt: skip
    model = transformer(arch, Batch(seq_len=seq, micro_batch=1, precision=PRECISIONS[precision], attention=attention))
    block = sum(operation.saved_bytes for operation in model.operations if operation.layer == "layers.0")
    statistics = 2 * 8 + (4 * (heads + kv) if qk_norm else 0)
    saved = SAVED_BY_TORCH[precision][place] * hidden
    assert saved - statistics - 0.5 <= block / seq <= saved


@pytest.mark.parametrize(("precision", "kernels", "units"), [
    ("bf16-mixed", "eager", 34), ("bf16-master", "eager", 24), ("bf16-mixed", "fused", 20), ("bf16-master", "fused", 16)
])  # fmt: skip
def test_llama_block_with_all_heads_keeps_so_many_h(precision: str, kernels: str, units: int) -> None:
    """Beside 8 f (fused 6 f) + 4 a. From fused 16-bit: fp32 stream + 4, RMSNorm's fp32 + 8, casts for readers + 6."""
    h, f, a = 4096, 11008, 32
    model = build("llama-2-7b", precision=precision, kernels=kernels)
    block = sum(operation.saved_bytes for operation in model.operations if operation.layer == "layers.0")
    assert block == model.tokens * (units * h + (6 if kernels == "fused" else 8) * f + 4 * a)


def test_head_keeps_six_bytes_a_logit_and_needs_six_more_for_their_gradient() -> None:
    """bf16 logits 2 s b V, fp32 log-softmax 4 s b V; gradient in fp32 and bf16."""
    model = build("llama-3-8b")
    loss = model.operations[-1]
    assert loss.saved_bytes == 6 * model.tokens * 128_256
    assert model.loss_gradient_bytes == 6 * model.tokens * 128_256


def test_resnet18_does_1_81_gmac_an_image() -> None:
    model = build("resnet-18", seq_len=1, micro_batch=4)
    assert model.forward_flop / 2 / 4 == pytest.approx(RESNET18_GMAC.value, rel=RESNET18_GMAC.tolerance)
    assert [tensor.name for tensor in model.parameters[:3]] == ["conv1.weight", "bn1.weight", "bn1.bias"]
    assert [tensor.numel for tensor in model.parameters[-2:]] == [512_000, 1_000]
    assert model.buffer_bytes == 2 * 4 * 4_800 + 20 * 8


def test_work_grows_with_the_batch_and_weights_do_not() -> None:
    one, two = build("llama-3.2-1b", micro_batch=1), build("llama-3.2-1b", micro_batch=2)
    assert two.forward_flop == 2 * one.forward_flop
    assert two.saved_bytes == 2 * one.saved_bytes
    assert two.num_parameters == one.num_parameters


def test_measured_layers_keep_their_order_times_and_tensors() -> None:
    layers = LayersModel(
        layers=(
            MeasuredLayer(name="in", params=10, forward="1 ms", backward="2 ms"),
            MeasuredLayer(name="block", params=(4, 2), forward="5 ms", backward="9 ms", activations="3 kB", repeat=2),
        )
    )
    model = build_model(layers, seq_len=1, micro_batch=1, precision="fp32", attention="flash")
    assert [operation.name for operation in model.operations] == ["in", "block.0", "block.1"]
    assert [tensor.numel for tensor in model.parameters] == [10, 4, 2, 4, 2]
    assert model.operations[2].backward_s == pytest.approx(9e-3)
    assert model.saved_bytes == 6_000


def test_measured_layers_may_say_in_which_type_their_gradients_are() -> None:
    layer = MeasuredLayer(name="a", params=1, forward="1 ms", backward="1 ms")
    assert model_precision(LayersModel(layers=(layer,), dtype="bf16"), "fp32").reduce_bytes == 2
    assert model_precision(LayersModel(layers=(layer,)), "fp32").reduce_bytes == 4


def test_sizes_written_in_the_scenario_build_the_same_model_as_the_preset() -> None:
    sizes = ArchitectureModel(
        num_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
        vocab_size=128_256,
    )  # fmt: skip
    model = build_model(sizes, seq_len=512, micro_batch=2, precision="bf16-mixed", attention="flash")
    assert model.operations == build("llama-3-8b").operations


def test_a_misspelt_preset_gets_the_nearest_name() -> None:
    with pytest.raises(ScenarioError, match=r"did you mean 'llama-3-8b'"):
        build("llama3-8b")


def test_gpt2_cannot_read_past_its_position_table() -> None:
    with pytest.raises(ScenarioError, match="2048 is longer than the 1024 learned positions"):
        build("gpt2", seq_len=2048)
