"""Coflows that are under way share links max-min, by progressive filling: all progress at full speed until a link is
full, then those that cross it slow down together.

Exact, and cheap where little changes. Links that cannot fill bind nobody and are left out: those for which the coflows
that can be under way at once, one for each lane, ask no more than the link carries. The others are few kinds: links
that every coflow asks as much of are one. Coflows that no such link joins, directly or by others, do not know of each
other; a set of joined ones shares anew only when it changes, and what a set gets is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from simulator.engine.coflow import Coflow
from simulator.schedule import Floats, Ints

_SAME = 1e-12
#: The name of a coflow that is under way.
Key = TypeVar("Key", bound=Hashable)


class _Asks(NamedTuple):
    """What a coflow asks of the kinds of links that can fill. mask: these kinds, as bits."""

    number: int
    mask: int
    kinds: Ints
    asked: Floats


class _Part(NamedTuple):
    """Places in a set of coflows that links join, the kinds of links as bits, and their speeds."""

    places: tuple[int, ...]
    mask: int
    speeds: tuple[float, ...]


class _Joined(Generic[Key]):
    """Activities whose coflows are joined by links that can fill, by number of the coflow."""

    __slots__ = ("mask", "members")

    def __init__(self, members: list[tuple[int, Key]], mask: int) -> None:
        self.members, self.mask = members, mask


class Sharing(Generic[Key]):
    """lanes: the coflows of each lane, of which one at a time is under way. capacity: (num_links,) bytes/s."""

    def __init__(self, lanes: Iterable[Sequence[Coflow]], capacity: Floats) -> None:
        found = [list({id(one): one for one in lane}.values()) for lane in lanes]
        coflows = list({id(one): one for lane in found for one in lane}.values())
        hot = np.flatnonzero(_most_asked(found, capacity) > capacity * (1 + _SAME))
        asks = [_on_hot(one, hot) for one in coflows]
        kinds, first = _kinds(asks, capacity[hot])
        self._capacity = capacity[hot][first]
        self._coflows = coflows  # held, so that their ids stay their own
        self._asks = {
            id(one): _of_kinds(number, places, asked, kinds, first)
            for number, (one, (places, asked)) in enumerate(zip(coflows, asks, strict=True))
        }
        self._by_number = list(self._asks.values())
        self._sets: dict[int, _Joined[Key]] = {}
        self._set_of: dict[Key, _Joined[Key]] = {}
        self._known: dict[tuple[int, ...], list[_Part]] = {}
        self._changed: dict[int, _Joined[Key]] = {}

    def start(self, key: Key, coflow: Coflow) -> bool:
        """A coflow is under way from now on, under a name of its own; False where no link can slow it."""
        asks = self._asks[id(coflow)]
        if not asks.mask:
            return False
        joined = _Joined([(asks.number, key)], asks.mask)
        for other in [one for one in self._sets.values() if one.mask & asks.mask]:
            self._forget(other)
            joined.members += other.members
            joined.mask |= other.mask
        self._keep(joined)
        return True

    def end(self, key: Key) -> None:
        """The coflow with that name, which a link can slow, is over."""
        joined = self._set_of.pop(key)
        joined.members = [member for member in joined.members if member[1] != key]
        if joined.members:
            self._changed[id(joined)] = joined
        else:
            self._forget(joined)

    def changed(self) -> list[tuple[Key, float]]:
        """Names and speeds, above 0 and at most 1, of what has been joined to a start or an end since the last call."""
        found: list[tuple[Key, float]] = []
        if not self._changed:
            return found
        for joined in list(self._changed.values()):
            joined.members.sort(key=lambda member: member[0])  # stable: equal coflows stay in the order of their start
            parts = self._parts(tuple(number for number, _ in joined.members))
            if len(parts) > 1:
                self._forget(joined)
            for part in parts:
                members = [joined.members[place] for place in part.places]
                found += [(key, speed) for (_, key), speed in zip(members, part.speeds, strict=True)]
                if len(parts) > 1:
                    self._keep(_Joined(members, part.mask))
                else:
                    joined.mask = part.mask
        self._changed.clear()
        return found

    def _forget(self, joined: _Joined[Key]) -> None:
        self._sets.pop(id(joined), None)
        self._changed.pop(id(joined), None)

    def _keep(self, joined: _Joined[Key]) -> None:
        self._sets[id(joined)] = self._changed[id(joined)] = joined
        for _, key in joined.members:
            self._set_of[key] = joined

    def _parts(self, numbers: tuple[int, ...]) -> list[_Part]:
        if numbers not in self._known:
            asks = [self._by_number[number] for number in numbers]
            self._known[numbers] = [self._part(asks, places) for places in _components(asks)]
        return self._known[numbers]

    def _part(self, asks: Sequence[_Asks], places: Sequence[int]) -> _Part:
        some = [asks[place] for place in places]
        mask = 0
        for one in some:
            mask |= one.mask
        if len(some) == 1:
            return _Part(tuple(places), mask, (1.0,))
        used = np.unique(np.concatenate([one.kinds for one in some]))
        asked = np.zeros((len(some), len(used)))
        for row, one in zip(asked, some, strict=True):
            row[np.searchsorted(used, one.kinds)] = one.asked
        return _Part(tuple(places), mask, tuple(filled(asked, self._capacity[used])))


def filled(asked: Floats, capacity: Floats) -> list[float]:
    """Speed of each coflow, by progressive filling. asked: (num_coflows, num_links); capacity: (num_links,)."""
    speed = np.zeros(len(asked))
    open_flows = np.ones(len(asked), dtype=bool)
    left = capacity.astype(np.float64).copy()
    level = 0.0
    while open_flows.any():
        demand = asked[open_flows].sum(axis=0)
        room = np.full(len(left), np.inf)
        np.divide(left, demand, out=room, where=demand > 0)
        step = min(float(room.min(initial=np.inf)), 1.0 - level)
        level += step
        left -= step * demand
        if level >= 1.0 - _SAME:
            speed[open_flows] = 1.0
            break
        full = (room <= step * (1 + _SAME)) & (demand > 0)
        stopped = open_flows & (asked[:, full] > 0).any(axis=1)
        speed[stopped] = level
        open_flows &= ~stopped
    return [float(s) for s in speed]


def _most_asked(lanes: Iterable[Sequence[Coflow]], capacity: Floats) -> Floats:
    """(num_links,) bytes/s that coflows can ask of each link at once at most."""
    total, most = np.zeros(len(capacity)), np.zeros(len(capacity))
    for lane in lanes:
        for one in lane:
            most[one.links] = np.maximum(most[one.links], one.asked)
        for one in lane:
            total[one.links] += most[one.links]
            most[one.links] = 0.0  # counted once
    return total


def _on_hot(coflow: Coflow, hot: Ints) -> tuple[Ints, Floats]:
    """Places in ``hot`` of links that the coflow uses, and what it asks of them."""
    if not len(hot):
        return np.empty(0, dtype=np.int64), np.empty(0)
    place = np.minimum(np.searchsorted(hot, coflow.links), len(hot) - 1)
    used = (hot[place] == coflow.links) & (coflow.asked > 0)
    return place[used], coflow.asked[used]


def _kinds(asks: Iterable[tuple[Ints, Floats]], capacity: Floats) -> tuple[Ints, Ints]:
    """The kind of each link, (num_hot,), and the first link of each kind: those of one kind look alike to all."""
    _, kinds = np.unique(capacity, return_inverse=True)
    kinds = kinds.astype(np.int64).ravel()
    last = int(kinds.max(initial=0))
    for places, asked in asks:
        if not len(places):
            continue
        _, value = np.unique(asked, return_inverse=True)
        pair = kinds[places] * (int(value.max()) + 1) + value.ravel()
        _, split = np.unique(pair, return_inverse=True)
        kinds[places] = last + 1 + split.ravel()
        last += 1 + int(split.max())
    _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
    return kinds.astype(np.int64).ravel(), first


def _of_kinds(number: int, places: Ints, asked: Floats, kinds: Ints, first: Ints) -> _Asks:
    """The same by kinds of links, one link of each."""
    chosen = np.isin(places, first) if len(places) else np.zeros(0, dtype=bool)
    found, rates = kinds[places[chosen]], asked[chosen]
    order = np.argsort(found)
    mask = 0
    for kind in found.tolist():
        mask |= 1 << kind
    return _Asks(number, mask, found[order], rates[order])


def _components(asks: Sequence[_Asks]) -> list[list[int]]:
    """Places of coflows that links join, in the order of their first."""
    parts: list[tuple[int, list[int]]] = []
    for place, one in enumerate(asks):
        mask, places = one.mask, [place]
        for part in [part for part in parts if part[0] & one.mask]:
            mask |= part[0]
            places += part[1]
            parts.remove(part)
        parts.append((mask, sorted(places)))
    return sorted((places for _, places in parts), key=lambda places: places[0])
