"""The textbook's network: every pair of GPUs alike."""

from __future__ import annotations

from simulator.network.graph import Cable, Network, Place, Wire, assemble
from simulator.topology import UniformSpec


def uniform(spec: UniformSpec, *, nodes: int | None = None, gpus_per_node: int | None = None) -> Network:
    """GPUs on one ideal switch: n bytes take alpha + n / (bandwidth x efficiency) between any two.

    Half of alpha lies on each of a route's two links. The switch never limits; a GPU's own link does.
    """
    hosts, per_host = nodes or spec.nodes, gpus_per_node or spec.gpus_per_node
    wire = Wire("uniform", spec.bandwidth, spec.bandwidth * spec.efficiency, spec.alpha / 2, spec.source)
    gpus = [Place(f"gpu{i}", "gpu", "gpu", 0, i // per_host) for i in range(hosts * per_host)]
    places = [*gpus, Place("switch", "switch", "switch", 1)]
    return assemble(
        name=spec.name, kind=spec.kind, routing="up-down", places=places,
        cables=[Cable(gpu.name, "switch", wire) for gpu in gpus], library=spec.library,
    )  # fmt: skip
