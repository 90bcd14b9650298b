"""Schedules in which a rank finishes a backward whole: GPipe, 1F1B, looped breadth-first, interleaved 1F1B.

Each is a function (ranks, micro-batches, chunks) -> order of every rank, for stages placed in a loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.pipelines.order import Action, Kind, Order


def gpipe(num_ranks: int, num_micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """All forwards, then all backwards, both from the first micro-batch on, as torch has them.

    Source: Huang et al. 2019, https://arxiv.org/abs/1811.06965, figure 2.
    """
    every = range(num_micro_batches)
    return tuple(
        (*(Action(rank, "F", m) for m in every), *(Action(rank, "B", m) for m in every)) for rank in range(num_ranks)
    )


def looped_bfs(num_ranks: int, num_micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """All micro-batches through one stage before the next, forward and then, last in first out, backward.

    Source: Lamy-Poirier 2022, "Breadth-First Pipeline Parallelism", https://arxiv.org/abs/2211.05953, section 4.1.
    """
    return tuple(
        (
            *(Action(c * num_ranks + rank, "F", m) for c in range(chunks) for m in range(num_micro_batches)),
            *(Action(c * num_ranks + rank, "B", m) for c in reversed(range(chunks))
              for m in reversed(range(num_micro_batches))),
        )
        for rank in range(num_ranks)
    )  # fmt: skip


def one_f_one_b(num_ranks: int, num_micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """As many forwards as there are ranks behind, then a forward and a backward in turn, then the backwards left.

    Also called PipeDream-flush. Source: Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 2.2.1. The
    paper and Megatron-LM take any number of micro-batches; torch wants at least one for each rank.
    """
    return tuple(_one_f_one_b(rank, num_micro_batches, num_ranks - 1 - rank) for rank in range(num_ranks))


def _one_f_one_b(rank: int, num_micro_batches: int, behind: int) -> Order:
    forwards = [Action(rank, "F", m) for m in range(num_micro_batches)]
    backwards = [Action(rank, "B", m) for m in range(num_micro_batches)]
    return tuple(in_turn(forwards, backwards, behind))


def in_turn(forwards: list[Action], backwards: list[Action], ahead: int) -> Iterator[Action]:
    """``ahead`` forwards, then a forward and a backward in turn, then the backwards that are left."""
    ahead = min(ahead, len(forwards))
    yield from forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - ahead :]


def rounds(num_ranks: int, num_micro_batches: int) -> int:
    """Groups of micro-batches that pass a chunk together, each of at least as many as there are ranks."""
    return max(1, num_micro_batches // num_ranks)


def over_chunks(rank: int, kind: Kind, num_ranks: int, num_micro_batches: int, chunks: int) -> list[Action]:
    """One kind of work of a rank as interleaved schedules order it: a group of micro-batches through each chunk in
    turn, chunks in the order of the model for forwards and against it for backwards, then the next group."""
    size = num_micro_batches // rounds(num_ranks, num_micro_batches)
    each = range(chunks) if kind == "F" else range(chunks)[::-1]
    return [
        Action(chunk * num_ranks + rank, kind, m)
        for first in range(0, num_micro_batches, size)
        for chunk in each
        for m in range(first, min(first + size, num_micro_batches))
    ]


def interleaved_1f1b(num_ranks: int, num_micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """1F1B over several stages on each rank, micro-batches in groups of as many as there are ranks.

    A rank starts with (v - 1) groups and two forwards for every rank behind it: the backward of the last chunk comes
    back through all of them. Source: Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 2.2.2, figure 4.
    """
    size = num_micro_batches // rounds(num_ranks, num_micro_batches)
    return tuple(
        tuple(
            in_turn(
                over_chunks(rank, "F", num_ranks, num_micro_batches, chunks),
                over_chunks(rank, "B", num_ranks, num_micro_batches, chunks),
                (chunks - 1) * size + 2 * (num_ranks - 1 - rank),
            )
        )
        for rank in range(num_ranks)
    )
