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
    reduce_bytes, param_bytes: bytes per element on the wire for gradients and for weights.
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


def backward_name(micro: int, operation: str) -> str:
    """Name of the task in which an operation's gradients become ready."""
    return f"backward {micro}: {operation}"


def _task(kind: str, micro: int, operation: Operation, seconds: float) -> Compute:
    name = f"{kind} {micro}: {operation.name}"
    return Compute(name=name, kind=kind, classes=(ALL_RANKS,), seconds=seconds, part=operation.layer)
