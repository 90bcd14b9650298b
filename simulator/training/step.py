"""What a strategy gets to plan a step with, and the parts that all strategies share. Knows no network and no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.plan import Compute
from simulator.training.operations import Operation, TrainingModel
from simulator.training.precision import Precision

#: The one class of ranks of pure data parallelism: all are equal in role, speed and place.
ALL_RANKS = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Everything a strategy needs, as plain values.

    forward_s, backward_s: seconds of each operation of ``model.operations``, in that order.
    copy_bytes_per_s: rate at which gradients are scaled or copied (memory traffic); inf when copies are free.
    precision: bytes per element of weights, gradients and what is sent.
    context_bytes, communicator_bytes: device memory that no tensor shows.
    """

    model: TrainingModel
    precision: Precision
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    optimizer_s: float
    copy_bytes_per_s: float
    launch_s: float
    num_ranks: int
    micro_batches: int
    overlap: str
    bucket_cap_bytes: float
    first_bucket_bytes: float
    gradient_as_bucket_view: bool
    algorithm: str
    context_bytes: float
    communicator_bytes: float

    def copy_s(self, size_bytes: float) -> float:
        """Seconds of a kernel that reads and writes ``size_bytes``."""
        return 2.0 * size_bytes / self.copy_bytes_per_s + self.launch_s


def forward(inputs: StepInputs, micro: int) -> Iterator[Compute]:
    """Forward of one micro-batch, operation by operation."""
    for operation, seconds in zip(inputs.model.operations, inputs.forward_s, strict=True):
        yield _task("forward", micro, operation, seconds)


def backward(inputs: StepInputs, micro: int) -> Iterator[Compute]:
    """Backward of one micro-batch, in reverse."""
    pairs = zip(reversed(inputs.model.operations), reversed(inputs.backward_s), strict=True)
    for operation, seconds in pairs:
        yield _task("backward", micro, operation, seconds)


def without_sync(inputs: StepInputs, count: int) -> Iterator[Compute]:
    """``count`` micro-batches in which nothing is sent (DDP's ``no_sync``), before the one that reduces.

    The first is planned operation by operation; as nothing can disturb the others, they are one forward and one
    backward task of the same total time, so that a step of 1,000 micro-batches costs no more than one of three.
    """
    whole = count if count <= 2 else 1
    for micro in range(whole):
        yield from forward(inputs, micro)
        yield from backward(inputs, micro)
    if count > whole:
        for kind, seconds in (("forward", sum(inputs.forward_s)), ("backward", sum(inputs.backward_s))):
            yield Compute(
                name=f"{kind} 1 .. {count - 1}: all operations", kind=kind, classes=(ALL_RANKS,),
                seconds=(count - 1) * seconds, part=f"micro-batches 1 .. {count - 1}",
            )  # fmt: skip


def backward_name(micro: int, operation: str) -> str:
    """Name of the task in which an operation's gradients become ready."""
    return f"backward {micro}: {operation}"


def _task(kind: str, micro: int, operation: Operation, seconds: float) -> Compute:
    name = f"{kind} {micro}: {operation.name}"
    return Compute(name=name, kind=kind, classes=(ALL_RANKS,), seconds=seconds, part=operation.layer)
