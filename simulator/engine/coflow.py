"""Coflows: a whole collective as one activity, a latency part and bytes on links.

Coflows that overlap share links max-min: all progress at full speed until a link is full, then those that cross it slow
down together. ``maker`` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.schedule import Floats
from simulator.timeline import CollectiveCost

_SAME = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coflow:
    """latency_s: before bytes flow. work_s: seconds of full-speed transfer. link_bytes: (num_links,) carried.

    asked_bytes_per_s: (num_links,) what it asks of each link at full speed, the mean over ``work_s``.
    """

    latency_s: float
    work_s: float
    link_bytes: Floats
    asked_bytes_per_s: Floats
    cost: CollectiveCost


def speeds(coflows: list[Coflow], capacity: Floats) -> list[float]:
    """Progress of each coflow between 0 and 1, by progressive filling over the links that they share."""
    speed = np.zeros(len(coflows))
    open_flows = np.ones(len(coflows), dtype=bool)
    asked = np.array([c.asked_bytes_per_s for c in coflows])
    left = capacity.astype(np.float64).copy()
    level = 0.0
    while open_flows.any():
        demand = asked[open_flows].sum(axis=0)
        room = np.full(len(left), np.inf)
        np.divide(left, demand, out=room, where=demand > 0)
        step = min(float(room.min()), 1.0 - level)
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
