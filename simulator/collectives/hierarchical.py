"""Inside the node and across the nodes apart, so that the slow network is crossed once per byte, on every rail.

All-reduce: reduce-scatter over the g ranks of each node, then g rings at once over the N nodes, each with 1/g of the
buffer on its own rail, then all-gather in the node. Time on two ideal tiers (latency a, rate b inside; A, B across):
``2(g-1)(a + n/(g b)) + 2(N-1)(A + n/(g N B))``; steps grow with g + N instead of g N. Reduce-scatter is its first
half, all-gather its second: half of the time. Broadcast: the root scatters in its node, every local rank passes its
part on over a binomial tree of the nodes, all-gather in the node:
``a + (g-1)/g n/b + ceil(log2 N)(A + n/(g B)) + (g-1)(a + n/(g b))`` (van de Geijn's scatter and all-gather in two
levels; Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4.2). Reduce is the broadcast backwards.

On one node, or with one rank per node, the part that has nobody to talk to is left out.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Pattern, Phase, Schedule, pattern, slice_padding


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Reduce-scatter, then all-gather over the same rings."""
    nodes, g = layout.grid
    inside, rails = _inside(nodes, g, nodes), across(nodes, g)
    phases = (
        *_ring(inside, g, partial(_inside_chunks, nodes, g, 1), reduce=True),
        *_ring(rails, nodes, partial(across_chunks, nodes, g, 1, 1), reduce=True),
        *_ring(rails, nodes, partial(across_chunks, nodes, g, 0, 1), reduce=False),
        *_ring(inside, g, partial(_inside_chunks, nodes, g, 0), reduce=False),
    )
    return _schedule("all_reduce", layout, size_bytes, nodes * g, phases)


def reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """In the node, then across; rank r ends with slice r. Padded to equal slices."""
    nodes, g = layout.grid
    phases = (
        *_ring(_inside(nodes, g, nodes), g, partial(_inside_chunks, nodes, g, 1), reduce=True),
        *_ring(across(nodes, g), nodes, partial(across_chunks, nodes, g, 1, 1), reduce=True),
    )
    return _schedule("reduce_scatter", layout, size_bytes, nodes * g, phases)


def all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """Across, then in the node; rank r starts with slice r. Padded to equal slices."""
    nodes, g = layout.grid
    phases = (
        *_ring(across(nodes, g), nodes, partial(across_chunks, nodes, g, 0, 1), reduce=False),
        *_ring(_inside(nodes, g, nodes), g, partial(_inside_chunks, nodes, g, 0), reduce=False),
    )
    return _schedule("all_gather", layout, size_bytes, nodes * g, phases)


def broadcast(layout: Layout, size_bytes: float) -> Schedule:
    """The root scatters in its node, each local rank passes on over the nodes, all-gather in the node."""
    nodes, g = layout.grid
    levels = range((nodes - 1).bit_length())
    phases = (
        *_between_root_and_locals(layout, down=True),
        *(_level(layout, level, down=True) for level in levels),
        *_ring(_inside(nodes, g, 1), g, partial(_part, nodes, g, 0), reduce=False),
    )
    return _schedule("broadcast", layout, size_bytes, g, phases)


def reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Reduce-scatter in the node, each local rank reduces over the nodes, the root gathers in its node."""
    nodes, g = layout.grid
    levels = reversed(range((nodes - 1).bit_length()))
    phases = (
        *_ring(_inside(nodes, g, 1), g, partial(_part, nodes, g, 1), reduce=True),
        *(_level(layout, level, down=False) for level in levels),
        *_between_root_and_locals(layout, down=False),
    )
    return _schedule("reduce", layout, size_bytes, g, phases)


def _schedule(op: str, layout: Layout, size_bytes: float, num_chunks: int, phases: tuple[Phase, ...]) -> Schedule:
    p = layout.num_ranks
    sliced = op in {"reduce_scatter", "all_gather"}
    padding = slice_padding(size_bytes, p) if sliced else 0.0
    return Schedule(
        op=op, algorithm="hierarchical", num_ranks=p, root=layout.root if op in {"broadcast", "reduce"} else 0,
        size_bytes=size_bytes, padding_bytes=padding, num_chunks=num_chunks,
        chunk_bytes=(size_bytes + padding) / num_chunks, phases=phases,
    )  # fmt: skip


def _ring(transfers: Pattern | None, length: int, moves: partial[Ints], *, reduce: bool) -> tuple[Phase, ...]:
    """All steps round rings of ``length`` ranks; none round a ring of one."""
    if transfers is None:
        return ()
    return (Phase(pattern=transfers, steps=length - 1, moves=moves, reduce=reduce),)


def _inside(nodes: int, g: int, chunks: int) -> Pattern | None:
    """A ring in every node; a transfer carries one local rank's part."""
    ranks = np.arange(nodes * g, dtype=np.int64)
    return pattern(ranks, ranks // g * g + (ranks + 1) % g, chunks) if g > 1 else None


def across(nodes: int, g: int, pieces: int = 1) -> Pattern | None:
    """A ring over the nodes for every local rank; a transfer carries one slice, which is ``pieces`` chunks."""
    ranks = np.arange(nodes * g, dtype=np.int64)
    return pattern(ranks, (ranks + g) % (nodes * g), pieces) if nodes > 1 else None


def _inside_chunks(nodes: int, g: int, lag: int, step: int) -> Ints:
    """Local rank l passes on the part of local rank l - lag - step: the slices of all ranks with that local rank."""
    part = _part(nodes, g, lag, step)
    return (part[:, None] + g * np.arange(nodes)).ravel()


def _part(nodes: int, g: int, lag: int, step: int) -> Ints:
    return (np.arange(nodes * g, dtype=np.int64) % g - lag - step) % g


def across_chunks(nodes: int, g: int, lag: int, pieces: int, step: int) -> Ints:
    """Node k passes on, on every rail, the slice of the rank of node k - lag - step."""
    ranks = np.arange(nodes * g, dtype=np.int64)
    slices = (ranks // g - lag - step) % nodes * g + ranks % g
    return (slices[:, None] * pieces + np.arange(pieces)).ravel()


def _between_root_and_locals(layout: Layout, *, down: bool) -> tuple[Phase, ...]:
    """One step in the root's node: part l between the root and local rank l."""
    _, g = layout.grid
    if g == 1:
        return ()
    home = layout.root // g * g
    parts = np.array([part for part in range(g) if home + part != layout.root], dtype=np.int64)
    root = np.full(g - 1, layout.root, dtype=np.int64)
    transfers = pattern(root, home + parts) if down else pattern(home + parts, root)
    return (Phase(pattern=transfers, steps=1, moves=lambda _s: parts, reduce=False),)


def _level(layout: Layout, level: int, *, down: bool) -> Phase:
    """One level of a binomial tree over the nodes, counted from the root's, on all rails at once."""
    nodes, g = layout.grid
    near = np.arange(min(2**level, nodes - 2**level), dtype=np.int64)
    local = np.arange(g, dtype=np.int64)
    home = layout.root // g
    parents = (((near + home) % nodes * g)[:, None] + local).ravel()
    children = (((near + 2**level + home) % nodes * g)[:, None] + local).ravel()
    moved = np.tile(local, len(near))
    transfers = pattern(parents, children) if down else pattern(children, parents)
    return Phase(pattern=transfers, steps=1, moves=lambda _s: moved, reduce=not down)
