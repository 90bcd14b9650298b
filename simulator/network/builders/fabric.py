"""NICs, leaves and spines: what joins nodes. Shared by every kind that has a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.network.builders.intra import LEAF_LEVEL, NIC_LEVEL, SPINE_LEVEL, UPLINK_LEVEL
from simulator.network.graph import Cable, Place, Wire, wire
from simulator.topology import FabricSpec, LinkSpec


def nics(
    node: int, attach: Sequence[tuple[str, ...]], *, nics_per_node: int, full: int, pcie: LinkSpec
) -> tuple[list[Place], list[Cable]]:
    """The NICs of one node. GPU i uses NIC ``i * nics_per_node // full``; ``attach[i]`` is where it can be plugged in.

    A NIC hangs on the nearest place that all its GPUs have above them, or else on each of its GPUs
    (through a PCIe switch that is not drawn).
    """
    bus = wire(pcie, "pcie-nic")
    users: dict[str, list[tuple[str, ...]]] = {}
    for i, chain in enumerate(attach):
        users.setdefault(f"node{node}.nic{i * nics_per_node // full}", []).append(chain)
    cables = []
    for nic, chains in users.items():
        shared = [place for place in chains[0] if all(place in chain for chain in chains)]
        cables += [Cable(place, nic, bus) for place in (shared[:1] or [chain[0] for chain in chains])]
    return [Place(nic, "nic", "nic", NIC_LEVEL, node) for nic in users], cables


def uplinks(spec: FabricSpec, node: int, gpus: int, *, full: int) -> dict[str, Place]:
    """The shared uplink, as a place, that traffic of each far NIC of a node crosses; near NICs are not in it.

    It is drawn between NIC and leaf: the order of the links along a route does not matter to its rate, and there no
    GPU has a choice of NICs to make.
    """
    tree, found = spec.pcie_tree, {}
    for i in range(gpus if tree is not None else 0):
        assert tree is not None
        nic, home = i * spec.nics_per_node // full, i // tree.gpus
        if nic // tree.nics != home:
            found[f"node{node}.nic{nic}"] = Place(f"node{node}.uplink{home}", "switch", "uplink", UPLINK_LEVEL, node)
    return found


def leaves_and_spines(
    spec: FabricSpec, nics_of: Sequence[Sequence[str]], behind: Mapping[str, Place] | None = None
) -> tuple[list[Place], list[Cable]]:
    """Leaf and spine switches over the NICs of all nodes (``nics_of[node][rail]``), some of them ``behind`` an uplink.

    A leaf's uplinks together carry (its node-side ports x NIC rate) / oversubscription, in equal
    parts to every spine. Spines are built only where there are two leaves to join.
    """
    nic_wire = wire(spec.nic, "nic")
    leaves: dict[str, Place] = {}
    shared: dict[str, Place] = {}
    cables = []
    for node, names in enumerate(nics_of):
        pod = node // spec.nodes_per_pod
        for rail, nic in enumerate(names):
            leaf = f"pod{pod}.leaf{rail}" if spec.rail_optimised else f"leaf{pod}"
            leaves.setdefault(leaf, Place(leaf, "switch", "leaf", LEAF_LEVEL))
            uplink = (behind or {}).get(nic)
            cables.append(Cable(nic, uplink.name if uplink else leaf, nic_wire))
            if uplink is not None and uplink.name not in shared:
                assert spec.pcie_tree is not None
                shared[uplink.name] = uplink
                cables.append(Cable(uplink.name, leaf, wire(spec.pcie_tree, "pcie-up")))
    if len(leaves) == 1:
        return [*shared.values(), *leaves.values()], cables
    up = spine_wire(spec)
    spines = [Place(f"spine{s}", "switch", "spine", SPINE_LEVEL) for s in range(num_spines(spec))]
    cables += [Cable(leaf, spine.name, up) for leaf in leaves for spine in spines]
    return [*shared.values(), *leaves.values(), *spines], cables


def _uplinks(spec: FabricSpec) -> float:
    """Uplinks of a leaf, each of a NIC's rate; a fraction where oversubscription leaves one."""
    ports = spec.nodes_per_pod * (1 if spec.rail_optimised else spec.nics_per_node)
    return ports / spec.oversubscription


def num_spines(spec: FabricSpec) -> int:
    """At most one spine per uplink: no cable to a spine is slower than a NIC, however many spines are asked for.

    One where the choice is adaptive, standing for all: packets spread evenly put a flow's rate r as r / S on each of a
    leaf's S equal cables, so that each of these is full exactly when one cable of S times the rate would be.
    """
    if spec.spine_choice == "adaptive":
        return 1
    return max(1, min(spec.spines, int(_uplinks(spec))))


def uses_pxn(spec: FabricSpec, *, on_switch: bool) -> bool:
    """Whether messages change rails inside the node: as the spec says, else where GPUs share a switch and rails exist.

    NCCL's PXN (PCI x NVLink, from 2.12, https://developer.nvidia.com/blog/doubling-all2all-performance-with-nccl-2-12).
    """
    return (on_switch and spec.rail_optimised) if spec.pxn is None else spec.pxn


def routing(spec: FabricSpec | None) -> str:
    """The name of the routing through leaves and spines (see ``network.routing``)."""
    return "up-down-by-destination" if spec is not None and spec.spine_choice == "destination" else "up-down"


def spine_wire(spec: FabricSpec) -> Wire:
    """The bundle of cables from one leaf to one spine."""
    share = _uplinks(spec) / num_spines(spec)
    return Wire(
        "leaf-spine", spec.nic.bandwidth * share, spec.nic.bandwidth * spec.nic.efficiency * share,
        spec.spine_latency, spec.source,
    )  # fmt: skip
