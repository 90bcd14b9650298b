"""The estimate for schedules that are too large to play message by message and not regular enough to compute exactly.

A barrier after every step: all ranks wait for the slowest transfer of the step before they start the next. Sharing
inside a step is still max-min on the links; a step too large for that takes its longest latency and its busiest link
at full rate. Never chosen silently: the outcome's fidelity says 'lockstep', and why.
"""

from __future__ import annotations

import numpy as np

from simulator.engine.fluid import TooManyChangesError, busiest_link_s, step_ends
from simulator.engine.wires import Wires
from simulator.schedule import Floats, Pattern, Schedule


def finish_times(schedule: Schedule, wires: Wires, starts_s: Floats, chunk_bytes: Floats) -> Floats:
    """When each rank ends, shape (num_sizes, num_ranks): all at once, after the last step. Cost: one pass per phase."""
    ends = np.array([_finish_s(schedule, wires, float(chunk)) for chunk in chunk_bytes])
    return float(starts_s.max()) + np.repeat(ends[:, None], schedule.num_ranks, axis=1)


def _finish_s(schedule: Schedule, wires: Wires, chunk_bytes: float) -> float:
    clock = 0.0
    for pattern, steps in schedule.runs():
        clock += steps * _step_s(pattern, wires, (pattern.chunks * chunk_bytes).astype(np.float64))
    return clock


def _step_s(pattern: Pattern, wires: Wires, size_bytes: Floats) -> float:
    paths = wires.paths(pattern)
    try:
        return float(step_ends(paths, size_bytes, wires.capacity, np.zeros(len(pattern))).max())
    except TooManyChangesError:
        return busiest_link_s(paths, size_bytes, wires.capacity)
