"""Bytes per rank: the lecture's state sizes, what DDP adds, and what fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import LARGEST_DDP, ZERO_DDP_7_5B, ZERO_DDP_100B

from simulator import shipped
from simulator.errors import ScenarioError
from simulator.load import load_device
from simulator.model_spec import PresetModel
from simulator.training.memory import (
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

CONTEXT_BYTES, COMMUNICATOR_BYTES = 0.7 * 2**30, 1.5e9


def model(preset: str, seq_len: int = 1024, precision: str = "bf16-mixed") -> TrainingModel:
    return build_model(
        PresetModel(preset=preset), seq_len=seq_len, micro_batch=1, precision=precision, attention="flash"
    )


def memory(preset: str, *, view: bool = True, ranks: int = 8, **changes: str) -> Memory:
    precision = PRECISIONS[changes.get("precision", "bf16-mixed")]
    return ddp_memory(
        model(preset, precision=precision.name), precision, changes.get("optimizer", "adamw"),
        num_ranks=ranks, context_bytes=CONTEXT_BYTES, communicator_bytes=COMMUNICATOR_BYTES,
        gradient_as_bucket_view=view,
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


@given(seq_len=st.integers(min_value=1, max_value=4096), name=st.sampled_from(sorted(PRECISIONS)))
def test_the_optimizer_step_never_needs_more_than_the_peak(seq_len: int, name: str) -> None:
    """A fused step works in place, as its time supposes: states alone, without activations or a copy of the weights."""
    precision = PRECISIONS[name]
    found = ddp_memory(
        model("llama-3.2-1b", seq_len, name), precision, "adamw", num_ranks=8, context_bytes=CONTEXT_BYTES,
        communicator_bytes=COMMUNICATOR_BYTES, gradient_as_bucket_view=True,
    )  # fmt: skip
    at_step = state_bytes_per_parameter(precision) * 1_235_814_400 + CONTEXT_BYTES + COMMUNICATOR_BYTES
    assert found.peak_at == "start of backward"
    assert found.peak_bytes - at_step == pytest.approx(
        found.by_kind_bytes["activations"] + precision.cached_weight_bytes * 1_235_814_400, rel=1e-6
    )


def test_kernels_and_precision_decide_the_activations() -> None:
    """Llama-3.2-1B under autocast: per block, eager keeps 8 h more for norms (4 for the last one), 6 h for casts,
    and k and v of all 32 query heads instead of 8 (2 x 2 x 3/4 h)."""
    kept = {
        kernels: build_model(
            PresetModel(preset="llama-3.2-1b"), seq_len=1024, micro_batch=1, precision="bf16-mixed", attention="flash",
            kernels=kernels,
        ).saved_bytes
        for kernels in ("eager", "fused")
    }  # fmt: skip
    final_norm = 4
    assert kept["eager"] - kept["fused"] == 1024 * 2048 * (16 * (8 + 6 + 3) + final_norm)


@pytest.mark.parametrize("name", shipped.names("device"))
def test_workspace_and_kernels_of_a_device_are_those_of_its_framework(name: str) -> None:
    """PyTorch on GPUs: a context of 0.5 to 0.9 GiB, a communicator of 1.4 to 1.6 GB. XLA on TPUs fuses, neither."""
    device = load_device(name)
    if device.vendor == "Google":
        assert (device.context, device.communicator, device.kernels) == (0, 0, "fused")
        return
    assert 0.5 * 2**30 <= device.context <= 0.9 * 2**30
    assert 1.4e9 <= device.communicator <= 1.6e9
    assert device.kernels == "eager"


def test_llama_1b_fits_an_h100_and_8b_does_not() -> None:
    """8.03 B parameters x 16 B = 128.5 GB of states, and 2 B of 16-bit copies that autocast holds until backward."""
    capacity = load_device("h100-sxm5-80gb").memory
    assert memory("llama-3.2-1b").fits(capacity)
    big = memory("llama-3-8b")
    assert not big.fits(capacity)
    assert sum(big.by_kind_bytes[kind] for kind in ("params", "grads", "optimizer")) == (16 + 2) * 8_030_261_248


def test_unknown_precision_gets_the_nearest_name() -> None:
    with pytest.raises(ScenarioError, match=r"precision 'bf16-mixd' is unknown.*did you mean 'bf16-mixed'"):
        precision_named("bf16-mixd")
