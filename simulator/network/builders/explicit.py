"""Any graph, from a list of nodes and links."""

from __future__ import annotations

from simulator.errors import NetworkError
from simulator.network.graph import Cable, Network, Place, assemble, wire
from simulator.problems import nearest
from simulator.topology import ExplicitSpec, LinkEntry

LEVELS = {"gpu": 0, "host": 1, "switch": 1, "nic": 2}


def explicit(spec: ExplicitSpec) -> Network:
    """The graph as written; ranks are the GPUs in the order of the list. A link's tier is the name of its wire.

    Raises NetworkError for an unknown wire, and whatever ``assemble`` finds wrong.
    """
    wires = {name: wire(link, name) for name, link in spec.wires.items()}
    places = _places(spec)
    for link in spec.links:
        if link.wire not in wires:
            raise NetworkError(_unknown_wire(link, list(wires)))
    nics = [entry.host for entry in spec.nodes if entry.kind == "nic"]
    return assemble(
        name=spec.name, kind=spec.kind, routing="shortest", places=places,
        cables=[Cable(*link.ends, wires[link.wire]) for link in spec.links], library=spec.library,
        rails=max((nics.count(host) for host in nics), default=0),
    )  # fmt: skip


def _places(spec: ExplicitSpec) -> list[Place]:
    """Hosts numbered 0, 1, ... by their first GPU; a GPU without a host is one by itself."""
    hosts: dict[int | str, int] = {}
    for entry in spec.nodes:
        if entry.kind == "gpu":
            hosts.setdefault(entry.name if entry.host is None else entry.host, len(hosts))
    return [
        Place(entry.name, entry.kind, entry.kind, LEVELS[entry.kind],
              hosts.get(entry.name if entry.host is None else entry.host))
        for entry in spec.nodes
    ]  # fmt: skip


def _unknown_wire(link: LinkEntry, wires: list[str]) -> str:
    accepted = ", ".join(wires) or "a name in 'wires', which is empty"
    return f"links: {list(link.ends)}: wire '{link.wire}': expected one of {accepted}{nearest(link.wire, wires)}"
