"""The estimate for schedules that are too large to play message by message and not regular enough to compute exactly.

Links are shared as if all ranks took each step together: a transfer takes as long as it would if its whole step started
at once and no other step were in flight. Ranks then wait for their own transfers only, as ever. Sharing inside a step
is max-min; in a step too large for that a transfer takes what the least even share of its links gives it, which for
transfers of one size is the busiest link at full rate. Steps that overlap in truth even out what this piles up, so it
is rather late: 6 % on a pairwise all-to-all of 512 GPUs over two pods of DGX H100, 22 % of 1,024 over four, against
every message played. Never chosen silently: the outcome's fidelity says 'lockstep', why, and where the truth lies.
"""

from __future__ import annotations

import numpy as np

from simulator.engine.fluid import MAX_FLUID_WORK, TooManyChangesError, earliest_end_s, latest_ends, step_ends
from simulator.engine.vector import advance
from simulator.engine.wires import Wires
from simulator.schedule import Floats, Pattern, Schedule

#: In a step whose bounds are closer than this, relatively, transfers take the upper one and the step is not played.
_CLOSE = 1e-3


def finish_times(schedule: Schedule, wires: Wires, starts_s: Floats, chunk_bytes: Floats) -> Floats:
    """When each rank ends, shape (num_sizes, num_ranks).

    Growth: one pass over the transfers of each phase, so p log p for halving and doubling, p**2 for an all-to-all.
    """
    starts = np.append(starts_s, np.full(schedule.num_switches, starts_s.min()))
    ends = [_finish(schedule, wires, starts, float(chunk)) for chunk in chunk_bytes]
    return np.array(ends)[:, : schedule.num_ranks]


def _finish(schedule: Schedule, wires: Wires, starts_s: Floats, chunk_bytes: float) -> Floats:
    runs = list(schedule.runs())
    each = MAX_FLUID_WORK // max(1, len(runs))
    ready = starts_s[None, :].astype(np.float64)
    for pattern, steps in runs:
        cost = _durations(pattern, wires, (pattern.chunks * chunk_bytes).astype(np.float64), each)
        advance(ready, pattern, cost[None, :], steps)
    return np.asarray(ready[0])


def _durations(pattern: Pattern, wires: Wires, size_bytes: Floats, max_work: int) -> Floats:
    """How long each transfer takes when its step has the links to itself, (num_transfers,)."""
    paths = wires.paths(pattern)
    latest = latest_ends(paths, size_bytes, wires.capacity)
    latest_s = float(latest.max())
    if latest_s - earliest_end_s(paths, size_bytes, wires.capacity) <= _CLOSE * latest_s:
        return latest
    try:
        return step_ends(paths, size_bytes, wires.capacity, np.zeros(len(pattern)), max_work)
    except TooManyChangesError:
        return latest
