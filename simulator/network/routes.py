"""Which links a message from one GPU to another crosses. Deterministic: the same pair takes the same way.

Limits: one path per pair of GPUs (where packets are sprayed, one spine with all cables stands for all spines, see
``builders.fabric``), and up-down routing knows in-host parts, leaves and one tier of spines, each spine joined to
every leaf; only past removed links is the shortest way searched pair by pair. Equal-cost choices are made by the
destination, or by a 64-bit mix of (source, destination), never by Python's ``hash``.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ports:
    """Where GPUs hang on NVSwitches: ``link`` (num_gpus,) up to the switch, ``switch`` (num_gpus,) its number.

    Both -1 for a GPU on none. The link down is ``link ^ 1``.
    """

    link: Ints
    switch: Ints


class Routes:
    """Routes of one network. Single routes are cached; ``table`` is one pass over arrays."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._router = ROUTINGS[network.routing](wiring(network))
        self._cache: dict[tuple[int, int], tuple[int, ...]] = {}
        self._ports: list[Ports] = []

    @property
    def name(self) -> str:
        """The network's name, for error texts."""
        return self._network.name

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
        latency, rate = np.zeros(src.size), np.full(src.size, np.inf)
        for hop in range(padded.shape[1]):  # numpy reduces a short last axis slowly
            crossed = used[:, hop]
            latency += np.where(crossed, self._network.latency_s[padded[:, hop]], 0.0)
            np.minimum(rate, self._network.capacity_bytes_per_s[padded[:, hop]], out=rate, where=crossed)
        return RouteTable(
            offsets=offsets, links=padded[used], latency_s=latency + self._network.message_overhead_s,
            solo_bytes_per_s=rate,
        )  # fmt: skip

    def ports(self) -> Ports:
        """The NVSwitch port of every GPU; looked up once."""
        if not self._ports:
            self._ports.append(_ports(self._network))
        return self._ports[0]


def _ports(network: Network) -> Ports:
    roles = network.graph.nodes(data="role")
    switches = {name: i for i, name in enumerate(name for name, role in roles if role == "nvswitch")}
    number = {name: i for i, name in enumerate(network.gpus)}
    link, switch = np.full((2, len(network.gpus)), -1, dtype=np.int64)
    for i, (tail, head) in enumerate(network.link_names):
        if head in switches and tail in number:
            link[number[tail]], switch[number[tail]] = i, switches[head]
    return Ports(link=link, switch=switch)
