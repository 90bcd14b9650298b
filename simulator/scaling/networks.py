"""Inputs of a network and its library, scaled. Each function: (scenario, factor) -> scenario, or says what it finds.

Rates are scaled in two ways. ``bandwidth`` is the data sheet's rate: the library sees it too, and may choose another
algorithm. ``efficiency`` is what payload reaches of it: the library does not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulator.library import AlphaBetaLibrary, NcclLibrary
from simulator.scaling.editing import library_of, with_topology
from simulator.scenario import Scenario
from simulator.topology import LinkSpec, TopologySpec

Change = Callable[[LinkSpec], LinkSpec]
#: Links of each kind of input: the block of the topology that holds them (None: the topology itself), and their keys.
INTRA: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    ("intra", ("link", "socket_link", "bridge")), (None, ("nvlink",)),
)  # fmt: skip
NIC: tuple[tuple[str | None, tuple[str, ...]], ...] = (("network", ("nic",)),)
PCIE: tuple[tuple[str | None, tuple[str, ...]], ...] = (("network", ("pcie", "pcie_tree")),)
#: The links of networks that are all of one kind.
PLAIN: tuple[tuple[str | None, tuple[str, ...]], ...] = ((None, ("link",)),)
ALL = (*INTRA, *NIC, *PCIE, *PLAIN)
Places = tuple[tuple[str | None, tuple[str, ...]], ...]


def links_of(spec: TopologySpec, places: Places) -> Iterator[LinkSpec]:
    """The links that a topology has at these places."""
    for block, keys in places:
        holder = spec if block is None else getattr(spec, block, None)
        yield from (link for key in keys if isinstance(link := getattr(holder, key, None), LinkSpec))
    if places in (PLAIN, ALL):
        yield from getattr(spec, "wires", {}).values()


def is_uniform(spec: TopologySpec) -> bool:
    """Whether one rate and one alpha stand for the whole network."""
    return spec.kind == "uniform"


def _changed(scenario: Scenario, places: Places, change: Change) -> Scenario:
    """The scenario with every link at these places changed."""
    spec = scenario.cluster.spec
    update: dict[str, Any] = {}
    for block, keys in places:
        holder: Any = spec if block is None else update.get(block, getattr(spec, block, None))
        found = {key: change(link) for key in keys if isinstance(link := getattr(holder, key, None), LinkSpec)}
        if block is None:
            update |= found
        elif found:
            update[block] = holder.model_copy(update=found)
    if places in (PLAIN, ALL) and hasattr(spec, "wires"):
        update["wires"] = {name: change(link) for name, link in spec.wires.items()}
    return with_topology(scenario, **update)


def _faster(factor: float) -> Change:
    return lambda link: link.model_copy(update={"bandwidth": link.bandwidth * factor})


def _more_usable(factor: float) -> Change:
    return lambda link: link.model_copy(update={"efficiency": min(1.0, link.efficiency * factor)})


def _later(factor: float) -> Change:
    return lambda link: link.model_copy(update={"latency": link.latency * factor})


def intra_node_bandwidth(scenario: Scenario, factor: float) -> Scenario:
    """Links inside nodes, and the switches that reduce on them, of ``factor`` times the rate."""
    return _switched(_changed(scenario, INTRA, _faster(factor)), factor)


def intra_node_efficiency(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times the usable share of the links inside nodes, at most all of it."""
    return _switched(_changed(scenario, INTRA, _more_usable(factor)), factor)


def _switched(scenario: Scenario, factor: float) -> Scenario:
    """Rates inside a node that the library states itself: reduction in switches, LL."""

    def rates(node: Any) -> dict[str, Any]:
        held = {key: getattr(node, key) for key in ("nvls_rate", "nvls_cap", "ll_cap")}
        return {key: rate * factor for key, rate in held.items() if rate is not None}

    return _measured(scenario, "generations", rates)


def nic_bandwidth(scenario: Scenario, factor: float) -> Scenario:
    """NICs of ``factor`` times the rate, and with them the uplinks of leaves."""
    return _changed(scenario, NIC, _faster(factor))


def nic_efficiency(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times the usable share of NICs and the PCIe before them, at most all of it."""
    return _changed(scenario, (*NIC, *PCIE), _more_usable(factor))


def pcie_bandwidth(scenario: Scenario, factor: float) -> Scenario:
    """PCIe between GPUs and NICs of ``factor`` times the rate."""
    return _changed(scenario, PCIE, _faster(factor))


def link_bandwidth(scenario: Scenario, factor: float) -> Scenario:
    """Links of a uniform network, a torus or a graph of ``factor`` times the rate."""
    spec: Any = scenario.cluster.spec
    if is_uniform(spec):
        return with_topology(scenario, bandwidth=spec.bandwidth * factor)
    return _changed(scenario, PLAIN, _faster(factor))


def link_efficiency(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times the usable share of such links, at most all of it."""
    spec: Any = scenario.cluster.spec
    if is_uniform(spec):
        return with_topology(scenario, efficiency=min(1.0, spec.efficiency * factor))
    return _changed(scenario, PLAIN, _more_usable(factor))


def network_latency(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times the latency of all links, and of the library's steps between nodes."""
    spec: Any = scenario.cluster.spec
    if is_uniform(spec):
        return with_topology(scenario, alpha=spec.alpha * factor)
    slower = _changed(scenario, ALL, _later(factor))
    network: Any = getattr(slower.cluster.spec, "network", None)
    if hasattr(network, "spine_latency"):
        late = network.model_copy(update={"spine_latency": network.spine_latency * factor})
        slower = with_topology(slower, network=late)
    return _measured(slower, "fabrics", lambda fabric: {
        "net": _times(fabric.net, factor), "gap": fabric.gap * factor, "rendezvous_gap": fabric.rendezvous_gap * factor,
    })  # fmt: skip


def library_overhead(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times what the library's software takes, steps between nodes apart."""
    library = library_of(scenario)
    update: dict[str, Any] = {
        "message_overhead": library.message_overhead * factor, "collective_launch": library.collective_launch * factor
    }  # fmt: skip
    if isinstance(library, AlphaBetaLibrary):
        update["operation_launch"] = {op: time_s * factor for op, time_s in library.operation_launch.items()}
    slower = with_topology(scenario, library=library.model_copy(update=update))
    return _measured(slower, "generations", lambda node: {
        key: _times(getattr(node, key), factor) for key in ("base", "nvlink", "pcie")
    })  # fmt: skip


def _times(table: Mapping[str, tuple[float, ...]], factor: float) -> dict[str, tuple[float, ...]]:
    return {name: tuple(time_s * factor for time_s in times) for name, times in table.items()}


def _measured(scenario: Scenario, key: str, change: Callable[[Any], Mapping[str, Any]]) -> Scenario:
    """The scenario with each row of its library's ``measured.KEY`` changed; itself where the library has none."""
    library = library_of(scenario)
    if not isinstance(library, NcclLibrary):
        return scenario
    rows = {name: row.model_copy(update=change(row)) for name, row in getattr(library.measured, key).items()}
    measured = library.measured.model_copy(update={key: rows})
    return with_topology(scenario, library=library.model_copy(update={"measured": measured}))
