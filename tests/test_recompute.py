"""Activation checkpointing and kernel fusion: what they keep, what they run again, what they move."""

from __future__ import annotations

import pytest
from stepping import inputs_of, memory_in

from simulator.errors import UnsupportedError
from simulator.load import load_device
from simulator.model_spec import PresetModel
from simulator.strategies.buckets import assign, ready_order
from simulator.training.compute import operation_time
from simulator.training.elementwise import KERNELS, activation, cross_entropy, norm
from simulator.training.operations import Operation, TrainingModel
from simulator.training.precision import PRECISIONS
from simulator.training.presets import build_model
from simulator.training.recompute import MODES

S, B = 512, 2
BF16, MIXED = PRECISIONS["bf16-master"], PRECISIONS["bf16-mixed"]


def build(preset: str = "gpt2", **changes: object) -> TrainingModel:
    settings = {"seq_len": S, "micro_batch": B, "precision": "bf16-master", "attention": "flash"} | changes
    return build_model(PresetModel(preset=preset), **settings)  # type: ignore[arg-type]


def block(model: TrainingModel, layer: str = "layers.5") -> list[Operation]:
    return [operation for operation in model.operations if operation.layer == layer]


def kept_bytes(model: TrainingModel) -> float:
    return sum(operation.saved_bytes for operation in block(model))


def test_full_recompute_keeps_2_sbh_per_block() -> None:
    """Korthikanti et al. 2022, table 2: full activation recomputation stores 2 s b h; twice that of an fp32 stream."""
    assert kept_bytes(build(recompute="full")) == 2 * S * B * 768
    assert kept_bytes(build(recompute="full", precision="bf16-mixed")) == 4 * S * B * 768
    assert kept_bytes(build("llama-3-8b", recompute="full")) == 2 * S * B * 4096


@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_selective_recompute_drops_the_score_term_alone(attention: str) -> None:
    """Korthikanti et al. 2022, equation 6: 34 s b h without 5 a s; flash kernels lose only their statistics."""
    assert kept_bytes(build(attention=attention, recompute="selective")) == 34 * S * B * 768


H, KV, F, A = 4096, 1024, 14336, 32
"""Llama-3-8B: hidden size (that of the queries too), of keys and values, of the MLP, and heads."""


@pytest.mark.parametrize(("kernels", "units"), [("eager", 4), ("fused", 3)])
def test_selective_op_keeps_input_attention_and_every_second_product(kernels: str, units: int) -> None:
    """Input, q, v, attention's output with statistics, gate and down; compiled all but down (see the real blocks)."""
    model = build("llama-3-8b", recompute="selective-op", kernels=kernels)
    assert kept_bytes(model) == S * B * (2 * (units * H + KV + F) + 4 * A)


def test_selective_op_runs_k_out_and_up_again_and_no_attention() -> None:
    model = build("llama-3-8b", recompute="selective-op")
    assert model.replayed_flop == 32 * 2 * S * B * (H * KV + H * H + H * F)
    device = load_device("h100-sxm5-80gb")
    times = {op.name: operation_time(op, device, BF16)[0] for op in block(model)[-1].replayed}
    assert (times["layers.5.attn.core"], times["layers.5.mlp.down"]) == (0.0, 0.0)
    assert min(time for name, time in times.items() if name.split(".", 2)[2] not in ("attn.core", "mlp.down")) > 0


def test_selective_op_names_no_product_with_a_bias() -> None:
    """GPT-2's layers are ``aten.addmm``: only attention's output is kept, beside the input, and all else run again."""
    model = build(recompute="selective-op")
    assert kept_bytes(model) == S * B * (2 * 768 + 2 * 768 + 4 * 12)
    assert model.replayed_flop == 12 * sum(op.forward_flop for op in block(build()) if op.kind == "gemm")


def test_selective_op_stops_at_the_input_of_the_last_product() -> None:
    """Qwen 2.5 has biases in q, k and v: of out, gate, up and down, out and up are kept. q, k, v and gate run again;
    down, whose output nothing reads, does not (``early_stop`` of torch.utils.checkpoint)."""
    model = build("qwen2.5-7b", recompute="selective-op")
    hidden, kv, ffn = 3584, 512, 18944
    assert kept_bytes(model) == S * B * (2 * (hidden + hidden + hidden + ffn) + 4 * 28)
    assert model.replayed_flop == 28 * 2 * S * B * hidden * (hidden + 2 * kv + ffn)


def test_selective_op_runs_attention_again_that_returns_its_scores() -> None:
    model = build("llama-3-8b", recompute="selective-op", attention="eager")
    core = next(op for op in block(model) if op.name.endswith("core"))
    assert core.saved_bytes == 0
    assert core.forward_flop in [op.forward_flop for op in block(model)[-1].replayed]


@pytest.mark.parametrize("preset", ["llama-3-8b", "gpt2"])
def test_what_selective_op_brings_back_and_what_it_kept_make_a_block(preset: str) -> None:
    """To the kept outputs that nothing reads again as they are: input, q, v and down of Llama, input of GPT-2."""
    model = build(preset, recompute="selective-op")
    unread = 3 * H + KV if preset == "llama-3-8b" else 768
    assert model.replayed_bytes + kept_bytes(model) == kept_bytes(build(preset)) + 2 * S * B * unread


def test_full_recompute_runs_every_block_forward_once_more_and_nothing_else() -> None:
    model, plain = build(recompute="full"), build()
    blocks = sum(o.forward_flop for o in plain.operations if o.layer.startswith("layers."))
    assert model.replayed_flop == blocks
    assert model.forward_flop == plain.forward_flop
    assert plain.replayed_flop == 0


