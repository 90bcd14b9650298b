"""Multi-axis ring on a torus: the buffer is cut into one part per axis, and the parts go round the axes in turn.

Part j reduces along axis j, then j + 1, ..., so all axes carry traffic in every stage; after an axis of length d
a part is d times smaller. With D equal axes of length d the time is ``1/D`` of a single ring's bytes in
``2 D (d-1)`` steps (Jain and Sabharwal, ICS 2010; the same scheme as on TPU pods). Each axis is used in one
direction here; an axis without wrap-around closes its ring over the line's return links.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Pattern, Phase, Schedule, pattern, slice_padding


def _axes(layout: Layout) -> tuple[int, ...]:
    """Axes that are longer than one; the shape defaults to one axis."""
    shape = layout.torus_shape or (layout.num_ranks,)
    return tuple(a for a, length in enumerate(shape) if length > 1)


def _coordinates(layout: Layout) -> Ints:
    """Coordinates of each rank, shape (num_ranks, num_axes), row-major."""
    shape = layout.torus_shape or (layout.num_ranks,)
    return np.stack(np.unravel_index(np.arange(layout.num_ranks), shape), axis=1).astype(np.int64)


def _stages(layout: Layout, part: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Steps of one part's reduce-scatter: (axis, step on that axis, axes done before)."""
    shape = layout.torus_shape or (layout.num_ranks,)
    axes = _axes(layout)
    order = axes[part:] + axes[:part]
    return [(axis, step, order[:stage]) for stage, axis in enumerate(order) for step in range(shape[axis] - 1)]


def _part_step(layout: Layout, part: int, index: int) -> tuple[int, int, list[int]]:
    """(axis, chunks per transfer, slots left open) of step ``index`` of the part's reduce-scatter."""
    shape = layout.torus_shape or (layout.num_ranks,)
    axis, _, done = _stages(layout, part)[index]
    open_axes = [a for a in range(len(shape)) if a != axis and a not in done]
    return axis, math.prod(shape[a] for a in open_axes), open_axes


def _owners(layout: Layout, part: int, index: int, lag: int) -> Ints:
    """Slices that each rank sends, shape (num_ranks, chunks): owners sit ``lag`` before the sender on the axis."""
    shape = layout.torus_shape or (layout.num_ranks,)
    axis, count, open_axes = _part_step(layout, part, index)
    coordinates = _coordinates(layout)
    target = np.repeat(coordinates[:, None, :], count, axis=1)
    target[:, :, axis] = ((coordinates[:, axis] - lag) % shape[axis])[:, None]
    if open_axes:
        slots = np.stack(np.unravel_index(np.arange(count), [shape[a] for a in open_axes]), axis=1)
        target[:, :, open_axes] = slots[None, :, :]
    owners: Ints = np.ravel_multi_index(tuple(np.moveaxis(target, -1, 0)), shape).astype(np.int64)
    return owners


def _transfers(layout: Layout, index: int) -> Pattern:
    """All parts' transfers of one step: every rank to its next neighbour on each part's axis."""
    shape = layout.torus_shape or (layout.num_ranks,)
    coordinates = _coordinates(layout)
    src, dst, chunks = [], [], []
    for part in range(len(_axes(layout))):
        axis, count, _ = _part_step(layout, part, index)
        neighbour = coordinates.copy()
        neighbour[:, axis] = (neighbour[:, axis] + 1) % shape[axis]
        src.append(np.arange(layout.num_ranks, dtype=np.int64))
        dst.append(np.ravel_multi_index(tuple(neighbour.T), shape).astype(np.int64))
        chunks.append(np.full(layout.num_ranks, count, dtype=np.int64))
    return pattern(np.concatenate(src), np.concatenate(dst), np.concatenate(chunks))


def _moved(layout: Layout, index: int, reduce: bool, _step: int) -> Ints:
    parts = len(_axes(layout))
    ids = []
    for part in range(parts):
        axis_step = _stages(layout, part)[index][1]
        lag = axis_step + 1 if reduce else _gather_lag(layout, part, index)
        ids.append((_owners(layout, part, index, lag) * parts + part).ravel())
    return np.concatenate(ids)


def _gather_lag(layout: Layout, part: int, index: int) -> int:
    """The all-gather plays the reduce-scatter's steps backwards; on an axis it starts from the own slice."""
    shape = layout.torus_shape or (layout.num_ranks,)
    axis, step, _ = _stages(layout, part)[index]
    return shape[axis] - 2 - step


def _phases(layout: Layout, *, reduce: bool) -> tuple[Phase, ...]:
    axes = _axes(layout)
    if not axes:
        return ()
    shape = layout.torus_shape or (layout.num_ranks,)
    total = sum(shape[a] - 1 for a in axes)
    patterns: dict[tuple[tuple[int, int], ...], Pattern] = {}
    phases = []
    for index in range(total) if reduce else reversed(range(total)):
        key = tuple(_part_step(layout, part, index)[:2] for part in range(len(axes)))
        if key not in patterns:
            patterns[key] = _transfers(layout, index)
        moves = partial(_moved, layout, index, reduce)
        phases.append(Phase(pattern=patterns[key], steps=1, moves=moves, reduce=reduce))
    return tuple(phases)


def _schedule(op: str, layout: Layout, size_bytes: float, phases: tuple[Phase, ...], padding: float) -> Schedule:
    num_chunks = layout.num_ranks * max(1, len(_axes(layout)))
    return Schedule(
        op=op, algorithm="torus", num_ranks=layout.num_ranks, root=0, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=num_chunks, chunk_bytes=(size_bytes + padding) / num_chunks, phases=phases,
    )  # fmt: skip


def reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """One ring stage per axis; rank r ends with slice r. Padded to equal slices."""
    padding = slice_padding(size_bytes, layout.num_ranks)
    return _schedule("reduce_scatter", layout, size_bytes, _phases(layout, reduce=True), padding)


def all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """The reduce-scatter backwards; rank r starts with slice r. Padded to equal slices."""
    padding = slice_padding(size_bytes, layout.num_ranks)
    return _schedule("all_gather", layout, size_bytes, _phases(layout, reduce=False), padding)


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Reduce-scatter over all axes, then all-gather over them in reverse."""
    phases = _phases(layout, reduce=True) + _phases(layout, reduce=False)
    return _schedule("all_reduce", layout, size_bytes, phases, 0.0)
