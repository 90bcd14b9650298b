"""Max-min fair rates of flows on links, by progressive filling. Pure; knows no events.

All flows grow at the same pace until a link is full; the flows that cross it stop there, the rest go on
(Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2). Every flow so crosses a full link, no link
is above its capacity, and no flow can gain without a slower one losing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Floats, Ints

#: Two links count as full together when their shares differ by less than this, so that rounding
#: does not split one bottleneck into many rounds.
_SAME = 1e-12


def max_min(routes: Ints, capacity: Floats) -> Floats:
    """Rates in bytes/s of flows, shape (num_flows,).

    routes: (num_flows, hops) link ids; shorter routes are filled up with a link of infinite capacity.
    capacity: (num_links,) in bytes/s.
    """
    flows = len(routes)
    used, inverse = np.unique(routes, return_inverse=True)
    links: Ints = inverse.reshape(routes.shape)
    left = capacity[used].astype(np.float64)
    rates = np.zeros(flows)
    open_flows: NDArray[np.bool_] = np.ones(flows, dtype=bool)
    while open_flows.any():
        crossing = np.bincount(links[open_flows].ravel(), minlength=len(used))
        share = np.full(len(used), np.inf)
        np.divide(left, crossing, out=share, where=crossing > 0)
        level = share.min()
        full = share <= level * (1 + _SAME)
        stopped = open_flows & full[links].any(axis=1)
        rates[stopped] = level
        taken = np.bincount(links[stopped].ravel(), minlength=len(used))
        left = np.maximum(left - level * taken, 0.0)
        open_flows &= ~stopped
    return rates


def solo(routes: Ints, capacity: Floats) -> Floats:
    """Rate of each flow when it is alone: the smallest capacity on its route, shape (num_flows,)."""
    return np.asarray(capacity[routes].min(axis=1), dtype=np.float64)
