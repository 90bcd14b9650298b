"""Flows in flight on a SimPy clock: latency first, then bytes at the max-min fair rate, shared once per instant.

Flows live in arrays. Whatever starts or ends at one instant is gathered and the links are shared once, when the
instant is over; flows whose rate did not change keep the end they had, so no rounding builds up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import simpy

from simulator.engine.fairshare import max_min
from simulator.engine.instants import EndOfInstant
from simulator.schedule import Floats, Ints

#: Ends closer than this, relative to the clock, are one instant.
_SAME_TIME = 1e-13

Done = Callable[[Ints], None]


class Fabric:
    """Links shared by all flows of a run. ``send`` starts transfers; ``done(tags)`` hears of their ends.

    capacity: (num_links,) bytes/s; routes may be filled up with a link of infinite capacity.
    """

    def __init__(self, env: simpy.Environment, capacity: Floats, done: Done) -> None:
        self._env = env
        self._capacity = capacity
        self._done = done
        self._users = np.zeros(len(capacity), dtype=np.int64)
        self._countable = np.isfinite(capacity)
        self._contended = False
        self._sharing = EndOfInstant(env, self._share)
        self._wake_version = 0
        self._links = np.empty((0, 1), dtype=np.int64)
        self._tags = np.empty(0, dtype=np.int64)
        self._left = np.empty(0)
        self._since = np.empty(0)
        self._rate = np.empty(0)
        self._end = np.empty(0)
        self._arrivals: list[tuple[Ints, Floats, Ints]] = []
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
        """Admit the instant's arrivals, set every rate, and plan the next end."""
        first_new = len(self._tags)
        for links, size_bytes, tags in self._arrivals:
            self._admit(links, size_bytes, tags)
        self._arrivals.clear()
        if self._contended:
            self._set_rates(0, max_min(self._links, self._capacity) if len(self._tags) else self._rate)
        elif first_new < len(self._tags):
            self._set_rates(first_new, self._capacity[self._links[first_new:]].min(axis=1))
        if self.track_load:
            load = np.bincount(self._links.ravel(), np.repeat(self._rate, self._links.shape[1]), len(self._capacity))
            self.peak_load = np.maximum(self.peak_load, load)
        self._plan_wake()

    def _admit(self, links: Ints, size_bytes: Floats, tags: Ints) -> None:
        wide = max(links.shape[1], self._links.shape[1])
        self._links = np.concatenate([self._widened(self._links, wide), self._widened(links, wide)])
        self._tags = np.concatenate([self._tags, tags])
        now = np.full(len(tags), self._env.now)
        self._left = np.concatenate([self._left, size_bytes])
        self._since = np.concatenate([self._since, now])
        self._rate = np.concatenate([self._rate, np.zeros(len(tags))])
        self._end = np.concatenate([self._end, np.full(len(tags), np.inf)])
        np.add.at(self._users, links, 1)
        if not self._contended:
            self._contended = bool(((self._users[links] > 1) & self._countable[links]).any())

    def _widened(self, links: Ints, wide: int) -> Ints:
        missing = wide - links.shape[1]
        if not missing:
            return links
        return np.pad(links, ((0, 0), (0, missing)), constant_values=len(self._capacity) - 1)

    def _set_rates(self, first: int, rates: Floats) -> None:
        """Give flows first.. new rates; those that keep theirs keep their end exactly."""
        now = self._env.now
        changed = first + np.flatnonzero(rates != self._rate[first:])
        if not len(changed):
            return
        self._left[changed] -= (now - self._since[changed]) * self._rate[changed]
        self._since[changed] = now
        self._rate[changed] = rates[changed - first]
        self._end[changed] = now + np.maximum(self._left[changed], 0.0) / self._rate[changed]

    def _plan_wake(self) -> None:
        self._wake_version += 1
        if not len(self._end):
            return
        version = self._wake_version
        at = max(float(self._end.min()), self._env.now)
        timeout = self._env.timeout(at - self._env.now)
        timeout.callbacks.append(lambda _event: self._finish(at) if version == self._wake_version else None)

    def _finish(self, at: float) -> None:
        over = self._end <= at + _SAME_TIME * max(at, 1e-9)
        links, tags = self._links[over], self._tags[over]
        keep = ~over
        self._links, self._tags = self._links[keep], self._tags[keep]
        self._left, self._since = self._left[keep], self._since[keep]
        self._rate, self._end = self._rate[keep], self._end[keep]
        np.subtract.at(self._users, links, 1)
        if self._contended:
            self._contended = bool((self._users[self._countable] > 1).any())
            if not self._contended:  # whoever is left has its links to itself now
                self._set_rates(0, self._capacity[self._links].min(axis=1))
        self._sharing.ask()
        self._done(tags)
