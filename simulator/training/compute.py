"""How long one operation takes on one device: a roofline with the share of peak that its shape reaches.

    time = max(FLOP / (peak x sustained x efficiency(shape)), bytes / rate) + elementwise bytes / rate
           + kernels x launch
    rate = memory bandwidth x achieved share

Matrix products: the output is cut into square tiles, one per core at a time, so the last wave of tiles runs partly
empty, and each tile pays a fill and a write that a deep product hides. Constants per device generation come from the
device file (fitted on public tables there; ``tests/test_compute.py`` recomputes the error).

Limits: one number per shape, while libraries choose among kernels and boards throttle with power and data; a tenth
either way is normal. Launch time counts gaps between kernels, not a Python loop too slow to keep the GPU busy.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.device import DeviceSpec, MatmulEfficiency
from simulator.errors import UnsupportedError
from simulator.training.operations import Operation
from simulator.training.precision import Precision, optimizer_traffic_bytes

LARGE_HEAD = 128
SMALL_HEAD = 64
MIN_TILE = 16
"""Least side of a tile: tensor cores multiply 16 x 16 blocks."""


def _tile_side(size: int, tile: int) -> int:
    """The tile, or the least power of two that holds a smaller matrix."""
    return min(tile, max(MIN_TILE, 1 << (size - 1).bit_length()))


def matmul_efficiency(
    constants: MatmulEfficiency, sm_count: int, shape: tuple[int, int, int], groups: int = 1
) -> float:  # fmt: skip
    """Share of peak of an ``m x k`` by ``k x n`` product, or of so many of them in one grouped kernel.

    ``ceiling x occupancy x k / (k + depth_half)``. With ``w`` waves of tiles (a fraction counts edge tiles as whole
    ones) and ``u`` the waves of useful work, occupancy is ``u / (z ceil(w) + (1 - z) w)``, z = ``quantisation``: at
    z = 1 a wave always costs a whole one, at z = 0 cores share the last wave evenly (split-k, stream-k).
    A matrix thinner than the tile gets a thinner tile, a power of two down to ``MIN_TILE``. The tiles of all groups
    share the waves, so many small experts fill the device as well as one large product; what each loses is at its edge.
    """
    m, n, k = shape
    rows, columns = _tile_side(m, constants.tile), _tile_side(n, constants.tile)
    waves = groups * math.ceil(m / rows) * math.ceil(n / columns) / sm_count
    useful = groups * m * n / (rows * columns) / sm_count
    paid = constants.quantisation * math.ceil(waves) + (1 - constants.quantisation) * waves
    return constants.ceiling * (useful / paid) * k / (k + constants.depth_half)


def _matmul_s(
    shapes: tuple[tuple[int, int, int], ...], device: DeviceSpec, dtype: str, groups: int = 1
) -> float:  # fmt: skip
    """Seconds of kernels one after another, each of ``groups`` such products, at the rate that a long run sustains."""
    peak, constants = device.peak_flop_per_s(dtype) * device.efficiency.sustained.share, device.efficiency.matmul
    return sum(
        2.0 * groups * m * n * k / (peak * matmul_efficiency(constants, device.sm_count, (m, n, k), groups))
        for m, n, k in shapes
    )


def _of_groups(operation: Operation) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """The products of one group and the number of groups: even shares of the rows, in whole rows; fewer groups than
    experts where there are fewer rows."""
    rows = operation.gemm[0][0]
    groups = min(operation.gemm_groups, rows)
    return tuple((math.ceil(m / groups), n, k) for m, n, k in operation.gemm), groups


def _attention_share(operation: Operation, device: DeviceSpec, share: float) -> float:
    """Share of peak of a fused kernel: falls with short sequences and heads smaller than 128.

    Raises UnsupportedError when the device file has no figure for the kernel.
    """
    constants = device.efficiency.attention
    speeds: dict[str, float] = {"flash": 1.0, **{str(name): speed for name, speed in constants.relative.items()}}
    if operation.attention not in speeds:
        accepted = ", ".join(("eager", *speeds))
        raise UnsupportedError(
            f"train.attention: no rate of '{operation.attention}' is known on {device.name}; it has {accepted}"
        )
    share *= speeds[operation.attention]
    size = min(max(operation.head_dim, SMALL_HEAD), LARGE_HEAD)
    weight = (LARGE_HEAD - size) / (LARGE_HEAD - SMALL_HEAD)
    head = 1.0 - weight * (1.0 - constants.head_dim_64)
    return share * head * operation.seq_len / (operation.seq_len + constants.seq_half)


def _compute_s(operation: Operation, device: DeviceSpec, dtype: str) -> tuple[float, float]:
    """Seconds of arithmetic, forward and backward."""
    if operation.gemm:
        shapes, groups = _of_groups(operation)
        backward = tuple(shape for m, n, k in shapes for shape in ((m, k, n), (n, k, m)))
        return _matmul_s(shapes, device, dtype, groups), _matmul_s(backward, device, dtype, groups)
    if not operation.forward_flop and not operation.backward_flop:
        return 0.0, 0.0
    assert operation.kind == "attention", operation
    peak, shares = device.peak_flop_per_s(dtype), device.efficiency.attention
    return (
        operation.forward_flop / (peak * _attention_share(operation, device, shares.forward)),
        operation.backward_flop / (peak * _attention_share(operation, device, shares.backward)),
    )


def memory_rate_bytes_per_s(device: DeviceSpec) -> float:
    """What streaming kernels reach: nominal bandwidth times its achieved share."""
    return device.memory_bandwidth * device.efficiency.memory.share


def operation_time(operation: Operation, device: DeviceSpec, precision: Precision) -> tuple[float, float]:
    """Seconds of one operation's forward and backward; backward starts with what is run again.

    Raises UnsupportedError if the device lacks the dtype.
    """
    rate, launch = memory_rate_bytes_per_s(device), device.efficiency.launch
    if operation.kind == "measured":
        assert operation.forward_s is not None, operation
        assert operation.backward_s is not None, operation
        return operation.forward_s, operation.backward_s
    forward, backward = _compute_s(operation, device, precision.dtype)
    again = sum(operation_time(replace(other, replayed=()), device, precision)[0] for other in operation.replayed)
    return (
        max(forward, operation.forward_bytes / rate)
        + operation.elementwise_forward_bytes / rate
        + operation.forward_kernels * launch,
        max(backward, operation.backward_bytes / rate)
        + operation.elementwise_backward_bytes / rate
        + operation.backward_kernels * launch
        + again,
    )


def weight_gradient_time_s(operation: Operation, device: DeviceSpec, precision: Precision) -> float:
    """The part of an operation's backward that makes gradients of weights, s: what zero-bubble schedules put off, and
    what gradients of inputs are sent beside. Of a product with weights ``(n, m, k)`` of its two; all of an embedding's;
    half of a measured layer's.
    """
    if not operation.parameters:
        return 0.0
    backward_s = operation_time(replace(operation, replayed=()), device, precision)[1]
    if operation.kind == "embedding":
        return backward_s
    if operation.kind == "measured":
        return backward_s / 2
    if not operation.gemm:
        return 0.0
    shapes, groups = _of_groups(operation)
    arithmetic_s = _matmul_s(tuple((n, k, m) for m, n, k in shapes), device, precision.dtype, groups)
    traffic_s = operation.backward_bytes / 2 / memory_rate_bytes_per_s(device)
    return min(backward_s, max(arithmetic_s, traffic_s) + len(shapes) * device.efficiency.launch)


def optimizer_time_s(num_parameters: float, device: DeviceSpec, precision: Precision, optimizer: str) -> float:
    """Seconds of a fused optimizer step over ``num_parameters`` held by this rank: bound by memory traffic."""
    traffic = num_parameters * optimizer_traffic_bytes(precision, optimizer)
    return traffic / memory_rate_bytes_per_s(device) + device.efficiency.launch
