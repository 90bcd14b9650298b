"""Pipelines: a buffer cut into pieces that follow each other along the same edges, one step apart.

Edge e moves piece ``s - first[e]`` in step s. Between two steps in which an edge starts or ends, the pattern stays
the same, so d distinct first steps make at most 2 d phases, however many pieces there are. Edges are sorted by their
first step, so the edges at work in a step are a slice of the same arrays: phases cost no memory of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from simulator.schedule import Bools, Ints, Pattern, Phase


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Transfers that each happen once for every piece.

    src, dst, first, counts: (num_edges,) the ends, the step that moves piece 0, the chunks moved in a step.
    start, stride: (num_edges,) what an edge moves: groups ``start + stride * j`` for j below its count; piece k of
    group c is chunk ``c * pieces + k``. Written this way, since p edges of p groups each are too many to list.
    reduce: (num_edges,) whether the receiver adds.
    """

    src: Ints
    dst: Ints
    first: Ints
    counts: Ints
    start: Ints
    stride: Ints
    reduce: Bools


def edges(
    src: Ints, dst: Ints, first: Ints | int, start: Ints | int, *, reduce: bool, count: int = 1, stride: int = 1
) -> Edges:
    """Edges alike in count and stride; scalars serve all of them."""
    shape = (len(src),)
    return Edges(
        src=np.asarray(src, dtype=np.int64), dst=np.asarray(dst, dtype=np.int64),
        first=np.broadcast_to(np.asarray(first, dtype=np.int64), shape),
        start=np.broadcast_to(np.asarray(start, dtype=np.int64), shape),
        counts=np.full(shape, count, dtype=np.int64), stride=np.full(shape, stride, dtype=np.int64),
        reduce=np.full(shape, reduce),
    )  # fmt: skip


def joined(parts: list[Edges]) -> Edges:
    """All edges of several sets."""
    return Edges(
        src=np.concatenate([e.src for e in parts]), dst=np.concatenate([e.dst for e in parts]),
        first=np.concatenate([e.first for e in parts]), counts=np.concatenate([e.counts for e in parts]),
        start=np.concatenate([e.start for e in parts]), stride=np.concatenate([e.stride for e in parts]),
        reduce=np.concatenate([e.reduce for e in parts]),
    )  # fmt: skip


def pipelined(unsorted: Edges, pieces: int) -> tuple[Phase, ...]:
    """The phases that move ``pieces`` pieces over the edges, each edge one piece a step from its first step on."""
    ordered = _picked(unsorted, np.argsort(unsorted.first, kind="stable"))
    events = np.unique(np.concatenate([ordered.first, ordered.first + pieces])).tolist()
    phases = []
    for begin, end in pairwise(events):
        low, high = (int(i) for i in np.searchsorted(ordered.first, [begin - pieces, begin], side="right"))
        if low == high:
            continue
        active = _picked(ordered, slice(low, high))
        adds = active.reduce
        reduce = bool(adds[0]) if bool((adds == adds[0]).all()) else adds
        transfers = Pattern(src=active.src, dst=active.dst, chunks=active.counts)
        moves = partial(_moved, active, pieces, begin)
        phases.append(Phase(pattern=transfers, steps=end - begin, moves=moves, reduce=reduce))
    return tuple(phases)


def _moved(active: Edges, pieces: int, begin: int, step: int) -> Ints:
    """Chunks of the pieces that the edges at work move in a step of a phase that begins in step ``begin``."""
    chunk = active.start * pieces + (begin + step) - active.first
    within = np.arange(active.counts.sum()) - np.repeat(np.cumsum(active.counts) - active.counts, active.counts)
    moved: Ints = np.repeat(chunk, active.counts) + within * np.repeat(active.stride * pieces, active.counts)
    return moved


def _picked(every: Edges, which: Ints | slice) -> Edges:
    """Some of the edges; a slice copies nothing."""
    return Edges(
        src=every.src[which], dst=every.dst[which], first=every.first[which], counts=every.counts[which],
        start=every.start[which], stride=every.stride[which], reduce=every.reduce[which],
    )  # fmt: skip
