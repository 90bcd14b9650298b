"""Max-min fair rates of flows on links, by progressive filling. Pure; knows no events.

All flows grow at the same pace until a link is full; the flows that cross it stop there, the rest go on
(Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2). Every flow so crosses a full link, no link
is above its capacity, and no flow can gain without a slower one losing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Floats, Ints

Scalars = TypeVar("Scalars", Ints, Floats)

#: Two links count as full together when their shares differ by less than this, so that rounding
#: does not split one bottleneck into many rounds.
_SAME = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossings:
    """Who crosses what, both ways round; made once for a set of flows that is shared several times.

    links: (num_flows, hops) numbers of the links in use, 0 .. num_used - 1. capacity: (num_used,) of these, bytes/s.
    flows, offsets: the flows on link l are ``flows[offsets[l]:offsets[l + 1]]``.
    """

    links: Ints
    capacity: Floats
    flows: Ints
    offsets: Ints


def crossings(routes: Ints, capacity: Floats) -> Crossings:
    """Index flows by link.

    routes: (num_flows, hops) link ids; shorter routes are filled up with a link of infinite capacity.
    capacity: (num_links,) in bytes/s.
    """
    used, inverse, counts = np.unique(routes, return_inverse=True, return_counts=True)
    links: Ints = inverse.reshape(routes.shape)
    order = np.argsort(links.ravel(), kind="stable")
    return Crossings(
        links=links, capacity=capacity[used].astype(np.float64), flows=order // routes.shape[1],
        offsets=np.append(0, np.cumsum(counts)),
    )  # fmt: skip


def shared(found: Crossings, among: NDArray[np.bool_]) -> Floats:
    """Rates in bytes/s, (num_flows,), of the flows in the mask ``among``; 0 for the others.

    Each round stops the flows on the fullest links: all rounds together look at every crossing once.
    """
    rates = np.zeros(len(among))
    waiting = among.copy()
    left = found.capacity.copy()
    crossing = np.bincount(found.links[among].ravel(), minlength=len(left))
    remaining = int(among.sum())
    share = np.empty(len(left))
    while remaining:
        share.fill(np.inf)
        np.divide(left, crossing, out=share, where=crossing > 0)
        level = share.min()
        full = np.flatnonzero(share <= level * (1 + _SAME))
        on_full = np.concatenate([found.flows[found.offsets[link] : found.offsets[link + 1]] for link in full.tolist()])
        stopped = distinct(on_full[waiting[on_full]])
        rates[stopped] = level
        waiting[stopped] = False
        remaining -= len(stopped)
        taken = np.bincount(found.links[stopped].ravel(), minlength=len(left))
        crossing -= taken
        left = np.maximum(left - level * taken, 0.0)
    return rates


def distinct(ids: Scalars) -> Scalars:
    """Every value once, ascending. For the few to some millions of an instant, faster than ``numpy.unique``."""
    if not len(ids):
        return ids
    ordered: Scalars = np.sort(ids)
    once: Scalars = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return once


def max_min(routes: Ints, capacity: Floats) -> Floats:
    """Rates in bytes/s of flows, shape (num_flows,); arguments as ``crossings``."""
    return shared(crossings(routes, capacity), np.ones(len(routes), dtype=bool))


def solo(routes: Ints, capacity: Floats) -> Floats:
    """Rate of each flow when it is alone: the smallest capacity on its route, shape (num_flows,).

    Hop by hop, since numpy reduces a short last axis slowly.
    """
    least = np.full(len(routes), np.inf)
    for hop in range(routes.shape[1]):
        np.minimum(least, capacity[routes[:, hop]], out=least)
    return least
