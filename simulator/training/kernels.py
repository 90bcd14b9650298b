"""Operations from what they are: matrix products, products of experts, element-wise work, norms."""

from __future__ import annotations

from simulator.training import elementwise
from simulator.training.architecture import Architecture, Tensors, bias_first
from simulator.training.batch import Batch
from simulator.training.elementwise import Cost
from simulator.training.operations import Operation, ParameterTensor

Matrices = tuple[tuple[int, int], ...]


def products(
    name: str, layer: str, parameters: Tensors, matrices: Matrices, batch: Batch, saved: float
) -> Operation:  # fmt: skip
    """Matrix products of T rows by weights of ``(n, k)``; autocast casts weights and gradients beside them.

    The gradient of a bias is a sum over rows, which reads the output's gradient once more. ``parameters`` may include
    norms' weights whose gradients are ready among those of the matrices.
    """
    return expert_products(name, layer, parameters, matrices, batch, saved, rows=batch.tokens, experts=1)


def expert_products(
    name: str, layer: str, parameters: Tensors, matrices: Matrices, batch: Batch, saved: float, *, rows: int,
    experts: int,
) -> Operation:  # fmt: skip
    """Products of ``rows`` rows in all, shared evenly by so many experts: one grouped kernel for each matrix.

    Each expert that has a row at all is read whole; gradients are written, and autocast casts, all of them.
    """
    e, precision, hit = batch.precision.compute_bytes, batch.precision, min(experts, rows)
    elements = sum(rows * k + hit * n * k + rows * n for n, k in matrices)
    flop = sum(2.0 * rows * n * k for n, k in matrices)
    weights = experts * sum(n * k for n, k in matrices)
    cast = weights * (precision.param_bytes + precision.cached_weight_bytes) if precision.cached_weight_bytes else 0
    biases = sum(tensor.name.endswith("bias") for tensor in parameters)
    bias_sum = e * rows * sum(n for n, _ in matrices) if biases else 0
    return Operation(
        name=name, layer=layer, kind="gemm",
        parameters=bias_first(parameters) if precision.cached_weight_bytes else parameters,
        forward_flop=flop, backward_flop=2 * flop, gemm=tuple((rows, n, k) for n, k in matrices), gemm_groups=experts,
        forward_bytes=float(e * elements), backward_bytes=float(2 * e * elements),
        elementwise_forward_bytes=float(cast), elementwise_backward_bytes=float(cast + bias_sum),
        forward_kernels=len(matrices) * (2 if cast else 1),
        backward_kernels=(3 if cast else 2) * len(matrices) + biases, saved_bytes=saved,
    )  # fmt: skip


def elements_op(
    name: str, layer: str, elements: float, cost: Cost, *, saved: float,
    parameters: tuple[ParameterTensor, ...] = (), kind: str = "elementwise",
) -> Operation:  # fmt: skip
    """An operation bounded by memory traffic: so many elements at a cost in bytes each."""
    return Operation(
        name=name, layer=layer, kind=kind, parameters=parameters, forward_bytes=elements * cost.forward,
        backward_bytes=elements * cost.backward, forward_kernels=cost.kernels[0], backward_kernels=cost.kernels[1],
        saved_bytes=saved,
    )  # fmt: skip


def stream_norm(
    name: str, layer: str, parameters: Tensors, arch: Architecture, batch: Batch, *, readers: int
) -> Operation:
    """A norm that ``readers`` linear layers read, with the residual addition before it if it is one of a block."""
    elements, rms, wide = float(batch.tokens * arch.hidden_size), arch.layout.rms, arch.layout.wide_norm
    added = layer not in ("head", "embedding")
    cost = elementwise.norm(
        batch.precision, rms=rms, readers=readers, residual=added, fused=batch.fused, wide=wide
    )  # fmt: skip
    saved = elements * elementwise.norm_kept_bytes(batch.precision, rms=rms, fused=batch.fused, wide=wide)
    return elements_op(name, layer, elements, cost, saved=saved, parameters=bias_first(parameters))


def branch_norm(
    name: str, layer: str, parameters: Tensors, arch: Architecture, batch: Batch, width: int, *, residual: bool = False
) -> Operation:
    """An RMSNorm of what a layer returned, before it joins the residual stream (and the addition, if ``residual``)."""
    elements, wide = float(batch.tokens * width), arch.layout.wide_norm
    cost = elementwise.branch_norm(batch.precision, residual=residual, fused=batch.fused, wide=wide)
    saved = elements * elementwise.qk_norm_kept_bytes(batch.precision, fused=batch.fused, wide=wide)
    return elements_op(name, layer, elements, cost, saved=saved, parameters=parameters)


def activation(name: str, layer: str, batch: Batch, rows: int, width: int, *, gated: bool) -> Operation:
    """SwiGLU and GeGLU keep gate and up, 2 f, and eager code the activated gate; GELU keeps its input: f.

    A fused kernel activates the gate again in backward (Megatron-LM, core/fusions/fused_bias_swiglu.py, saves its input
    alone; so does ``torch.compile``, ``tests/test_model.py``).
    """
    elements = float(rows * width)
    saved = elements * batch.precision.compute_bytes * ((2 if batch.fused else 3) if gated else 1)
    cost = elementwise.activation(batch.precision, gated=gated, fused=batch.fused)
    return elements_op(name, layer, elements, cost, saved=saved)


def inputs_kept(batch: Batch, width: int, readers: int) -> float:
    """Bytes of the input that ``readers`` linear layers share."""
    each = elementwise.linear_kept_bytes(batch.precision, readers=readers, fused=batch.fused)
    return batch.tokens * width * each
