"""Binomial trees: broadcast, reduce, scatter, gather, and all-reduce as reduce + broadcast; gloo's broadcast.

Cost on a uniform network: broadcast and reduce ``ceil(log2 p)(a + n/b)``, all-reduce twice that; scatter
and gather ``ceil(log2 p) a + (p-1)/p n/b`` for a power of two (Thakur, Rabenseifner and Gropp, IJHPCA 2005).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Phase, Schedule, pattern, slice_padding


def depth(num_ranks: int) -> int:
    """Levels of a binomial tree: ceil(log2 num_ranks)."""
    return (num_ranks - 1).bit_length()


def _real(relative: Ints, layout: Layout) -> Ints:
    """Ranks from ranks counted from the root."""
    return (relative + layout.root) % layout.num_ranks


def _whole_buffer_level(layout: Layout, level: int, *, down: bool) -> Phase:
    """One level of broadcast (down) or reduce (up): relative ranks below 2**level talk to rank + 2**level."""
    near = np.arange(min(2**level, layout.num_ranks - 2**level), dtype=np.int64)
    parents, children = _real(near, layout), _real(near + 2**level, layout)
    moved = np.zeros(len(near), dtype=np.int64)
    transfers = pattern(parents, children) if down else pattern(children, parents)
    return Phase(pattern=transfers, steps=1, moves=lambda _s: moved, reduce=not down)


def _down(layout: Layout) -> tuple[Phase, ...]:
    return tuple(_whole_buffer_level(layout, k, down=True) for k in range(depth(layout.num_ranks)))


def _up(layout: Layout) -> tuple[Phase, ...]:
    return tuple(_whole_buffer_level(layout, k, down=False) for k in reversed(range(depth(layout.num_ranks))))


def _whole(op: str, layout: Layout, size_bytes: float, phases: tuple[Phase, ...]) -> Schedule:
    return Schedule(
        op=op, algorithm="tree", num_ranks=layout.num_ranks, root=layout.root, size_bytes=size_bytes,
        padding_bytes=0.0, num_chunks=1, chunk_bytes=size_bytes, phases=phases,
    )  # fmt: skip


def broadcast(layout: Layout, size_bytes: float) -> Schedule:
    """The root's buffer to everyone, whole at every hop."""
    return _whole("broadcast", layout, size_bytes, _down(layout))


def eager_broadcast(layout: Layout, size_bytes: float) -> Schedule:
    """The same tree, where a rank sends to all its children at once, which then share its link.

    On a uniform network a child has the data ``a + c n/b`` after its parent, which has c children: 4 ranks take
    ``2 a + 3 n/b``, where ``broadcast`` takes ``2 a + 2 n/b``. So gloo does: broadcast.cc posts all sends, then waits
    (facebookincubator/gloo@70dc360). 4 MB over 4 hosts of 400 Mbit/s took 250.9 ms (torch 2.13): 3 messages, not 2.
    """
    ranks = np.arange(layout.num_ranks, dtype=np.int64)
    hops = np.array([rank.bit_count() for rank in range(layout.num_ranks)])
    tops = np.array([1 << rank.bit_length() >> 1 for rank in range(layout.num_ranks)])
    levels = (ranks[hops == hop] for hop in range(1, int(hops.max()) + 1))
    phases = tuple(_to_children(layout, children - tops[children], children) for children in levels)
    return replace(_whole("broadcast", layout, size_bytes, phases), algorithm="eager_tree")


def _to_children(layout: Layout, parents: Ints, children: Ints) -> Phase:
    moved = np.zeros(len(children), dtype=np.int64)
    transfers = pattern(_real(parents, layout), _real(children, layout))
    return Phase(pattern=transfers, steps=1, moves=lambda _s: moved, reduce=False)


def reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Everyone's buffers summed at the root."""
    return _whole("reduce", layout, size_bytes, _up(layout))


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Reduce to the root, then broadcast from it."""
    return _whole("all_reduce", layout, size_bytes, _up(layout) + _down(layout))


def _slices_level(layout: Layout, level: int, *, down: bool) -> Phase:
    """One level of scatter (down) or gather (up): a subtree's slices move between its root and its parent."""
    p, span = layout.num_ranks, 2**level
    parents = np.arange(0, p, 2 * span, dtype=np.int64)
    parents = parents[parents + span < p]
    children = parents + span
    sizes = np.minimum(children + span, p) - children
    owners = np.concatenate([np.arange(c, c + k) for c, k in zip(children, sizes, strict=True)])
    moved = _real(owners, layout)
    ends = (_real(parents, layout), _real(children, layout))
    src, dst = ends if down else ends[::-1]
    return Phase(pattern=pattern(src, dst, sizes), steps=1, moves=lambda _s: moved, reduce=False)


def _sliced(op: str, layout: Layout, size_bytes: float, phases: tuple[Phase, ...]) -> Schedule:
    p = layout.num_ranks
    padding = slice_padding(size_bytes, p)
    return Schedule(
        op=op, algorithm="tree", num_ranks=p, root=layout.root, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=p, chunk_bytes=(size_bytes + padding) / p, phases=phases,
    )  # fmt: skip


def scatter(layout: Layout, size_bytes: float) -> Schedule:
    """Slice r of the root's buffer to rank r; the root's child of the top level carries half of them."""
    levels = reversed(range(depth(layout.num_ranks)))
    return _sliced("scatter", layout, size_bytes, tuple(_slices_level(layout, k, down=True) for k in levels))


def gather(layout: Layout, size_bytes: float) -> Schedule:
    """Slice r of rank r to the root."""
    levels = range(depth(layout.num_ranks))
    return _sliced("gather", layout, size_bytes, tuple(_slices_level(layout, k, down=False) for k in levels))
