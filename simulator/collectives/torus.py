"""Multi-axis rings on a torus: the buffer is cut into parts, and the parts go round the axes in turn, both ways round.

With D axes there are 2 D parts, one for each axis and direction; part (j, way) reduces along axis j, then j + 1, ...,
so all links carry traffic in every stage, and after an axis of length d a part is d times smaller. With D equal axes
of length d the time is ``D (d-1) a + (p-1)/p n / (2 D b)``, b of one direction of one link (Jain and Sabharwal,
"Optimal bucket algorithms for large MPI collectives on torus interconnects", ICS 2010; jax-ml/scaling-book,
sharding.md: both directions of every axis).

An axis without wrap is a line: sums flow to a slice's owner from both ends, farthest first, between neighbours only,
in as many steps and with the bytes of a ring of one direction, which is what the link at the line's end must carry.
Axes of length 2 are lines too: both ways round are the same cable. Without any axis that wraps D parts do.

The all-gather is the reduce-scatter backwards in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Pattern, Phase, Schedule, pattern, slice_padding


class _Flow(NamedTuple):
    """What one part moves in one step of the reduce-scatter: ``senders`` pass on along ``axis``, one place ``way``
    (+1 or -1), what is for the owners at ``slot`` on it. On the axes done before the owners are where the sender
    is, on the axes still open they are everywhere. senders, way, slot: (transfers,).
    """

    axis: int
    still_open: tuple[int, ...]
    senders: Ints
    way: Ints
    slot: Ints


@dataclass(frozen=True)
class _Torus:
    """Axes, and the steps of each part. Ranks are row-major."""

    shape: tuple[int, ...]
    wrap: tuple[bool, ...]

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Axes with somebody to talk to."""
        return tuple(a for a, length in enumerate(self.shape) if length > 1)

    @cached_property
    def coordinates(self) -> Ints:
        """Shape (num_ranks, num_axes)."""
        ranks = np.arange(math.prod(self.shape))
        return np.stack(np.unravel_index(ranks, self.shape), axis=1).astype(np.int64)

    @cached_property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """(number of the axis to begin with, way round it) of every part."""
        ways = (1, -1) if any(self.rings(axis) for axis in self.axes) else (1,)
        return tuple((first, way) for first in range(len(self.axes)) for way in ways)

    @property
    def num_steps(self) -> int:
        """Of the reduce-scatter."""
        return sum(length - 1 for length in self.shape)

    def rings(self, axis: int) -> bool:
        """Whether there are two ways round."""
        return self.wrap[axis] and self.shape[axis] > 2

    def stage(self, part: int, step: int) -> tuple[int, int, tuple[int, ...]]:
        """(axis, step on it, axes done before) of a part in a step of the reduce-scatter."""
        first, _ = self.parts[part]
        order = self.axes[first:] + self.axes[:first]
        for number, axis in enumerate(order):
            if step < self.shape[axis] - 1:
                return axis, step, order[:number]
            step -= self.shape[axis] - 1
        raise AssertionError("a step after the last")

    def same_pattern(self, step: int) -> tuple[tuple[int, int, int], ...]:
        """Steps that give the same answer have the same transfers: on a line they differ from step to step."""
        stages = [self.stage(part, step) for part in range(len(self.parts))]
        return tuple((axis, len(done), -1 if self.rings(axis) else on_axis) for axis, on_axis, done in stages)


def _torus(layout: Layout) -> _Torus:
    """The shape defaults to one axis, and axes to wrapping."""
    shape = layout.torus_shape or (layout.num_ranks,)
    return _Torus(shape=shape, wrap=layout.torus_wrap or (True,) * len(shape))


