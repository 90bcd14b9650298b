"""NCCL's own cost model: the bandwidth that it believes each algorithm and protocol to have, and so what it picks.

Source: NVIDIA/nccl 2.30.7, src/graph/tuning.cc and search.cc; constants in ``libraries/nccl.yaml``. Rates in bytes/s.
Algorithms go by this project's names: NCCL's Tree is ``double_tree``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2

from simulator.library import Caps, Choice, Protocol
from simulator.tuning.latency import INDEX, Steps, latency_s
from simulator.tuning.shape import Shape

#: Sizes below this have the first tree correction, each doubling the next (tuning.cc counts from 64 bytes).
_CORRECTION_BYTES = 64
#: Rings reach 92 % of the bus with LL128 and trees with anything; half the bytes of LL are flags.
_LL128_SHARE = 0.92
_TREE_SHARE = 0.92
#: A tree's LL costs 3.8 times its Simple; LL128 sends 120 of 128 bytes as data, less inside one node.
_TREE_LL = 3.8
_TREE_LL128 = (7 / 9, 15 / 16)
_PAT_SHARE = 0.75
#: A tree whose sends and receives to the network pass through one GPU.
_ONE_GPU_SHARE = 0.85
#: GPUs that one NVLS channel each pulls to, at most (NCCL_MAX_NVLS_ARITY, NVIDIA/nccl src/include/device.h).
MOST_HEADS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What NCCL's search of the machine finds: channels, each with a speed, and the same for NVLS in the node."""

    channels: int
    channel_bytes_per_s: float
    nvls_channels: int
    nvls_bytes_per_s: float

    @property
    def bus_bytes_per_s(self) -> float:
        return self.channels * self.channel_bytes_per_s


def caps_of(shape: Shape, choice: Choice) -> Caps:
    """The row of NCCL's tables for the GPUs of a group."""
    return choice.caps[choice.family.get(shape.generation, shape.generation)]


def graph_of(shape: Shape, choice: Choice) -> Graph:
    """Channels and speeds. In a node: what fills NVLink best from NCCL's list of speeds, most channels first. Between
    nodes: one channel per NIC, at the highest listed speed that the NIC has. NVLS in a node: every GPU pulls a channel,
    at most ``MOST_HEADS`` (search.cc forces as many channels), at a speed that the link of a GPU can carry once for
    each channel and once more for its own. Over several nodes: one per GPU, at most ``nvls_channels``.
    """
    caps = caps_of(shape, choice)
    total = shape.gpu_bytes_per_s * caps.nvlink_share if shape.link == "nvlink" else shape.gpu_bytes_per_s
    per_node = max(1, round(shape.ranks_per_node))
    if shape.num_nodes == 1:
        heads = min(per_node, MOST_HEADS)
        nvls = _highest(caps.channel_speeds, total / (heads + 1))
        count, speed = _filled(caps, total) if shape.link == "nvlink" else (1, _highest(caps.channel_speeds, total))
    else:
        heads = min(per_node, caps.nvls_channels)
        nvls = _highest(caps.channel_speeds, total / heads)
        count, speed = shape.nics, _highest(caps.net_speeds, shape.nic_bytes_per_s)
    return Graph(channels=count, channel_bytes_per_s=speed, nvls_channels=heads, nvls_bytes_per_s=nvls)


def _highest(speeds: tuple[float, ...], limit: float) -> float:
    return max((speed for speed in speeds if speed <= limit), default=min(speeds))


