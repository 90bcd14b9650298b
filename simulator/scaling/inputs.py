"""Every input that can be scaled: its words, what it belongs to, who has it, how it is scaled, how far it may be off.

To add one: a function that scales it, one of ``ends`` that reads its range, a field of ``scale_spec.Scale``, a line
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from simulator.device import DeviceSpec
from simulator.scaling import devices, ends, networks
from simulator.scaling.ends import Ends
from simulator.scaling.networks import INTRA, NIC, PCIE, PLAIN, is_uniform, links_of
from simulator.scenario import Scenario

Group = Literal["compute", "network", "memory", "money"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """words: in a sentence. has: whether a scenario has it at all. used: whether a step of it reads it.

    apply: the scenario with the input times a factor. slower: whether more of it takes longer (a time) or less (a
    rate). swings: whether a tornado diagram moves it; not where another input says the same.
    """

    words: str
    group: Group
    has: Callable[[Scenario], bool]
    apply: Callable[[Scenario, float], Scenario]
    ends: Callable[[Scenario], Ends | None] = ends.unknown
    slower: bool = False
    swings: bool = True
    used: Callable[[Scenario], bool]

    def off_by(self, scenario: Scenario) -> Ends | None:
        """How far it may be from what the profiles say; None where it is known, or not used."""
        return self.ends(scenario) if self.has(scenario) and self.used(scenario) else None


def _device(scenario: Scenario) -> bool:
    return isinstance(scenario.cluster.spec.device, DeviceSpec)


def _computes(scenario: Scenario) -> bool:
    """Whether times of compute come from the device, and not from the user's own measurements."""
    return _device(scenario) and scenario.model is not None and not ends.is_measured(scenario)


def _intra(scenario: Scenario) -> bool:
    return any(True for _ in links_of(scenario.cluster.spec, INTRA))


def _several_ranks(scenario: Scenario) -> bool:
    """Whether messages cross links inside nodes, as they also do on their way to a NIC."""
    count: int = scenario.cluster.gpus_per_node or getattr(scenario.cluster.spec, "gpus_per_node", 1) or 1
    return count > 1 or _nodes(scenario) > 1


def _nics(scenario: Scenario) -> bool:
    return any(True for _ in links_of(scenario.cluster.spec, NIC))


def _nodes(scenario: Scenario) -> int:
    """Hosts of a cluster that is sized by them; 1 of one that is not."""
    nodes: object = scenario.cluster.nodes or getattr(scenario.cluster.spec, "nodes", 1)
    return nodes if isinstance(nodes, int) else 1


def _several_nodes(scenario: Scenario) -> bool:
    """Whether messages leave NVLink's domain: a node, or the rack of an NVL72."""
    domain: int = getattr(scenario.cluster.spec, "trays_per_rack", 1)
    return _nodes(scenario) > domain


def _pcie(scenario: Scenario) -> bool:
    return any(True for _ in links_of(scenario.cluster.spec, PCIE))


def _plain(scenario: Scenario) -> bool:
    spec = scenario.cluster.spec
    return is_uniform(spec) or any(True for _ in links_of(spec, PLAIN))


def _always(scenario: Scenario) -> bool:
    return True


def _between(scenario: Scenario) -> bool:
    return _plain(scenario) or _several_ranks(scenario)


def _price(scenario: Scenario) -> bool:
    return scenario.cost is not None


def _of_device(words: str, apply: Callable[[Scenario, float], Scenario], **more: object) -> Input:
    return Input(words=words, group="compute", has=_device, used=_computes, apply=apply, **more)  # type: ignore[arg-type]


INPUTS: Final[Mapping[str, Input]] = {
    "matmul_rate": _of_device("matrix rate", devices.matmul_rate, ends=ends.matmul_rate),
    "attention_rate": _of_device("attention rate", devices.attention_rate, ends=ends.attention_rate),
    "memory_bandwidth": _of_device("memory bandwidth", devices.memory_bandwidth, ends=ends.memory_bandwidth),
    "memory_capacity": Input(
        words="memory capacity", group="memory", has=_device, used=_device, apply=devices.memory_capacity
    ),
    "kernel_gap": _of_device("gap between kernels", devices.kernel_gap, ends=ends.kernel_gap, slower=True),
    "host_launch": _of_device("host's launch time", devices.host_launch, ends=ends.host_launch, slower=True),
    "channel_sms": _of_device("cores taken by communication", devices.channel_sms, slower=True),
    "comm_memory_traffic": _of_device(
        "memory traffic of communication", devices.comm_memory_traffic, ends=ends.comm_memory_traffic, slower=True
    ),
    "context": Input(
        words="memory of a process", group="memory", has=_device, used=_computes, apply=devices.context,
        ends=ends.context, slower=True, swings=False,
    ),
    "communicator": Input(
        words="memory of a communicator", group="memory", has=_device, used=_computes, apply=devices.communicator,
        ends=ends.communicator, slower=True, swings=False,
    ),
    "intra_node_bandwidth": Input(
        words="bandwidth inside a node", group="network", has=_intra, used=_several_ranks,
        apply=networks.intra_node_bandwidth,
    ),
    "intra_node_efficiency": Input(
        words="usable bandwidth inside a node", group="network", has=_intra, used=_several_ranks,
        apply=networks.intra_node_efficiency, ends=ends.intra_node_efficiency, swings=False,
    ),
    "nic_bandwidth": Input(
        words="NIC bandwidth", group="network", has=_nics, used=_several_nodes, apply=networks.nic_bandwidth
    ),
    "nic_efficiency": Input(
        words="usable NIC bandwidth", group="network", has=_nics, used=_several_nodes, apply=networks.nic_efficiency,
        ends=ends.nic_efficiency, swings=False,
    ),
    "pcie_bandwidth": Input(
        words="PCIe bandwidth to NICs", group="network", has=_pcie, used=_several_nodes, apply=networks.pcie_bandwidth
    ),
    "link_bandwidth": Input(
        words="link bandwidth", group="network", has=_plain, used=_always, apply=networks.link_bandwidth
    ),
    "link_efficiency": Input(
        words="usable link bandwidth", group="network", has=_plain, used=_always, apply=networks.link_efficiency,
        ends=ends.link_efficiency, swings=False,
    ),
    "network_latency": Input(
        words="network latency", group="network", has=_always, used=_between, apply=networks.network_latency,
        ends=ends.network_latency, slower=True,
    ),
    "library_overhead": Input(
        words="library overhead", group="network", has=_always, used=_between, apply=networks.library_overhead,
        ends=ends.library_overhead, slower=True,
    ),
    "price": Input(words="price", group="money", has=_price, used=_always, apply=devices.price, slower=True),
}  # fmt: skip
