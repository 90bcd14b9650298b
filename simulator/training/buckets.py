"""Gradient buckets as PyTorch's DistributedDataParallel builds them.

Tensors are added in the order in which their gradients become ready; a bucket closes once its size has reached the
cap, so the tensor that crosses it is included and tensors are never split (torch/csrc/distributed/c10d/reducer.cpp,
``compute_bucket_assignment_by_size``). The first bucket has a cap of its own, 1 MiB, so that communication starts
early, unless ``bucket_cap_mb`` is passed (tests/test_real_ddp.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.training.operations import ParameterTensor, TrainingModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyTensor:
    """A gradient and the operation whose backward makes it ready."""

    tensor: ParameterTensor
    operation: str
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together, and the operation after whose backward the last of them is ready."""

    index: int
    tensors: tuple[ReadyTensor, ...]

    @property
    def size_bytes(self) -> float:
        return sum(t.size_bytes for t in self.tensors)

    @property
    def ready_after(self) -> str:
        return self.tensors[-1].operation


def ready_order(model: TrainingModel, bytes_per_element: float) -> tuple[ReadyTensor, ...]:
    """Gradients in the order in which backward finishes them: operations and their tensors in reverse."""
    return tuple(
        ReadyTensor(tensor=tensor, operation=operation.name, size_bytes=tensor.numel * bytes_per_element)
        for operation in reversed(model.operations)
        for tensor in reversed(operation.parameters)
    )


def assign(tensors: Iterable[ReadyTensor], *, first_cap_bytes: float, cap_bytes: float) -> tuple[Bucket, ...]:
    """Buckets of one dtype, in launch order."""
    buckets: list[Bucket] = []
    held: list[ReadyTensor] = []
    size = 0.0
    for ready in tensors:
        held.append(ready)
        size += ready.size_bytes
        if size >= (cap_bytes if buckets else first_cap_bytes):
            buckets.append(Bucket(index=len(buckets), tensors=tuple(held)))
            held, size = [], 0.0
    if held:
        buckets.append(Bucket(index=len(buckets), tensors=tuple(held)))
    return tuple(buckets)
