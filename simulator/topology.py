"""What a topology file may say: the machines, their links, the network between them. Input nouns, no graph.

Bandwidths are per direction and as the data sheet states them; ``efficiency`` is the share that
payload can use. Every block that holds a number holds its ``source``, and may hold a range of it
(``range_spec``). ``kind`` selects the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.device import DeviceSpec
from simulator.fields import Bandwidth, Frozen, Share, TimeOrZero
from simulator.library import AlphaBetaLibrary, AnyLibrary, Cpu, Fabric
from simulator.range_spec import ShareRange, TimeRange, check_ranges

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Text = Annotated[str, Field(min_length=1)]
Source = Annotated[str, Field(min_length=3, description="where the numbers of this block come from")]
WrapRule = Literal["always", "never", "multiple-of-4", "full-axis-16"]


class LinkSpec(Frozen):
    """One cable. ``bandwidth`` is bytes/s of each direction; ``latency`` seconds from end to end."""

    bandwidth: Bandwidth
    latency: TimeOrZero
    latency_range: TimeRange | None = None
    efficiency: Share = 1.0
    efficiency_range: ShareRange | None = None
    source: Source

    @model_validator(mode="after")
    def _is_inside_its_ranges(self) -> LinkSpec:
        check_ranges(self, "latency", "efficiency")
        return self


class NvSwitchIntra(Frozen):
    """Each GPU has one port of ``link`` into a non-blocking switch inside the node."""

    kind: Literal["nvswitch"]
    link: LinkSpec


class FullMeshIntra(Frozen):
    """Each pair of GPUs in the node has a ``link`` of its own: one peer gets one link, never the sum."""

    kind: Literal["full_mesh"]
    link: LinkSpec


class PcieIntra(Frozen):
    """GPUs under PCIe switches under one or two CPU sockets; with no ``gpus_per_switch``, straight on the socket."""

    kind: Literal["pcie"]
    link: LinkSpec
    gpus_per_switch: Count | None = None
    sockets: Annotated[int, Field(ge=1, le=2)] = 1
    socket_link: LinkSpec | None = None

    @model_validator(mode="after")
    def _two_sockets_are_joined(self) -> PcieIntra:
        if self.sockets == 2 and self.socket_link is None:
            raise ValueError("two sockets need a 'socket_link' between them")
        return self


class BridgedIntra(PcieIntra):
    """As ``pcie``, and GPUs 2i and 2i+1 share an NVLink bridge."""

    kind: Literal["bridged_pairs"]  # type: ignore[assignment]
    bridge: LinkSpec


Intra = Annotated[NvSwitchIntra | FullMeshIntra | PcieIntra | BridgedIntra, Field(discriminator="kind")]


class PcieTreeSpec(LinkSpec):
    """The uplink of a PCIe tree that holds ``gpus`` GPUs and ``nics`` NICs, by number.

    A GPU whose NIC hangs in another tree reaches it over the uplink of its own tree, which the GPUs of the tree share.
    """

    gpus: Count
    nics: Count


class FabricSpec(Frozen):
    """NICs, leaf switches and spines. Rail-optimised: NIC i of every node of a pod goes to leaf i of that pod.

    ``pcie`` joins GPU (or PCIe switch, or socket) and NIC, ``nic`` joins NIC and leaf. Each leaf has
    ports for ``nodes_per_pod`` nodes and, split evenly over ``spines``, ``1/oversubscription`` of
    that bandwidth upwards, over fewer spines where a cable would be slower than a NIC. One ``spine``
    here may stand for several tiers of real switches.

    ``spine_choice``: 'hash' pins each pair of GPUs to one spine (ECMP), 'destination' gives the ports of a leaf the
    spines in turn (D-mod-K, InfiniBand's routing of fat trees, which rings and pipelines never overload), 'adaptive'
    spreads every message evenly over all. ``pxn``: a message to another rail goes by NVSwitch to the local GPU of
    that rail and out of its NIC (NCCL 2.12 and later); left out, so it is on rail-optimised machines
    with NVSwitch. ``pcie_tree``: what GPUs share on their way to a NIC of another tree; left out where each
    NIC is near its GPU. ``fabric`` tells the library profile which measured latencies hold.
    """

    fabric: Fabric = "infiniband"
    nics_per_node: Count
    pcie: LinkSpec
    pcie_tree: PcieTreeSpec | None = None
    nic: LinkSpec
    nodes_per_pod: Count
    spines: Count = 1
    spine_latency: TimeOrZero = 0.0
    oversubscription: Annotated[float, Field(ge=1.0, le=1000.0)] = 1.0
    rail_optimised: bool = True
    spine_choice: Literal["hash", "destination", "adaptive"] = "hash"
    pxn: bool | None = None
    source: Source

    @model_validator(mode="after")
    def _one_leaf_behind_an_uplink(self) -> FabricSpec:
        if self.pcie_tree is not None and self.rail_optimised:
            raise ValueError("pcie_tree needs 'rail_optimised: false': NICs that share an uplink share their leaf")
        return self


class TopologySpec(Frozen):
    """What every topology file has. ``device`` and ``library`` name a profile or hold one; ``cpu`` is the hosts'."""

    name: Text
    title: str = ""
    kind: str
    device: str | DeviceSpec | None = None
    library: str | AnyLibrary = AlphaBetaLibrary()
    cpu: Cpu = "other"
    notes: str = ""


class UniformSpec(TopologySpec):
    """GPUs on one ideal switch: every message costs ``alpha`` and runs at ``bandwidth`` each way."""

    kind: Literal["uniform"]
    nodes: Count = 8
    gpus_per_node: Count = 1
    alpha: TimeOrZero
    bandwidth: Bandwidth
    efficiency: Share = 1.0
    source: Source


class MachineSpec(TopologySpec):
    """Nodes of GPUs, each wired inside by ``intra``, joined by ``network``."""

    nodes: Count = 1
    gpus_per_node: Count
    intra: Intra
    network: FabricSpec | None = None

    @model_validator(mode="after")
    def _pxn_needs_a_switch(self) -> MachineSpec:
        if self.network is not None and self.network.pxn and self.intra.kind != "nvswitch":
            raise ValueError(f"network.pxn needs GPUs on an NVSwitch; intra.kind is '{self.intra.kind}'")
        return self


class NvSwitchSpec(MachineSpec):
    """One node on NVSwitch, no network."""

    kind: Literal["nvswitch"]
    nodes: Annotated[int, Field(ge=1, le=1)] = 1
    intra: NvSwitchIntra
    network: None = None


class RailFatTreeSpec(MachineSpec):
    """Nodes on a leaf/spine fat tree, rail-optimised or not."""

    kind: Literal["rail_fat_tree"]
    network: FabricSpec


class BridgedPairsSpec(MachineSpec):
    """NVLink-bridged pairs over PCIe; several nodes need a ``network``."""

    kind: Literal["bridged_pairs"]
    intra: BridgedIntra


class FullMeshSpec(MachineSpec):
    """Nodes whose GPUs are all directly linked (xGMI); several nodes need a ``network``."""

    kind: Literal["full_mesh"]
    intra: FullMeshIntra


class EthernetSpec(Frozen):
    """One network switch for all hosts. ``pcie`` joins socket and NIC, ``nic`` joins NIC and switch."""

    fabric: Fabric = "ethernet"
    nics_per_node: Count = 1
    pcie: LinkSpec
    nic: LinkSpec
    source: Source


class WorkstationsSpec(TopologySpec):
    """Hosts with GPUs on the socket, joined by one Ethernet switch."""

    kind: Literal["workstations"]
    nodes: Count = 4
    gpus_per_node: Count = 1
    intra: PcieIntra
    network: EthernetSpec


class Nvl72Spec(TopologySpec):
    """Racks with one NVLink domain over all their trays. A node is a tray; NICs join the racks."""

    kind: Literal["nvl72"]
    nodes: Count = 18
    gpus_per_node: Count = 4
    trays_per_rack: Count = 18
    nvlink: LinkSpec
    network: FabricSpec


class TorusSpec(TopologySpec):
    """A 1-, 2- or 3-D torus or mesh. ``wrap`` holds one rule per axis, or one for all.

    ``multiple-of-4``: an axis wraps when its length is a multiple of 4 (TPU v4, v5p), provided that
    every axis is. ``full-axis-16``: only an axis of length 16 wraps (TPU v5e).
    """

    kind: Literal["torus"]
    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=3, strict=False)]
    wrap: Annotated[tuple[WrapRule, ...], Field(min_length=1, max_length=3, strict=False)] = ("always",)
    gpus_per_node: Count = 4
    link: LinkSpec


