"""Algorithms of ``ceil(log2 p)`` steps for any number of ranks: Bruck's all-to-all, and PAT.

Bruck: in step k a rank sends on, 2**k ranks further, every block whose distance still has bit k: few messages, but a
block travels once per set bit. PAT (Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at
scale", arXiv 2506.20252; NCCL 2.23) runs the p binomial trees of Bruck's all-gather at once, farthest step first, so
that the large messages are those between near ranks; here with all of a step's slices aggregated in one message
(NCCL sends fewer at a time once they outgrow its buffers).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Phase, Schedule, pattern, slice_padding


def all_to_all(layout: Layout, size_bytes: float) -> Schedule:
    """Cost: ``sum over k of a + c_k n / (p b)``, c_k the distances below p with bit k (Bruck et al., TPDS 1997)."""
    p = layout.num_ranks
    phases = tuple(_bruck_step(p, k) for k in range((p - 1).bit_length()))
    return _schedule("all_to_all", "bruck", p, size_bytes, p * p, phases)


def _bruck_step(p: int, k: int) -> Phase:
    ranks, distance = np.arange(p, dtype=np.int64), np.arange(p, dtype=np.int64)
    distance = distance[distance >> k & 1 == 1]
    transfers = pattern(ranks, (ranks + 2**k) % p, len(distance))
    return Phase(pattern=transfers, steps=1, moves=partial(_blocks, ranks, distance, distance % 2**k), reduce=False)


def _blocks(ranks: Ints, distance: Ints, gone: Ints, _step: int) -> Ints:
    """Blocks for ranks ``distance`` further that have ``gone`` some of it: chunk source * p + destination."""
    source = (ranks[:, None] - gone) % len(ranks)
    return (source * len(ranks) + (source + distance) % len(ranks)).ravel()


def all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """Cost: ``ceil(log2 p) a + (p-1)/p n/b``. Every rank sends p - 1 slices."""
    p = layout.num_ranks
    phases = tuple(_pat_step(p, 1 << k, gather=True) for k in reversed(range((p - 1).bit_length())))
    return _schedule("all_gather", "pat", p, size_bytes, p, phases)


def reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """The all-gather backwards, adding: ``ceil(log2 p) a + (p-1)/p n/b``."""
    p = layout.num_ranks
    phases = tuple(_pat_step(p, 1 << k, gather=False) for k in range((p - 1).bit_length()))
    return _schedule("reduce_scatter", "pat", p, size_bytes, p, phases)


def _pat_step(p: int, distance: int, *, gather: bool) -> Phase:
    """Gather: the slices of the ranks 0, 2, 4, ... times ``distance`` back go ``distance`` further, if p lets them."""
    ranks = np.arange(p, dtype=np.int64)
    back = np.arange(0, p - distance, 2 * distance, dtype=np.int64)
    further = (ranks + distance) % p
    transfers = pattern(ranks, further, len(back)) if gather else pattern(further, ranks, len(back))
    return Phase(pattern=transfers, steps=1, moves=partial(_slices, ranks, back), reduce=not gather)


def _slices(ranks: Ints, back: Ints, _step: int) -> Ints:
    return ((ranks[:, None] - back) % len(ranks)).ravel()


def _schedule(op: str, algorithm: str, p: int, size_bytes: float, chunks: int, phases: tuple[Phase, ...]) -> Schedule:
    padding = slice_padding(size_bytes, p)
    return Schedule(
        op=op, algorithm=algorithm, num_ranks=p, root=0, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=chunks, chunk_bytes=(size_bytes + padding) / p, phases=phases,
    )  # fmt: skip
