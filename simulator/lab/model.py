"""A shaped fabric as the simulator's network, from the few numbers that were measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.errors import ScenarioError
from simulator.lab.fabric import PAYLOAD_SHARE, ShapedFabric, flat
from simulator.library import AlphaBetaLibrary
from simulator.network.builders.explicit import explicit
from simulator.network.graph import Network
from simulator.topology import ExplicitSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A message of n bytes alone on the way takes ``alpha_s + n / bytes_per_s``."""

    alpha_s: float
    bytes_per_s: float


def stated_rate(bit_per_s: float) -> float:
    """Payload rate, bytes/s, that a link shaped to ``bit_per_s`` should give."""
    return bit_per_s / 8 * PAYLOAD_SHARE


def network_of(fabric: ShapedFabric, near: Way, across: Way | None = None) -> Network:
    """``topology_of`` as a network, without a library: schedules are played on bare links."""
    return explicit(topology_of(fabric, near, across))


def topology_of(
    fabric: ShapedFabric, near: Way, across: Way | None = None, library: AlphaBetaLibrary | None = None
) -> ExplicitSpec:
    """One gpu per host, in the order of hosts; a switch per side; links as fast as was measured.

    near: between two hosts of one side; each of the two links has half of its alpha. across: between hosts of
    different sides, whose rate is the uplink's; the uplink has what its alpha adds to that of ``near``. A side then
    stands for a node. Raises ScenarioError where ``across`` is missing or too much.
    """
    if (across is None) != (fabric.uplink_bit_per_s is None):
        raise ScenarioError("lab: numbers across belong to a fabric of two sides, and only to it")
    wires = {"host": _wire(near.bytes_per_s, near.alpha_s / 2)}
    links: list[dict[str, Any]] = [
        {"ends": [f"gpu{host}", f"switch{side}"], "wire": "host"} for host, side in enumerate(fabric.sides)
    ]
    if across is not None:
        wires["uplink"] = _wire(across.bytes_per_s, max(0.0, across.alpha_s - near.alpha_s))
        links.append({"ends": ["switch0", "switch1"], "wire": "uplink"})
    homes = fabric.sides if across is not None else range(fabric.num_hosts)
    nodes: list[dict[str, Any]] = [
        {"name": f"gpu{host}", "kind": "gpu", "host": home} for host, home in enumerate(homes)
    ]
    nodes += [{"name": f"switch{side}", "kind": "switch"} for side in range(len(fabric.hosts_per_side))]
    spec = {"name": "lab", "kind": "explicit", "wires": wires, "nodes": nodes, "links": links}
    return ExplicitSpec.model_validate({**spec, "library": library or AlphaBetaLibrary()})


def _wire(bytes_per_s: float, latency_s: float) -> dict[str, str]:
    return {
        "bandwidth": f"{bytes_per_s:.6f} B/s", "latency": f"{latency_s:.12f} s", "source": "measured in the lab",
    }  # fmt: skip


def fabric_of(network: Network) -> ShapedFabric:
    """What to build so that hosts see this network: every GPU on a host of its own, whose cable ends at a switch; one
    switch, or two joined by one cable. Cables are shaped so that payload gets the network's rate.

    Raises ScenarioError for any other network.
    """
    switches = [name for name, kind in network.graph.nodes(data="kind") if kind == "switch"]
    rates = dict(zip(network.link_names, network.capacity_bytes_per_s.tolist(), strict=True))
    homes = [[other for gpu, other in rates if gpu == name] for name in network.gpus]
    flat_enough = len(switches) in (1, 2) and all(len(home) == 1 and home[0] in switches for home in homes)
    cables = {rates[gpu, home[0]] for gpu, home in zip(network.gpus, homes, strict=True)} if flat_enough else set()
    if len(network.graph) != len(switches) + network.num_gpus or len(cables) != 1:
        raise ScenarioError(
            f"'{network.name}': the lab builds hosts with equal links to one switch, or to two that are joined by a "
            "cable; accepted are topologies such as lab-flat and lab-two-level"
        )
    sides = [switches.index(home[0]) for home in homes]
    if sides != sorted(sides):
        raise ScenarioError(f"'{network.name}': GPUs must be listed switch by switch")
    host_bit_per_s = _wire_rate(cables.pop())
    if len(switches) == 1:
        return flat(len(sides), host_bit_per_s)
    uplink = rates.get((switches[0], switches[1]))
    if uplink is None:
        raise ScenarioError(f"'{network.name}': its two switches are not joined by a cable")
    return ShapedFabric(
        hosts_per_side=(sides.count(0), sides.count(1)), host_bit_per_s=host_bit_per_s,
        uplink_bit_per_s=_wire_rate(uplink),
    )  # fmt: skip


def _wire_rate(payload_bytes_per_s: float) -> float:
    """The inverse of ``stated_rate``, in steps of 100 kbit/s: a share such as 95.64 % is rounded."""
    return round(payload_bytes_per_s * 8 / PAYLOAD_SHARE / 1e5) * 1e5
