"""Coflows: a whole collective as one activity, a latency part and bytes on links.

Coflows that overlap share links max-min (``sharing``). ``maker`` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulator.schedule import Floats, Ints
from simulator.timeline import CollectiveCost


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coflow:
    """latency_s: before bytes flow. work_s: seconds of full-speed transfer.

    links: (num_used,) links that carry any of it, ascending. carried_bytes, asked: (num_used,) bytes on each, and
    bytes/s that it asks of each at full speed, the mean over ``work_s``. num_links: of the network.
    """

    latency_s: float
    work_s: float
    links: Ints
    carried_bytes: Floats
    asked: Floats
    num_links: int
    cost: CollectiveCost

    @property
    def link_bytes(self) -> Floats:
        """(num_links,) bytes carried."""
        return self._on_all(self.carried_bytes)

    @property
    def asked_bytes_per_s(self) -> Floats:
        """(num_links,) what it asks of each link at full speed."""
        return self._on_all(self.asked)

    def _on_all(self, values: Floats) -> Floats:
        spread = np.zeros(self.num_links)
        spread[self.links] = values
        return spread


def make_coflow(
    cost: CollectiveCost, *, latency_s: float, work_s: float, link_bytes: Floats, inflation: float = 1.0
) -> Coflow:
    """link_bytes: (num_links,) data on each link. inflation: bytes asked of the links per byte of data."""
    links = np.flatnonzero(link_bytes)
    carried = link_bytes[links]
    asked = carried * inflation / work_s if work_s > 0 else np.zeros(len(links))
    return Coflow(
        latency_s=latency_s, work_s=work_s, links=links, carried_bytes=carried, asked=asked, num_links=len(link_bytes),
        cost=cost,
    )  # fmt: skip


def repeated(one: Coflow, count: int) -> Coflow:
    """``count`` equal coflows, each of which starts when the one before it is over."""
    if count == 1:
        return one
    cost = one.cost
    return replace(
        one, latency_s=one.latency_s * count, work_s=one.work_s * count, carried_bytes=one.carried_bytes * count,
        cost=replace(
            cost, num_steps=cost.num_steps * count, num_messages=cost.num_messages * count,
            sent_bytes_per_rank=cost.sent_bytes_per_rank * count, alone_s=cost.alone_s * count,
            latency_s=cost.latency_s * count, busiest_s={tier: s * count for tier, s in cost.busiest_s.items()},
        ),
    )  # fmt: skip
