"""NICs, leaves and spines: what joins nodes. Shared by every kind that has a network."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.network.builders.intra import LEAF_LEVEL, NIC_LEVEL, SPINE_LEVEL
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


def leaves_and_spines(spec: FabricSpec, nics_of: Sequence[Sequence[str]]) -> tuple[list[Place], list[Cable]]:
    """Leaf and spine switches over the NICs of all nodes (``nics_of[node][rail]``).

    A leaf's uplinks together carry (its node-side ports x NIC rate) / oversubscription, in equal
    parts to every spine. Spines are built only where there are two leaves to join.
    """
    nic_wire = wire(spec.nic, "nic")
    leaves: dict[str, Place] = {}
    cables = []
    for node, names in enumerate(nics_of):
        pod = node // spec.nodes_per_pod
        for rail, nic in enumerate(names):
            leaf = f"pod{pod}.leaf{rail}" if spec.rail_optimised else f"leaf{pod}"
            leaves.setdefault(leaf, Place(leaf, "switch", "leaf", LEAF_LEVEL))
            cables.append(Cable(nic, leaf, nic_wire))
    if len(leaves) == 1:
        return list(leaves.values()), cables
    up = spine_wire(spec)
    spines = [Place(f"spine{s}", "switch", "spine", SPINE_LEVEL) for s in range(num_spines(spec))]
    cables += [Cable(leaf, spine.name, up) for leaf in leaves for spine in spines]
    return [*leaves.values(), *spines], cables


def _uplinks(spec: FabricSpec) -> float:
    """Uplinks of a leaf, each of a NIC's rate; a fraction where oversubscription leaves one."""
    ports = spec.nodes_per_pod * (1 if spec.rail_optimised else spec.nics_per_node)
    return ports / spec.oversubscription


def num_spines(spec: FabricSpec) -> int:
    """At most one spine per uplink: no cable to a spine is slower than a NIC, however many spines are asked for."""
    return max(1, min(spec.spines, int(_uplinks(spec))))


def spine_wire(spec: FabricSpec) -> Wire:
    """The bundle of cables from one leaf to one spine."""
    share = _uplinks(spec) / num_spines(spec)
    return Wire(
        "leaf-spine", spec.nic.bandwidth * share, spec.nic.bandwidth * spec.nic.efficiency * share,
        spec.spine_latency, spec.source,
    )  # fmt: skip
