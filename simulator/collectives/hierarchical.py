"""Inside the node, across the nodes, inside again: all-reduce that crosses the slow network once per byte.

Reduce-scatter over the g ranks of each node, then g rings at once over the N nodes, each with 1/g of the buffer on
its own rail, then all-gather in the node. Time on two ideal tiers (latency a, rate b inside; A, B across):
``2(g-1)(a + n/(g b)) + 2(N-1)(A + n/(g N B))``; steps grow with g + N instead of g N.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from simulator.collectives import ring
from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Pattern, Phase, Schedule, pattern


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Needs whole nodes; on one node, or with one rank per node, it is the plain ring."""
    p, g = layout.num_ranks, layout.ranks_per_node or layout.num_ranks
    nodes = p // g
    if g == 1 or nodes <= 1 or p % g:
        plain = ring.all_reduce(Layout(num_ranks=p), size_bytes)
        return _schedule(p, p, size_bytes, plain.phases)
    inside, across = _inside(nodes, g), _across(nodes, g)
    phases = (
        Phase(pattern=inside, steps=g - 1, moves=partial(_inside_chunks, nodes, g, 1), reduce=True),
        Phase(pattern=across, steps=nodes - 1, moves=partial(_across_chunks, nodes, g, 0), reduce=True),
        Phase(pattern=across, steps=nodes - 1, moves=partial(_across_chunks, nodes, g, -1), reduce=False),
        Phase(pattern=inside, steps=g - 1, moves=partial(_inside_chunks, nodes, g, 0), reduce=False),
    )
    return _schedule(p, g * nodes, size_bytes, phases)


def _schedule(p: int, num_chunks: int, size_bytes: float, phases: tuple[Phase, ...]) -> Schedule:
    return Schedule(
        op="all_reduce", algorithm="hierarchical", num_ranks=p, root=0, size_bytes=size_bytes, padding_bytes=0.0,
        num_chunks=num_chunks, chunk_bytes=size_bytes / num_chunks, phases=phases,
    )  # fmt: skip


def _inside(nodes: int, g: int) -> Pattern:
    """A ring in every node; a transfer carries one local rank's part, which is ``nodes`` chunks."""
    ranks = np.arange(nodes * g, dtype=np.int64)
    return pattern(ranks, ranks // g * g + (ranks + 1) % g, nodes)


def _across(nodes: int, g: int) -> Pattern:
    """A ring over the nodes for every local rank; a transfer carries one chunk."""
    ranks = np.arange(nodes * g, dtype=np.int64)
    return pattern(ranks, (ranks + g) % (nodes * g))


def _inside_chunks(nodes: int, g: int, lag: int, step: int) -> Ints:
    """Local rank l passes on the part of local rank l - lag - step; part l is chunks l * nodes .. + nodes."""
    local = np.arange(nodes * g, dtype=np.int64) % g
    part = (local - lag - step) % g
    return (part[:, None] * nodes + np.arange(nodes)).ravel()


def _across_chunks(nodes: int, g: int, lag: int, step: int) -> Ints:
    """In part l, node k passes on chunk k - lag - step of the part."""
    ranks = np.arange(nodes * g, dtype=np.int64)
    return (ranks % g) * nodes + (ranks // g - lag - step) % nodes
