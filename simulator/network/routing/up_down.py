"""Up, then down: routes in hosts and on leaf/spine networks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.network.graph import Ints
from simulator.network.routing.wiring import Router, Wiring, mix


class Climb(NamedTuple):
    """Every place a GPU reaches by going up, or by a direct link to another GPU, as a padded table.

    ``place`` (num_gpus, width) with -1 where unused, ``hops`` the links used, ``links``
    (num_gpus, width, depth) their ids in order.
    """

    place: Ints
    hops: Ints
    links: Ints


def up_down(wiring: Wiring) -> Router:
    """Up, then down again, with the fewest links; a direct link between two GPUs is the whole route. Spines by hash."""
    climb = _climb(wiring)
    uplinks = _uplinks(wiring)

    def router(src: Ints, dst: Ints) -> Ints:
        up, down, met = _meet(climb, src, dst)
        depth = climb.links.shape[2]
        padded = np.full((src.size, 2 * depth + 2), -1, dtype=np.int64)
        padded[:, :depth] = climb.links[src, up]
        padded[:, depth + 2 :] = _back(climb.links[dst, down])
        far = np.flatnonzero(~met)
        if far.size:
            padded[far] = _through_spine(wiring, climb, uplinks, src[far], dst[far])
        return padded

    return router


def _back(links: Ints) -> Ints:
    """The same cables in the other direction, last first."""
    return np.where(links >= 0, links ^ 1, -1)[..., ::-1]


def _climb(wiring: Wiring) -> Climb:
    rise = wiring.level[wiring.head] - wiring.level[wiring.tail]
    direct = wiring.is_gpu[wiring.head] & wiring.is_gpu[wiring.tail]
    usable = np.flatnonzero((rise > 0) | direct)
    order = usable[np.argsort(wiring.tail[usable], kind="stable")]
    starts = np.searchsorted(wiring.tail[order], np.arange(wiring.level.size + 1))
    count = wiring.gpu.size
    owner, place = np.arange(count), wiring.gpu
    links = np.empty((count, 0), dtype=np.int64)
    rounds = [(owner, place, links)]
    while owner.size:
        onward = wiring.inside[place] & ((links.shape[1] == 0) | ~wiring.is_gpu[place])
        owner, place, links = owner[onward], place[onward], links[onward]
        fan = starts[place + 1] - starts[place]
        which = np.repeat(np.arange(owner.size), fan)
        rank = np.arange(which.size) - np.repeat(np.cumsum(fan) - fan, fan)
        step = order[starts[place[which]] + rank]
        owner, links = owner[which], np.column_stack([links[which], step])
        place = wiring.head[step]
        if owner.size:
            rounds.append((owner, place, links))
    return _padded_climb(rounds, count)


def _padded_climb(rounds: list[tuple[Ints, Ints, Ints]], count: int) -> Climb:
    owner = np.concatenate([r[0] for r in rounds])
    depth = max(1, rounds[-1][2].shape[1])
    links = np.full((owner.size, depth), -1, dtype=np.int64)
    at = 0
    for r in rounds:
        links[at : at + r[0].size, : r[2].shape[1]] = r[2]
        at += r[0].size
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=count)
    column = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    width = int(sizes.max())
    place = np.full((count, width), -1, dtype=np.int64)
    table = np.full((count, width, depth), -1, dtype=np.int64)
    place[owner[order], column] = np.concatenate([r[1] for r in rounds])[order]
    table[owner[order], column] = links[order]
    return Climb(place, (table >= 0).sum(axis=2), table)


def _meet(climb: Climb, src: Ints, dst: Ints) -> tuple[Ints, Ints, np.ndarray]:
    """For each pair the entries of source and destination that are the same place, with fewest links."""
    far = 1 << 30
    best = np.full(src.size, far, dtype=np.int64)
    up, down = np.zeros_like(best), np.zeros_like(best)
    for i in range(climb.place.shape[1]):
        for j in range(climb.place.shape[1]):
            here, there = climb.place[src, i], climb.place[dst, j]
            cost = np.where((here == there) & (here >= 0), climb.hops[src, i] + climb.hops[dst, j], far)
            better = cost < best
            best[better], up[better], down[better] = cost[better], i, j
    return up, down, best < far


def _uplinks(wiring: Wiring) -> Ints:
    """(num_places, widest) uplinks of switches outside hosts, ordered by the place they lead to; -1 where unused."""
    rise = wiring.level[wiring.head] > wiring.level[wiring.tail]
    links = np.flatnonzero(rise & ~wiring.inside[wiring.tail])
    links = links[np.lexsort((wiring.head[links], wiring.tail[links]))]
    sizes = np.bincount(wiring.tail[links], minlength=wiring.level.size)
    column = np.arange(links.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    table = np.full((wiring.level.size, int(sizes.max(initial=0))), -1, dtype=np.int64)
    table[wiring.tail[links], column] = links
    return table


def _through_spine(wiring: Wiring, climb: Climb, uplinks: Ints, src: Ints, dst: Ints) -> Ints:
    assert uplinks.shape[1] > 0, "no spine joins the leaves"
    is_leaf = (climb.place >= 0) & (uplinks[climb.place, 0] >= 0)
    cost = np.where(is_leaf, climb.hops, 1 << 30)
    leaf = cost.argmin(axis=1)
    a, b = climb.place[src, leaf[src]], climb.place[dst, leaf[dst]]
    spines = (uplinks[a] >= 0).sum(axis=1)
    choice = mix(src, dst) % spines
    up, down = uplinks[a, choice], uplinks[b, choice]
    assert np.array_equal(wiring.head[up], wiring.head[down]), "every spine must join every leaf"
    depth = climb.links.shape[2]
    padded = np.full((src.size, 2 * depth + 2), -1, dtype=np.int64)
    padded[:, :depth] = climb.links[src, leaf[src]]
    padded[:, depth], padded[:, depth + 1] = up, down ^ 1
    padded[:, depth + 2 :] = _back(climb.links[dst, leaf[dst]])
    return padded
