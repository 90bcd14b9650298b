"""Networks that points of a sweep have in common, wired once for as long as a worker lives.

A network and the collectives priced on it follow from the cluster alone, so that a row is the same whatever was
simulated before it; to make them again took a third of a point's time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from simulator.answer import Wiring, wiring_of
from simulator.scenario import Cluster, Scenario

#: Networks that are kept at most, and links of all of them.
_MOST_NETWORKS, _MOST_LINKS = 32, 200_000
#: Points times links since they were wired, of all of them: each size that was asked for takes memory, some 250 B.
_MOST_USE = 200_000


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    cluster: Cluster
    wiring: Wiring
    uses: int = 0

    @property
    def links(self) -> int:
        return len(self.wiring.network.link_names)


class _Shelf(threading.local):
    """A thread's own, since a wiring is filled as it is used; the one used last stands last."""

    def __init__(self) -> None:
        self.held: list[_Held] = []

    def too_full(self) -> bool:
        links, use = sum(one.links for one in self.held), sum(one.uses * one.links for one in self.held)
        return len(self.held) > _MOST_NETWORKS or links > _MOST_LINKS or use > _MOST_USE


_shelf = _Shelf()


def wiring_for(scenario: Scenario) -> Wiring:
    """``wiring_of`` the scenario, or that of an earlier one whose cluster is equal. Raises NetworkError."""
    found = next((one for one in reversed(_shelf.held) if _equal(one.cluster, scenario.cluster)), None)
    if found is not None:
        _shelf.held.remove(found)
    if found is None or (found.uses + 1) * found.links > _MOST_USE:
        found = _Held(cluster=scenario.cluster, wiring=wiring_of(scenario))
    found.uses += 1
    _shelf.held.append(found)
    while len(_shelf.held) > 1 and _shelf.too_full():
        del _shelf.held[0]
    return found.wiring


def _equal(one: Cluster, other: Cluster) -> bool:
    """The same, with what differs most often compared first."""
    return one.nodes == other.nodes and one.gpus_per_node == other.gpus_per_node and one == other
