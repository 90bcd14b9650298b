"""A shaped fabric as the simulator's network, from the few numbers that were measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.errors import ScenarioError
from simulator.lab.fabric import PAYLOAD_SHARE, ShapedFabric
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
    """One gpu per host, in the order of hosts; a switch per side; links as fast as was measured.

    near: between two hosts of one side; each of the two links has half of its alpha. across: between hosts of
    different sides, whose rate is the uplink's; the uplink has what its alpha adds to that of ``near``. Raises
    ScenarioError where ``across`` is missing or too much.
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
    nodes = [{"name": f"gpu{host}", "kind": "gpu"} for host in range(fabric.num_hosts)]
    nodes += [{"name": f"switch{side}", "kind": "switch"} for side in range(len(fabric.hosts_per_side))]
    spec = {"name": "lab", "kind": "explicit", "wires": wires, "nodes": nodes, "links": links}
    return explicit(ExplicitSpec.model_validate(spec))


def _wire(bytes_per_s: float, latency_s: float) -> dict[str, str]:
    return {
        "bandwidth": f"{bytes_per_s:.6f} B/s", "latency": f"{latency_s:.12f} s", "source": "measured in the lab",
    }  # fmt: skip
