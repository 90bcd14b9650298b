"""One isolated step as a fluid problem: its transfers share links max-min until they end."""

from __future__ import annotations

import numpy as np

from simulator.engine.conditions import step_fits
from simulator.engine.fairshare import max_min
from simulator.engine.wires import Paths
from simulator.schedule import Floats

_SAME_TIME = 1e-12


def step_ends(paths: Paths, size_bytes: Floats, capacity: Floats, late_s: Floats) -> Floats:
    """When each transfer of the step ends, counted from the step's start, shape (num_transfers,).

    size_bytes, late_s: (num_transfers,) bytes to move, and how long after the step's start a transfer starts.
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
    now = 0.0
    while waiting.any() or flowing.any():
        rates = np.zeros(count)
        if flowing.any():
            rates[flowing] = max_min(paths.links[flowing], capacity)
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
