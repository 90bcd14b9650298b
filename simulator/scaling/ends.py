"""How far an input may be from its typical value, as factors, from the ranges that profiles state. Pure.

Where a communication library states what published tables of whole collectives show (by generation of GPUs, by kind of
network), that counts; else what the links state, the widest of several.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from simulator.device import DeviceSpec
from simulator.library import NcclLibrary, OnFabric, OnNode
from simulator.model_spec import LayersModel
from simulator.range_spec import FactorRange
from simulator.scaling.devices import device_of
from simulator.scaling.editing import library_of
from simulator.scaling.networks import ALL, INTRA, NIC, PLAIN, Places, links_of
from simulator.scenario import Scenario

#: A simple operation of PyTorch takes 5 to 7 us of its host thread (pytorch/pytorch issue 41383), about 4 us on CUDA
#: (issue 82793), and ``host_costs`` takes 6; a collective 35 us, 70 us with a stream of its own (pull 147820).
HOST = FactorRange(low=4 / 6, high=7 / 6, source="pytorch/pytorch issues 41383 and 82793: 4 to 7 us an operation")


#: What a library states by generation of GPUs, or by kind of network.
Row = Literal["generations", "fabrics"]


class _Range(Protocol):
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Factors on the typical value of an input, low <= 1 <= high, and where they come from."""

    low: float
    high: float
    source: str


def _relative(typical: float, held: _Range | None) -> Ends | None:
    if held is None or not typical or held.low == held.high == typical:
        return None
    return Ends(low=held.low / typical, high=held.high / typical, source=held.source)


def _widest(found: Iterable[Ends | None]) -> Ends | None:
    held = [ends for ends in found if ends is not None]
    if not held:
        return None
    sources = dict.fromkeys(ends.source for ends in held)
    low, high = min(ends.low for ends in held), max(ends.high for ends in held)
    return Ends(low=low, high=high, source="; ".join(sources))


def matmul_rate(scenario: Scenario) -> Ends | None:
    """Of the rate that a long run sustains."""
    held = device_of(scenario).efficiency
    own = _relative(held.sustained.share, held.sustained.share_range)
    return own or _relative(1.0, held.rate_range)


def attention_rate(scenario: Scenario) -> Ends | None:
    """Of fused attention kernels."""
    held = device_of(scenario).efficiency
    return _relative(1.0, held.attention.rate_range or held.rate_range)


def memory_bandwidth(scenario: Scenario) -> Ends | None:
    """Of the share of the memory's bandwidth that kernels reach."""
    held = device_of(scenario).efficiency
    return _relative(held.memory.share, held.memory.share_range) or _relative(1.0, held.rate_range)


def kernel_gap(scenario: Scenario) -> Ends | None:
    """Of the idle time between two kernels."""
    held = device_of(scenario).efficiency
    return _relative(held.launch, held.launch_range)


def host_launch(scenario: Scenario) -> Ends | None:
    """Of PyTorch's host thread, where the scenario does not say what it takes."""
    eager = device_of(scenario).framework == "pytorch" and scenario.cluster.host.kernel_launch is None
    return _relative(1.0, HOST) if eager else None


def comm_memory_traffic(scenario: Scenario) -> Ends | None:
    """Of the bytes of memory traffic for each byte sent."""
    held = device_of(scenario)
    return _relative(held.comm_memory_accesses, held.comm_memory_accesses_range)


def context(scenario: Scenario) -> Ends | None:
    """Of a process's memory before its first tensor."""
    held = device_of(scenario)
    return _relative(held.context, held.context_range)


def communicator(scenario: Scenario) -> Ends | None:
    """Of the first communicator's memory."""
    held = device_of(scenario)
    return _relative(held.communicator, held.communicator_range)


def intra_node_efficiency(scenario: Scenario) -> Ends | None:
    """Of rates inside a node."""
    return _rate(scenario, "generations", INTRA)


def nic_efficiency(scenario: Scenario) -> Ends | None:
    """Of rates between nodes."""
    return _rate(scenario, "fabrics", NIC)


def link_efficiency(scenario: Scenario) -> Ends | None:
    """Of the links of a torus or a graph; a uniform network is ideal."""
    return _usable(scenario, PLAIN)


def network_latency(scenario: Scenario) -> Ends | None:
    """Of steps between nodes, or of links."""
    row = _row(scenario, "fabrics")
    if row and row.latency_range:
        return None if _corrected(scenario, "fabrics") else _relative(1.0, row.latency_range)
    return _widest(_relative(link.latency, link.latency_range) for link in links_of(scenario.cluster.spec, ALL))


def library_overhead(scenario: Scenario) -> Ends | None:
    """Of the library's software and its steps inside a node."""
    row = _row(scenario, "generations")
    return _relative(1.0, row.latency_range) if row and not _corrected(scenario, "generations") else None


def unknown(scenario: Scenario) -> Ends | None:
    """Of an input that no profile states a range of."""
    return None


def _usable(scenario: Scenario, places: Places) -> Ends | None:
    links = links_of(scenario.cluster.spec, places)
    return _widest(_relative(link.efficiency, link.efficiency_range) for link in links)


def _rate(scenario: Scenario, key: Row, places: Places) -> Ends | None:
    """Of what collectives reach: as the library states, unless own runs say it; else as the links state."""
    if _corrected(scenario, key):
        return None
    row = _row(scenario, key)
    return _relative(1.0, row.rate_range) if row and row.rate_range else _usable(scenario, places)


def _corrected(scenario: Scenario, key: Row) -> bool:
    """Whether the user's own runs correct the library there: what others published is then no range of it."""
    library = library_of(scenario)
    nodes = 1 if key == "generations" else 2
    held = library.corrections.values() if isinstance(library, NcclLibrary) else ()
    return any(corrections.over(nodes) is not None for corrections in held)


def _row(scenario: Scenario, key: Row) -> OnNode | OnFabric | None:
    """What the library says of the scenario's GPUs, or of the network between its nodes."""
    library, spec = library_of(scenario), scenario.cluster.spec
    if not isinstance(library, NcclLibrary):
        return None
    measured = library.measured
    if key == "generations":
        generation = spec.device.generation if isinstance(spec.device, DeviceSpec) else None
        wanted = measured.family.get(generation, generation) if generation else None
        return next((row for name, row in measured.generations.items() if name == wanted), None)
    fabric = getattr(getattr(spec, "network", None), "fabric", None)
    return next((row for name, row in measured.fabrics.items() if name == fabric), None)


def is_measured(scenario: Scenario) -> bool:
    """Whether the times of the model are the user's own."""
    return isinstance(scenario.model, LayersModel)
