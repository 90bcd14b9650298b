"""Algorithms that talk to every rank: direct (all at once) and pairwise (one partner a step).

Also gather and scatter in one step through the root, and send_recv, where everyone sends to the next rank only.
Direct puts p - 1 messages of a rank on its links in the same step; they share them, so the bytes cost what
they cost one after the other and only the latency is paid once. Cost on a uniform network, all-to-all:
direct ``a + (p-1) n/(p b)``, pairwise ``(p-1)(a + n/(p b))``.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.layout import Layout
from simulator.errors import UnsupportedError
from simulator.schedule import ROOTED, SLICED, Ints, Pattern, Phase, Schedule, pattern, slice_padding

#: Ranks up to which every pair's message is listed: 17 million of them, 3.7 GB with their routes.
MAX_DIRECT = 4096


def _every_pair(num_ranks: int) -> tuple[Ints, Ints]:
    src = np.repeat(np.arange(num_ranks, dtype=np.int64), num_ranks - 1)
    shift = np.tile(np.arange(1, num_ranks, dtype=np.int64), num_ranks)
    return src, (src + shift) % num_ranks


def _one_step(transfers: Pattern, moved: Ints, *, reduce: bool = False) -> Phase:
    return Phase(pattern=transfers, steps=1, moves=lambda _s: moved, reduce=reduce)


def _schedule(op: str, algorithm: str, layout: Layout, size_bytes: float, phases: tuple[Phase, ...]) -> Schedule:
    p = layout.num_ranks
    padding = slice_padding(size_bytes, p) if op in SLICED else 0.0
    return Schedule(
        op=op, algorithm=algorithm, num_ranks=p, root=layout.root if op in ROOTED else 0, size_bytes=size_bytes,
        padding_bytes=padding,
        num_chunks=p * p if op == "all_to_all" else p, chunk_bytes=(size_bytes + padding) / p, phases=phases,
    )  # fmt: skip


def direct_all_to_all(layout: Layout, size_bytes: float) -> Schedule:
    """Every rank sends every other its block, all in one step."""
    p = layout.num_ranks
    if p == 1:
        return _schedule("all_to_all", "direct", layout, size_bytes, ())
    if p > MAX_DIRECT:
        raise UnsupportedError(
            f"a direct all-to-all of {p:,} ranks is {p * (p - 1):,} messages at once; this version takes up to "
            f"{MAX_DIRECT:,} ranks. 'pairwise' and 'rail' take more"
        )
    src, dst = _every_pair(p)
    phase = _one_step(pattern(src, dst), src * p + dst)
    return _schedule("all_to_all", "direct", layout, size_bytes, (phase,))


def direct_reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """Every rank sends every other that one's slice, all in one step; the receiver adds."""
    if layout.num_ranks == 1:
        return _schedule("reduce_scatter", "direct", layout, size_bytes, ())
    src, dst = _every_pair(layout.num_ranks)
    phase = _one_step(pattern(src, dst), dst, reduce=True)
    return _schedule("reduce_scatter", "direct", layout, size_bytes, (phase,))


def direct_all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """Every rank sends every other its own slice, all in one step."""
    if layout.num_ranks == 1:
        return _schedule("all_gather", "direct", layout, size_bytes, ())
    src, dst = _every_pair(layout.num_ranks)
    return _schedule("all_gather", "direct", layout, size_bytes, (_one_step(pattern(src, dst), src),))


def direct_all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Direct reduce-scatter, then direct all-gather: two steps."""
    if layout.num_ranks == 1:
        return _schedule("all_reduce", "direct", layout, size_bytes, ())
    src, dst = _every_pair(layout.num_ranks)
    shared = pattern(src, dst)
    phases = (_one_step(shared, dst, reduce=True), _one_step(shared, src))
    return _schedule("all_reduce", "direct", layout, size_bytes, phases)


def pairwise_all_to_all(layout: Layout, size_bytes: float) -> Schedule:
    """p - 1 steps; in step s rank r sends to r + s and receives from r - s."""
    p = layout.num_ranks
    ranks = np.arange(p, dtype=np.int64)
    phases = tuple(_one_step(pattern(ranks, (ranks + s) % p), ranks * p + (ranks + s) % p) for s in range(1, p))
    return _schedule("all_to_all", "pairwise", layout, size_bytes, phases)


def direct_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """The root sends every other rank its slice, all in one step: ``a + (p-1)/p n/b``."""
    others = _all_but_the_root(layout)
    root = np.full_like(others, layout.root)
    phases = (_one_step(pattern(root, others), others),) if len(others) else ()
    return _schedule("scatter", "direct", layout, size_bytes, phases)


def direct_gather(layout: Layout, size_bytes: float) -> Schedule:
    """Every rank sends the root its slice, all in one step: ``a + (p-1)/p n/b``."""
    others = _all_but_the_root(layout)
    root = np.full_like(others, layout.root)
    phases = (_one_step(pattern(others, root), others),) if len(others) else ()
    return _schedule("gather", "direct", layout, size_bytes, phases)


def _all_but_the_root(layout: Layout) -> Ints:
    return np.delete(np.arange(layout.num_ranks, dtype=np.int64), layout.root)


def direct_send_recv(layout: Layout, size_bytes: float) -> Schedule:
    """Rank r sends its whole buffer to rank r + 1, and receives rank r - 1's (nccl-tests sendrecv): ``a + n/b``."""
    p = layout.num_ranks
    ranks = np.arange(p, dtype=np.int64)
    phases = (_one_step(pattern(ranks, (ranks + 1) % p), ranks),) if p > 1 else ()
    return Schedule(
        op="send_recv", algorithm="direct", num_ranks=p, root=0, size_bytes=size_bytes, padding_bytes=0.0,
        num_chunks=p, chunk_bytes=size_bytes, phases=phases,
    )  # fmt: skip


def direct_send(layout: Layout, size_bytes: float) -> Schedule:
    """Rank 0 sends its buffer to rank 1 and gets nothing back (``ncclSend`` there, ``ncclRecv`` here): ``a + n/b``."""
    assert layout.num_ranks == 2, "a send has one sender and one receiver"
    transfers = pattern(np.array([0], dtype=np.int64), np.array([1], dtype=np.int64))
    return Schedule(
        op="send", algorithm="direct", num_ranks=2, root=0, size_bytes=size_bytes, padding_bytes=0.0, num_chunks=1,
        chunk_bytes=size_bytes, phases=(_one_step(transfers, np.zeros(1, dtype=np.int64)),),
    )  # fmt: skip
