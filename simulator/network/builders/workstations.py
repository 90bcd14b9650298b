"""Hosts with GPUs on the socket, on one Ethernet switch."""

from __future__ import annotations

from simulator.network.builders.fabric import nics
from simulator.network.builders.intra import INSIDES, LEAF_LEVEL
from simulator.network.builders.machines import check_gpus
from simulator.network.graph import Cable, Network, Place, assemble, wire
from simulator.topology import WorkstationsSpec


def workstations(spec: WorkstationsSpec, *, nodes: int | None = None, gpus_per_node: int | None = None) -> Network:
    """GPU - socket - NIC - switch. The switch never limits; the NICs do. One host has no NIC."""
    hosts, count = nodes or spec.nodes, check_gpus(spec.name, gpus_per_node, spec.gpus_per_node)
    port = wire(spec.network.nic, "nic")
    places: list[Place] = []
    cables: list[Cable] = []
    rails = 0
    for node in range(hosts):
        inside = INSIDES[spec.intra.kind](spec.intra, node, count, spec.gpus_per_node)
        places += inside.places
        cables += inside.cables
        if hosts > 1:
            cards, buses = nics(node, inside.attach, nics_per_node=min(spec.network.nics_per_node, spec.gpus_per_node),
                                full=spec.gpus_per_node, pcie=spec.network.pcie)  # fmt: skip
            places += cards
            cables += [*buses, *(Cable(card.name, "switch", port) for card in cards)]
            rails = len(cards)
    if hosts > 1:
        places.append(Place("switch", "switch", "leaf", LEAF_LEVEL))
    return assemble(
        name=spec.name, kind=spec.kind, routing="up-down", places=places, cables=cables, library=spec.library,
        rails=rails,
    )  # fmt: skip
