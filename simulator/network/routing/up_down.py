"""Up, then down: routes in hosts and on leaf/spine networks, where they exist; past a removed link, the shortest way.

With PXN (NCCL 2.12, PCI x NVLink) a message to another rail goes to the local GPU of that rail first and out by that
GPU's NIC, so that it meets its destination's leaf without a spine. The GPU in the middle is the one with the
destination's number in its host, whether or not it takes part in the collective.

Among equal spines either a hash of the pair chooses (ECMP on Ethernet) or the destination does: the ports of a leaf
have the spines in turn. That is D-mod-K, InfiniBand's static routing of fat trees (OpenSM's ``ftree``), which no shift
of ranks overloads, such as a ring or a pipeline (Zahavi, "D-Mod-K routing providing non-blocking traffic for shift
permutations on real life fat trees", CCIT 776, 2010).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.network.graph import Ints
from simulator.network.routing.shortest import shortest
from simulator.network.routing.wiring import Router, Wiring, mix

#: Level of the switch that the GPUs of a host, or of a rack, are on; and of a host's network cards.
_SWITCH_LEVEL = 1
_NIC_LEVEL = 4


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
    return _routed(wiring, by_destination=False)


def up_down_by_destination(wiring: Wiring) -> Router:
    """The same, with the spine that the destination's port on its leaf has: port i the spine i mod their number."""
    return _routed(wiring, by_destination=True)


def _routed(wiring: Wiring, *, by_destination: bool) -> Router:
    climb, uplinks = _climb(wiring), _uplinks(wiring)
    exit_ = _exits(climb, uplinks)
    turn = _turns(wiring, climb, exit_) if by_destination else None
    plain = _plain(wiring, climb, uplinks, exit_, turn)
    if not wiring.pxn:
        return plain
    leaf = np.where(exit_ >= 0, climb.place[np.arange(exit_.size), exit_], -1)
    return _changing_rails(wiring, climb, leaf, plain)


def _plain(wiring: Wiring, climb: Climb, uplinks: Ints, exit_: Ints, turn: Ints | None) -> Router:
    """Routes without PXN. turn: which spine leads to each GPU, (num_gpus,), None for the hash of a pair. Pairs that no
    up-down route joins, for lack of a removed link, take the shortest way.
    """
    alike = _alike(wiring, climb)
    spines = np.where(uplinks >= 0, wiring.head[uplinks], -1)
    detours: list[Router] = []

    def router(src: Ints, dst: Ints) -> Ints:
        up, down, met = _meet(climb, alike, src, dst)
        depth = climb.links.shape[2]
        padded = np.full((src.size, 2 * depth + 2), -1, dtype=np.int64)
        padded[:, :depth] = climb.links[src, up]
        padded[:, depth + 2 :] = _back(climb.links[dst, down])
        far = np.flatnonzero(~met)
        if far.size:
            pick = mix(src[far], dst[far]) if turn is None else turn[dst[far]]
            padded[far], joined = _through_spine(climb, uplinks, spines, exit_, src[far], dst[far], pick)
            lost = far[~joined]
            if lost.size:
                detours[:] = detours or [shortest(wiring)]
                padded = _overwritten(padded, lost, detours[0](src[lost], dst[lost]))
        return padded

    return router


def _overwritten(padded: Ints, rows: Ints, routes: Ints) -> Ints:
    """``padded`` with other routes in some rows, wider where they need it."""
    wide = np.full((len(padded), max(padded.shape[1], routes.shape[1])), -1, dtype=np.int64)
    wide[:, : padded.shape[1]] = padded
    wide[rows] = -1
    wide[rows, : routes.shape[1]] = routes
    return wide


def _changing_rails(wiring: Wiring, climb: Climb, leaf: Ints, plain: Router) -> Router:
    """PXN around ``plain``: from one rail to another by the neighbour there. ``leaf`` (num_gpus,), -1 for none."""
    number, twins = _numbers(wiring.host)
    switch, port = _switch_ports(wiring, climb)

    def router(src: Ints, dst: Ints) -> Ints:
        twin = twins[wiring.host[src], number[dst]]
        other_rail = (twin >= 0) & (leaf[twin] >= 0) & (leaf[twin] != leaf[src])
        near = (switch[src] >= 0) & (switch[src] == switch[twin])  # not where an NVLink was removed
        hop = np.flatnonzero(other_rail & near & (wiring.domain[src] != wiring.domain[dst]))
        if not hop.size:
            return plain(src, dst)
        via = src.copy()
        via[hop] = twin[hop]
        lead = np.full((src.size, 2), -1, dtype=np.int64)
        lead[hop, 0], lead[hop, 1] = port[src[hop]], port[twin[hop]] ^ 1
        return np.concatenate([lead, plain(via, dst)], axis=1)

    return router


