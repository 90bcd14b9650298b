"""The time that runs really show for a library's collective, from constants by generation and by fabric.

time = latency + transfer. The latency is NCCL's formula with measured constants; the transfer is what the busiest link
needs for the bytes that the algorithm puts on it, over the share of its rate that protocol and size reach. So a slow
NIC, an oversubscribed spine or fewer NICs than GPUs slow a collective as they do any other traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, floor, log, log2

from simulator.library import Measured, OnFabric, OnNode, Protocol, Ramp
from simulator.tuning.latency import INDEX, Steps, latency_s
from simulator.tuning.shape import Shape

#: Operations made of sends and receives, one per peer: the library has no algorithm and no cost model for them.
POINT_TO_POINT = frozenset({"all_to_all", "gather", "scatter", "send_recv", "send"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds before bytes flow and seconds of transfer. ``inflation``: bytes on the wire per byte of the message's
    data, flags of the protocol included.
    """

    latency_s: float
    transfer_s: float
    inflation: float

    @property
    def time_s(self) -> float:
        return self.latency_s + self.transfer_s


def on_node(shape: Shape, measured: Measured) -> OnNode:
    """Constants of the group's GPUs."""
    return measured.generations[measured.family.get(shape.generation, shape.generation)]


def measured_cost(
    op: str, algorithm: str, protocol: Protocol, size_bytes: float, link_s: float, shape: Shape, measured: Measured
) -> Cost:
    """Cost of one collective. ``link_s``: what its busiest link needs for its bytes at the link's full rate."""
    node, fabric = on_node(shape, measured), measured.fabrics[shape.fabric]
    peers = op in POINT_TO_POINT
    ramps = node.ramps if shape.num_nodes == 1 else fabric.ramps
    ramp = ramps["p2p" if peers else algorithm if protocol == "Simple" else protocol]
    at_rate = max(
        link_s / node.rate[INDEX[protocol]], _ll_s(op, protocol, size_bytes, shape, node),
        _nvls_s(op, algorithm, size_bytes, shape, node),
    )  # fmt: skip
    pair = node.pair_rate if shape.num_ranks == 2 and shape.num_nodes == 1 else 1.0
    transfer = at_rate / ramp_share(ramp, at_rate) / pair
    if peers:
        latency = _peers_s(op, shape, node, fabric)
    else:
        latency = latency_s(op, algorithm, protocol, shape, _steps(shape, node, fabric))
        messages = _messages_s(op, algorithm, size_bytes, shape, fabric)
        if algorithm == "ring" and protocol == "Simple":  # chunks are large enough to hide the next message's start
            transfer = max(transfer, messages - latency)
        else:
            latency = max(latency, messages) if algorithm == "ring" else latency + messages
    return Cost(latency_s=latency, transfer_s=transfer, inflation=1 / node.rate[INDEX[protocol]])


def _steps(shape: Shape, node: OnNode, fabric: OnFabric) -> Steps:
    return Steps(base=node.base, intra=node.nvlink if shape.link == "nvlink" else node.pcie, net=fabric.net)


def ramp_share(ramp: Ramp, full_rate_s: float) -> float:
    """Share of the full rate that a transfer reaches: a power of its time between points, flat outside.

    So the time that it really takes rises with its bytes wherever it does from point to point.
    """
    return exp(on_log_scale([(seconds, log(share)) for seconds, share in ramp], full_rate_s))


def on_log_scale(points: Sequence[tuple[float, float]], at: float) -> float:
    """Value at ``at`` > 0 of points with ascending places: linear in the logarithm of the place, flat outside."""
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1:
            return y0 + (y1 - y0) * log(at / x0) / log(x1 / x0)
    return points[-1][1]


def _bus_bytes(op: str, size_bytes: float, shape: Shape) -> float:
    n = shape.num_ranks
    return size_bytes * (2 * (n - 1) / n if op == "all_reduce" else (n - 1) / n)


def _ll_s(op: str, protocol: Protocol, size_bytes: float, shape: Shape, node: OnNode) -> float:
    """LL moves flags with each word: the GPU's stores limit it before fast links do."""
    return _bus_bytes(op, size_bytes, shape) / node.ll_cap if protocol == "LL" else 0.0


def _nvls_s(op: str, algorithm: str, size_bytes: float, shape: Shape, node: OnNode) -> float:
    """Multicast loads and stores run below the links' rate: each GPU's bytes through its switch, all of its owner's
    part twice, at ``nvls_rate``; and a bus rate that large domains do not exceed.
    """
    if node.nvls_rate is None or algorithm not in {"nvls", "nvls_tree"}:
        return 0.0
    port_bytes = size_bytes * (1 + 1 / shape.ranks_per_node if op == "all_reduce" else 1)
    capped = _bus_bytes(op, size_bytes, shape) / node.nvls_cap if node.nvls_cap else 0.0
    return max(port_bytes / node.nvls_rate, capped)


def _messages_s(op: str, algorithm: str, size_bytes: float, shape: Shape, fabric: OnFabric) -> float:
    """Least time for the messages that follow each other on the network: a ring's steps, the hops of a tree."""
    if shape.num_nodes == 1 or op in {"broadcast", "reduce"}:
        return 0.0
    ring = algorithm == "ring"
    message = size_bytes / (shape.num_ranks if ring else 1) / shape.nics
    large = fabric.rendezvous is not None and message > fabric.rendezvous
    if ring:
        steps = (2 if op == "all_reduce" else 1) * (shape.num_ranks - 1)
        return steps * (fabric.rendezvous_gap if large else fabric.gap)
    return 2 * floor(log2(shape.num_nodes)) * fabric.rendezvous_gap if large else 0.0


def _peers_s(op: str, shape: Shape, node: OnNode, fabric: OnFabric) -> float:
    """Sends and receives to all peers are issued one after the other, those over the network by the proxy."""
    at = INDEX["Simple"]
    local = (node.nvlink if shape.link == "nvlink" else node.pcie)["p2p"][at]
    near = min(shape.ranks_per_node, shape.num_ranks) - 1
    far = shape.num_ranks - 1 - near
    if op == "send_recv":
        near, far = (1.0, 0.0) if shape.num_nodes == 1 else (0.0, 1.0)
    return node.base["p2p"][at] + near * local + far * fabric.net["p2p"][at]
