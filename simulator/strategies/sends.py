"""When ranks of a pipeline send and ask for what they send each other, and the order of all that which this makes.

A message moves once its sender has it and its receiver has asked for it: NCCL's kernels wait for each other, and gloo
sends when it hears of the receive. A rank asks

* ``late``, when the pass before the one that needs it is over: torch's schedules of one stage, Megatron-LM's without
  overlap;
* ``ahead``, one pass earlier: Megatron-LM's ``--overlap-p2p-communication``;
* ``in turn``, where the runtime of several stages of torch.distributed.pipelining lists it: all ranks take a step of
  their order in turn, and what one sends is listed at once where its receiver then stands (schedules.py,
  ``_add_send_recv``); so a rank that keeps pace asks late, and one that is behind early;
* ``early``, before all else.

Who sends waits for it before the next pass (Megatron-LM, p2p_communication.py: each batch is waited for), or, in a row
of forwards or of backwards, some passes later: one in torch's ``Schedule1F1B`` ("clear previous chunk's forward
sends"), all in its ``ScheduleGPipe``; or never. Sends of a forward and receives of the backward that comes next are
asked for together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from simulator.pipelines import PIPELINES
from simulator.pipelines.messages import Message, message_after
from simulator.pipelines.order import Action, Pair, PipelineSchedule, Step, actions

#: The pass that waits for what is sent to a stage, by ``(stage, direction * (micro-batch + 1))``; forward is +1.
Receivers = Mapping[tuple[int, int], Action]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """asks: when a receiver does, see the module. behind: over how many further passes of the same kind a send may
    last before its sender waits for it; None: it never waits. both_ways: whether messages to and from a rank may pass
    each other, as in NCCL; over gloo one that is asked for after the other has begun waits for it.
    """

    asks: Literal["late", "ahead", "in turn", "early"]
    behind: int | None
    both_ways: bool = True


BETWEEN: Final = Sends(asks="late", behind=0)
TORCH_1F1B: Final = Sends(asks="late", behind=1)
TORCH_GPIPE: Final = Sends(asks="late", behind=2**31)
RUNTIME: Final = Sends(asks="in turn", behind=None)
AHEAD: Final = Sends(asks="ahead", behind=None)
EARLY: Final = Sends(asks="early", behind=None)
#: Several chunks send across rounds of the pipeline: who waits there has asked before.
WAITING: Final = Sends(asks="early", behind=0)


def sends_of(schedule: PipelineSchedule, *, overlap: bool | None, by_torch: bool) -> Sends:
    """How a schedule's messages go. overlap: what the scenario says, None for what the framework does."""
    single = schedule.name in ("1f1b", "gpipe")
    if overlap is False or (overlap is None and single):
        if not single:
            return WAITING
        if schedule.name == "gpipe":
            return TORCH_GPIPE
        return TORCH_1F1B if by_torch else BETWEEN
    if schedule.stages_per_chain < schedule.num_stages:
        return EARLY  # DualPipe hides what it sends
    return RUNTIME if by_torch and PIPELINES[schedule.name].torch_name and not single else AHEAD


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
    schedule: PipelineSchedule, starts: Sequence[Sequence[float]], receivers: Receivers, sends: Sends
) -> Iterator[Passed | Sent]:
    """Passes and messages so that each comes after all that it waits for; of what could come next, what starts first.

    starts: when each step of each rank would start without communication. Raises AssertionError for schedules whose
    ranks wait for each other for ever.
    """
    return _Meeting(schedule, starts, receivers, sends).run()


def receivers_of(schedule: PipelineSchedule) -> Receivers:
    """The pass that waits for what a stage is sent; a backward may be whole or in halves."""
    return {
        (action.stage, (1 if action.kind == "F" else -1) * (action.micro_batch + 1)): action
        for order in schedule.orders for action in actions(order) if action.kind != "W"
    }  # fmt: skip


def _key(message: Message) -> tuple[int, int]:
    return message.to_stage, (1 if message.after.kind == "F" else -1) * (message.after.micro_batch + 1)


