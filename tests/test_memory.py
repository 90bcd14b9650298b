"""Bytes per rank: the lecture's state sizes, what DDP adds, and what fits."""

from __future__ import annotations

import pytest
from published import LARGEST_DDP, ZERO_DDP_7_5B, ZERO_DDP_100B

from simulator.errors import ScenarioError
from simulator.load import load_device
from simulator.model_spec import PresetModel
from simulator.training.memory import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    MEMORY_KINDS,
    Memory,
    ddp_memory,
    ddp_state_bytes,
    largest_ddp_model,
)
from simulator.training.operations import TrainingModel
from simulator.training.precision import (
    PRECISIONS,
    optimizer_traffic_bytes,
    precision_named,
    state_bytes_per_parameter,
)
from simulator.training.presets import build_model


def model(preset: str, seq_len: int = 1024, precision: str = "bf16-mixed") -> TrainingModel:
    return build_model(
        PresetModel(preset=preset), seq_len=seq_len, micro_batch=1, precision=precision, attention="flash"
    )


def memory(preset: str, *, view: bool = True, ranks: int = 8, **changes: str) -> Memory:
    precision = PRECISIONS[changes.get("precision", "bf16-mixed")]
    return ddp_memory(
        model(preset, precision=precision.name), precision, changes.get("optimizer", "adamw"),
        num_ranks=ranks, gradient_as_bucket_view=view,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "optimizer", "expected"),
    [
        ("bf16-master", "adamw", 2 + 2 + 4 + 4 + 4),
        ("bf16-mixed", "adamw", 4 + 4 + 4 + 4),
        ("bf16-moments", "adamw", 2 + 2 + 4 + 2 + 2),
        ("bf16", "adamw", 2 + 2 + 2 + 2),
        ("fp32", "sgd-momentum", 4 + 4 + 4),
        ("fp32", "sgd", 4 + 4),
    ],
)
def test_state_bytes_per_parameter(precision: str, optimizer: str, expected: int) -> None:
    """CS336 lecture 7: AdamW mixed precision is 16 B/param, all-bf16-but-master 12."""
    assert state_bytes_per_parameter(PRECISIONS[precision], optimizer) == expected


def test_ddp_states_of_the_zero_paper_and_the_lecture() -> None:
    """16 B/param on every GPU, whatever their number: 7.5B = 120 GB, 100B = 1,600 GB, which 80 GB cannot hold."""
    per_parameter = state_bytes_per_parameter(PRECISIONS["bf16-master"])
    assert ddp_state_bytes(7.5e9, per_parameter) == ZERO_DDP_7_5B.value
    assert ddp_state_bytes(100e9, per_parameter) == ZERO_DDP_100B.value > 80e9


def test_largest_model_under_ddp_at_twelve_bytes() -> None:
    per_parameter = state_bytes_per_parameter(PRECISIONS["bf16-moments"])
    assert largest_ddp_model(80e9, per_parameter) == pytest.approx(LARGEST_DDP.value, rel=LARGEST_DDP.tolerance)


def test_all_reduce_volume_follows_the_dtype_gradients_are_kept_in() -> None:
    """Autocast does not shrink gradients (fp32 on the wire); Apex and Megatron send 16 bits."""
    assert PRECISIONS["bf16-mixed"].reduce_bytes == 4
    assert PRECISIONS["bf16-master"].reduce_bytes == 2


def test_fused_adamw_moves_28_bytes_a_parameter() -> None:
    """Reads w, g, m, v and writes w, m, v: 7 x 4; with a 16-bit model also 28 = 2 + 3 x 4 read, 3 x 4 + 2 written."""
    assert optimizer_traffic_bytes(PRECISIONS["fp32"], "adamw") == 28
    assert optimizer_traffic_bytes(PRECISIONS["bf16-master"], "adamw") == 28
    assert optimizer_traffic_bytes(PRECISIONS["fp32"], "sgd") == 12


def test_kinds_add_up_to_the_peak() -> None:
    found = memory("llama-3.2-1b")
    assert tuple(found.by_kind_bytes) == MEMORY_KINDS
    assert found.peak_bytes == sum(found.by_kind_bytes.values())
    assert found.by_kind_bytes["params"] == (4 + 2) * 1_235_814_400
    assert found.by_kind_bytes["grads"] == 4 * 1_235_814_400
    assert found.by_kind_bytes["optimizer"] == 8 * 1_235_814_400
    assert found.by_kind_bytes["gathered"] == 0


def test_bucket_view_saves_one_copy_of_the_gradients() -> None:
    """PyTorch: gradient_as_bucket_view saves as much as the gradients, 4 B/param in fp32."""
    saved = memory("llama-3.2-1b", view=False).peak_bytes - memory("llama-3.2-1b", view=True).peak_bytes
    assert saved == 4 * 1_235_814_400


def test_one_gpu_alone_has_no_communicator_and_no_buckets() -> None:
    alone = memory("gpt2", view=False, ranks=1)
    assert alone.by_kind_bytes["workspace"] == CONTEXT_BYTES
    assert memory("gpt2").by_kind_bytes["workspace"] == CONTEXT_BYTES + COMMUNICATOR_BYTES
    assert alone.by_kind_bytes["buffers"] == 0


def test_optimizer_step_is_the_peak_when_activations_are_small() -> None:
    """A large model on a short sequence: foreach AdamW's copy of the weights outweighs the activations."""
    precision = PRECISIONS["fp32"]
    large = ddp_memory(model("llama-3-8b", 16, "fp32"), precision, "adamw", num_ranks=8)
    assert large.peak_at == "optimizer step"
    assert large.by_kind_bytes["workspace"] == CONTEXT_BYTES + COMMUNICATOR_BYTES + 4 * 8_030_261_248
    assert memory("gpt2").peak_at == "start of backward"


def test_llama_1b_fits_an_h100_and_8b_does_not() -> None:
    """8.03 B parameters x 16 B = 128.5 GB of states alone."""
    capacity = load_device("h100-sxm5-80gb").memory
    assert memory("llama-3.2-1b").fits(capacity)
    big = memory("llama-3-8b")
    assert not big.fits(capacity)
    assert sum(big.by_kind_bytes[kind] for kind in ("params", "grads", "optimizer")) == 16 * 8_030_261_248


def test_unknown_precision_gets_the_nearest_name() -> None:
    with pytest.raises(ScenarioError, match=r"precision 'bf16-mixd' is unknown.*did you mean 'bf16-mixed'"):
        precision_named("bf16-mixd")