def _filled(caps: Caps, total: float) -> tuple[int, float]:
    """(channels, speed) with the most bytes/s within ``total``; the most channels where several are equal."""
    options = [(min(int(total // speed), caps.max_channels), speed) for speed in caps.channel_speeds if speed <= total]
    return max(options, key=lambda option: (option[0] * option[1], option[0]), default=(1, min(caps.channel_speeds)))


def protocols_of(algorithm: str, allowed: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
    """NVLS and PAT move data with Simple only."""
    return ("Simple",) if algorithm in {"nvls", "nvls_tree", "pat"} else allowed


def bandwidth(op: str, algorithm: str, protocol: Protocol, shape: Shape, choice: Choice) -> float:
    """Algorithm bandwidth that NCCL expects, before the correction of trees by size."""
    caps, graph = caps_of(shape, choice), graph_of(shape, choice)
    n = shape.num_ranks
    steps = {"all_reduce": 2 * (n - 1), "broadcast": n, "reduce": n}.get(op, n - 1)
    if algorithm == "ring":
        return _ring(protocol, shape, choice, graph) * n / steps
    if algorithm == "double_tree":
        return _tree(protocol, shape, choice, graph) / 2
    if algorithm == "pat":
        return graph.bus_bytes_per_s * _PAT_SHARE
    bus = _nvls(op, algorithm, shape, caps, graph)
    return bus * n / steps if op == "all_reduce" else bus


def _ring(protocol: Protocol, shape: Shape, choice: Choice, graph: Graph) -> float:
    bus, caps = graph.bus_bytes_per_s, caps_of(shape, choice)
    if protocol == "LL":
        return min(_ll_cap(shape, choice), bus / 2)
    return min(_LL128_SHARE * bus, graph.channels * caps.ring_ll128) if protocol == "LL128" else bus


def _tree(protocol: Protocol, shape: Shape, choice: Choice, graph: Graph) -> float:
    caps = caps_of(shape, choice)
    bus = min(_TREE_SHARE * graph.bus_bytes_per_s, graph.channels * caps.tree[shape.tier])
    if protocol == "LL":
        bus = min(bus / _TREE_LL, _ll_cap(shape, choice))
    if protocol == "LL128":
        share = _TREE_LL128[0] if shape.num_nodes == 1 else _TREE_LL128[1]
        bus = min(bus * share, graph.channels * caps.tree_ll128[shape.tier])
    return bus * (_ONE_GPU_SHARE if shape.ranks_per_node == 1 else 1.0)


def _ll_cap(shape: Shape, choice: Choice) -> float:
    """Over several nodes NCCL takes the row of the table by the CPU, not by the GPU."""
    caps = caps_of(shape, choice) if shape.num_nodes == 1 else choice.caps[choice.ll_multi_node[shape.cpu]]
    return caps.ll[shape.tier]


def _nvls(op: str, algorithm: str, shape: Shape, caps: Caps, graph: Graph) -> float:
    assert caps.nvls_efficiency is not None, "NVLS is legal only where its efficiency is known"
    channels = graph.nvls_channels
    per_channel = graph.nvls_bytes_per_s * caps.nvls_efficiency * (channels - 1) / channels
    per_node = shape.ranks_per_node
    per_channel *= 2 if op == "all_reduce" else (per_node - 1) / per_node
    if algorithm == "nvls_tree":
        assert caps.nvls_tree is not None
        between = graph.channel_bytes_per_s * (2 if shape.num_nodes == 2 else 1)
        return min(per_channel, between, caps.nvls_tree[shape.tier]) * graph.channels
    return per_channel * channels


def believed_s(op: str, algorithm: str, protocol: Protocol, size_bytes: float, shape: Shape, choice: Choice) -> float:
    """Seconds that NCCL expects for one collective; the least of all decides. Size as nccl-tests counts it."""
    rate = bandwidth(op, algorithm, protocol, shape, choice)
    if op == "all_reduce":
        rate *= _correction(algorithm, protocol, size_bytes, shape, choice)
    return latency_s(op, algorithm, protocol, shape, believed_steps(shape, choice)) + size_bytes / rate


def _correction(algorithm: str, protocol: Protocol, size_bytes: float, shape: Shape, choice: Choice) -> float:
    """What a tree's rate is scaled by at a size; 1 beyond the sizes of the table."""
    on_x86 = shape.cpu != "arm" and shape.generation in choice.corrected_on_x86.get(algorithm, ())
    curves = choice.tree_correction.get("double_tree" if on_x86 else algorithm)
    if curves is None or size_bytes < _CORRECTION_BYTES:
        return 1.0
    curve, place = curves[INDEX[protocol]], floor(log2(size_bytes / _CORRECTION_BYTES))
    return curve[place] if place < len(curve) else 1.0


def believed_steps(shape: Shape, choice: Choice) -> Steps:
    """The constants of the latency formula that hold for a group."""
    latency = choice.latency
    return Steps(
        base=latency.base, intra=latency.nvlink if shape.link == "nvlink" else latency.pcie, net=latency.net,
        overhead_s=choice.net_overhead[shape.cpu],
        simple_multi_node=caps_of(shape, choice).simple_multi_node,
    )  # fmt: skip
