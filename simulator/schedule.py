"""Transfer patterns and schedules: a collective algorithm made concrete. Knows no network and no clock.

A schedule is a sequence of steps; in a step some ranks send chunks to other ranks. A rank starts its
transfers of step s + 1 when all its sends and receives of step s are done; there is no global barrier.
Steps that repeat the same (src, dst, chunks) pattern form a phase, so a ring over 16,384 ranks with
32,766 steps is one pattern of 16,384 transfers, not 537 million objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Which chunks the transfers of a step move: step number within its phase -> chunk ids, transfer by
#: transfer (``pattern.chunks[i]`` of them for transfer i).
Moves = Callable[[int], Ints]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pattern:
    """The transfers of one step: transfer i carries ``chunks[i]`` chunks from rank src[i] to rank dst[i].

    src, dst, chunks: int64 arrays of shape (num_transfers,). A rank never sends to itself. An end may also be a
    switch, see ``Schedule.num_switches``.
    """

    src: Ints
    dst: Ints
    chunks: Ints

    def __post_init__(self) -> None:
        assert self.src.shape == self.dst.shape == self.chunks.shape, "one src, dst and chunk count per transfer"
        assert bool((self.src != self.dst).all()), "a rank cannot send to itself"

    def __len__(self) -> int:
        return len(self.src)

    @cached_property
    def ranks(self) -> Ints:
        """The ranks (and switches) that send or receive in this step, ascending."""
        return np.unique(np.concatenate([self.src, self.dst]))


def pattern(src: Ints, dst: Ints, chunks: Ints | int = 1) -> Pattern:
    """A Pattern from anything numpy can read; a scalar chunk count serves all transfers."""
    src_array = np.atleast_1d(np.asarray(src, dtype=np.int64))
    dst_array = np.atleast_1d(np.asarray(dst, dtype=np.int64))
    counts = np.empty(src_array.shape, dtype=np.int64)
    counts[...] = chunks
    return Pattern(src=src_array, dst=dst_array, chunks=counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """``steps`` consecutive steps of one pattern. ``reduce``: the receiver adds; otherwise it overwrites.

    reduce: one answer for all transfers, or bools of shape (num_transfers,), as where a pipeline adds on the way up
    and hands results down in the same step. A switch keeps nothing from step to step: what reaches it with
    ``reduce`` becomes the sum of what arrives in that step.
    """

    pattern: Pattern
    steps: int
    moves: Moves
    reduce: bool | Bools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """One collective over ``num_ranks`` ranks, as phases of transfers.

    size_bytes: the size as nccl-tests counts it: the buffer of one rank; for all-gather, reduce-scatter,
        gather and scatter the whole vector over all ranks.
    chunk_bytes: bytes of one chunk. ``num_chunks`` chunks make the padded buffer (ALL_BUFFERS: those of all ranks).
    padding_bytes: bytes added so that every rank's slice is equally large (operations that need it).
    num_switches: switches that take part in the data path. Participants 0 .. num_ranks - 1 are ranks, num_ranks + k
        is switch k: the reducer and multicaster of node (NVLink domain) k, which holds the ranks
        ``k * g .. (k + 1) * g - 1``, g = num_ranks / num_switches. It holds no data before and needs none after.
    """

    op: str
    algorithm: str
    num_ranks: int
    root: int
    size_bytes: float
    padding_bytes: float
    num_chunks: int
    chunk_bytes: float
    phases: tuple[Phase, ...]
    num_switches: int = 0

    @property
    def num_participants(self) -> int:
        """Ranks and switches: every end of a transfer is below this."""
        return self.num_ranks + self.num_switches

    @property
    def num_steps(self) -> int:
        """Length of the longest chain of steps, idle ranks included."""
        return sum(phase.steps for phase in self.phases)

    @property
    def num_messages(self) -> int:
        return sum(phase.steps * len(phase.pattern) for phase in self.phases)

    def resized(self, size_bytes: float) -> Schedule:
        """The same steps for another size."""
        padding = slice_padding(size_bytes, self.num_ranks) if self.op in SLICED else 0.0
        per_buffer = self.num_chunks // self.num_ranks if self.op in ALL_BUFFERS else self.num_chunks
        return replace(
            self, size_bytes=size_bytes, padding_bytes=padding, chunk_bytes=(size_bytes + padding) / per_buffer
        )  # fmt: skip

    def runs(self) -> Iterator[tuple[Pattern, int]]:
        """(pattern, steps) with neighbours of the same pattern merged, whatever their phases reduce."""
        held: Pattern | None = None
        steps = 0
        for phase in self.phases:
            if phase.pattern is held:
                steps += phase.steps
                continue
            if held is not None and steps:
                yield held, steps
            held, steps = phase.pattern, phase.steps
        if held is not None and steps:
            yield held, steps

    def sent_bytes(self) -> Floats:
        """Bytes that each rank sends over the whole schedule, shape (num_ranks,)."""
        return self._bytes_by_rank(lambda p: p.src)

    def received_bytes(self) -> Floats:
        """Bytes that each rank receives over the whole schedule, shape (num_ranks,)."""
        return self._bytes_by_rank(lambda p: p.dst)

    def _bytes_by_rank(self, end: Callable[[Pattern], Ints]) -> Floats:
        chunks = np.zeros(self.num_participants)
        for p, steps in self.runs():
            chunks += np.bincount(end(p), p.chunks * float(steps), self.num_participants)
        return chunks[: self.num_ranks] * self.chunk_bytes


#: Operations in which every rank owns one slice of the buffer, so that slices must be equally large.
SLICED = frozenset({"scatter", "gather", "all_gather", "reduce_scatter", "all_to_all"})


#: Operations whose chunks number the buffers of all ranks, one after the other.
ALL_BUFFERS = frozenset({"all_to_all", "send_recv"})


#: Operations that start from or end at one rank.
ROOTED = frozenset({"broadcast", "reduce", "scatter", "gather"})


def slice_padding(size_bytes: float, num_ranks: int) -> float:
    """Bytes to add so that ``size_bytes`` splits into ``num_ranks`` equal slices of whole bytes."""
    return float(-(-size_bytes // num_ranks) * num_ranks) - size_bytes if num_ranks > 1 else 0.0
