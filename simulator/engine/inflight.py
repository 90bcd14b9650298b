"""Flows in flight and who must share anew: only flows that full links join to something that has just changed.

A flow never runs above its solo rate, so a link whose flows together ask for no more than its capacity binds nobody.
What binds are the other links. A start or an end can so only change the rates of flows that are joined to it by a chain
of binding links; the rest keep theirs, exactly. Cost of a change: the flows and hops of that chain, not all flows.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from simulator.engine.fairshare import distinct, max_min, solo
from simulator.schedule import Floats, Ints

#: A link counts as fitting when what its flows ask for exceeds its capacity by no more than rounding.
_ROUNDING = 1e-9


class InFlight:
    """A table of flows by slot; a slot is used again once its flow is over.

    capacity: (num_links,) bytes/s; routes are filled up with a link of infinite capacity, the last one.
    links: (num_slots, hops) routes by slot, rows of free slots filled up too.
    """

    def __init__(self, capacity: Floats) -> None:
        self._capacity = capacity
        self._limit = capacity * (1 + _ROUNDING)
        self._asked = np.zeros(len(capacity))
        self._users = np.zeros(len(capacity), dtype=np.int64)
        self._on: defaultdict[int, set[int]] = defaultdict(set)
        self._binding: set[int] = set()
        self._changed: list[Ints] = []
        self._free: list[int] = []
        self._solo = np.empty(0)
        self.links: Ints = np.empty((0, 1), dtype=np.int64)

    def admit(self, links: Ints) -> Ints:
        """Give flows a slot each: (num_flows, hops) -> (num_flows,)."""
        self._make_room(*links.shape)
        slots = [self._free.pop() for _ in range(len(links))]
        places = np.array(slots, dtype=np.int64)
        self.links[places, : links.shape[1]] = links
        self._solo[places] = solo(links, self._capacity)
        self._count(places, 1)
        for slot, route in zip(slots, links.tolist(), strict=True):
            for link in route:
                self._on[link].add(slot)
        return places

    def release(self, slots: Ints) -> None:
        """These flows are over."""
        self._count(slots, -1)
        for slot, route in zip(slots.tolist(), self.links[slots].tolist(), strict=True):
            for link in route:
                self._on[link].discard(slot)
            self._free.append(slot)
        self.links[slots] = len(self._capacity) - 1

    def reshare(self) -> tuple[Ints, Floats]:
        """Flows whose rate may have changed since the last call, ascending, and their max-min rates in bytes/s."""
        if not self._changed:
            return np.empty(0, dtype=np.int64), np.empty(0)
        changed = distinct(np.concatenate(self._changed))
        self._changed.clear()
        binds = self._asked[changed] > self._limit[changed]
        now, was = set(changed[binds].tolist()), self._binding.intersection(changed.tolist())
        self._binding = (self._binding - was) | now
        joined = np.array(self._joined_to(now | was), dtype=np.int64)
        return joined, max_min(self.links[joined], self._capacity) if len(joined) else np.empty(0)

    def solo(self, slots: Ints) -> Floats:
        """What each flow gets when no link binds it, bytes/s."""
        return self._solo[slots]

    def _joined_to(self, starts: set[int]) -> list[int]:
        """Slots that binding links join to the links ``starts``, ascending."""
        seen, todo = set(starts), list(starts)
        flows: set[int] = set()
        while todo:
            fresh = self._on[todo.pop()] - flows
            flows |= fresh
            crossed = set(self.links[list(fresh)].ravel().tolist()) if fresh else set()
            onward = (crossed & self._binding) - seen
            seen |= onward
            todo.extend(onward)
        return sorted(flows)

    def _count(self, slots: Ints, sign: int) -> None:
        links = self.links[slots]
        ids = links.ravel()
        np.add.at(self._users, ids, sign)
        np.add.at(self._asked, ids, sign * np.repeat(self._solo[slots], links.shape[1]))
        self._asked[ids[self._users[ids] == 0]] = 0.0  # no rounding is left over
        self._changed.append(ids)

    def _make_room(self, count: int, hops: int) -> None:
        filler = len(self._capacity) - 1
        rows, wide = self.links.shape
        missing = count - len(self._free)
        if missing <= 0 and hops <= wide:
            return
        more = max(missing, rows) if missing > 0 else 0
        self.links = np.pad(self.links, ((0, more), (0, max(0, hops - wide))), constant_values=filler)
        self._solo = np.append(self._solo, np.zeros(more))
        self._free = [*range(rows + more - 1, rows - 1, -1), *self._free]
