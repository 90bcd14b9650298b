"""Faults: a network with some links slower or gone, as a new network; the one given is not touched.

Limits: a fault holds for the whole run. Collectives still split their bytes evenly over all channels, as NCCL does
when its NICs look alike, so that one slow NIC sets the pace; a GPU whose own NIC or NVLink is gone takes the shortest
other way, through a neighbour of its host if nothing else leads on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.errors import NetworkError
from simulator.fault import Fault
from simulator.network.graph import Floats, Ints, Network, rewired
from simulator.problems import nearest


def with_faults(network: Network, faults: Sequence[Fault], names: Sequence[str] | None = None) -> Network:
    """``network`` with every fault applied; itself where there is none.

    names: what to call each fault in an error, ``faults[0]`` and so on by default. Raises NetworkError for a fault
    that hits nothing, or when the links that are left do not join all GPUs.
    """
    if not faults:
        return network
    share = np.ones(len(network.link_names))
    for number, fault in enumerate(faults):
        name = names[number] if names is not None else f"faults[{number}]"
        try:
            hit = _hit(network, fault)
        except NetworkError as error:
            raise NetworkError(f"{name}: {error}") from None
        share[hit] *= 0.0 if fault.removed else (fault.bandwidth or 1.0)
    apart = _cut_off(network, share)
    if apart:
        gone = ", ".join(str(fault) for fault in faults if fault.removed)
        more = f" and {len(apart) - 4} more" if len(apart) > 4 else ""
        raise NetworkError(
            f"faults: without {gone} no path of '{network.name}' leads from {network.gpus[0]} to "
            f"{', '.join(apart[:4])}{more}; leave those GPUs out, or keep one of the links"
        )
    return rewired(network, share)


def _hit(network: Network, fault: Fault) -> Ints:
    """Links of a fault, both directions. Raises NetworkError where there is none."""
    hit = _links_of_node(network, fault.node) if fault.node is not None else _links_by_name(network, fault)
    if fault.tier is not None:
        edges = network.graph.edges
        tiers = [edges[network.link_names[link]]["tier"] for link in hit.tolist()]
        if fault.tier not in tiers:
            known = list(dict.fromkeys(tiers))
            alike = [tier for tier in known if abs(len(tier) - len(fault.tier)) < 2]  # 'nik' is 'nic', not 'nvlink'
            hint = nearest(fault.tier, alike) or nearest(fault.tier, known)
            raise NetworkError(f"tier '{fault.tier}': the links there are {', '.join(known)}{hint}")
        hit = hit[np.array([tier == fault.tier for tier in tiers])]
    return hit


def _links_of_node(network: Network, node: int) -> Ints:
    if node >= network.num_nodes:
        raise NetworkError(f"node {node}: '{network.name}' has nodes 0 to {network.num_nodes - 1}")
    hosts = network.graph.nodes(data="node")
    own = {name for name, host in hosts if host == node}
    ends = network.link_names
    return np.array([link for link, (a, b) in enumerate(ends) if a in own or b in own], dtype=np.int64)


def _links_by_name(network: Network, fault: Fault) -> Ints:
    graph = network.graph
    names: tuple[str, ...] = fault.link or (str(fault.part),)
    for name in names:
        if name not in graph:
            raise NetworkError(f"no part is named '{name}'{nearest(name, graph) or _examples(network)}")
    if fault.link is None:
        if fault.removed and graph.nodes[names[0]]["kind"] == "gpu" and fault.tier is None:
            raise NetworkError(f"'{names[0]}' is a GPU; leave it out of the job instead of removing it")
        return np.array([link for link, ends in enumerate(network.link_names) if names[0] in ends], dtype=np.int64)
    if not graph.has_edge(*names):
        joined = ", ".join(list(graph.successors(names[0]))[:4])
        raise NetworkError(f"no link joins '{names[0]}' and '{names[1]}'; '{names[0]}' is linked to {joined}")
    forward = network.link_names.index(fault.link)
    return np.array([forward, forward ^ 1], dtype=np.int64)


def _examples(network: Network) -> str:
    """A few names, one per role, so that the scheme can be read off."""
    by_role = {role: name for name, role in reversed(list(network.graph.nodes(data="role")))}
    return f"; parts are named like {', '.join(by_role[role] for role in by_role)}"


def _cut_off(network: Network, share: Floats) -> list[str]:
    """GPUs that links with something left do not join to the first one."""
    if share.all():
        return []
    onward: dict[str, list[str]] = {}
    for (a, b), left in zip(network.link_names, share.tolist(), strict=True):
        if left:
            onward.setdefault(a, []).append(b)
    found, frontier = {network.gpus[0]}, [network.gpus[0]]
    while frontier:
        ahead = [b for a in frontier for b in onward.get(a, ())]
        frontier = [b for b in dict.fromkeys(ahead) if b not in found]
        found.update(frontier)
    return [gpu for gpu in network.gpus if gpu not in found]
