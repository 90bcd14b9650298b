"""One function per kind of topology. To add one: a spec class in ``simulator.topology``, a function, a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from simulator.device import DeviceSpec
from simulator.errors import NetworkError
from simulator.network.builders.explicit import explicit
from simulator.network.builders.machines import machines, nvswitch
from simulator.network.builders.nvl72 import nvl72
from simulator.network.builders.torus import torus
from simulator.network.builders.uniform import uniform
from simulator.network.builders.workstations import workstations
from simulator.network.graph import Network
from simulator.topology import EthernetSpec, FabricSpec, TopologySpec

BUILDERS: dict[str, Callable[..., Network]] = {
    "uniform": uniform,
    "nvswitch": nvswitch,
    "rail_fat_tree": machines,
    "bridged_pairs": machines,
    "full_mesh": machines,
    "workstations": workstations,
    "nvl72": nvl72,
    "torus": torus,
    "explicit": explicit,
}


def build_network(
    spec: TopologySpec, *, nodes: int | None = None, gpus_per_node: int | None = None,
    shape: Sequence[int] | None = None,
) -> Network:  # fmt: skip
    """The network that ``spec`` describes, with its size changed where an argument is given.

    ``nodes`` and ``gpus_per_node`` size machines, ``shape`` a torus. Raises NetworkError for a size
    that the kind does not have or that does not fit.
    """
    sizes: dict[str, Any] = {}
    for key, value in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if value is not None:
            if value < 1:
                raise NetworkError(f"{key}: {value}: must be at least 1")
            sizes[key] = value
    if shape is not None:
        if not 1 <= len(shape) <= 3 or min(shape) < 1:
            raise NetworkError(f"shape: {list(shape)}: expected one to three lengths of at least 1, such as 4x4x4")
        sizes["shape"] = tuple(shape)
    _check_count(spec, sizes)
    accepted = SIZES[spec.kind]
    for key in sizes:
        if key not in accepted:
            raise NetworkError(f"{key}: {_refusal(spec, accepted)}")
    generation = spec.device.generation if isinstance(spec.device, DeviceSpec) else None
    built = replace(BUILDERS[spec.kind](spec, **sizes), generation=generation, cpu=spec.cpu)
    joined = getattr(spec, "network", None)
    return replace(built, fabric=joined.fabric) if isinstance(joined, FabricSpec | EthernetSpec) else built


MAX_GPUS = 131_072

SIZES: dict[str, tuple[str, ...]] = {
    "uniform": ("nodes", "gpus_per_node"),
    "nvswitch": ("nodes", "gpus_per_node"),
    "rail_fat_tree": ("nodes", "gpus_per_node"),
    "bridged_pairs": ("nodes", "gpus_per_node"),
    "full_mesh": ("nodes", "gpus_per_node"),
    "workstations": ("nodes", "gpus_per_node"),
    "nvl72": ("nodes", "gpus_per_node"),
    "torus": ("shape",),
    "explicit": (),
}


def _check_count(spec: TopologySpec, sizes: dict[str, Any]) -> None:
    wanted = {key: sizes.get(key, getattr(spec, key, 1)) for key in ("nodes", "gpus_per_node", "shape")}
    count = prod(wanted["shape"]) if spec.kind == "torus" else 1
    if "nodes" in SIZES[spec.kind]:
        count = wanted["nodes"] * wanted["gpus_per_node"]
    if count > MAX_GPUS:
        raise NetworkError(f"{spec.name}: {count:,} GPUs asked for; this version builds at most {MAX_GPUS:,}")


def _refusal(spec: TopologySpec, accepted: tuple[str, ...]) -> str:
    if not accepted:
        return f"'{spec.name}' lists its nodes one by one, so its size cannot be changed"
    return f"'{spec.name}' ({spec.kind}) is sized by {' and '.join(accepted)}; leave the other out"
