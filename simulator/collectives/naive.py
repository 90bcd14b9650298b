"""All eight primitives through the root, one message at a time: the baseline that the others beat.

Cost on a uniform network: broadcast, reduce ``(p-1)(a + n/b)``; all-reduce ``2(p-1)(a + n/b)``; the root
moves ``(p-1) n`` bytes each way where a ring rank moves ``2(p-1)/p n``.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Phase, Schedule, pattern, slice_padding


def _others(layout: Layout) -> list[int]:
    return [(layout.root + k) % layout.num_ranks for k in range(1, layout.num_ranks)]


def _message(src: int, dst: int, chunks: Ints, *, reduce: bool) -> Phase:
    one = pattern(np.array([src]), np.array([dst]), len(chunks))
    return Phase(pattern=one, steps=1, moves=lambda _s: chunks, reduce=reduce)


def _to_root(layout: Layout, chunks_of: dict[int, Ints], *, reduce: bool) -> tuple[Phase, ...]:
    return tuple(_message(r, layout.root, chunks_of[r], reduce=reduce) for r in _others(layout))


def _from_root(layout: Layout, chunks_of: dict[int, Ints]) -> tuple[Phase, ...]:
    return tuple(_message(layout.root, r, chunks_of[r], reduce=False) for r in _others(layout))


def _schedule(op: str, layout: Layout, size_bytes: float, num_chunks: int, phases: tuple[Phase, ...]) -> Schedule:
    """Sliced operations pad to whole slices; all-to-all counts the chunks of all ranks' buffers."""
    p = layout.num_ranks
    padding = 0.0 if op in {"broadcast", "reduce", "all_reduce"} else slice_padding(size_bytes, p)
    per_buffer = p if op == "all_to_all" else num_chunks
    return Schedule(
        op=op, algorithm="naive", num_ranks=p, root=layout.root, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=num_chunks, chunk_bytes=(size_bytes + padding) / per_buffer, phases=phases,
    )  # fmt: skip


def _everything(layout: Layout, num_chunks: int) -> dict[int, Ints]:
    whole = np.arange(num_chunks, dtype=np.int64)
    return dict.fromkeys(range(layout.num_ranks), whole)


def _own_slice(layout: Layout) -> dict[int, Ints]:
    return {r: np.array([r], dtype=np.int64) for r in range(layout.num_ranks)}


def broadcast(layout: Layout, size_bytes: float) -> Schedule:
    """The root sends its whole buffer to each rank in turn."""
    return _schedule("broadcast", layout, size_bytes, 1, _from_root(layout, _everything(layout, 1)))


def reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Each rank in turn sends its whole buffer to the root, which adds."""
    return _schedule("reduce", layout, size_bytes, 1, _to_root(layout, _everything(layout, 1), reduce=True))


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Naive reduce, then naive broadcast."""
    whole = _everything(layout, 1)
    phases = _to_root(layout, whole, reduce=True) + _from_root(layout, whole)
    return _schedule("all_reduce", layout, size_bytes, 1, phases)


def scatter(layout: Layout, size_bytes: float) -> Schedule:
    """The root sends each rank its slice in turn."""
    return _schedule("scatter", layout, size_bytes, layout.num_ranks, _from_root(layout, _own_slice(layout)))


def gather(layout: Layout, size_bytes: float) -> Schedule:
    """Each rank in turn sends its slice to the root."""
    phases = _to_root(layout, _own_slice(layout), reduce=False)
    return _schedule("gather", layout, size_bytes, layout.num_ranks, phases)


def all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """Gather at the root, then the whole vector to each rank in turn."""
    phases = _to_root(layout, _own_slice(layout), reduce=False)
    phases += _from_root(layout, _everything(layout, layout.num_ranks))
    return _schedule("all_gather", layout, size_bytes, layout.num_ranks, phases)


def reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """Reduce at the root, then each rank's slice in turn."""
    phases = _to_root(layout, _everything(layout, layout.num_ranks), reduce=True)
    phases += _from_root(layout, _own_slice(layout))
    return _schedule("reduce_scatter", layout, size_bytes, layout.num_ranks, phases)


def all_to_all(layout: Layout, size_bytes: float) -> Schedule:
    """Everything to the root, then each rank's column from the root."""
    p = layout.num_ranks
    rows = {r: r * p + np.arange(p, dtype=np.int64) for r in range(p)}
    columns = {r: np.arange(p, dtype=np.int64) * p + r for r in range(p)}
    phases = _to_root(layout, rows, reduce=False) + _from_root(layout, columns)
    return _schedule("all_to_all", layout, size_bytes, p * p, phases)
