"""Which algorithm and protocol a library runs, and which would be the fastest: two questions, answered apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from simulator.library import PROTOCOLS, NcclLibrary, Protocol
from simulator.tuning.belief import MOST_HEADS, believed_s, caps_of, protocols_of
from simulator.tuning.measured import POINT_TO_POINT, Cost, measured_cost, on_log_scale
from simulator.tuning.shape import Shape

#: Algorithms that only a library's own kernels can run: no user builds them of sends and receives.
KERNELS = frozenset({"double_tree", "nvls", "nvls_tree", "pat"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run a collective. believed_s: what the library's own model says, None where it has none."""

    algorithm: str
    protocol: Protocol
    believed_s: float | None
    cost: Cost


def native(op: str, shape: Shape, library: NcclLibrary) -> tuple[str, ...]:
    """Algorithms that the library may run for a group, without plugins for reduction inside the network."""
    if op in POINT_TO_POINT:
        return ("direct",)
    if op in {"broadcast", "reduce"}:
        return ("ring",)
    choice = library.choice
    reduces = choice is not None and caps_of(shape, choice).nvls_efficiency is not None and shape.nvswitch
    nvls = reduces and shape.ranks_per_node >= 2 and shape.even
    in_node = ("nvls",) if nvls and shape.num_nodes == 1 else ()
    if op == "all_reduce":
        return ("ring", "double_tree", *in_node, *(("nvls_tree",) if nvls and shape.num_nodes > 1 else ()))
    if shape.ranks_per_node > MOST_HEADS:  # every rank that gathers or scatters by NVLS is a head
        in_node = ()
    return ("ring", *in_node, *(("pat",) if choice is not None and shape.ranks_per_node == 1 else ()))


def ways(op: str, algorithms: Iterable[str], shape: Shape, library: NcclLibrary) -> tuple[tuple[str, Protocol], ...]:
    """Each of ``algorithms`` with each protocol that it may use."""
    return tuple((name, protocol) for name in algorithms for protocol in _protocols(op, name, shape, library))


def option(
    op: str, algorithm: str, protocol: Protocol, size_bytes: float, link_s: float, shape: Shape, library: NcclLibrary
) -> Option:
    """One way with its cost. link_s: what the busiest link of the network needs for its bytes at full rate."""
    cost = measured_cost(op, algorithm, protocol, size_bytes, link_s, shape, library.measured)
    return Option(
        algorithm=algorithm, protocol=protocol, cost=_corrected(cost, library, op, size_bytes, link_s, shape),
        believed_s=_belief(op, algorithm, protocol, size_bytes, shape, library),
    )  # fmt: skip


def options(
    op: str, size_bytes: float, link_s: Mapping[str, float], shape: Shape, library: NcclLibrary
) -> tuple[Option, ...]:
    """Every algorithm of ``link_s`` (see ``option``) with every protocol that it may use."""
    return tuple(
        option(op, name, protocol, size_bytes, link_s[name], shape, library)
        for name, protocol in ways(op, link_s, shape, library)
    )


def _belief(
    op: str, algorithm: str, protocol: Protocol, size_bytes: float, shape: Shape, library: NcclLibrary
) -> float | None:
    if library.choice is None or op in POINT_TO_POINT:
        return None
    return believed_s(op, algorithm, protocol, size_bytes, shape, library.choice)


def _corrected(cost: Cost, library: NcclLibrary, op: str, size_bytes: float, link_s: float, shape: Shape) -> Cost:
    """The cost times what the user's own runs on groups of this span took longer (or shorter) than the model.

    Never less than ``link_s``: a factor found on one group may be too good for another, whose links are full earlier.
    """
    points = library.corrections[op].over(shape.num_nodes) if op in library.corrections else None
    if points is None or not cost.time_s:
        return cost
    factor = max(on_log_scale(points, size_bytes), min(1.0, link_s / cost.time_s))
    return replace(cost, latency_s=cost.latency_s * factor, transfer_s=cost.transfer_s * factor)


def _protocols(op: str, algorithm: str, shape: Shape, library: NcclLibrary) -> tuple[Protocol, ...]:
    if op in POINT_TO_POINT:
        return ("Simple",)
    on_pcie = shape.link == "pcie" and shape.ranks_per_node > 1  # LL128 counts on NVLink's ordered stores
    carried = library.measured.fabrics[shape.fabric].protocols if shape.num_nodes > 1 else PROTOCOLS
    allowed = tuple(p for p in library.protocols if p in carried and (p != "LL128" or not on_pcie))
    allowed = allowed or ("Simple",)
    return protocols_of(algorithm, allowed)


def expected(
    op: str, algorithms: Iterable[str], size_bytes: float, shape: Shape, library: NcclLibrary
) -> tuple[str, Protocol]:
    """What the library's own model picks: the least believed time, ties to the first. Only where MODEL decides."""
    assert library.choice is not None, "only a library with a model of its own believes anything"
    choice = library.choice

    def belief(way: tuple[str, Protocol]) -> float:
        return believed_s(op, way[0], way[1], size_bytes, shape, choice)

    return min(ways(op, algorithms, shape, library), key=belief)


def picked(found: tuple[Option, ...], shape: Shape, library: NcclLibrary) -> Option:
    """What the library runs of these: the least believed time where its own model decides, else the least measured
    time. Ties go to the first.
    """
    if chosen_by(shape, library) != MODEL or any(option.believed_s is None for option in found):
        return fastest(found)
    return min(found, key=lambda option: option.believed_s or 0.0)


#: What decides which algorithm a library runs.
MODEL, TUNER, MEASURED = "its cost model", "the network's tuner plugin", "least measured time (no cost model known)"


def chosen_by(shape: Shape, library: NcclLibrary) -> str:
    """What decides for a group: MODEL, TUNER or MEASURED."""
    if library.choice is None:
        return MEASURED
    return TUNER if shape.num_nodes > 1 and library.measured.fabrics[shape.fabric].tuner else MODEL


def fastest(found: tuple[Option, ...]) -> Option:
    """What takes the least time, whatever the library believes."""
    return min(found, key=lambda option: option.cost.time_s)
