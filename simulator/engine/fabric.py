"""Flows in flight on a SimPy clock: latency first, then bytes at the max-min fair rate, shared once per instant.

Flows live in arrays. Whatever starts or ends at one instant is gathered and the links are shared once, when the
instant is over; flows whose rate did not change keep the end they had, so no rounding builds up. Growth: an instant
costs what its own flows and those joined to them by binding links cost (see ``inflight``), plus one look at all ends.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import simpy

from simulator.engine.inflight import InFlight
from simulator.engine.instants import EndOfInstant
from simulator.schedule import Floats, Ints

#: Ends closer than this, relative to the clock, are one instant.
_SAME_TIME = 1e-13

#: What an instant costs besides the flows that share anew, counted in these: numpy calls on nearly empty arrays.
_INSTANT_WORK = 30

Done = Callable[[Ints], None]


class TooMuchWorkError(Exception):
    """More work than was allowed. Internal: callers hand over."""


class Fabric:
    """Links shared by all flows of a run. ``send`` starts transfers; ``done(tags)`` hears of their ends.

    capacity: (num_links,) bytes/s; routes may be filled up with a link of infinite capacity, the last one.
    max_work: the clock stops with TooMuchWorkError once ``work``, flows that shared links anew, is above it.
    """

    def __init__(self, env: simpy.Environment, capacity: Floats, done: Done, max_work: float = np.inf) -> None:
        self._env = env
        self._capacity = capacity
        self._done = done
        self._flows = InFlight(capacity)
        self._sharing = EndOfInstant(env, self._share)
        self._wake_version = 0
        self._tags = np.empty(0, dtype=np.int64)
        self._left = np.empty(0)
        self._since = np.empty(0)
        self._rate = np.empty(0)
        self._end = np.empty(0)
        self._arrivals: list[tuple[Ints, Floats, Ints]] = []
        self._max_work = max_work
        self.work = 0
        self.peak_load = np.zeros(len(capacity))
        self.track_load = False

    def send(self, links: Ints, latency_s: Floats, size_bytes: Floats, tags: Ints) -> None:
        """Start transfers now, one per row of ``links``; each waits its latency, then flows."""
        if len(tags) and (latency_s == latency_s[0]).all():
            self._after(float(latency_s[0]), links, size_bytes, tags)
            return
        for wait in np.unique(latency_s):
            some = latency_s == wait
            self._after(float(wait), links[some], size_bytes[some], tags[some])

    def _after(self, wait_s: float, links: Ints, size_bytes: Floats, tags: Ints) -> None:
        timeout = self._env.timeout(wait_s)
        timeout.callbacks.append(lambda _event: self._arrive(links, size_bytes, tags))

    def _arrive(self, links: Ints, size_bytes: Floats, tags: Ints) -> None:
        empty = size_bytes <= 0
        if empty.any():
            self._done(tags[empty])
            links, size_bytes, tags = links[~empty], size_bytes[~empty], tags[~empty]
        if len(tags):
            self._arrivals.append((links, size_bytes, tags))
            self._sharing.ask()

    def _share(self) -> None:
        """Admit the instant's arrivals, set the rates that change, and plan the next end."""
        for links, size_bytes, tags in self._arrivals:
            self._admit(links, size_bytes, tags)
        self._arrivals.clear()
        slots, rates = self._flows.reshare()
        self.work += _INSTANT_WORK + len(slots)
        if self.work > self._max_work:
            raise TooMuchWorkError
        self._set_rates(slots, rates)
        if self.track_load:
            links = self._flows.links
            load = np.bincount(links.ravel(), np.repeat(self._rate, links.shape[1]), len(self._capacity))
            self.peak_load = np.maximum(self.peak_load, load)
        self._plan_wake()

    def _admit(self, links: Ints, size_bytes: Floats, tags: Ints) -> None:
        slots = self._flows.admit(links)
        more = len(self._flows.links) - len(self._tags)
        if more:
            self._tags = np.append(self._tags, np.full(more, -1))
            self._left, self._since, self._rate = (
                np.append(old, np.zeros(more)) for old in (self._left, self._since, self._rate)
            )
            self._end = np.append(self._end, np.full(more, np.inf))
        self._tags[slots], self._left[slots], self._since[slots] = tags, size_bytes, self._env.now
        self._rate[slots] = self._flows.solo(slots)
        self._end[slots] = self._env.now + size_bytes / self._rate[slots]

    def _set_rates(self, slots: Ints, rates: Floats) -> None:
        """Give flows new rates; those that keep theirs keep their end exactly."""
        now = self._env.now
        differs = rates != self._rate[slots]
        changed = slots[differs]
        if not len(changed):
            return
        self._left[changed] -= (now - self._since[changed]) * self._rate[changed]
        self._since[changed] = now
        self._rate[changed] = rates[differs]
        self._end[changed] = now + np.maximum(self._left[changed], 0.0) / self._rate[changed]

    def _plan_wake(self) -> None:
        self._wake_version += 1
        at = float(self._end.min(initial=np.inf))
        if at == np.inf:
            return
        version = self._wake_version
        at = max(at, self._env.now)
        timeout = self._env.timeout(at - self._env.now)
        timeout.callbacks.append(lambda _event: self._finish(at) if version == self._wake_version else None)

    def _finish(self, at: float) -> None:
        over = np.flatnonzero(self._end <= at + _SAME_TIME * max(at, 1e-9))
        self._flows.release(over)
        self._end[over], self._rate[over] = np.inf, 0.0
        self._sharing.ask()
        self._done(self._tags[over])
