"""Gradient buckets as PyTorch's DistributedDataParallel builds them.

Tensors are added in some order; a bucket closes once its size has reached the cap, so the tensor that crosses it is
included and tensors are never split (torch/csrc/distributed/c10d/reducer.cpp, ``compute_bucket_assignment_by_size``).
The first bucket has a cap of its own, 1 MiB, unless ``bucket_cap_mb`` is passed. Three assignments are in use (torch
2.13, tests/test_real_ddp_steps.py):

* ``assign`` on the order in which gradients become ready: a steady step. The small bucket is launched first, so that
  communication starts early;
* ``by_registration``, for ``find_unused_parameters``: on the order in which parameters are registered, then reversed.
  The small bucket holds the first registered parameters and is launched last;
* ``whole``: the first iteration of a model whose order is not known yet. One bucket holds everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from simulator.training.operations import ParameterTensor, TrainingModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyTensor:
    """A gradient, the operation whose backward makes it ready, and how many are ready before it."""

    tensor: ParameterTensor
    operation: str
    size_bytes: float
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together, and the operation after whose backward the last of them is ready."""

    index: int
    tensors: tuple[ReadyTensor, ...]

    @property
    def size_bytes(self) -> float:
        return sum(t.size_bytes for t in self.tensors)

    @property
    def numel(self) -> int:
        return sum(t.tensor.numel for t in self.tensors)

    @property
    def ready_after(self) -> str:
        """Of tensors with equal turns the last listed counts."""
        return max(reversed(self.tensors), key=lambda t: t.turn).operation


def ready_order(model: TrainingModel, bytes_per_element: float) -> tuple[ReadyTensor, ...]:
    """Gradients in the order in which backward finishes them: operations and their tensors in reverse."""
    finished = (
        (tensor, operation.name)
        for operation in reversed(model.operations)
        for tensor in reversed(operation.parameters)
    )
    return tuple(
        ReadyTensor(tensor=tensor, operation=name, size_bytes=tensor.numel * bytes_per_element, turn=turn)
        for turn, (tensor, name) in enumerate(finished)
    )


def assign(tensors: Iterable[ReadyTensor], *, first_cap_bytes: float, cap_bytes: float) -> tuple[Bucket, ...]:
    """Buckets of one dtype, in the order of the tensors."""
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


def by_registration(
    model: TrainingModel, ready: Iterable[ReadyTensor], *, first_cap_bytes: float, cap_bytes: float
) -> tuple[Bucket, ...]:
    """Buckets of one dtype as they are before the order of gradients is known, in launch order."""
    registered = _registered(model, ready)
    buckets = assign(registered, first_cap_bytes=first_cap_bytes, cap_bytes=cap_bytes)
    return tuple(replace(bucket, index=index) for index, bucket in enumerate(reversed(buckets)))


def whole(model: TrainingModel, ready: Iterable[ReadyTensor]) -> tuple[Bucket, ...]:
    """All gradients in one bucket; none for a model without parameters."""
    tensors = tuple(_registered(model, ready))
    return (Bucket(index=0, tensors=tensors),) if tensors else ()


def _registered(model: TrainingModel, ready: Iterable[ReadyTensor]) -> list[ReadyTensor]:
    place = {tensor.name: number for number, tensor in enumerate(model.parameters)}
    return sorted(ready, key=lambda gradient: place[gradient.tensor.name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """Tensors of one dtype that are broadcast as one message. members: their places in the list they came from."""

    dtype: str
    size_bytes: float
    members: tuple[int, ...]


def coalesced(tensors: Sequence[tuple[str, float]], cap_bytes: float) -> tuple[Flat, ...]:
    """(dtype, bytes) of tensors, joined by dtype by the rule of gradient buckets; by first member in the list.

    As ``broadcast_coalesced`` does in torch/csrc/distributed/c10d/comm.cpp.
    """
    closed: list[Flat] = []
    held: dict[str, list[int]] = {}
    for number, (dtype, _) in enumerate(tensors):
        held.setdefault(dtype, []).append(number)
        if sum(tensors[member][1] for member in held[dtype]) >= cap_bytes:
            closed.append(_flat(tensors, dtype, held.pop(dtype)))
    closed += [_flat(tensors, dtype, members) for dtype, members in held.items()]
    return tuple(sorted(closed, key=lambda flat: flat.members[0]))


def _flat(tensors: Sequence[tuple[str, float]], dtype: str, members: list[int]) -> Flat:
    return Flat(dtype=dtype, size_bytes=sum(tensors[member][1] for member in members), members=tuple(members))
