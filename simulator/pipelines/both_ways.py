"""DualPipe and its half, DualPipeV: forwards and backwards that travel in opposite directions meet on every rank and
run as pairs, each hiding the other's communication.

Sources: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", https://arxiv.org/abs/2412.19437, section 3.2.1, figure 5;
https://github.com/deepseek-ai/DualPipe (README: schedules of both); https://sail.sea.com/blog/articles/63 ("DualPipe
could be better without the Dual": half of its ranks, folded into a V, need no second copy of the model).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from simulator.pipelines.order import Action, Kind, Order, Pair, Step


def dualpipe(num_ranks: int, num_micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """Two whole models in opposite directions over the same ranks; each takes half of the micro-batches."""
    half = num_micro_batches // 2
    orders = []
    for rank in range(num_ranks):
        mirrored = num_ranks - 1 - rank
        ways = [(rank, 0), (num_ranks + mirrored, half)]  # the stage here and its first micro-batch, of either way
        near, far = ways if rank < mirrored else ways[::-1]
        orders.append(_order(min(rank, mirrored), num_ranks // 2, half, near, far))
    return tuple(orders)


def dualpipe_v(num_ranks: int, num_micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """The same on half as many ranks: what went to the other half comes back as the second chunk of a V."""
    return tuple(
        _order(rank, num_ranks, num_micro_batches, (rank, 0), (2 * num_ranks - 1 - rank, 0))
        for rank in range(num_ranks)
    )


def _order(rank: int, num_ranks: int, count: int, near: tuple[int, int], far: tuple[int, int]) -> Order:
    """The order of a rank, counted from the end where ``near`` enters, out of as many as lie up to the turn.

    near, far: (stage, first micro-batch) of the way that enters at this end, and of the one that comes back to it.
    count: micro-batches of each way.
    """
    work = _Work(near, far)
    return (*_filling(work, rank, num_ranks), *_full(work, rank, num_ranks, count), *_ending(work, rank, num_ranks))


def _filling(work: _Work, rank: int, num_ranks: int) -> Iterator[Step]:
    """Forwards until the first backward arrives, which then goes on at once, weights filling what is left."""
    behind = num_ranks - 1 - rank
    for _ in range(2 * behind):
        yield work.near("F")
    for _ in range(rank + 1):
        yield work.near("F")
        yield work.far("F")
    for _ in range(behind):
        yield work.far("I")
        yield work.weight()
        yield work.far("F")


def _full(work: _Work, rank: int, num_ranks: int, count: int) -> Iterator[Step]:
    """Pairs in both directions. At the turn the first two run apart: the backward is what everyone waits for."""
    for number in range(count - 2 * num_ranks + rank + 1):
        forward, backward = work.near("F"), work.far("B")
        if number == 0 and rank == num_ranks - 1:
            yield forward
            yield backward
        else:
            yield Pair(forward, backward)
        yield Pair(work.far("F"), work.near("B"))


def _ending(work: _Work, rank: int, num_ranks: int) -> Iterator[Step]:
    """Backwards; in the second half only what others wait for, the weights put off to the idle time at the end."""
    behind = num_ranks - 1 - rank
    for _ in range(behind):
        yield work.far("B")
        yield Pair(work.far("F"), work.near("B"))
    whole = rank + 1  # of the 2 (rank + 1) backwards that follow
    for number in range(rank + 1):
        yield work.far("B" if 2 * number < whole else "I")
        yield work.near("B" if 2 * number + 1 < whole else "I")
    for _ in range(behind):
        yield work.weight()
        yield work.near("I")
    for _ in range(rank + 1):
        yield work.weight()


class _Work:
    """The next forward and backward of each way, and the weight gradients put off, oldest first."""

    def __init__(self, near: tuple[int, int], far: tuple[int, int]) -> None:
        self._ways = (near, far)
        self._done: dict[tuple[int, bool], int] = {}
        self._put_off: deque[Action] = deque()

    def near(self, kind: Kind) -> Action:
        return self._next(0, kind)

    def far(self, kind: Kind) -> Action:
        return self._next(1, kind)

    def weight(self) -> Action:
        return self._put_off.popleft()

    def _next(self, way: int, kind: Kind) -> Action:
        stage, first = self._ways[way]
        key = (way, kind == "F")
        number = self._done.get(key, 0)
        self._done[key] = number + 1
        if kind == "I":
            self._put_off.append(Action(stage, "W", first + number))
        return Action(stage, kind, first + number)
