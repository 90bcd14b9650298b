"""Recursive halving and doubling for any number of ranks.

With 2**k ranks: reduce-scatter by halving, all-gather by doubling, ``log2 p`` steps each; all-reduce costs
``2 log2(p) a + 2(p-1)/p n/b`` (Rabenseifner; Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4). With
another p, the first ``2 (p - 2**k)`` ranks pair up and fold as Rabenseifner does ("Optimization of collective reduction
operations", ICCS 2004): even and odd exchange halves, each adds one half, the odd one hands its sum to the even one,
which takes part for both; after, the even one serves the odd one. An all-reduce so costs at most
``(2 floor(log2 p) + 3) a + 4 n/b``.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Phase, Schedule, pattern, slice_padding


def _split(num_ranks: int) -> tuple[int, int]:
    """(largest power of two that is at most num_ranks, ranks beyond it)."""
    power = 1 << (num_ranks.bit_length() - 1)
    return power, num_ranks - power


def _first_slice(virtual: Ints | int, extra: int) -> Ints:
    """First slice that virtual rank v stands for: pairs hold two slices each, and come first."""
    v = np.asarray(virtual, dtype=np.int64)
    return v + np.minimum(v, extra)


def _ranges(starts: Ints, stops: Ints) -> Ints:
    return np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)]).astype(np.int64)


def _exchange(layout: Layout, distance: int, *, halving: bool) -> Phase:
    """Virtual rank v and v ^ distance: halving sends the partner's half, doubling sends what v holds."""
    power, extra = _split(layout.num_ranks)
    v = np.arange(power, dtype=np.int64)
    holder = v ^ distance if halving else v
    start = holder // distance * distance
    first, last = _first_slice(start, extra), _first_slice(start + distance, extra)
    transfers = pattern(_first_slice(v, extra), _first_slice(v ^ distance, extra), last - first)
    return Phase(pattern=transfers, steps=1, moves=lambda _s: _ranges(first, last), reduce=halving)


def _halving(layout: Layout) -> tuple[Phase, ...]:
    power, _ = _split(layout.num_ranks)
    return tuple(_exchange(layout, power >> k, halving=True) for k in range(1, power.bit_length()))


def _doubling(layout: Layout) -> tuple[Phase, ...]:
    power, _ = _split(layout.num_ranks)
    return tuple(_exchange(layout, 1 << k, halving=False) for k in range(power.bit_length() - 1))


def _fold(layout: Layout) -> tuple[Phase, ...]:
    """Rabenseifner's two steps before a reduction: the pairs' sums on the even ranks; nothing for a power of two."""
    p = layout.num_ranks
    _, extra = _split(p)
    if not extra:
        return ()
    even = 2 * np.arange(extra, dtype=np.int64)
    odd = even + 1
    low, high = np.arange(p // 2, dtype=np.int64), np.arange(p // 2, p, dtype=np.int64)
    counts = np.repeat([len(high), len(low)], extra)
    exchange = pattern(np.append(even, odd), np.append(odd, even), counts)
    halves = np.append(np.tile(high, extra), np.tile(low, extra))
    return (
        Phase(pattern=exchange, steps=1, moves=lambda _s: halves, reduce=True),
        Phase(
            pattern=pattern(odd, even, len(high)), steps=1, moves=lambda _s: np.tile(high, extra), reduce=False,
        ),
    )  # fmt: skip


def _pair(layout: Layout, slices: str, *, fold: bool) -> tuple[Phase, ...]:
    """The step before (fold: odd -> even) or after (even -> odd); nothing for a power of two.

    slices: 'all' p slices, 'own' the odd rank's slice, 'others' all but the odd rank's slice.
    """
    p = layout.num_ranks
    _, extra = _split(p)
    if not extra:
        return ()
    even = 2 * np.arange(extra, dtype=np.int64)
    odd = even + 1
    every = np.arange(p)
    sets = {
        "all": [every] * extra,
        "own": [np.array([o]) for o in odd],
        "others": [every[every != o] for o in odd],
    }[slices]
    moved = np.concatenate(sets).astype(np.int64)
    src, dst = (odd, even) if fold else (even, odd)
    return (Phase(pattern=pattern(src, dst, len(sets[0])), steps=1, moves=lambda _s: moved, reduce=False),)


def _schedule(op: str, layout: Layout, size_bytes: float, phases: tuple[Phase, ...], padding: float) -> Schedule:
    p = layout.num_ranks
    return Schedule(
        op=op, algorithm="halving_doubling", num_ranks=p, root=0, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=p, chunk_bytes=(size_bytes + padding) / p, phases=phases,
    )  # fmt: skip


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Halving reduce-scatter, then doubling all-gather."""
    phases = _fold(layout) + _halving(layout) + _doubling(layout)
    return _schedule("all_reduce", layout, size_bytes, phases + _pair(layout, "all", fold=False), 0.0)


def reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """Recursive halving; rank r ends with slice r. Padded to equal slices."""
    phases = _fold(layout) + _halving(layout) + _pair(layout, "own", fold=False)
    return _schedule("reduce_scatter", layout, size_bytes, phases, slice_padding(size_bytes, layout.num_ranks))


def all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """Recursive doubling; rank r starts with slice r. Padded to equal slices."""
    phases = _pair(layout, "own", fold=True) + _doubling(layout) + _pair(layout, "others", fold=False)
    return _schedule("all_gather", layout, size_bytes, phases, slice_padding(size_bytes, layout.num_ranks))
