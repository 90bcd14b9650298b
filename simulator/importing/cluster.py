"""Where an imported job runs: how many ranks, on how many nodes of which topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.device import DeviceSpec
from simulator.errors import NetworkError, ScenarioError
from simulator.importing.sheet import CHANGE_ME, Sheet
from simulator.load import load_topology
from simulator.network.builders import build_network
from simulator.topology import ExplicitSpec, TopologySpec, TorusSpec

DEFAULT_TOPOLOGY: Final = "dgx-h100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many ranks a file runs on; ``said`` is the option that says so. ``nodes``: where it says that too.

    ``guess``: nothing in the file says how many there are, only how many would fit.
    """

    total: int
    said: str
    nodes: int | None = None
    guess: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The topology, and how many ranks the scenario runs on: in all, and on each node."""

    spec: TopologySpec
    world: int
    per_node: int


def topology_of(sheet: Sheet) -> TopologySpec:
    """The topology asked for, else the default. Raises ScenarioError for one that names no device."""
    name = sheet.extras.topology or DEFAULT_TOPOLOGY
    spec = load_topology(name)
    if not isinstance(spec.device, DeviceSpec):
        raise ScenarioError(f"--topology {name}: names no device, so the time of a model is unknown; such as "
                            f"{DEFAULT_TOPOLOGY} does")  # fmt: skip
    return spec


def is_sized(sheet: Sheet) -> bool:
    """Whether the command line says how many ranks there are."""
    return sheet.extras.nodes is not None or sheet.extras.gpus is not None


def usual_world(sheet: Sheet) -> int:
    """Ranks of the topology asked for, in the size that the command line or else its file gives."""
    if sheet.extras.gpus is not None:
        return sheet.extras.gpus
    spec = topology_of(sheet)
    if _is_fixed(spec):
        return build_network(spec).num_gpus
    return _per_node(spec) * (sheet.extras.nodes or _nodes(spec))


def fitting_world(sheet: Sheet, units: int) -> int:
    """The most ranks, at most the usual ones, that divide ``units`` evenly; the usual ones when they are asked for."""
    usual = usual_world(sheet)
    if is_sized(sheet) or _is_fixed(topology_of(sheet)):
        return usual
    return next(ranks for ranks in range(usual, 0, -1) if units % ranks == 0)


def fitting_replicas(sheet: Sheet, units: int, others: int) -> int:
    """The most ranks, at most the usual ones, of replicas of ``others`` ranks each that divide ``units`` evenly."""
    most = max(1, usual_world(sheet) // others)
    return others * next(replicas for replicas in range(most, 0, -1) if units % replicas == 0)


def put_cluster(sheet: Sheet, ranks: Ranks | None) -> Place:
    """Writes ``cluster``. The command line wins over the file. Raises ScenarioError for what the topology lacks."""
    spec, topology = topology_of(sheet), sheet.extras.topology
    if topology:
        sheet.put("cluster.topology", topology, "--topology")
    else:
        sheet.guess("cluster.topology", DEFAULT_TOPOLOGY, f"{CHANGE_ME} (--topology)")
    if _is_fixed(spec):
        return _fixed(sheet, spec, ranks)
    nodes, per_node, said = _size(sheet, spec, ranks)
    try:
        network = build_network(spec, nodes=nodes, gpus_per_node=per_node)
    except NetworkError as error:
        raise ScenarioError(
            f"{sheet.file}: {nodes} nodes of {per_node} GPUs ({said}) on '{spec.name}': {error}"
        ) from None
    sheet.put("cluster.nodes", nodes, said)
    if per_node != _per_node(spec):
        sheet.put("cluster.gpus_per_node", per_node, said)
    return Place(spec=spec, world=network.num_gpus, per_node=per_node)


def _is_fixed(spec: TopologySpec) -> bool:
    return isinstance(spec, TorusSpec | ExplicitSpec)


def _per_node(spec: TopologySpec) -> int:
    return int(getattr(spec, "gpus_per_node", 1))


def _nodes(spec: TopologySpec) -> int:
    return int(getattr(spec, "nodes", 1))


def _fixed(sheet: Sheet, spec: TopologySpec, ranks: Ranks | None) -> Place:
    """A torus is sized by its shape and a list of nodes not at all."""
    world = build_network(spec).num_gpus
    flags = [name for name, value in (("--nodes", sheet.extras.nodes), ("--gpus", sheet.extras.gpus)) if value]
    if flags:
        sized = "its shape: set cluster.shape" if isinstance(spec, TorusSpec) else "the list of its nodes"
        raise ScenarioError(f"{flags[0]}: '{spec.name}' is sized by {sized}; leave {flags[0]} out")
    if ranks is not None and ranks.total != world:
        sheet.warn(f"{ranks.said} asks for {ranks.total} ranks; '{spec.name}' has {world}")
    return Place(spec=spec, world=world, per_node=_per_node(spec))


def _size(sheet: Sheet, spec: TopologySpec, ranks: Ranks | None) -> tuple[int, int, str]:
    """Nodes, GPUs of each, and who says so."""
    usual, nodes, gpus = _per_node(spec), sheet.extras.nodes, sheet.extras.gpus
    if gpus is not None and nodes is not None:
        if gpus % nodes or gpus // nodes > usual:
            told = f"expected {nodes} times a whole number of GPUs, at most {usual} in each node of '{spec.name}'"
            raise ScenarioError(f"--gpus {gpus} --nodes {nodes}: {told}")
        return nodes, gpus // nodes, "--nodes, --gpus"
    if gpus is not None:
        return (*_spread(gpus, usual), _beside("--gpus", ranks))
    if nodes is not None:
        return nodes, usual, _beside("--nodes", ranks)
    if ranks is None:
        return _nodes(spec), usual, f"guess: {CHANGE_ME} (--nodes, --gpus)"
    said = f"guess: {ranks.said}; {CHANGE_ME} (--gpus)" if ranks.guess else ranks.said
    if ranks.nodes and ranks.total % ranks.nodes == 0 and ranks.total // ranks.nodes <= usual:
        return ranks.nodes, ranks.total // ranks.nodes, said
    if ranks.nodes:
        sheet.warn(
            f"{ranks.said}: {ranks.total} ranks on {ranks.nodes} nodes; nodes of '{spec.name}' have {usual} GPUs"
        )
    return (*_spread(ranks.total, usual), said)


def _beside(flag: str, ranks: Ranks | None) -> str:
    return flag if ranks is None or ranks.guess else f"{flag} (the file says {ranks.said})"


def _spread(total: int, usual: int) -> tuple[int, int]:
    """As few nodes as hold ``total`` ranks evenly, at most ``usual`` on each."""
    each = next(size for size in range(min(total, usual), 0, -1) if total % size == 0)
    return total // each, each
