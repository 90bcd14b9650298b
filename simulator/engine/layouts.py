"""Where a group sits, in the integers that an algorithm may know, and which algorithms then make sense."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from simulator.collectives import algorithms_of
from simulator.collectives.layout import Layout
from simulator.engine.switches import on_nvswitches
from simulator.network.graph import Network
from simulator.schedule import Ints

#: 'direct' puts p**2 messages in one step; larger groups leave it out of 'auto'.
MAX_DIRECT_RANKS = 64
#: Operations in which 'direct' is p messages or fewer.
ONE_EACH = frozenset({"gather", "scatter", "send_recv", "send"})


def candidates(op: str, network: Network, gpus: Ints) -> tuple[str, ...]:
    """Algorithms that 'auto' tries: those that a library would run on such a network.

    Never the naive baseline, nor halving and doubling or the eager tree, which no GPU library has; the torus ring only
    on a torus; 'direct' where every pair of gpus of a node has a link of its own (over a switch no library reduces that
    way), and for all-to-all, gather, scatter, send_recv and send; PAT only with one rank on each of several nodes, as
    in NCCL; two levels only where there are two; NVLS only inside NVLink domains whose switches add, its tree only over
    several.
    """
    layout = layout_of(network, gpus)
    nodes, per_node = layout.grid
    left_out = {"naive", "halving_doubling", "eager_tree"}
    if not _adds_in_switches(network, gpus) or per_node == 1:
        left_out |= {"nvls", "nvls_tree"}
    if nodes == 1:
        left_out.add("nvls_tree")
    if layout.torus_shape is None:
        left_out.add("torus")
    if nodes == 1 or per_node > 1:
        left_out.add("pat")
    if nodes == 1 or per_node == 1:
        left_out |= {"hierarchical", "rail"}
    if op in {"all_reduce", "reduce_scatter", "all_gather"} and not _meshed(network, gpus):
        left_out.add("direct")
    if op not in ONE_EACH and len(gpus) > MAX_DIRECT_RANKS:
        left_out.add("direct")
    return tuple(name for name in algorithms_of(op) if name not in left_out)


def _adds_in_switches(network: Network, gpus: Ints) -> bool:
    """Whether the gpus hang on NVSwitches that add: those of Hopper and later do (NCCL: compute capability 9).

    A network written out by hand names no GPU generation, so its NVSwitches do not.
    """
    return network.generation in {"hopper", "blackwell"} and on_nvswitches(network, gpus)


def _any_order(network: Network, gpus: Ints) -> bool:
    """Whether the GPUs of a node reach each other equally well in any order: by a switch, or each by its own link."""
    neighbours = network.graph.successors(network.gpus[gpus[0]])
    return any(network.graph.nodes[n]["role"] == "nvswitch" for n in neighbours) or _meshed(network, gpus)


def _meshed(network: Network, gpus: Ints) -> bool:
    """Whether every pair of gpus of the same node is joined by a link of its own, and there is such a pair.

    Looks at pairs inside nodes only, and stops at the first that lacks a link: a cluster has p**2 pairs.
    """
    inside: dict[int, list[str]] = {}
    for gpu, node in zip(gpus.tolist(), network.node_of_gpu[gpus].tolist(), strict=True):
        inside.setdefault(node, []).append(network.gpus[gpu])
    pairs = (pair for names in inside.values() for pair in permutations(names, 2))
    return any(len(names) > 1 for names in inside.values()) and all(network.graph.has_edge(*pair) for pair in pairs)


def layout_of(network: Network, gpus: Ints) -> Layout:
    """What an algorithm may know of a group: ranks per node, channels, torus shape. Integers only.

    A group with equally many ranks on each of several nodes uses one channel per NIC that its GPUs of a node have, so
    that every one carries its share, as NCCL's channels do: 4 on a p4d whose 8 GPUs share 4, 2 where 2 of 8 GPUs with
    a NIC each take part. But one ring where GPUs hang on PCIe, since each further order would cross the sockets more
    often. The GPUs of an NVLink domain are one node, be it a rack.
    """
    nodes = _domains(network)[gpus]
    changes = np.flatnonzero(np.diff(nodes)) + 1
    sizes = np.diff([0, *changes.tolist(), len(nodes)])
    together = len(sizes) > 1 and len(sizes) == len(set(nodes.tolist()))  # each node's ranks are neighbours
    even = together and len(set(sizes.tolist())) == 1
    one_node = len(sizes) == 1
    whole_torus = network.torus_shape if len(gpus) == network.num_gpus else None
    striped = together and network.rails > 0 and _any_order(network, gpus)
    doors = _doors(network, gpus, sizes.tolist()) if striped else None
    channels = min(_nics_per_node(network, gpus), len(doors or gpus)) if striped else 1
    return Layout(
        num_ranks=len(gpus), ranks_per_node=int(sizes[0]) if even else None,
        node_sizes=tuple(sizes.tolist()) if together and not even else None,
        channels=channels, doors=doors,
        torus_shape=whole_torus, torus_wrap=network.torus_wrap if whole_torus else None,
        meshed=(even or one_node) and network.torus_shape is None and _meshed(network, gpus),
    )  # fmt: skip


def _domains(network: Network) -> Ints:
    """The node of every GPU: what NVLink joins. On a torus the host, since all its chips are one domain."""
    return network.domain_of_gpu if network.torus_shape is None else network.node_of_gpu


def _doors(network: Network, gpus: Ints, sizes: list[int]) -> tuple[int, ...] | None:
    """Local ranks that have a NIC on every node; None where all that every node has do, or none does."""
    kind, graph = network.graph.nodes, network.graph
    has = [any(kind[n]["kind"] == "nic" for n in graph[network.gpus[gpu]]) for gpu in gpus.tolist()]
    if all(has) or not any(has):
        return None
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    common = [local for local in range(min(sizes)) if all(has[start + local] for start in starts)]
    return tuple(common) if 0 < len(common) < min(sizes) else None


def _nics_per_node(network: Network, gpus: Ints) -> int:
    """NICs that the GPUs of a node have among them, on the node with fewest: at most one per GPU, at least 1."""
    kind, successors = network.graph.nodes, network.graph.successors
    nics: dict[int, set[str]] = {}
    for gpu, node in zip(gpus.tolist(), _domains(network)[gpus].tolist(), strict=True):
        nics.setdefault(node, set()).update(n for n in successors(network.gpus[gpu]) if kind[n]["kind"] == "nic")
    return max(1, min(len(found) for found in nics.values()))
