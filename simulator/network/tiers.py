"""A network in a few numbers: its tiers from HBM outwards, and its bisection bandwidth. Per direction, bytes/s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from simulator.device import DeviceSpec
from simulator.errors import UnsupportedError
from simulator.network.graph import Ints, Network
from simulator.network.routing.wiring import mix, wiring

TITLES = {
    "hbm": "device memory (HBM)",
    "uniform": "GPU to ideal switch",
    "nvlink": "GPU to NVSwitch",
    "nvlink-bridge": "NVLink bridge between two GPUs",
    "xgmi": "GPU to GPU (xGMI)",
    "ici": "chip to chip (ICI)",
    "pcie": "GPU on PCIe",
    "pcie-up": "PCIe switch to socket",
    "socket": "socket to socket",
    "pcie-nic": "PCIe to the NIC",
    "nic": "NIC to leaf switch",
    "leaf-spine": "leaf to spine switch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """All links of one kind. ``links`` counts directions; rates are per direction.

    ``nominal_bytes_per_s`` and ``usable_bytes_per_s`` are of one link; ``gpu_bytes_per_s`` is the
    nominal rate that each GPU has of the tier when all send at once; ``flop_per_byte`` the FLOP
    (bf16, dense peak) a GPU does while one byte moves at that rate, None without a device.
    """

    name: str
    title: str
    links: int
    nominal_bytes_per_s: float
    usable_bytes_per_s: float
    gpu_bytes_per_s: float
    latency_s: float
    flop_per_byte: float | None
    source: str


def tiers(network: Network, device: DeviceSpec | None) -> tuple[Tier, ...]:
    """The tiers of ``network`` from the GPU outwards, after the device's own memory where a device is given.

    flop_per_byte = peak / rate: H100 HBM 989.4e12 / 3.35e12 = 295, 400 Gb/s InfiniBand 989.4e12 / 50e9 = 19,788.
    """
    peak = None if device is None else peak_flop_per_s(device)
    found: list[Tier] = []
    if device is not None:
        rate = device.memory_bandwidth
        found.append(Tier(
            name="hbm", title=TITLES["hbm"], links=network.num_gpus, nominal_bytes_per_s=rate,
            usable_bytes_per_s=rate * device.efficiency.memory.share, gpu_bytes_per_s=rate, latency_s=0.0,
            flop_per_byte=None if peak is None else peak / rate, source=device.source,
        ))  # fmt: skip
    for name, edges in _edges_by_tier(network).items():
        data, share = edges[0][2], _gpu_share(network, edges)
        if name == "leaf-spine":  # a leaf may have more uplinks than its NICs can fill
            share = min([share, *(tier.gpu_bytes_per_s for tier in found if tier.name == "nic")])
        found.append(Tier(
            name=name, title=TITLES.get(name, name), links=len(edges), nominal_bytes_per_s=data["nominal_bytes_per_s"],
            usable_bytes_per_s=data["bytes_per_s"], gpu_bytes_per_s=share, latency_s=data["latency_s"],
            flop_per_byte=None if peak is None else peak / share, source=data["source"],
        ))  # fmt: skip
    return tuple(found)


def peak_flop_per_s(device: DeviceSpec) -> float:
    """Dense bf16 peak, or fp16 on devices older than bf16."""
    try:
        return device.peak_flop_per_s("bf16")
    except UnsupportedError:
        return device.peak_flop_per_s("fp16")


Edges = list[tuple[str, str, dict[str, Any]]]


def _edges_by_tier(network: Network) -> dict[str, Edges]:
    """Edges by tier, the tiers in order of the levels they join."""
    level = network.graph.nodes(data="level")
    grouped: dict[str, Edges] = {}
    for a, b, data in network.graph.edges(data=True):
        grouped.setdefault(data["tier"], []).append((a, b, data))
    return dict(sorted(grouped.items(), key=lambda item: min((level[b], level[a]) for a, b, _ in item[1])))


def _gpu_share(network: Network, edges: Edges) -> float:
    """Of links at GPUs: all links of the best connected GPU. Of others: all links upwards, divided by the GPUs."""
    nodes = network.graph.nodes
    of_gpu: dict[str, float] = {}
    upwards = 0.0
    for a, b, data in edges:
        rate = float(data["nominal_bytes_per_s"])
        if nodes[a]["kind"] == "gpu" and nodes[b]["role"] != "nic":
            of_gpu[a] = of_gpu.get(a, 0.0) + rate
        elif nodes[a]["level"] < nodes[b]["level"]:
            upwards += rate
    return max(of_gpu.values()) if of_gpu else (upwards / network.num_gpus)


def bisection_bytes_per_s(network: Network) -> float:
    """What the first half of the GPUs (by rank) can send to the other half at once: the minimum cut, usable rates.

    With an odd number the smaller half sends. Exact: places that look alike (the coarsest equitable
    partition) are merged and their links added up, which keeps the maximum flow's value (averaging a
    flow over a class is again a flow), and the small graph that is left goes to networkx. 0 for one GPU.
    """
    if network.num_gpus < 2:
        return 0.0
    places = wiring(network)
    colour = np.zeros(places.level.size, dtype=np.int64)
    half = network.num_gpus // 2
    colour[places.gpu[:half]], colour[places.gpu[half:]] = 1, 2
    classes = _equitable(colour, places.tail, places.head, network.capacity_bytes_per_s)
    capacity: dict[tuple[int, int], float] = {}
    keys = classes[places.tail] * (int(classes.max()) + 1) + classes[places.head]
    for key, total in zip(*_sums(keys, network.capacity_bytes_per_s), strict=True):
        capacity[divmod(int(key), int(classes.max()) + 1)] = float(total)
    flow = nx.DiGraph()
    flow.add_edges_from((a, b, {"capacity": round(total)}) for (a, b), total in capacity.items() if a != b)
    for group in np.unique(classes[places.gpu[:half]]).tolist():
        flow.add_edge("first", group)
    for group in np.unique(classes[places.gpu[half:]]).tolist():
        flow.add_edge(group, "second")
    return float(nx.maximum_flow_value(flow, "first", "second"))


def _sums(keys: Ints, values: np.ndarray) -> tuple[Ints, np.ndarray]:
    unique, where = np.unique(keys, return_inverse=True)
    return unique, np.bincount(where, weights=values)


def _equitable(colour: Ints, tail: Ints, head: Ints, capacity: np.ndarray) -> Ints:
    """Refine ``colour`` until all places of a class have the same links to each class (cables are two-way)."""
    rate = np.unique(capacity, return_inverse=True)[1].astype(np.int64)
    count = int(colour.max()) + 1
    while True:
        seen = np.zeros(colour.size, dtype=np.int64)
        with np.errstate(over="ignore"):
            np.add.at(seen, tail, mix(colour[head], rate))
        colour = np.unique(np.stack([colour, seen]), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
        if int(colour.max()) + 1 == count:
            return colour
        count = int(colour.max()) + 1
