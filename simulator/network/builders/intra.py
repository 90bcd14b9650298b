"""How the GPUs of one node are wired, and where a NIC attaches. Shared by every kind that has nodes.

Levels inside a node: GPU 0, NVSwitch or PCIe switch 1, second socket 2, first socket 3, NIC 4, shared uplink 5. The
second socket lies below the first, so that crossing the sockets is one step up.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

from simulator.errors import NetworkError
from simulator.network.graph import Cable, Place, wire
from simulator.topology import BridgedIntra, FullMeshIntra, NvSwitchIntra, PcieIntra

NIC_LEVEL, UPLINK_LEVEL, LEAF_LEVEL, SPINE_LEVEL = 4, 5, 6, 7


class Inside(NamedTuple):
    """The parts of one node; ``attach`` holds, per GPU, the places that its NIC may be plugged into, nearest first."""

    places: list[Place]
    cables: list[Cable]
    attach: list[tuple[str, ...]]


def gpu_name(node: int, i: int) -> str:
    """Name of GPU ``i`` of host ``node``."""
    return f"node{node}.gpu{i}"


def _gpus(node: int, count: int) -> list[Place]:
    return [Place(gpu_name(node, i), "gpu", "gpu", 0, node) for i in range(count)]


def inside_nvswitch(spec: NvSwitchIntra, node: int, count: int, full: int) -> Inside:
    """Every GPU on one switch; NICs at the GPUs (through a PCIe switch that is not drawn)."""
    gpus, link = _gpus(node, count), wire(spec.link, "nvlink")
    switch = Place(f"node{node}.nvswitch", "switch", "nvswitch", 1, node)
    return Inside([*gpus, switch], [Cable(g.name, switch.name, link) for g in gpus], [(g.name,) for g in gpus])


def inside_full_mesh(spec: FullMeshIntra, node: int, count: int, full: int) -> Inside:
    """A link between each two GPUs; NICs at the GPUs."""
    gpus, link = _gpus(node, count), wire(spec.link, "xgmi")
    return Inside(gpus, [Cable(a.name, b.name, link) for a, b in combinations(gpus, 2)], [(g.name,) for g in gpus])


def inside_pcie(spec: PcieIntra, node: int, count: int, full: int) -> Inside:
    """GPUs, PCIe switches if any, sockets. ``full`` GPUs is the complete node: it says which socket a GPU is on."""
    link, up = wire(spec.link, "pcie"), wire(spec.link, "pcie-up")
    per_socket = -(-full // spec.sockets)
    per_switch = spec.gpus_per_switch
    if per_switch is not None and per_socket % per_switch:
        raise NetworkError(
            f"gpus_per_switch: {per_switch}: a PCIe switch cannot lie under two sockets of {per_socket} GPUs"
        )
    places, cables, attach = _gpus(node, count), [], []
    sockets = [Place(f"node{node}.socket{s}", "host", "socket", 3 - s, node) for s in range(-(-count // per_socket))]
    for i, gpu in enumerate(list(places)):
        chain = tuple(socket.name for socket in sockets[i // per_socket :: -1])
        if per_switch is not None:
            switch = Place(f"node{node}.pcie{i // per_switch}", "switch", "pcie-switch", 1, node)
            if i % per_switch == 0:
                places.append(switch)
                cables.append(Cable(switch.name, chain[0], up))
            chain = (switch.name, *chain)
        cables.append(Cable(gpu.name, chain[0], link))
        attach.append(chain)
    if len(sockets) == 2:
        assert spec.socket_link is not None
        cables.append(Cable(sockets[1].name, sockets[0].name, wire(spec.socket_link, "socket")))
    return Inside([*places, *sockets], cables, attach)


def inside_bridged(spec: BridgedIntra, node: int, count: int, full: int) -> Inside:
    """As ``inside_pcie``, with a bridge between GPUs 2i and 2i+1."""
    pcie, bridge = inside_pcie(spec, node, count, full), wire(spec.bridge, "nvlink-bridge")
    pairs = [Cable(gpu_name(node, i), gpu_name(node, i + 1), bridge) for i in range(0, count - 1, 2)]
    return pcie._replace(cables=pairs + pcie.cables)


INSIDES: dict[str, Callable[[Any, int, int, int], Inside]] = {
    "nvswitch": inside_nvswitch,
    "full_mesh": inside_full_mesh,
    "pcie": inside_pcie,
    "bridged_pairs": inside_bridged,
}
