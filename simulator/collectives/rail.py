"""All-to-all in two levels: inside the node to the rank of the rail, then across the nodes on that rail.

A rank first hands every local rank m all that it has for the local ranks m of all nodes; then rank m sends each node
one message of what its g local ranks have for rank m there. So a NIC talks to N - 1 others instead of g (N - 1), in
messages g times larger, and traffic keeps to its rail (what NCCL's PXN does: NVIDIA, "Doubling all2all performance
with NCCL 2.12", 2022). Blocks for another local rank cross NVLink in addition: ``(g-1)/g n`` a rank.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Phase, Schedule, pattern, slice_padding


def all_to_all(layout: Layout, size_bytes: float) -> Schedule:
    """Cost on two ideal tiers (a, b inside; A, B across): ``a + (g-1)/g n/b + A + (N-1)/N n/B``, two steps.

    On one node, or with one rank per node, one of the steps is empty and this is the direct all-to-all.
    """
    nodes, g = layout.grid
    p = layout.num_ranks
    padding = slice_padding(size_bytes, p)
    phases: list[Phase] = []
    if g > 1:
        phases.append(_inside(nodes, g))
    if nodes > 1:
        phases.append(_across(nodes, g))
    return Schedule(
        op="all_to_all", algorithm="rail", num_ranks=p, root=0, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=p * p, chunk_bytes=(size_bytes + padding) / p, phases=tuple(phases),
    )  # fmt: skip


def _inside(nodes: int, g: int) -> Phase:
    """Rank l of a node to each other local rank m: its blocks for the ranks m of all nodes."""
    src = np.repeat(np.arange(nodes * g, dtype=np.int64), g - 1)
    local = (src % g + np.tile(np.arange(1, g), nodes * g)) % g
    moves = partial(_bound_for, nodes, g, src, local)
    return Phase(pattern=pattern(src, src // g * g + local, nodes), steps=1, moves=moves, reduce=False)


def _bound_for(nodes: int, g: int, src: Ints, local: Ints, _step: int) -> Ints:
    targets = np.arange(nodes, dtype=np.int64) * g + local[:, None]
    return (src[:, None] * (nodes * g) + targets).ravel()


def _across(nodes: int, g: int) -> Phase:
    """Rank m of a node to rank m of each other node: what all its local ranks have for it."""
    src = np.repeat(np.arange(nodes * g, dtype=np.int64), nodes - 1)
    node = (src // g + np.tile(np.arange(1, nodes), nodes * g)) % nodes
    dst = node * g + src % g
    return Phase(pattern=pattern(src, dst, g), steps=1, moves=partial(_collected, nodes, g, src, dst), reduce=False)


def _collected(nodes: int, g: int, src: Ints, dst: Ints, _step: int) -> Ints:
    sources = (src // g * g)[:, None] + np.arange(g, dtype=np.int64)
    return (sources * (nodes * g) + dst[:, None]).ravel()
