"""Groups of an axis that are alike: one is simulated for all of them, since the engines see no difference.

Two groups that play the same schedule are alike when, transfer by transfer and hop by hop, their routes have the same
capacities and latencies, and the same transfers meet on a link: when their routes are equal once links are numbered in
the order in which they first appear. A slow NIC, a hash that puts two flows on one uplink, or another placement makes
a class of its own. Growth: one look at every crossing of every group; simulations only for the distinct classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simulator.engine.wires import Wires, make_wires
from simulator.network.graph import Network
from simulator.network.routes import Routes
from simulator.schedule import Floats, Ints, Pattern, Schedule

#: Transfers whose routes are compared at once.
_BATCH = 2**18


class Folded(NamedTuple):
    """like: (num_groups,) the first group that each one is like, itself for the first of a class.

    link_chunks: (num_links,) chunks that each link carries for all groups together.
    """

    like: Ints
    link_chunks: Floats


def fold(network: Network, routes: Routes, schedule: Schedule, groups: Ints) -> Folded:
    """Find the classes of groups that play ``schedule``. groups: (num_groups, num_ranks) gpu numbers."""
    patterns: dict[int, tuple[Pattern, float]] = {}
    for pattern, count in schedule.runs():
        patterns[id(pattern)] = (pattern, patterns.get(id(pattern), (pattern, 0.0))[1] + count)
    transfers = sum(len(pattern) for pattern, _ in patterns.values())
    like = np.arange(len(groups), dtype=np.int64)
    carried = np.zeros(len(network.capacity_bytes_per_s) + 1)
    seen: dict[bytes, int] = {}
    each = max(1, _BATCH // max(1, transfers))
    for first in range(0, len(groups), each):
        some = groups[first : first + each]
        parts = []
        for pattern, steps in patterns.values():
            links, latency_s = _routes(network, routes, schedule, pattern, some)
            chunks = np.tile(np.repeat(pattern.chunks * steps, links.shape[2]), len(some))
            carried += np.bincount(links.ravel(), chunks, len(carried))
            parts.append(_numbered(links, latency_s, network.capacity_bytes_per_s))
        for offset, key in enumerate(b"".join(row) for row in zip(*parts, strict=True)):
            like[first + offset] = seen.setdefault(key, first + offset)
    return Folded(like, carried[:-1])


def _routes(
    network: Network, routes: Routes, schedule: Schedule, pattern: Pattern, groups: Ints
) -> tuple[Ints, Floats]:
    """Links (num_groups, num_transfers, hops) and latencies (num_groups, num_transfers) of a pattern in every group."""
    count, p = groups.shape
    number = np.arange(count, dtype=np.int64)[:, None]
    wires: Wires = make_wires(network, groups.ravel(), routes)

    def ends(of_one: Ints) -> Ints:
        ranks, switches = of_one + number * p, of_one - p + count * p + number * schedule.num_switches
        numbered: Ints = np.where(of_one < p, ranks, switches).ravel()
        return numbered

    links, latency_s = wires.between(ends(pattern.src), ends(pattern.dst))
    return links.reshape(count, len(pattern), -1), latency_s.reshape(count, -1)


def _numbered(links: Ints, latency_s: Floats, capacity: Floats) -> Iterator[bytes]:
    """What makes groups alike, group by group: capacities, latencies, and links numbered by first appearance."""
    count = len(links)
    crossings = links.reshape(count, -1)
    key = crossings + np.arange(count, dtype=np.int64)[:, None] * (len(capacity) + 1)
    _, first, place = np.unique(key.ravel(), return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    numbered = number[place.ravel()].reshape(crossings.shape)
    numbered -= numbered[:, :1]  # the first crossing of a group is the first appearance of its link
    rates = np.append(capacity, np.inf)[crossings]
    for group in range(count):
        yield numbered[group].tobytes() + rates[group].tobytes() + latency_s[group].tobytes()
