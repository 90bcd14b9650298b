"""The order of a pipeline's passes and messages in which none comes before what it waits for (``sends`` says for what).

Ranks go through their orders side by side; of what could come next comes what would start first without communication.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.pipelines.messages import Message
from simulator.pipelines.order import Action, Pair, PipelineSchedule, Step
from simulator.strategies.sends import Receivers, Sends, each, key_of, messages_of, places

#: Start and end of a step.
Times = tuple[float, float]


class Passed(NamedTuple):
    """A pass of a rank. needs: the actions, of any rank, whose messages it waits for, to and from its rank."""

    rank: int
    step: Step
    needs: tuple[Action, ...]


class Sent(NamedTuple):
    """A message, and the action that waits for it. asked: how many passes of its receiver are over when that asks.
    behind: the actions whose messages the receiver has waited for by then, or that are in its way.
    """

    message: Message
    to: Action
    asked: int
    behind: tuple[Action, ...]


def in_order(
    schedule: PipelineSchedule, times: Sequence[Sequence[Times]], receivers: Receivers, sends: Sends
) -> Iterator[Passed | Sent]:
    """Passes and messages so that each comes after all that it waits for; of what could come next, what starts first.

    times: of each step of each rank, as they would be without communication. Raises AssertionError for schedules whose
    ranks wait for each other for ever.
    """
    return _Meeting(schedule, times, receivers, sends).run()


def _in_the_way(
    schedule: PipelineSchedule, times: Sequence[Sequence[Times]], receivers: Receivers, places: Mapping[Action, int],
    sends: Sends,
) -> dict[Action, tuple[Action, ...]]:  # fmt: skip
    """Of each message the one the other way that it waits for, where notices of receives wait behind data.

    The last that was under way when its receiver asked, by the times without communication. What is asked for in one
    batch with a send goes before it (``late``).
    """
    number = {action: n + 1 for order in schedule.orders for n, step in enumerate(order) for action in each(step)}
    ways: dict[tuple[int, int], list[tuple[tuple[float, bool, int], float, Action]]] = {}
    for action, message in messages_of(schedule):
        passes = places[receivers[key_of(message)]]
        asked_s = times[message.target][passes - 1][1] if passes else 0.0
        begins_s = max(asked_s, times[message.source][number[action] - 1][1])
        entry = ((begins_s, action.kind != "F", message.source), asked_s, action)
        ways.setdefault((message.source, message.target), []).append(entry)
    found: dict[Action, tuple[Action, ...]] = {}
    late = sends.asks == "late"
    for (source, target), messages in ways.items():
        back = sorted(ways.get((target, source), []))
        keys = [key for key, _, _ in back]
        for key, asked_s, action in messages:
            before = (asked_s, not late, -1 if late else schedule.num_ranks)
            place = min(bisect_left(keys, before), bisect_left(keys, key))
            if place:
                found[action] = (back[place - 1][2],)
    return found


class _Meeting:
    """Ranks go through their orders; messages wait for those who ask for them.

    sent: messages that are on their way. kept: of each rank the messages that it has sent and not waited for, oldest
    first. coming: of each rank, by the pass that needs them, messages that it has not asked for yet. arriving: of each
    step the actions whose messages it needs. looked: the steps that each rank has been put in line for.
    """

    def __init__(
        self, schedule: PipelineSchedule, times: Sequence[Sequence[Times]], receivers: Receivers, sends: Sends
    ) -> None:
        self._orders, self._times, self._receivers, self._sends = schedule.orders, times, receivers, sends
        ranks = range(schedule.num_ranks)
        self._next, self._looked = [0 for _ in ranks], [-1 for _ in ranks]
        self._sent: set[Action] = set()
        self._kept: list[list[Action]] = [[] for _ in ranks]
        self._places = places(schedule, receivers, sends.asks)
        self._coming: list[dict[Action, Message]] = [{} for _ in ranks]
        self._made = dict(messages_of(schedule))
        sources = {receivers[key_of(message)]: action for action, message in self._made.items()}
        self._arriving = [
            [tuple(sources[one] for one in each(step) if one in sources) for step in order] for order in self._orders
        ]
        self._ready: list[tuple[float, int]] = []
        self._in_the_way = {} if sends.both_ways else _in_the_way(schedule, times, receivers, self._places, sends)

    def run(self) -> Iterator[Passed | Sent]:
        for rank in range(len(self._orders)):
            self._look(rank)
        while self._ready:
            _, rank = heapq.heappop(self._ready)
            step = self._orders[rank][self._next[rank]]
            yield self._pass(rank, step)
            yield from self._messages(rank, step)
        over = [len(order) for order in self._orders]
        assert self._next == over, "ranks wait for each other"

    def _step(self, rank: int) -> Step | None:
        order, number = self._orders[rank], self._next[rank]
        return order[number] if number < len(order) else None

    def _look(self, rank: int) -> None:
        """Put a rank in line, once, when all that its next step needs is on its way."""
        number = self._next[rank]
        if number == self._looked[rank] or number == len(self._orders[rank]):
            return
        if self._sent.issuperset(self._needs(rank, self._orders[rank][number])):
            self._looked[rank] = number
            heapq.heappush(self._ready, (self._times[rank][number][0], rank))

    def _needs(self, rank: int, step: Step) -> tuple[Action, ...]:
        return (*self._waited(rank, step), *self._arriving[rank][self._next[rank]])

    def _waited(self, rank: int, step: Step) -> tuple[Action, ...]:
        """Messages of this rank that have to be over before its next pass."""
        kept, behind = self._kept[rank], self._sends.behind
        if behind is None or not kept:
            return ()
        row = self._in_row(rank, step)
        return tuple(kept[: max(0, len(kept) - behind)]) if row else tuple(kept)

    def _asked(self, rank: int, step: Step) -> tuple[Action, ...]:
        """Messages of this rank that it waits for before it asks for what the next pass needs: those of a forward and
        of the backward after it are asked for together.
        """
        return self._waited(rank, step) if self._in_row(rank, step) else ()

    def _in_row(self, rank: int, step: Step) -> bool:
        """Whether the pass before was of the same kind."""
        number = self._next[rank]
        before = self._orders[rank][number - 1] if number else None
        if before is None or isinstance(before, Pair) or isinstance(step, Pair):
            return False
        return (before.kind == "F") == (step.kind == "F")

    def _pass(self, rank: int, step: Step) -> Passed:
        done = Passed(rank, step, self._needs(rank, step))
        waited = set(self._waited(rank, step))
        self._kept[rank] = [one for one in self._kept[rank] if one not in waited]
        self._next[rank] += 1
        return done

    def _messages(self, rank: int, step: Step) -> Iterator[Sent]:
        """What a pass sends, and what its rank asks for from now on."""
        for action in each(step):
            message = self._made.get(action)
            if message is None:
                continue
            if self._sends.behind is not None:
                self._kept[rank].append(action)
            self._coming[message.target][self._receivers[key_of(message)]] = message
            yield from self._asking(message.target)
        yield from self._asking(rank)
        self._look(rank)

    def _asking(self, rank: int) -> Iterator[Sent]:
        """What has waited for this rank to come so far."""
        step = self._step(rank)
        if step is None:
            return
        late = self._sends.asks == "late"
        behind = self._asked(rank, step) if late else ()
        if not self._sent.issuperset(behind):
            return
        for action in [one for one in self._coming[rank] if self._places[one] <= self._next[rank]]:
            message = self._coming[rank].get(action)  # None where what was sent meanwhile has brought it
            if message is not None and self._sent.issuperset(way := self._in_the_way.get(message.after, ())):
                del self._coming[rank][action]
                yield from self._send(message, action, (*behind, *way))

    def _send(self, message: Message, to: Action, behind: tuple[Action, ...]) -> Iterator[Sent]:
        """A message, and what its sender, which may have waited for it, asks for then."""
        self._sent.add(message.after)
        yield Sent(message, to, self._places[to], behind)
        yield from self._asking(message.source)
        yield from self._asking(message.target)
        for rank in (message.source, message.target):
            self._look(rank)
