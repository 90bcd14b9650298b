"""Ring all-reduce, reduce-scatter and all-gather, over one ring or several channels at once.

Cost on a uniform network, one channel: all-reduce ``2(p-1)(a + n/(p b))``, the others half of it
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009). Bytes per rank: ``2(p-1)/p n``.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Pattern, Phase, Schedule, pattern, slice_padding


def orders(layout: Layout) -> Ints:
    """Order of the ranks along each channel's ring, shape (channels, num_ranks).

    Channel c leaves every node through another door than channel c + 1 does, and enters the next node through
    the door of the same number, so that a rail-optimised fabric carries it leaf to leaf. Doors alternate between
    two local ranks from node to node; with an odd number of nodes the last hop needs a third one.
    """
    p, per_node = layout.num_ranks, layout.ranks_per_node
    if layout.meshed and p > 2 and per_node in {None, p}:
        return mesh_orders(p)
    if layout.node_sizes is not None:
        return _rail_orders(layout, layout.node_sizes)
    if layout.channels == 1 or per_node is None or p % per_node or p == per_node:
        return np.tile(np.arange(p, dtype=np.int64), (layout.channels, 1))
    stride = max(1, per_node // layout.channels)
    firsts, nodes = [channel * stride for channel in range(layout.channels)], p // per_node
    if layout.meshed:
        return np.array([_meshed_rail_order(first, nodes, per_node) for first in firsts], dtype=np.int64)
    return _rail_orders(layout, (per_node,) * nodes)


def _rail_orders(layout: Layout, node_sizes: tuple[int, ...]) -> Ints:
    """One ring per channel, their doors spread over the local ranks that may be doors on every node."""
    doors = layout.doors or tuple(range(min(node_sizes)))
    stride = max(1, len(doors) // layout.channels)
    rows = [_rail_order(channel * stride, node_sizes, doors) for channel in range(layout.channels)]
    return np.array(rows, dtype=np.int64)


def mesh_orders(p: int) -> Ints:
    """2 (p - 1) rings that together use every link of a full mesh equally often, twice in each direction.

    One rank stands still, the others zigzag round a circle, 0, 1, -1, 2, -2 ...; all turns of the circle, both ways
    round (Walecki's construction of 1892; Alspach, "The wonderful Walecki construction", Bull. ICA 2008).
    """
    turns = (_zigzag(p - 1)[None, :] + np.arange(p - 1)[:, None]) % (p - 1)
    there = np.concatenate([np.full((p - 1, 1), p - 1, dtype=np.int64), turns], axis=1)
    return np.concatenate([there, there[:, ::-1]])


def _zigzag(count: int) -> Ints:
    """0, 1, -1, 2, -2 ... : ``count`` places on a circle, each step of another length."""
    steps = np.arange(count, dtype=np.int64)
    return np.where(steps % 2, (steps + 1) // 2, -(steps // 2))


def _meshed_rail_order(first: int, num_nodes: int, per_node: int) -> Ints:
    """As ``_rail_order``, on nodes whose ranks are fully meshed: the channels' zigzags share no link of an even node.

    A zigzag ends half the node away from where it began, so the doors alternate between two local ranks.
    """
    path = _zigzag(per_node)
    ring: list[Ints] = []
    entry = first
    for node in range(num_nodes):
        inside = (entry + path) % per_node
        ring.append(node * per_node + inside)
        entry = int(inside[-1])
    return np.concatenate(ring)


def _rail_order(first: int, node_sizes: tuple[int, ...], usable: tuple[int, ...]) -> Ints:
    """One ring over all nodes; hop k leaves node k by local rank ``doors[k]`` and enters node k + 1 by it.

    Doors are local ranks that every node has, so that a rail carries the ring even where nodes hold unequal numbers.
    """
    num_nodes = len(node_sizes)
    doors = [usable[(first - 1 + k % 2) % len(usable)] for k in range(num_nodes)]
    if num_nodes % 2:
        doors[-1] = usable[(first - 2) % len(usable)]
    ring: list[int] = []
    start = 0
    for node, size in enumerate(node_sizes):
        entry, leave = doors[node - 1], doors[node]
        inner = [(entry + k) % size for k in range(1, size)]
        path = [entry, *(local for local in inner if local != leave), *([leave] if leave != entry else [])]
        ring.extend(start + local for local in path)
        start += size
    return np.array(ring, dtype=np.int64)


def _ring_pattern(ring_orders: Ints) -> Pattern:
    return pattern(ring_orders.ravel(), np.roll(ring_orders, -1, axis=1).ravel())


def _chunk_of(ring_orders: Ints, lag: int) -> Ints:
    """Chunk that each position sends: the one of the rank ``lag`` positions behind it, per channel."""
    channels = len(ring_orders)
    ids = ring_orders * channels + np.arange(channels)[:, None]
    return np.roll(ids, lag, axis=1).ravel()


def _schedule(op: str, layout: Layout, size_bytes: float, phases: tuple[Phase, ...], padding: float) -> Schedule:
    num_chunks = layout.num_ranks * len(orders(layout))
    return Schedule(
        op=op, algorithm="ring", num_ranks=layout.num_ranks, root=0, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=num_chunks, chunk_bytes=(size_bytes + padding) / num_chunks, phases=phases,
    )  # fmt: skip


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Reduce-scatter, then all-gather round the same ring. Needs no padding: slices may differ by one element."""
    p = layout.num_ranks
    if p == 1:
        return _schedule("all_reduce", layout, size_bytes, (), 0.0)
    ring = orders(layout)
    shared = _ring_pattern(ring)
    phases = (
        Phase(pattern=shared, steps=p - 1, moves=lambda s: _chunk_of(ring, s), reduce=True),
        Phase(pattern=shared, steps=p - 1, moves=lambda s: _chunk_of(ring, s - 1), reduce=False),
    )
    return _schedule("all_reduce", layout, size_bytes, phases, 0.0)


def reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """p - 1 steps; rank r ends with slice r. Padded to equal slices."""
    p = layout.num_ranks
    padding = slice_padding(size_bytes, p)
    if p == 1:
        return _schedule("reduce_scatter", layout, size_bytes, (), padding)
    ring = orders(layout)
    phase = Phase(pattern=_ring_pattern(ring), steps=p - 1, moves=lambda s: _chunk_of(ring, s + 1), reduce=True)
    return _schedule("reduce_scatter", layout, size_bytes, (phase,), padding)


def all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """p - 1 steps; rank r starts with slice r. Padded to equal slices."""
    p = layout.num_ranks
    padding = slice_padding(size_bytes, p)
    if p == 1:
        return _schedule("all_gather", layout, size_bytes, (), padding)
    ring = orders(layout)
    phase = Phase(pattern=_ring_pattern(ring), steps=p - 1, moves=lambda s: _chunk_of(ring, s), reduce=False)
    return _schedule("all_gather", layout, size_bytes, (phase,), padding)
