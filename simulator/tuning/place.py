"""Where a group of ranks sits on a network, as its communication library sees it."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from simulator.library import NcclLibrary
from simulator.network.graph import Ints, Network
from simulator.tuning.shape import Shape


def shape_of(network: Network, gpus: Ints) -> Shape | None:
    """Shape of the group on ``gpus`` (num_ranks,), read off its first node; None where the network's library has no
    cost model for it: another kind of library, GPUs of no known generation, or a single rank.
    """
    library = network.library
    if not isinstance(library, NcclLibrary) or len(gpus) < 2 or network.generation is None:
        return None
    measured = library.measured
    if measured.family.get(network.generation, network.generation) not in measured.generations:
        return None
    if network.fabric not in measured.fabrics:
        return None
    domains, counts = np.unique(network.domain_of_gpu[gpus], return_counts=True)
    first = gpus[network.domain_of_gpu[gpus] == domains[int(np.argmax(counts))]]
    names = [network.gpus[gpu] for gpu in first.tolist()]
    per_gpu = _inside(network, names)
    switched = all(_on_switch(network, network.gpus[gpu]) for gpu in gpus.tolist())
    fewest = gpus[network.domain_of_gpu[gpus] == domains[int(np.argmin(counts))]]
    nics, rate = _nics(network, [network.gpus[gpu] for gpu in fewest.tolist()]) if len(domains) > 1 else (1, per_gpu)
    return Shape(
        num_ranks=len(gpus), num_nodes=len(domains), ranks_per_node=len(gpus) / len(domains),
        link="nvlink" if switched or _meshed(network, names) else "pcie", nvswitch=switched, nics=nics,
        nic_bytes_per_s=rate, gpu_bytes_per_s=per_gpu, generation=network.generation, fabric=network.fabric,
        cpu=network.cpu, even=_even(network.domain_of_gpu[gpus]),
    )  # fmt: skip


def _even(domains: Ints) -> bool:
    """Whether every domain holds equally many ranks, one after the other."""
    each = len(domains) // max(1, len(np.unique(domains)))
    return len(domains) % each == 0 and bool((domains.reshape(-1, each) == domains[::each, None]).all())


def _on_switch(network: Network, name: str) -> bool:
    """Whether a GPU hangs on an NVSwitch."""
    return any(network.graph.nodes[place]["role"] == "nvswitch" for place in network.graph[name])


def _inside(network: Network, names: list[str]) -> float:
    """The nominal rate of one GPU's links to the others of its node."""
    graph = network.graph
    ways = graph[names[0]]
    for place, link in ways.items():
        if graph.nodes[place]["role"] == "nvswitch":
            return float(link["nominal_bytes_per_s"])
    direct = sum(float(link["nominal_bytes_per_s"]) for place, link in ways.items() if place in names)
    return direct or max(float(link["nominal_bytes_per_s"]) for link in ways.values())


def _meshed(network: Network, names: list[str]) -> bool:
    """Whether every two of several GPUs have a link of their own; a lone GPU of a node counts by its kind of links."""
    if len(names) > 1:
        return all(network.graph.has_edge(*pair) for pair in permutations(names, 2))
    return any(network.graph.nodes[place]["kind"] == "gpu" for place in network.graph[names[0]])


def _nics(network: Network, names: list[str]) -> tuple[int, float]:
    """NICs that the GPUs of a node have among them (at least one), and the nominal rate of one."""
    graph = network.graph
    near = {place for name in names for place in graph[name] if graph.nodes[place]["kind"] == "nic"}
    links = (link for _, _, link in graph.edges(near or None, data=True))
    rates = [link["nominal_bytes_per_s"] for link in links if link["tier"] == "nic"]
    used = len(near) or min(max(1, network.rails), len(names))
    # on a network without cards a GPU's own link is what leaves the node
    own = max(link["nominal_bytes_per_s"] for link in graph[names[0]].values())
    return used, float(max(rates, default=own))
