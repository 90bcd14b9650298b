"""How many micro-batches a rank holds at once: what its memory for activations follows from."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.pipelines.order import Action, PipelineSchedule, actions


def peak_held(
    schedule: PipelineSchedule, rank: int, amounts: Sequence[float] | None = None, for_weights: float = 1.0
) -> float:  # fmt: skip
    """The most that a rank holds at once of what forwards leave behind for backwards.

    amounts: what one micro-batch leaves in each part of the model, in any unit (bytes, say). Without them a rank's
    share of the layers counts 1, so the result is a number of micro-batches, in fractions where there are chunks.
    for_weights: share of it that the gradient of the weights needs as well, 0 to 1. All of it goes with a whole
    backward; where the backward is split, this share stays until W and the rest goes with I. The default, 1, is that
    of the published tables; inputs of matrix products are kept, the rest (norms, activation functions) is not.

    The work of a rank is serial, so times do not matter. A pair counts as its forward, then its backward.
    """
    held = most = 0.0
    for action in actions(schedule.orders[rank]):
        held += _change(action, for_weights) * _amount(schedule, action, amounts)
        most = max(most, held)
    return most


def _amount(schedule: PipelineSchedule, action: Action, amounts: Sequence[float] | None) -> float:
    return 1.0 / schedule.chunks if amounts is None else amounts[schedule.part_of_model(action.stage)]


def _change(action: Action, for_weights: float) -> float:
    """What an action adds, as a share of what a micro-batch leaves in its stage."""
    return {"F": 1.0, "B": -1.0, "I": for_weights - 1.0, "W": -for_weights}[action.kind]
