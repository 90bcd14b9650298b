"""One isolated step as a fluid problem: its transfers share links max-min until they end."""

from __future__ import annotations

import numpy as np

from simulator.engine.conditions import fits, step_loads
from simulator.engine.fairshare import crossings, distinct, shared, solo
from simulator.engine.wires import Paths
from simulator.schedule import Bools, Floats, Ints

_SAME_TIME = 1e-12
#: Flows times changes of their rates that one step may take to solve; about a second.
MAX_FLUID_WORK = 4_000_000
#: What a level of rates costs besides its flows, counted in these: numpy calls on a few links.
_ROUND_WORK = 150
#: Instants that a step takes at least, when so many flows share links that counting the instants takes long itself.
_LEAST_INSTANTS = 8
#: Least shares that differ by less, relatively, count as one when the changes of a step are estimated.
_ALIKE = 1e-9


class TooManyChangesError(Exception):
    """The step has too many flows that end at different times to be solved. Internal: callers hand over."""


def step_ends(
    paths: Paths, size_bytes: Floats, capacity: Floats, late_s: Floats, max_work: int = MAX_FLUID_WORK
) -> Floats:
    """When each transfer of the step ends, counted from the step's start, shape (num_transfers,).

    size_bytes, late_s: (num_transfers,) bytes to move, and how long after the step's start a transfer starts.
    Flows on no link that can bind end as if alone; the others are played. Growth: flows on links that can bind, times
    the instants at which they start or end. Raises TooManyChangesError where that is above ``max_work``.
    """
    arrivals = late_s + paths.latency_s
    ends = np.asarray(arrivals + size_bytes / paths.solo_bytes_per_s)
    asked = step_loads(paths, paths.solo_bytes_per_s, len(capacity))
    binding = ~fits(asked, capacity)
    if not binding.any():
        return ends
    held = np.flatnonzero(binding[paths.links].any(axis=1))
    if len(held) * _LEAST_INSTANTS > max_work:
        raise TooManyChangesError
    some = Paths(
        links=_narrowed(paths.links[held], capacity, binding), latency_s=paths.latency_s[held],
        solo_bytes_per_s=paths.solo_bytes_per_s[held],
    )  # fmt: skip
    _refuse_many(some, size_bytes[held], capacity, arrivals[held], max_work)
    ends[held] = _shared(some, size_bytes[held], capacity, arrivals[held], max_work)
    return ends


def _narrowed(links: Ints, capacity: Floats, binding: Bools) -> Ints:
    """Routes without the links that bind nobody: those that may, and the one that limits the flow when alone."""
    kept = binding[links]
    kept[np.arange(len(links)), capacity[links].argmin(axis=1)] = True
    narrow = np.full((len(links), int(kept.sum(axis=1).max())), len(capacity) - 1, dtype=np.int64)
    row, column = np.nonzero(kept)
    narrow[row, (kept.cumsum(axis=1) - 1)[row, column]] = links[row, column]
    return narrow


def _refuse_many(paths: Paths, size_bytes: Floats, capacity: Floats, arrivals_s: Floats, max_work: int) -> None:
    """Each time at which flows start, and each number of flows that share a link, is an instant: see early how many."""
    slowest_s = size_bytes / least_rates(paths, capacity)
    if (_kinds(arrivals_s) + _kinds(slowest_s)) * len(size_bytes) > max_work:
        raise TooManyChangesError


def _kinds(times_s: Floats) -> int:
    """How many times differ by more than rounding."""
    unit = float(times_s.max()) * _ALIKE
    return len(distinct(np.round(times_s / unit).astype(np.int64))) if unit > 0 else 1


def least_rates(paths: Paths, capacity: Floats) -> Floats:
    """The least even share of a link on each route, (num_transfers,): no rate of the step's flows is ever below it."""
    flows = step_loads(paths, np.ones(len(paths.links)), len(capacity))
    return solo(paths.links, capacity / np.maximum(flows, 1.0))


def _shared(paths: Paths, size_bytes: Floats, capacity: Floats, arrivals_s: Floats, max_work: int) -> Floats:
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
        if work > max_work:
            raise TooManyChangesError
        rates = np.zeros(count)
        if flowing.any():
            rates = shared(found, flowing)
            work += _ROUND_WORK * len(distinct(rates))
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


def latest_ends(paths: Paths, size_bytes: Floats, capacity: Floats) -> Floats:
    """What each transfer of a step takes at most, (num_transfers,): at the least even share of its links."""
    return np.asarray(paths.latency_s + size_bytes / least_rates(paths, capacity))


def earliest_end_s(paths: Paths, size_bytes: Floats, capacity: Floats) -> float:
    """What a step takes at least: its slowest transfer alone, or its busiest link after the least latency."""
    alone_s = float((paths.latency_s + size_bytes / paths.solo_bytes_per_s).max())
    carried_s = step_loads(paths, size_bytes, len(capacity)) / capacity
    return max(alone_s, float(paths.latency_s.min() + carried_s.max()))
