"""Broadcast and reduce along a pipelined chain: the ring of the other operations, cut open at the root.

The same node-aware orders as the ring, one per channel, each channel with its share of the buffer in K pieces. Cost on
a uniform network, one channel: ``(p + K - 2)(a + n / (K b))``. Every byte crosses each hop once, so a rank sends and
receives n bytes, whatever p (NCCL's only algorithm for both operations).
"""

from __future__ import annotations

import numpy as np

from simulator.collectives import ring
from simulator.collectives.layout import Layout
from simulator.collectives.pipeline import edges, pipelined
from simulator.schedule import Ints, Phase, Schedule


def broadcast(layout: Layout, size_bytes: float) -> Schedule:
    """From the root to its next on each channel's ring, and on."""
    order = _from_root(layout)
    channels, hops = len(order), order.shape[1] - 1
    flow = edges(
        order[:, :-1].ravel(), order[:, 1:].ravel(), np.tile(np.arange(hops), channels),
        np.repeat(np.arange(channels), hops), reduce=False,
    )  # fmt: skip
    return _schedule("broadcast", layout, size_bytes, channels, pipelined(flow, layout.pieces))


def reduce(layout: Layout, size_bytes: float) -> Schedule:
    """The broadcast backwards, every rank adding its own."""
    order = _from_root(layout)
    channels, hops = len(order), order.shape[1] - 1
    flow = edges(
        order[:, 1:].ravel(), order[:, :-1].ravel(), np.tile(np.arange(hops)[::-1], channels),
        np.repeat(np.arange(channels), hops), reduce=True,
    )  # fmt: skip
    return _schedule("reduce", layout, size_bytes, channels, pipelined(flow, layout.pieces))


def _from_root(layout: Layout) -> Ints:
    """Every channel's ring, turned to begin at the root: shape (channels, num_ranks)."""
    order = ring.orders(layout)
    turn = np.argmax(order == layout.root, axis=1)
    places = (turn[:, None] + np.arange(layout.num_ranks)) % layout.num_ranks
    turned: Ints = np.take_along_axis(order, places, axis=1)
    return turned


def _schedule(op: str, layout: Layout, size_bytes: float, channels: int, phases: tuple[Phase, ...]) -> Schedule:
    num_chunks = channels * layout.pieces
    return Schedule(
        op=op, algorithm="ring", num_ranks=layout.num_ranks, root=layout.root, size_bytes=size_bytes,
        padding_bytes=0.0, num_chunks=num_chunks, chunk_bytes=size_bytes / num_chunks, phases=phases,
    )  # fmt: skip
