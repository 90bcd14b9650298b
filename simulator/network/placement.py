"""Where ranks sit: which GPUs of a network a job holds, and how its ranks fall into groups that run at the same time.

Ranks fill node after node in the order given, so that neighbours in rank are neighbours in place, as with torchrun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulator.errors import NetworkError
from simulator.network.graph import Ints, Network
from simulator.problems import nearest


def place_ranks(
    network: Network, *, ranks: int | None = None, nodes: int | Sequence[int] | None = None,
    gpus_per_node: int | None = None,
) -> Ints:  # fmt: skip
    """The GPU that each rank sits on, (num_ranks,).

    nodes: how many hosts, from the first on, or which ones in which order; all by default. gpus_per_node: only the
    first so many of each, each with its own NIC. ranks: all that fit there by default. Raises NetworkError naming the
    argument.
    """
    hosts = _hosts(network, nodes)
    most = network.gpus_per_node
    if gpus_per_node is not None and not 1 <= gpus_per_node <= most:
        raise NetworkError(f"gpus_per_node: {gpus_per_node}: a node of '{network.name}' holds {most}")
    order = np.argsort(network.node_of_gpu, kind="stable")
    counts = np.bincount(network.node_of_gpu)
    first = np.cumsum(counts) - counts
    held = np.minimum(counts, gpus_per_node or most)
    places = np.concatenate([order[first[host] : first[host] + held[host]] for host in hosts])
    if ranks is not None and ranks > places.size:
        each = f" with {gpus_per_node} GPUs each" if gpus_per_node is not None else ""
        where = f"{len(hosts)} node{'s' if len(hosts) != 1 else ''}{each}"
        raise NetworkError(f"ranks: {ranks} ranks do not fit on {where}: {places.size} GPUs")
    chosen: Ints = places[:ranks].astype(np.int64)
    return chosen


def _hosts(network: Network, nodes: int | Sequence[int] | None) -> list[int]:
    last = network.num_nodes - 1
    if nodes is None:
        return list(range(last + 1))
    if isinstance(nodes, int):
        if not 1 <= nodes <= last + 1:
            raise NetworkError(f"nodes: {nodes}: '{network.name}' has {last + 1}")
        return list(range(nodes))
    if not nodes:
        raise NetworkError("nodes: the list is empty; name at least one node, such as [0, 1]")
    for node in nodes:
        if not 0 <= node <= last:
            raise NetworkError(f"nodes: {node}: '{network.name}' has nodes 0 to {last}")
    if len(set(nodes)) < len(nodes):
        twice = next(node for node in nodes if list(nodes).count(node) > 1)
        raise NetworkError(f"nodes: {twice} is listed twice")
    return list(nodes)


def split(network: Network, gpus: Ints, size: int, by: str = "block") -> Ints:
    """The ranks on ``gpus`` as groups of ``size``, (num_groups, size) GPU numbers. ``by`` is a key of SPLITS.

    Raises NetworkError when the groups do not come out even.
    """
    if by not in SPLITS:
        raise NetworkError(f"groups: by '{by}': expected one of {', '.join(SPLITS)}{nearest(by, SPLITS)}")
    if size < 1 or gpus.size % size:
        raise NetworkError(f"groups: {gpus.size} ranks do not split into groups of {size}")
    return SPLITS[by](network, gpus, size)


def _block(network: Network, gpus: Ints, size: int) -> Ints:
    """Ranks 0 .. size - 1, then the next: as tensor parallelism takes them."""
    return gpus.reshape(-1, size)


def _stride(network: Network, gpus: Ints, size: int) -> Ints:
    """Every (number of groups)th rank: as data parallelism takes them beside tensor parallelism."""
    return np.ascontiguousarray(gpus.reshape(size, -1).T)


def _rail(network: Network, gpus: Ints, size: int) -> Ints:
    """The ranks of one number in ``size`` nodes after each other: each group on a rail of its own."""
    hosts = network.node_of_gpu[gpus]
    ends = np.flatnonzero(np.append(np.diff(hosts) != 0, True))
    counts = np.diff(ends, prepend=-1)
    if len(set(counts.tolist())) > 1 or len(counts) % size:
        held = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else str(counts[0])
        raise NetworkError(
            f"groups: {len(counts)} nodes with {held} ranks each do not split into rails of {size} nodes"
        )
    by_node = gpus.reshape(-1, size, int(counts[0]))
    return np.ascontiguousarray(by_node.transpose(0, 2, 1).reshape(-1, size))


SPLITS: dict[str, Callable[[Network, Ints, int], Ints]] = {"block": _block, "rail": _rail, "stride": _stride}
