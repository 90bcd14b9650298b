"""The network: a frozen directed graph with one link per direction, and the same numbers as arrays.

Builders list ``Place``s and ``Cable``s; ``assemble`` checks them and makes the ``Network``. A cable is
two links: cable k is link 2k (a to b) and link 2k+1 (b to a), so ``link ^ 1`` is the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from simulator.errors import NetworkError
from simulator.library import AlphaBetaLibrary, CalibratedLibrary, Cpu, Fabric, Generation, NcclLibrary
from simulator.problems import nearest
from simulator.topology import LinkSpec

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Place(NamedTuple):
    """A node of the graph.

    ``kind`` is gpu, nic, switch or host; ``role`` says which switch (nvswitch, pcie-switch, leaf,
    spine). ``level`` orders up and down; ``node`` is the host that holds it, None outside hosts.
    """

    name: str
    kind: str
    role: str
    level: int
    node: int | None = None


class Wire(NamedTuple):
    """The numbers of one kind of cable, per direction. ``bytes_per_s`` is what payload can use."""

    tier: str
    nominal_bytes_per_s: float
    bytes_per_s: float
    latency_s: float
    source: str


class Cable(NamedTuple):
    """Two links, one each way, between the places named ``a`` and ``b``."""

    a: str
    b: str
    wire: Wire


def wire(spec: LinkSpec, tier: str) -> Wire:
    """The cable that a ``LinkSpec`` describes: usable rate = data-sheet rate x efficiency."""
    return Wire(tier, spec.bandwidth, spec.bandwidth * spec.efficiency, spec.latency, spec.source)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Network:
    """GPUs, NICs and switches. Arrays are read-only; index of ``gpus`` = rank's place, of ``link_names`` = link id.

    ``node_of_gpu`` (num_gpus,) is the host, ``domain_of_gpu`` (num_gpus,) the scale-up domain: the host,
    or the whole rack of an NVL72, or the slice of a torus. ``rails`` counts the NICs a node drives
    at once, 0 without NICs. ``capacity_bytes_per_s`` and ``latency_s`` are (num_links,), and so is ``tier_of_link``,
    each link's place in ``tiers``, the names of the kinds of links. ``pxn``: a message
    to another rail first goes to the local GPU of that rail and leaves by its NIC. ``library`` is the communication
    library's profile; ``generation`` (of the GPUs), ``fabric`` and ``cpu`` choose among its constants.
    """

    name: str
    kind: str
    routing: str
    graph: nx.DiGraph
    gpus: tuple[str, ...]
    node_of_gpu: Ints
    domain_of_gpu: Ints
    gpus_per_node: int
    rails: int
    pxn: bool
    torus_shape: tuple[int, ...] | None
    torus_wrap: tuple[bool, ...] | None
    link_names: tuple[tuple[str, str], ...]
    capacity_bytes_per_s: Floats
    latency_s: Floats
    tiers: tuple[str, ...]
    tier_of_link: Ints
    library: AlphaBetaLibrary | NcclLibrary
    generation: Generation | None = None
    fabric: Fabric = "infiniband"
    cpu: Cpu = "other"

    @property
    def message_overhead_s(self) -> float:
        """What the library's software adds to each message of a schedule that it does not have itself."""
        return self.library.message_overhead

    @property
    def collective_launch_s(self) -> float:
        """What the library's software adds to a collective of no operation with a time of its own."""
        return self.library.collective_launch

    def launch_s(self, op: str) -> float:
        """What the library's software adds to each collective that runs as ``op``."""
        own = self.library.operation_launch if isinstance(self.library, AlphaBetaLibrary) else {}
        return next((time_s for name, time_s in own.items() if name == op), self.library.collective_launch)

    @property
    def num_gpus(self) -> int:
        """How many ranks the network can hold."""
        return len(self.gpus)

    @property
    def num_nodes(self) -> int:
        """How many hosts hold GPUs."""
        return int(self.node_of_gpu.max()) + 1


def assemble(
    *, name: str, kind: str, routing: str, places: Sequence[Place], cables: Sequence[Cable],
    library: str | AlphaBetaLibrary | NcclLibrary | CalibratedLibrary,
    rails: int = 0, pxn: bool = False, domains: Sequence[int] | None = None,
    torus_shape: tuple[int, ...] | None = None, torus_wrap: tuple[bool, ...] | None = None,
) -> Network:  # fmt: skip
    """Check the parts and freeze them into a ``Network``. Raises NetworkError for each way parts can be wrong."""
    assert isinstance(library, AlphaBetaLibrary | NcclLibrary), "the loader reads a library given by name or base"
    index = _index_places(places)
    ends = _check_cables(cables, index)
    gpus = tuple(place for place in places if place.kind == "gpu")
    if not gpus:
        raise NetworkError(f"{name}: no GPU among {len(places)} nodes; switches, NICs and hosts hold no rank")
    _check_connected(name, places, ends)
    link_names = tuple(pair for cable in cables for pair in ((cable.a, cable.b), (cable.b, cable.a)))
    tiers = tuple(dict.fromkeys(cable.wire.tier for cable in cables))
    hosts = _dense([place.node if place.node is not None else -1 - i for i, place in enumerate(gpus)])
    return Network(
        name=name, kind=kind, routing=routing, graph=_graph(name, places, cables),
        gpus=tuple(place.name for place in gpus),
        node_of_gpu=hosts, domain_of_gpu=hosts if domains is None else _dense(domains),
        gpus_per_node=int(np.bincount(hosts).max()), rails=rails, pxn=pxn,
        torus_shape=torus_shape, torus_wrap=torus_wrap, link_names=link_names,
        capacity_bytes_per_s=_frozen(np.repeat([cable.wire.bytes_per_s for cable in cables], 2).astype(np.float64)),
        latency_s=_frozen(np.repeat([cable.wire.latency_s for cable in cables], 2).astype(np.float64)),
        tiers=tiers, tier_of_link=np.repeat(_dense([tiers.index(cable.wire.tier) for cable in cables]), 2),
        library=library,
    )  # fmt: skip


