"""A network for a number of ranks: as many nodes as they need, each as the topology file has it."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import NetworkError
from simulator.network.builders import SIZES, build_network
from simulator.network.graph import Network
from simulator.topology import TopologySpec


def network_for(
    spec: TopologySpec, num_ranks: int | None, *, nodes: int | Sequence[int] | None = None,
    gpus_per_node: int | None = None,
) -> Network:  # fmt: skip
    """The smallest network of whole nodes of ``spec`` that holds ``num_ranks``; all of ``spec`` for None.

    nodes, gpus_per_node: where the ranks will be put, see ``placement``; the network then reaches to the last of those
    nodes. Each node keeps all its GPUs. A torus or an explicit list keeps its size. Raises NetworkError when the ranks
    do not fit.
    """
    per_node = getattr(spec, "gpus_per_node", None)
    wanted = nodes if isinstance(nodes, int) else max(nodes) + 1 if nodes else None
    if wanted is None and num_ranks is not None and isinstance(per_node, int):
        wanted = -(-num_ranks // min(gpus_per_node or per_node, per_node))
    network = build_network(spec, nodes=wanted if "nodes" in SIZES[spec.kind] else None)
    if num_ranks is not None and network.num_gpus < num_ranks:
        sized = ", ".join(SIZES[spec.kind]) or "nothing: it lists its nodes"
        raise NetworkError(
            f"{num_ranks} ranks do not fit on '{spec.name}', which has {network.num_gpus} GPUs (sized by: {sized})"
        )
    return network