def test_recomputed_forward_is_paid_before_the_first_backward_of_its_block() -> None:
    """So no gradient of the block is ready earlier than the replay allows."""
    device = load_device("a100-sxm4-80gb")
    last, plain = block(build(recompute="full"))[-1], block(build())
    again = sum(operation_time(operation, device, BF16)[0] for operation in plain)
    found = operation_time(last, device, BF16)[1] - operation_time(plain[-1], device, BF16)[1]
    assert found == pytest.approx(again)
    assert [operation.replayed for operation in block(build(recompute="full"))[:-1]] == [()] * (len(plain) - 1)


def test_one_block_alive_is_counted_at_the_peak_when_it_outweighs_the_logits() -> None:
    """Llama-3-8B, eager attention, 16k tokens: a block with its scores is larger than the gradient of the logits."""
    model = build("llama-3-8b", seq_len=16384, micro_batch=1, attention="eager", recompute="full")
    whole = kept_bytes(build("llama-3-8b", seq_len=16384, micro_batch=1, attention="eager"))
    assert model.replayed_bytes == whole > model.loss_gradient_bytes
    memory = memory_in(inputs_of(model, 8, {"gradient_as_bucket_view": True}))
    found, last = memory.by_kind_bytes["activations"], block(model, "layers.31")[-1]
    assert memory.peak_at == f"backward 0: {last.name}"
    # What follows the last block has given its activations back by then, and the gradient of the logits is gone.
    assert found == model.saved_bytes + model.replayed_bytes - sum(o.saved_bytes for o in model.operations[-3:])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernels", KERNELS)
def test_neither_changes_parameters_or_model_flop(mode: str, kernels: str) -> None:
    model, plain = build("llama-3.2-1b", recompute=mode, kernels=kernels), build("llama-3.2-1b")
    assert model.parameters == plain.parameters
    assert (model.forward_flop, model.backward_flop) == (plain.forward_flop, plain.backward_flop)


def test_an_eager_rms_norm_moves_nine_times_what_a_fused_one_does() -> None:
    """Forward per element in 16 bits: 36 bytes in eight kernels (``LlamaRMSNorm``), 4 in one."""
    eager = norm(BF16, rms=True, readers=1, residual=False, fused=False)
    fused = norm(BF16, rms=True, readers=1, residual=False, fused=True)
    assert (eager.forward, eager.kernels[0]) == (2 + 4 + 8 + 4 + 8 + 4 + 2 + 4, 8)
    assert (fused.forward, fused.kernels[0]) == (2 + 2, 1)


def test_a_layer_norm_is_one_kernel_either_way() -> None:
    """PyTorch's own kernel: read and write; autocast adds an fp32 result and a cast for each reader."""
    assert norm(BF16, rms=False, readers=1, residual=False, fused=False).forward == 4
    assert norm(MIXED, rms=False, readers=1, residual=False, fused=False).forward == 8 + (4 + 2)


def test_passes_of_swiglu_gelu_and_the_loss() -> None:
    assert activation(BF16, gated=True, fused=False).forward == 5 * 2
    assert activation(BF16, gated=True, fused=True).forward == 3 * 2
    assert activation(BF16, gated=False, fused=False) == activation(BF16, gated=False, fused=True)
    assert cross_entropy(BF16, fused=False).forward == (2 + 4) + (4 + 4)


@pytest.mark.parametrize("preset", ["gpt2", "llama-3-8b", "qwen3-8b"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-master", "fp32"])
def test_fused_kernels_never_move_more(preset: str, precision: str) -> None:
    eager, fused = (build(preset, precision=precision, kernels=kernels).operations for kernels in KERNELS)
    for one, other in zip(eager, fused, strict=True):
        assert other.forward_bytes <= one.forward_bytes
        assert other.backward_bytes <= one.backward_bytes
        assert (other.forward_kernels, other.backward_kernels) <= (one.forward_kernels, one.backward_kernels)


def test_older_and_newer_flash_kernels_change_only_attention() -> None:
    device = load_device("h100-sxm5-80gb")
    cores = [block(build("llama-3-8b", attention=kind))[3] for kind in ("flash-1", "flash", "flash-3")]
    times = [sum(operation_time(core, device, BF16)) for core in cores]
    assert times[0] > times[1] > times[2]


def test_a_kernel_without_a_figure_is_refused_by_name() -> None:
    core = block(build(attention="flash-3"))[2]
    with pytest.raises(UnsupportedError, match="no rate of 'flash-3' is known on a100-sxm4-80gb; it has eager, flash"):
        operation_time(core, load_device("a100-sxm4-80gb"), BF16)


@pytest.mark.parametrize(
    ("cap_mib", "expected"), [(25, [2_052_000, 28_852_224, 15_853_824]), (35, [2_052_000, 38_297_600, 6_408_448])]
)
def test_resnet18_tensors_fill_the_buckets_that_pytorch_reported(cap_mib: int, expected: list[int]) -> None:
    """Bytes of DDP's all-reduces, fp32, first cap 1 MiB (github.com/pytorch/pytorch issue 48880, pull 121640)."""
    ready = ready_order(build("resnet-18", precision="fp32"), 4)
    buckets = assign(ready, first_cap_bytes=2**20, cap_bytes=cap_mib * 2**20)
    assert [bucket.size_bytes for bucket in buckets] == expected