def places(schedule: PipelineSchedule, receivers: Receivers, asks: str) -> dict[Action, int]:
    """By the pass that needs it, how many passes of its rank are over when the rank asks for a message."""
    if asks == "in turn":
        return _in_turn(schedule, receivers)
    needing = {receivers[_key(message)] for _, message in _messages(schedule)}
    back = {"late": 0, "ahead": 1}.get(asks, 2**31)
    return {
        action: max(0, number - back)
        for order in schedule.orders for number, step in enumerate(order) for action in _each(step) if action in needing
    }  # fmt: skip


def _messages(schedule: PipelineSchedule) -> Iterator[tuple[Action, Message]]:
    for order in schedule.orders:
        for action in actions(order):
            if (message := message_after(schedule, action)) is not None:
                yield action, message


def _in_turn(schedule: PipelineSchedule, receivers: Receivers) -> dict[Action, int]:
    """As ``_add_send_recv`` lists receives: every rank in turn takes its next step if what it needs has been listed."""
    needing = {receivers[_key(message)] for _, message in _messages(schedule)}
    found: dict[Action, int] = {}
    done = [0] * schedule.num_ranks
    left = set(range(schedule.num_ranks))
    while left:
        before = list(done)
        for rank in sorted(left):
            step = schedule.orders[rank][done[rank]]
            if any(action in needing and action not in found for action in _each(step)):
                continue
            done[rank] += 1
            for action in _each(step):
                if (message := message_after(schedule, action)) is not None:
                    found[receivers[_key(message)]] = done[message.target]
            if done[rank] == len(schedule.orders[rank]):
                left.discard(rank)
        assert done != before, "ranks wait for each other"
    return found


class _Meeting:
    """Ranks go through their orders; messages wait for those who ask for them.

    sent: messages that are on their way. kept: of each rank the messages that it has sent and not waited for, oldest
    first. coming: of each rank, by the pass that needs them, messages that it has not asked for yet. arriving: of each
    step the actions whose messages it needs. looked: the steps that each rank has been put in line for.
    """

    def __init__(
        self, schedule: PipelineSchedule, starts: Sequence[Sequence[float]], receivers: Receivers, sends: Sends
    ) -> None:
        self._orders, self._starts, self._receivers, self._sends = schedule.orders, starts, receivers, sends
        ranks = range(schedule.num_ranks)
        self._next, self._looked = [0 for _ in ranks], [-1 for _ in ranks]
        self._sent: set[Action] = set()
        self._kept: list[list[Action]] = [[] for _ in ranks]
        self._places = places(schedule, receivers, sends.asks)
        self._coming: list[dict[Action, Message]] = [{} for _ in ranks]
        self._made = dict(_messages(schedule))
        sources = {receivers[_key(message)]: action for action, message in self._made.items()}
        self._arriving = [
            [tuple(sources[one] for one in _each(step) if one in sources) for step in order] for order in self._orders
        ]
        self._ready: list[tuple[float, int]] = []
        self._under_way: dict[tuple[int, int], list[tuple[int, Action]]] = {}

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
            heapq.heappush(self._ready, (self._starts[rank][number], rank))

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
        for action in _each(step):
            message = self._made.get(action)
            if message is None:
                continue
            if self._sends.behind is not None:
                self._kept[rank].append(action)
            self._coming[message.target][self._receivers[_key(message)]] = message
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
            if action in self._coming[rank]:  # else what was sent meanwhile has brought it
                yield from self._send(self._coming[rank].pop(action), action, behind)

    def _send(self, message: Message, to: Action, behind: tuple[Action, ...]) -> Iterator[Sent]:
        """A message, and what its sender, which may have waited for it, asks for then."""
        self._sent.add(message.after)
        yield Sent(message, to, self._places[to], (*behind, *self._in_the_way(message, self._places[to])))
        yield from self._asking(message.source)
        for rank in (message.source, message.target):
            self._look(rank)

    def _in_the_way(self, message: Message, asked: int) -> tuple[Action, ...]:
        """What the receiver had begun to send to the sender when it asked; with that of its last pass it asks too."""
        if self._sends.both_ways:
            return ()
        ways = (message.source, message.target)
        self._under_way.setdefault(ways, []).append((self._next[message.source], message.after))
        together = 1 if self._sends.asks == "late" else 0
        back = self._under_way.get(ways[::-1], [])
        return tuple(action for number, action in back if number <= asked - together)[-1:]


def _each(step: Step) -> tuple[Action, ...]:
    return tuple(step) if isinstance(step, Pair) else (step,)
