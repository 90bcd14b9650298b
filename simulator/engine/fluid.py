"""One isolated step as a fluid problem: its transfers share links max-min until they end."""

from __future__ import annotations

import numpy as np

from simulator.engine.conditions import step_fits
from simulator.engine.fairshare import crossings, shared
from simulator.engine.wires import Paths
from simulator.schedule import Floats

_SAME_TIME = 1e-12
#: Flows times changes of their rates that one step may take to solve; some seconds.
MAX_FLUID_WORK = 20_000_000


class TooManyChangesError(Exception):
    """The step has too many flows that end at different times to be solved. Internal: callers hand over."""


def step_ends(paths: Paths, size_bytes: Floats, capacity: Floats, late_s: Floats) -> Floats:
    """When each transfer of the step ends, counted from the step's start, shape (num_transfers,).

    size_bytes, late_s: (num_transfers,) bytes to move, and how long after the step's start a transfer starts.
    Raises TooManyChangesError above MAX_FLUID_WORK.
    """
    arrivals = late_s + paths.latency_s
    if step_fits(paths, capacity):
        return np.asarray(arrivals + size_bytes / paths.solo_bytes_per_s)
    return _shared(paths, size_bytes, capacity, arrivals)


def _shared(paths: Paths, size_bytes: Floats, capacity: Floats, arrivals_s: Floats) -> Floats:
    """Play arrivals (latency over) and ends in time order, sharing the links anew at each."""
    count = len(size_bytes)
    ends = np.where(size_bytes > 0, np.inf, arrivals_s)
    left = size_bytes.astype(np.float64)
    waiting = size_bytes > 0
    flowing = np.zeros(count, dtype=bool)
    found = crossings(paths.links, capacity)
    now = 0.0
    work = 0
    while waiting.any() or flowing.any():
        work += int(flowing.sum())
        if work > MAX_FLUID_WORK:
            raise TooManyChangesError
        rates = np.zeros(count)
        if flowing.any():
            rates = shared(found, flowing)
        finish = np.full(count, np.inf)
        np.divide(left, rates, out=finish, where=flowing)
        finish += now
        arrival = np.where(waiting, arrivals_s, np.inf)
        at = min(float(finish.min()), float(arrival.min()))
        left[flowing] -= (at - now) * rates[flowing]
        over = flowing & (finish <= at * (1 + _SAME_TIME))
        ends[over] = at
        arrived = waiting & (arrival <= at * (1 + _SAME_TIME))
        flowing = (flowing & ~over) | arrived
        waiting &= ~arrived
        now = at
    return ends


def busiest_link_s(paths: Paths, size_bytes: Floats, capacity: Floats) -> float:
    """What a step takes at least, or nearly: its longest latency, then its busiest link at full rate."""
    carried = np.bincount(paths.links.ravel(), np.repeat(size_bytes, paths.links.shape[1]), len(capacity))
    return float(paths.latency_s.max() + (carried / capacity).max())
