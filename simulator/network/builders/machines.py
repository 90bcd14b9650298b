"""Nodes of GPUs, alone or on a leaf/spine network: DGX, HGX, cloud instances, PCIe boxes, xGMI meshes."""

from __future__ import annotations

from simulator.errors import NetworkError
from simulator.network.builders.fabric import leaves_and_spines, nics, routing, uplinks, uses_pxn
from simulator.network.builders.intra import INSIDES
from simulator.network.graph import Cable, Network, Place, assemble
from simulator.topology import MachineSpec


def machines(spec: MachineSpec, *, nodes: int | None = None, gpus_per_node: int | None = None) -> Network:
    """``nodes`` hosts wired inside by ``spec.intra``; with more than one, NICs, leaves and spines of ``spec.network``.

    Fewer GPUs than a full node may be asked for: those present keep their own NIC. One node has no
    NIC at all, since no message would cross it.
    """
    hosts, count = nodes or spec.nodes, check_gpus(spec.name, gpus_per_node, spec.gpus_per_node)
    if hosts > 1 and spec.network is None:
        raise NetworkError(f"nodes: {hosts}: '{spec.name}' has no 'network' block, so it is one node")
    places: list[Place] = []
    cables: list[Cable] = []
    nics_of: list[list[str]] = []
    behind: dict[str, Place] = {}
    for node in range(hosts):
        inside = INSIDES[spec.intra.kind](spec.intra, node, count, spec.gpus_per_node)
        places += inside.places
        cables += inside.cables
        if hosts > 1 and spec.network is not None:
            cards, buses = nics(node, inside.attach, nics_per_node=min(spec.network.nics_per_node, spec.gpus_per_node),
                                full=spec.gpus_per_node, pcie=spec.network.pcie)  # fmt: skip
            places += cards
            cables += buses
            nics_of.append([card.name for card in cards])
            behind |= uplinks(spec.network, node, count, full=spec.gpus_per_node)
    if hosts > 1 and spec.network is not None:
        switches, ports = leaves_and_spines(spec.network, nics_of, behind)
        places += switches
        cables += ports
    return assemble(
        name=spec.name, kind=spec.kind, routing=routing(spec.network), places=places, cables=cables,
        library=spec.library,
        rails=len(nics_of[0]) if nics_of else 0,
        pxn=spec.network is not None and uses_pxn(spec.network, on_switch=spec.intra.kind == "nvswitch"),
    )  # fmt: skip


def nvswitch(spec: MachineSpec, *, nodes: int | None = None, gpus_per_node: int | None = None) -> Network:
    """One node, every GPU on its NVSwitch."""
    return machines(spec, nodes=nodes, gpus_per_node=gpus_per_node)


def check_gpus(name: str, asked: int | None, full: int) -> int:
    """GPUs per node: ``asked`` or all. Raises NetworkError when a node does not hold so many."""
    if asked is not None and asked > full:
        raise NetworkError(f"gpus_per_node: {asked}: a node of '{name}' holds {full}; ask for fewer, or for more nodes")
    return asked or full
