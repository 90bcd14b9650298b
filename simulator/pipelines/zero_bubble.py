"""Schedules that split the backward: weight gradients fill what would be idle. ZB-H1, its interleaved form, and ZBV.

Sources: Qi et al. 2024, "Zero Bubble Pipeline Parallelism", https://arxiv.org/abs/2401.10241 (ZB-H1, section 2.2), and
"Pipeline Parallelism with Controllable Memory", https://arxiv.org/abs/2405.15362 (V schedules, section 4).
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.pipelines.one_way import in_turn, over_chunks, rounds
from simulator.pipelines.order import KINDS, Action, Kind, Order


def zb1p(num_ranks: int, num_micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """1F1B, interleaved where there are several chunks, with weight gradients late by a rank's number.

    A rank runs ahead by one forward for every rank behind it (not two, as interleaved 1F1B does, since the gradient
    comes back without waiting for weights) and puts off each weight gradient by as many input gradients as there are
    ranks before it: so every rank holds p micro-batches, no more than the first rank of 1F1B. With one chunk this is
    ZB-H1.
    """
    return tuple(_zb1p(rank, num_ranks, num_micro_batches, chunks) for rank in range(num_ranks))


def _zb1p(rank: int, num_ranks: int, num_micro_batches: int, chunks: int) -> Order:
    forwards, inputs, weights = (
        over_chunks(rank, kind, num_ranks, num_micro_batches, chunks) for kind in KINDS if kind != "B"
    )
    size = num_micro_batches // rounds(num_ranks, num_micro_batches)
    ahead = (chunks - 1) * size + num_ranks - 1 - rank
    return tuple(_late(in_turn(forwards, inputs, ahead), weights, rank))


def _late(order: Iterator[Action], weights: list[Action], late: int) -> Iterator[Action]:
    """The order with each weight gradient put behind the input gradient that comes ``late`` after its own."""
    done = 0
    for action in order:
        yield action
        if action.kind == "I":
            if done >= late:
                yield weights[done - late]
            done += 1
    yield from weights[max(0, done - late) :]


def zbv(num_ranks: int, num_micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """Two chunks placed as a V: the gradient of the last stage is at home on rank 0, so no rank waits at the end.

    The pattern is that of 2 p - 1 micro-batches or more; with fewer, what belongs to the missing ones is left out.
    """
    enough = max(num_micro_batches, 2 * num_ranks - 1)
    return tuple(
        tuple(action for action in _zbv(rank, num_ranks, enough) if action.micro_batch < num_micro_batches)
        for rank in range(num_ranks)
    )


def _zbv(rank: int, num_ranks: int, count: int) -> Iterator[Action]:
    """The order of a rank: what it runs next of each kind, forward (F), input (I) and weight (W), of either chunk."""
    work = _Counted((rank, 2 * num_ranks - 1 - rank), count)
    behind = num_ranks - rank
    for _ in range(2 * behind - 1):  # until the first micro-batch is back from the last rank
        yield from work.next("F0")
    for _ in range(rank):  # until its gradient arrives
        yield from work.next("F1 F0")
    for _ in range(behind):  # until its gradient has gone round to the first chunk
        yield from work.next("F1 I1 W1")
    while work.left("F1"):
        yield from work.next("F0 I0 W0 F1 I1 W1")
    for _ in range(rank):  # gradients that others wait for come first
        yield from work.next("I0 I1")
    for _ in range(behind):
        yield from work.next("I0 W0")
    while work.left("W1"):
        yield from work.next("W1")
    while work.left("W0"):
        yield from work.next("W0")


class _Counted:
    """Hands out the actions of a rank's two chunks, each kind in the order of micro-batches; none beyond the last."""

    def __init__(self, stages: tuple[int, int], count: int) -> None:
        self._stages, self._count = stages, count
        self._done: dict[str, int] = {}

    def next(self, wanted: str) -> Iterator[Action]:
        """The next actions of the kinds wanted, such as ``"F0 I1"``; nothing for a kind that is through."""
        for word in wanted.split():
            if self.left(word):
                number = self._done.get(word, 0)
                self._done[word] = number + 1
                yield Action(self._stages[int(word[1])], _KIND[word[0]], number)

    def left(self, word: str) -> bool:
        """Whether any of a kind is left."""
        return self._done.get(word, 0) < self._count


_KIND: dict[str, Kind] = {kind: kind for kind in KINDS}