def _switch_ports(wiring: Wiring, climb: Climb) -> tuple[Ints, Ints]:
    """The switch that each GPU has a port on, (num_gpus,) with -1, and the link to it."""
    level = np.where(climb.place >= 0, wiring.level[climb.place], -1)
    is_port = (climb.hops == 1) & (level == _SWITCH_LEVEL)
    entry, rows = is_port.argmax(axis=1), np.arange(len(level))
    return np.where(is_port.any(axis=1), climb.place[rows, entry], -1), climb.links[rows, entry, 0]


def _numbers(host: Ints) -> tuple[Ints, Ints]:
    """Each GPU's number in its host, (num_gpus,), and the GPU of each host and number, (hosts, most) with -1."""
    order, counts = np.argsort(host, kind="stable"), np.bincount(host)
    number = np.empty_like(order)
    number[order] = np.arange(order.size) - (np.cumsum(counts) - counts)[host[order]]
    table = np.full((counts.size, int(counts.max())), -1, dtype=np.int64)
    table[host, number] = np.arange(host.size)
    return number, table


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


def _alike(wiring: Wiring, climb: Climb) -> list[tuple[int, int]]:
    """Pairs of columns of the climb that can hold the same place: both have places of some level."""
    levels = [set(np.unique(wiring.level[column[column >= 0]]).tolist()) for column in climb.place.T]
    return [(i, j) for i, here in enumerate(levels) for j, there in enumerate(levels) if here & there]


def _meet(climb: Climb, alike: list[tuple[int, int]], src: Ints, dst: Ints) -> tuple[Ints, Ints, np.ndarray]:
    """For each pair the entries of source and destination that are the same place, with fewest links."""
    far = 1 << 30
    best = np.full(src.size, far, dtype=np.int64)
    up, down = np.zeros_like(best), np.zeros_like(best)
    for i, j in alike:
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


def _exits(climb: Climb, uplinks: Ints) -> Ints:
    """(num_gpus,) which entry of the climb is the nearest switch with uplinks; -1 for a GPU that reaches none."""
    if not uplinks.shape[1]:
        return np.full(len(climb.place), -1, dtype=np.int64)
    is_leaf = (climb.place >= 0) & (uplinks[climb.place, 0] >= 0)
    nearest: Ints = np.where(is_leaf, climb.hops, 1 << 30).argmin(axis=1)
    return np.where(is_leaf.any(axis=1), nearest, -1)


def _turns(wiring: Wiring, climb: Climb, exit_: Ints) -> Ints:
    """(num_gpus,) the place of each GPU's network card among the cards on its leaf, 0 where it reaches none."""
    path = climb.links[np.arange(exit_.size), exit_]
    below = (path >= 0) & (wiring.level[wiring.tail[path]] <= _NIC_LEVEL)
    last = np.maximum(np.where(below, np.arange(path.shape[1]), 0).max(axis=1), 0)
    card = wiring.tail[path[np.arange(exit_.size), last]]
    leaf = climb.place[np.arange(exit_.size), exit_]
    _, first, number = np.unique(np.stack([leaf, card]), axis=1, return_index=True, return_inverse=True)
    starts = np.searchsorted(leaf[first], leaf)
    turns: Ints = np.where(exit_ >= 0, number.ravel() - starts, 0)
    return turns


def _through_spine(
    climb: Climb, uplinks: Ints, spines: Ints, exit_: Ints, src: Ints, dst: Ints, pick: Ints
) -> tuple[Ints, np.ndarray]:
    """Routes over the spine that ``pick`` (m,) says, and for which pairs there is one: both leaves have it."""
    depth = climb.links.shape[2]
    padded = np.full((src.size, 2 * depth + 2), -1, dtype=np.int64)
    joined = (exit_[src] >= 0) & (exit_[dst] >= 0)
    if not joined.any():
        return padded, joined
    a, b = climb.place[src, exit_[src]], climb.place[dst, exit_[dst]]
    choice = pick % np.maximum((uplinks[a] >= 0).sum(axis=1), 1)
    joined &= spines[a, choice] == spines[b, choice]
    padded[:, :depth] = climb.links[src, exit_[src]]
    padded[:, depth], padded[:, depth + 1] = uplinks[a, choice], uplinks[b, choice] ^ 1
    padded[:, depth + 2 :] = _back(climb.links[dst, exit_[dst]])
    return padded, joined
