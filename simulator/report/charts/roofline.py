"""The roofline of a model on its device: how fast each kind of operation runs, against what the device allows.

    attainable FLOP/s = min(peak, FLOP per byte x memory bandwidth)        (Williams, Waterman, Patterson 2009)

An operation's bytes are those of its kernels as the model of compute counts them; its rate is FLOP over the time that
it takes alone in the simulation. Layers have the same operations: each kind is one point. Operations without matrix
FLOP (norms, activations, casts) have no place on it; they are told as the share of time that memory traffic takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.job import Job
from simulator.report.words import layer_words
from simulator.strategies.sharding import computing_precision
from simulator.training.operations import Operation
from simulator.units import format_flop_per_s, format_percent

#: Points that carry their name: those that take the most time.
_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """Equal operations of all layers in one direction. share: of all compute time of a micro-batch."""

    name: str
    kind: str
    direction: str
    count: int
    flop: float
    num_bytes: float
    seconds: float
    share: float = 0.0

    @property
    def flop_per_byte(self) -> float:
        return self.flop / self.num_bytes

    @property
    def flop_per_s(self) -> float:
        return self.flop / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineChart:
    """memory_bytes_per_s: nominal. other_share: of compute time, in operations that have no matrix FLOP."""

    finding: str
    points: tuple[RooflinePoint, ...]
    peak_flop_per_s: float
    memory_bytes_per_s: float
    device: str
    dtype: str
    other_share: float

    @property
    def knee_flop_per_byte(self) -> float:
        """Where the two roofs meet."""
        return self.peak_flop_per_s / self.memory_bytes_per_s

    @property
    def slope(self) -> tuple[float, float]:
        """A place on the slanted roof, in the middle of what a drawing shows of it: FLOP per byte and FLOP/s."""
        low, _, bottom = self.extent
        middle = math.sqrt(max(low, bottom / self.memory_bytes_per_s) * self.knee_flop_per_byte)
        return middle, middle * self.memory_bytes_per_s

    @property
    def extent(self) -> tuple[float, float, float]:
        """Least and greatest FLOP per byte, and least FLOP/s, that a drawing has room for."""
        intensities = [self.knee_flop_per_byte, *(point.flop_per_byte for point in self.points)]
        return min(intensities) / 2.5, max(intensities) * 2.5, min(point.flop_per_s for point in self.points) / 2


def roofline_chart(job: Job) -> RooflineChart | None:
    """None for measured layers, whose FLOP and bytes are unknown, and without a device."""
    if job.device is None or job.model.measured:
        return None
    dtype = computing_precision(job.inputs.precision, job.scenario.parallel).dtype
    peak = job.device.peak_flop_per_s(dtype)
    joined: dict[tuple[str, str], RooflinePoint] = {}
    for point in _points(job):
        key = (point.name, point.direction)
        joined[key] = _together(joined[key], point) if key in joined else point
    total = sum(point.seconds for point in joined.values())
    if not total:
        return None
    shown = tuple(
        replace(point, share=point.seconds / total) for point in joined.values() if point.flop and point.num_bytes
    )
    other = 1.0 - sum(point.share for point in shown)
    if not shown:
        return None
    return RooflineChart(
        finding=_finding(shown, peak, other), points=shown, peak_flop_per_s=peak,
        memory_bytes_per_s=job.device.memory_bandwidth, device=job.device.title, dtype=dtype, other_share=other,
    )  # fmt: skip


def _points(job: Job) -> Iterator[RooflinePoint]:
    for operation, forward_s, backward_s in zip(
        job.model.operations, job.inputs.forward_s, job.inputs.backward_s, strict=True
    ):
        name, again = _name(operation), operation.replayed
        yield RooflinePoint(
            name=name, kind=operation.kind, direction="forward", count=1, flop=operation.forward_flop,
            num_bytes=operation.forward_bytes + operation.elementwise_forward_bytes, seconds=forward_s,
        )  # fmt: skip
        yield RooflinePoint(
            name=name, kind=operation.kind, direction="backward", count=1,
            flop=operation.backward_flop + sum(other.forward_flop for other in again), seconds=backward_s,
            num_bytes=operation.backward_bytes + operation.elementwise_backward_bytes
            + sum(other.forward_bytes + other.elementwise_forward_bytes for other in again),
        )  # fmt: skip


def _name(operation: Operation) -> str:
    """``layers.3.mlp.up`` and all its like -> ``mlp.up``."""
    if not operation.layer or layer_words(operation.layer) == operation.layer:
        return operation.name
    return operation.name.removeprefix(operation.layer).removeprefix(".") or operation.kind


def _together(one: RooflinePoint, more: RooflinePoint) -> RooflinePoint:
    return replace(
        one, count=one.count + more.count, flop=one.flop + more.flop, num_bytes=one.num_bytes + more.num_bytes,
        seconds=one.seconds + more.seconds,
    )  # fmt: skip


def _finding(points: tuple[RooflinePoint, ...], peak: float, other: float) -> str:
    seconds = sum(point.seconds for point in points)
    rate = sum(point.flop for point in points) / seconds
    said = f"Matrix work runs at {format_flop_per_s(rate, 3)}, {format_percent(rate / peak)} of the peak"
    worst = max(points, key=lambda point: point.seconds - point.flop / peak)
    most = f"most is lost in {worst.name} {worst.direction}, at {format_percent(worst.flop_per_s / peak)}"
    return f"{said}; {most}; {format_percent(other)} of compute time only moves memory"


def names_of(points: tuple[RooflinePoint, ...]) -> dict[tuple[str, str], str]:
    """Names at the larger pass of those operations that take the most time; one name where two points meet."""
    largest: dict[str, RooflinePoint] = {}
    for point in sorted(points, key=lambda point: -point.share):
        largest.setdefault(point.name, point)
    found: dict[tuple[str, str], str] = {}
    placed: list[RooflinePoint] = []
    for point in list(largest.values())[:_NAMED]:
        at = next((other for other in placed if _meet(point, other)), point)
        key = (at.name, at.direction)
        found[key] = f"{found[key]}, {point.name}" if at is not point else point.name
        placed.append(at)
    return found


def _meet(one: RooflinePoint, other: RooflinePoint) -> bool:
    """So near that their names would cover each other."""
    apart = (one.flop_per_byte / other.flop_per_byte, one.flop_per_s / other.flop_per_s)
    return abs(math.log10(apart[0])) < 0.2 and abs(math.log10(apart[1])) < 0.04
