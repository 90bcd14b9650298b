"""Racks whose trays share one NVLink domain, joined by NICs."""

from __future__ import annotations

from simulator.network.builders.fabric import leaves_and_spines, nics, routing, uses_pxn
from simulator.network.builders.intra import gpu_name
from simulator.network.builders.machines import check_gpus
from simulator.network.graph import Cable, Network, Place, assemble, wire
from simulator.topology import Nvl72Spec


def nvl72(spec: Nvl72Spec, *, nodes: int | None = None, gpus_per_node: int | None = None) -> Network:
    """``nodes`` trays of GPUs; each rack of ``trays_per_rack`` trays is one NVLink domain. NICs only with two racks.

    The scale-up domain (``domain_of_gpu``) is the rack, the host (``node_of_gpu``) the tray.
    """
    trays, count = nodes or spec.nodes, check_gpus(spec.name, gpus_per_node, spec.gpus_per_node)
    racks = -(-trays // spec.trays_per_rack)
    link = wire(spec.nvlink, "nvlink")
    places: list[Place] = []
    cables: list[Cable] = []
    nics_of: list[list[str]] = []
    for tray in range(trays):
        gpus = [Place(gpu_name(tray, i), "gpu", "gpu", 0, tray) for i in range(count)]
        places += gpus
        cables += [Cable(gpu.name, f"rack{tray // spec.trays_per_rack}.nvswitch", link) for gpu in gpus]
        if racks > 1:
            cards, buses = nics(tray, [(gpu.name,) for gpu in gpus], nics_per_node=spec.network.nics_per_node,
                                full=spec.gpus_per_node, pcie=spec.network.pcie)  # fmt: skip
            places += cards
            cables += buses
            nics_of.append([card.name for card in cards])
    places += [Place(f"rack{rack}.nvswitch", "switch", "nvswitch", 1) for rack in range(racks)]
    if racks > 1:
        switches, ports = leaves_and_spines(spec.network, nics_of)
        places += switches
        cables += ports
    return assemble(
        name=spec.name, kind=spec.kind, routing=routing(spec.network), places=places, cables=cables,
        library=spec.library,
        rails=len(nics_of[0]) if nics_of else 0, pxn=uses_pxn(spec.network, on_switch=True),
        domains=[tray // spec.trays_per_rack for tray in range(trays) for _ in range(count)],
    )  # fmt: skip