def _flow(torus: _Torus, part: int, step: int) -> _Flow:
    axis, on_axis, done = torus.stage(part, step)
    still_open = tuple(a for a in range(len(torus.shape)) if a != axis and a not in done)
    length, place = torus.shape[axis], torus.coordinates[:, axis]
    if torus.rings(axis):
        way = np.full(len(place), torus.parts[part][1])
        return _Flow(axis, still_open, np.arange(len(place)), way, (place - way * (on_axis + 1)) % length)
    forth = np.flatnonzero(place <= min(on_axis, length - 2))
    back = np.flatnonzero(length - 1 - place <= min(on_axis, length - 2))
    way = np.repeat([1, -1], [len(forth), len(back)])
    # the farthest slice goes first: a slice for place t leaves the near end in step length - 1 - t
    slot = np.append(length - 1 + place[forth] - on_axis, place[back] - (length - 1) + on_axis)
    return _Flow(axis, still_open, np.append(forth, back), way, slot)


def _transfers(torus: _Torus, step: int, *, backwards: bool) -> Pattern:
    src, dst, chunks = [], [], []
    for part in range(len(torus.parts)):
        flow = _flow(torus, part, step)
        neighbour = torus.coordinates[flow.senders]
        neighbour[:, flow.axis] = (neighbour[:, flow.axis] + flow.way) % torus.shape[flow.axis]
        src.append(flow.senders)
        dst.append(_rank(torus, neighbour))
        chunks.append(np.full(len(flow.senders), math.prod(torus.shape[a] for a in flow.still_open)))
    ends = (np.concatenate(src), np.concatenate(dst))
    return pattern(*(ends[::-1] if backwards else ends), np.concatenate(chunks))


def _chunks(torus: _Torus, step: int, _step_of_phase: int) -> Ints:
    parts = len(torus.parts)
    return np.concatenate([_owners(torus, _flow(torus, part, step)) * parts + part for part in range(parts)])


def _owners(torus: _Torus, flow: _Flow) -> Ints:
    """Ranks whose slices are moved, transfer by transfer."""
    lengths = [torus.shape[a] for a in flow.still_open]
    target = np.repeat(torus.coordinates[flow.senders][:, None, :], math.prod(lengths), axis=1)
    target[:, :, flow.axis] = flow.slot[:, None]
    if lengths:
        everywhere = np.unravel_index(np.arange(math.prod(lengths)), lengths)
        target[:, :, flow.still_open] = np.stack(everywhere, axis=1)[None, :, :]
    return _rank(torus, target).ravel()


def _rank(torus: _Torus, coordinates: Ints) -> Ints:
    ranks: Ints = np.ravel_multi_index(tuple(np.moveaxis(coordinates, -1, 0)), torus.shape).astype(np.int64)
    return ranks


def _phases(torus: _Torus, *, reduce: bool) -> tuple[Phase, ...]:
    patterns: dict[tuple[tuple[int, int, int], ...], Pattern] = {}
    phases = []
    for step in range(torus.num_steps) if reduce else reversed(range(torus.num_steps)):
        key = torus.same_pattern(step)
        if key not in patterns:
            patterns[key] = _transfers(torus, step, backwards=not reduce)
        moves = partial(_chunks, torus, step)
        phases.append(Phase(pattern=patterns[key], steps=1, moves=moves, reduce=reduce))
    return tuple(phases)


def _schedule(op: str, layout: Layout, size_bytes: float, phases: tuple[Phase, ...], padding: float) -> Schedule:
    num_chunks = layout.num_ranks * max(1, len(_torus(layout).parts))
    return Schedule(
        op=op, algorithm="torus", num_ranks=layout.num_ranks, root=0, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=num_chunks, chunk_bytes=(size_bytes + padding) / num_chunks, phases=phases,
    )  # fmt: skip


def reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """One stage per axis; rank r ends with slice r. Padded to equal slices."""
    padding = slice_padding(size_bytes, layout.num_ranks)
    return _schedule("reduce_scatter", layout, size_bytes, _phases(_torus(layout), reduce=True), padding)


def all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """The reduce-scatter backwards; rank r starts with slice r. Padded to equal slices."""
    padding = slice_padding(size_bytes, layout.num_ranks)
    return _schedule("all_gather", layout, size_bytes, _phases(_torus(layout), reduce=False), padding)


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Reduce-scatter over all axes, then all-gather over them in reverse."""
    torus = _torus(layout)
    phases = _phases(torus, reduce=True) + _phases(torus, reduce=False)
    return _schedule("all_reduce", layout, size_bytes, phases, 0.0)