def rewired(network: Network, share: Floats) -> Network:
    """``network`` with each link at ``share`` (num_links,) of its usable rate; at 0 it is taken out, and what hangs on
    nothing any more but a GPU with it. Both links of a cable have the same share.

    A torus that lost links routes by the shortest way, since going axis by axis needs them all.
    """
    kept = np.flatnonzero(share > 0)
    graph = network.graph.copy()
    for link in np.flatnonzero(share < 1).tolist():
        a, b = network.link_names[link]
        if share[link]:
            graph[a][b]["bytes_per_s"] = float(network.capacity_bytes_per_s[link] * share[link])
        else:
            graph.remove_edge(a, b)
    whole = kept.size == share.size
    if not whole:
        kind = graph.nodes(data="kind")
        graph.remove_nodes_from([name for name, links in list(graph.degree) if not links and kind[name] != "gpu"])
    return replace(
        network, graph=nx.freeze(graph), link_names=tuple(network.link_names[link] for link in kept.tolist()),
        capacity_bytes_per_s=_frozen((network.capacity_bytes_per_s * share)[kept]),
        latency_s=_frozen(network.latency_s[kept]), tier_of_link=_frozen(network.tier_of_link[kept]),
        routing="shortest" if network.routing == "dimension-order" and not whole else network.routing,
    )  # fmt: skip


def _frozen(array: Any) -> Any:
    array.setflags(write=False)
    return array


def _dense(labels: Sequence[int]) -> Ints:
    """Number labels 0, 1, ... in order of first appearance."""
    numbers: dict[int, int] = {}
    dense: Ints = _frozen(np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64))
    return dense


def _index_places(places: Sequence[Place]) -> dict[str, int]:
    index = {place.name: i for i, place in enumerate(places)}
    if len(index) != len(places):
        seen: set[str] = set()
        for place in places:
            if place.name in seen:
                raise NetworkError(f"nodes: the name '{place.name}' is used twice")
            seen.add(place.name)
    return index


def _check_cables(cables: Sequence[Cable], index: dict[str, int]) -> Ints:
    """Ends of each cable as place numbers, (num_cables, 2)."""
    try:
        ends = np.array([(index[cable.a], index[cable.b]) for cable in cables], dtype=np.int64).reshape(-1, 2)
    except KeyError as error:
        hint = nearest(error.args[0], index) or f"; nodes are {', '.join(list(index)[:8])}"
        raise NetworkError(f"links: no node is named '{error.args[0]}'{hint}") from None
    loops = np.flatnonzero(ends[:, 0] == ends[:, 1])
    if loops.size:
        raise NetworkError(f"links: '{cables[loops[0]].a}' is linked to itself")
    keys = ends.min(axis=1) * len(index) + ends.max(axis=1)
    _, first = np.unique(keys, return_index=True)
    if first.size != keys.size:
        again = cables[int(np.setdiff1d(np.arange(keys.size), first)[0])]
        raise NetworkError(f"links: '{again.a}' and '{again.b}' are linked twice; give one link their joint bandwidth")
    return ends


def _check_connected(name: str, places: Sequence[Place], ends: Ints) -> None:
    """Every place must reach place 0. Label spreading: each round both ends of a cable take the lower label."""
    label = np.arange(len(places))
    while True:
        low = label.copy()
        np.minimum.at(low, ends[:, 0], label[ends[:, 1]])
        np.minimum.at(low, ends[:, 1], label[ends[:, 0]])
        low = low[low]
        if np.array_equal(low, label):
            break
        label = low
    apart = [places[i].name for i in np.flatnonzero(label != label[0]).tolist()]
    if apart:
        reached = places[int(label[0])].name
        more = f" and {len(apart) - 4} more" if len(apart) > 4 else ""
        raise NetworkError(f"{name}: not connected: no path from '{reached}' to {', '.join(apart[:4])}{more}")


def _graph(name: str, places: Sequence[Place], cables: Sequence[Cable]) -> nx.DiGraph:
    graph = nx.DiGraph(name=name)
    graph.add_nodes_from(
        (place.name, {"kind": place.kind, "role": place.role, "level": place.level, "node": place.node})
        for place in places
    )
    attributes = {cable.wire: cable.wire._asdict() for cable in cables}
    graph.add_edges_from((cable.a, cable.b, attributes[cable.wire]) for cable in cables)
    graph.add_edges_from((cable.b, cable.a, attributes[cable.wire]) for cable in cables)
    return nx.freeze(graph)
