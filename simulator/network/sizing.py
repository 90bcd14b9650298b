"""A network for a number of ranks: as many nodes as they need, each as the topology file has it."""

from __future__ import annotations

from simulator.errors import NetworkError
from simulator.network.builders import SIZES, build_network
from simulator.network.graph import Network
from simulator.topology import TopologySpec


def network_for(spec: TopologySpec, num_ranks: int) -> Network:
    """The smallest network of whole nodes of ``spec`` that holds ``num_ranks``; rank r sits on gpu r.

    A torus or an explicit list keeps its size. Raises NetworkError when the ranks do not fit.
    """
    per_node = getattr(spec, "gpus_per_node", None)
    if "nodes" in SIZES[spec.kind] and isinstance(per_node, int):
        nodes = -(-num_ranks // per_node)
        network = build_network(spec, nodes=nodes)
    else:
        network = build_network(spec)
    if network.num_gpus < num_ranks:
        sized = ", ".join(SIZES[spec.kind]) or "nothing: it lists its nodes"
        raise NetworkError(
            f"{num_ranks} ranks do not fit on '{spec.name}', which has {network.num_gpus} GPUs (sized by: {sized})"
        )
    return network
