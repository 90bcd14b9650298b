"""Which links a message from one GPU to another crosses. Deterministic: the same pair takes the same way.

Limits: one path per pair of GPUs (no packet spraying), and up-down routing knows in-host parts, leaves
and one tier of spines, each spine joined to every leaf. Equal-cost choices are made by a
64-bit mix of (source, destination), never by Python's ``hash``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.network.graph import Floats, Ints, Network
from simulator.network.routing import ROUTINGS
from simulator.network.routing.wiring import wiring


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RouteTable:
    """Routes of m transfers: the links of transfer i are ``links[offsets[i]:offsets[i + 1]]``.

    ``latency_s`` (m,) = link latencies + the library's overhead per message; ``solo_bytes_per_s``
    (m,) = the slowest link's rate: what the transfer gets when it is alone.
    """

    offsets: Ints
    links: Ints
    latency_s: Floats
    solo_bytes_per_s: Floats


class Routes:
    """Routes of one network. Single routes are cached; ``table`` is one pass over arrays."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._router = ROUTINGS[network.routing](wiring(network))
        self._cache: dict[tuple[int, int], tuple[int, ...]] = {}

    def route(self, src_gpu: int, dst_gpu: int) -> tuple[int, ...]:
        """Link ids from ``src_gpu`` to ``dst_gpu``, in order."""
        key = (src_gpu, dst_gpu)
        if key not in self._cache:
            links = self.table(np.array([src_gpu]), np.array([dst_gpu])).links
            self._cache[key] = tuple(int(link) for link in links)
        return self._cache[key]

    def table(self, src: Ints, dst: Ints) -> RouteTable:
        """Routes of many pairs at once; ``src`` and ``dst`` are (m,) GPU numbers, pairwise different."""
        src, dst = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        assert src.shape == dst.shape
        assert not np.any(src == dst), "a GPU needs no route to itself"
        padded = self._router(src, dst)
        used = padded >= 0
        offsets = np.zeros(src.size + 1, dtype=np.int64)
        np.cumsum(used.sum(axis=1), out=offsets[1:])
        latency = np.where(used, self._network.latency_s[padded], 0.0)
        rate = np.where(used, self._network.capacity_bytes_per_s[padded], np.inf)
        return RouteTable(
            offsets=offsets,
            links=padded[used],
            latency_s=latency.sum(axis=1) + self._network.message_overhead_s,
            solo_bytes_per_s=rate.min(axis=1, initial=np.inf),
        )
