"""Bytes of model states in closed form, as papers and estimators state them. The step's own memory is in its plan.

Symbols: P parameters, N ranks, and per parameter w bytes of weights, g of gradients and k of the optimizer (master
weights and moments). Activations, gathered weights, buffers and what no tensor shows come on top of all of them: a
report tells them apart (``report.memory``).
"""

from __future__ import annotations

from simulator.training.precision import Precision, optimizer_state_bytes


def zero_state_bytes_per_parameter(
    stage: int, num_ranks: int, precision: Precision, optimizer: str = "adamw"
) -> float:  # fmt: skip
    """Bytes of states per parameter on each rank, after ZeRO (arXiv:1910.02054, section 3 and table 1).

    stage 0 (DDP): w + g + k; 1: w + g + k/N; 2: w + (g + k)/N; 3: (w + g + k)/N.
    """
    assert stage in (0, 1, 2, 3), "ZeRO has stages 1 to 3; 0 shares nothing"
    held = (precision.param_bytes, precision.grad_bytes, optimizer_state_bytes(precision, optimizer))
    shared_from = (3, 2, 1)
    return sum(
        size / (num_ranks if stage >= first else 1) for size, first in zip(held, shared_from, strict=True)
    )  # fmt: skip


def ddp_state_bytes(num_parameters: float, bytes_per_parameter: float) -> float:
    """Model states of each rank under DDP, whatever the number of ranks: nothing is sharded (ZeRO, table 1)."""
    return num_parameters * bytes_per_parameter


def largest_model(memory_bytes: float, bytes_per_parameter: float) -> float:
    """Parameters whose states alone fill a device; activations and workspace come on top."""
    return memory_bytes / bytes_per_parameter


# ------------------------------------------------------------------------------------------- DeepSpeed's estimators


def deepspeed_zero2_estimate_bytes(
    num_parameters: float, num_gpus: int, *, offload_optimizer: bool = False, shares_gradients: bool = False
) -> float:  # fmt: skip
    """What ``estimate_zero2_model_states_mem_needs`` tells per GPU; it prints GiB and calls them GB.

    4 P + 16 P / N as published in 2021 (github.com/deepspeedai/DeepSpeed pull 965): 16-bit weights and whole 16-bit
    gradients, and 4 + 4 + 8 bytes of fp32 gradients, master weights and moments shared. shares_gradients: as in 0.19.6,
    2 P + 18 P / N. With the optimizer on the CPU only the 16-bit weights are counted: 2 P.
    """
    if offload_optimizer:
        return 2.0 * num_parameters
    whole, shared = (2.0, 18.0) if shares_gradients else (4.0, 16.0)
    return whole * num_parameters + shared * num_parameters / num_gpus


def deepspeed_zero3_estimate_bytes(
    num_parameters: float, largest_layer_parameters: float, num_gpus: int, *, offload_optimizer: bool = False,
    offload_params: bool = False,
) -> float:  # fmt: skip
    """What ``estimate_zero3_model_states_mem_needs`` tells per GPU (DeepSpeed 0.19.6, runtime/zero/stage3.py).

    4 L + 18 P / N: the largest layer L with its weights and gradients in 16 bits, and all states shared, gradients in
    16 and in 32 bits. Optimizer on the CPU: 4 L + 2 P / N; parameters too: 4 L. Parameters go only with the optimizer.
    """
    assert offload_optimizer or not offload_params, "DeepSpeed offloads parameters only with the optimizer"
    layer = 4.0 * largest_layer_parameters
    if offload_params:
        return layer
    return layer + (2.0 if offload_optimizer else 18.0) * num_parameters / num_gpus
