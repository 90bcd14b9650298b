"""Which actions send something to another rank: activations forward, their gradients back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulator.pipelines.order import Action, PipelineSchedule, actions


class Message(NamedTuple):
    """What an action sends when it is done: of a forward its output, of a backward or I the gradient of its input.

    Both are as large as the activations between the two stages; stages of one rank hand over without a message.
    """

    after: Action
    source: int
    target: int
    to_stage: int


def message_after(schedule: PipelineSchedule, action: Action) -> Message | None:
    """What an action sends to another rank; None for W, at the ends of the model and between stages of one rank."""
    stage, kind, _ = action
    if kind == "W" or (schedule.is_last(stage) if kind == "F" else schedule.is_first(stage)):
        return None
    to_stage = stage + 1 if kind == "F" else stage - 1
    source, target = schedule.ranks_of_stages[stage], schedule.ranks_of_stages[to_stage]
    return None if source == target else Message(action, source, target, to_stage)


def messages(schedule: PipelineSchedule, rank: int) -> Iterator[Message]:
    """Messages that a rank sends, in the order of the actions that they follow."""
    for action in actions(schedule.orders[rank]):
        if (message := message_after(schedule, action)) is not None:
            yield message