class NodeEntry(Frozen):
    """One place of an explicit graph. ``host`` groups GPUs into machines; ranks follow the order of the list."""

    name: Text
    kind: Literal["gpu", "nic", "switch", "host"]
    host: Annotated[int, Field(ge=0)] | None = None


class LinkEntry(Frozen):
    """One cable (both directions) between two named places, of a type listed in ``wires``."""

    ends: Annotated[tuple[str, str], Field(strict=False)]
    wire: Text


class ExplicitSpec(TopologySpec):
    """Any graph, written out."""

    kind: Literal["explicit"]
    wires: Mapping[str, LinkSpec]
    nodes: Annotated[tuple[NodeEntry, ...], Field(min_length=1, strict=False)]
    links: Annotated[tuple[LinkEntry, ...], Field(strict=False)]


AnyTopology = Annotated[
    UniformSpec | NvSwitchSpec | RailFatTreeSpec | BridgedPairsSpec | FullMeshSpec
    | WorkstationsSpec | Nvl72Spec | TorusSpec | ExplicitSpec,
    Field(discriminator="kind"),
]  # fmt: skip

SPECS: dict[str, type[TopologySpec]] = {
    "uniform": UniformSpec,
    "nvswitch": NvSwitchSpec,
    "rail_fat_tree": RailFatTreeSpec,
    "bridged_pairs": BridgedPairsSpec,
    "full_mesh": FullMeshSpec,
    "workstations": WorkstationsSpec,
    "nvl72": Nvl72Spec,
    "torus": TorusSpec,
    "explicit": ExplicitSpec,
}
