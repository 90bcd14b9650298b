"""When ranks of a pipeline send and ask for what they send each other.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from simulator.pipelines import PIPELINES
from simulator.pipelines.messages import Message, message_after
from simulator.pipelines.order import Action, Pair, PipelineSchedule, Step, actions

#: What tells a message from others: the stage that it goes to, whether forward, and its micro-batch.
Key = tuple[int, bool, int]
#: The pass that waits for a message.
Receivers = Mapping[Key, Action]


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


def receivers_of(schedule: PipelineSchedule) -> Receivers:
    """The pass that waits for what a stage is sent; a backward may be whole or in halves."""
    return {
        (action.stage, action.kind == "F", action.micro_batch): action
        for order in schedule.orders for action in actions(order) if action.kind != "W"
    }  # fmt: skip


def key_of(message: Message) -> Key:
    """Which pass a message is for, as ``Receivers`` has it."""
    return message.to_stage, message.after.kind == "F", message.after.micro_batch


def places(schedule: PipelineSchedule, receivers: Receivers, asks: str) -> dict[Action, int]:
    """By the pass that needs it, how many passes of its rank are over when the rank asks for a message."""
    if asks == "in turn":
        return _in_turn(schedule, receivers)
    needing = {receivers[key_of(message)] for _, message in messages_of(schedule)}
    back = {"late": 0, "ahead": 1}.get(asks, 2**31)
    return {
        action: max(0, number - back)
        for order in schedule.orders for number, step in enumerate(order) for action in each(step) if action in needing
    }  # fmt: skip


def messages_of(schedule: PipelineSchedule) -> Iterator[tuple[Action, Message]]:
    """All messages, and the actions that they follow."""
    for order in schedule.orders:
        for action in actions(order):
            if (message := message_after(schedule, action)) is not None:
                yield action, message


def _in_turn(schedule: PipelineSchedule, receivers: Receivers) -> dict[Action, int]:
    """As ``_add_send_recv`` lists receives: every rank in turn takes its next step if what it needs has been listed."""
    needing = {receivers[key_of(message)] for _, message in messages_of(schedule)}
    found: dict[Action, int] = {}
    done = [0] * schedule.num_ranks
    left = set(range(schedule.num_ranks))
    while left:
        before = list(done)
        for rank in sorted(left):
            step = schedule.orders[rank][done[rank]]
            if any(action in needing and action not in found for action in each(step)):
                continue
            done[rank] += 1
            for action in each(step):
                if (message := message_after(schedule, action)) is not None:
                    found[receivers[key_of(message)]] = done[message.target]
            if done[rank] == len(schedule.orders[rank]):
                left.discard(rank)
        assert done != before, "ranks wait for each other"
    return found


def each(step: Step) -> tuple[Action, ...]:
    """Both actions of a pair, or the one."""
    return tuple(step) if isinstance(step, Pair) else (step,)
