"""The latency part of a collective: NCCL's formula, for the library's own constants and for measured ones alike.

Source: NVIDIA/nccl 2.30.7, src/graph/tuning.cc (formula and step counts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log2

from simulator.library import ByProtocol, Protocol
from simulator.tuning.shape import Shape

#: Place of a protocol in a ByProtocol.
INDEX: dict[Protocol, int] = {"LL": 0, "LL128": 1, "Simple": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Constants of the formula in seconds, by algorithm and protocol: once, per step in the node, per step between.

    overhead_s: least time of a ring's step inside a node of several; simple_multi_node: factor on the
    whole for a ring all-reduce with Simple over several nodes.
    """

    base: Mapping[str, ByProtocol]
    intra: Mapping[str, ByProtocol]
    net: Mapping[str, ByProtocol]
    overhead_s: float = 0.0
    simple_multi_node: float = 1.0


def latency_s(op: str, algorithm: str, protocol: Protocol, shape: Shape, steps: Steps) -> float:
    """Seconds before the last byte could arrive if bytes took no time. ``algorithm`` in this project's names."""
    at = INDEX[protocol]
    n, nodes, per_node = shape.num_ranks, shape.num_nodes, shape.ranks_per_node
    base = steps.base[algorithm][at]
    depth = floor(log2(nodes))
    if algorithm == "pat":
        return base + depth * steps.net["pat"][at] + n * steps.intra["pat"][at]
    if algorithm == "nvls":
        return base + steps.intra["nvls"][at] + (steps.net["nvls"][at] if nodes > 1 else 0.0)
    if algorithm == "nvls_tree":
        return base + steps.intra["nvls_tree"][at] + 2 * depth * steps.net["nvls_tree"][at]
    intra, net = steps.intra[algorithm][at], steps.net[algorithm][at]
    if algorithm == "double_tree":
        return base + 2 * ((per_node - 1) * intra + depth * net)
    net = steps.net["double_tree"][at] if per_node == 1 else net
    slower = op == "all_reduce" and protocol == "Simple" and nodes > 1
    return (base + _ring_s(op, protocol, shape, intra, net, steps)) * (steps.simple_multi_node if slower else 1.0)


def _ring_s(op: str, protocol: Protocol, shape: Shape, intra: float, net: float, steps: Steps) -> float:
    """Steps of a ring; a chunk passes from node to node once (twice in an all-reduce) on its way round."""
    n, nodes = shape.num_ranks, shape.num_nodes
    if op in {"broadcast", "reduce"}:
        return n * intra if nodes == 1 else n * intra + nodes * net
    rounds = 2 if op == "all_reduce" else 1
    between = rounds * (nodes - 1) if nodes > 1 else 0
    least = 0.0 if nodes == 1 else steps.overhead_s * (3 if protocol == "Simple" else 1)
    return (rounds * (n - 1) - between) * max(intra, least) + between * net
