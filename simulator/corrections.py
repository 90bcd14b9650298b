"""A user's fits against a library's shipped profile, which prices the same calls on a network of the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import shipped
from simulator.calibration.comparison import Comparison, check_links, compare, correction_sizes, corrections_of
from simulator.calibration.fit import Fit
from simulator.calibration.machines import machine_of
from simulator.calibration.profile import placed
from simulator.calibration.samples import Samples
from simulator.collective_rows import Field, make_field, rows_of
from simulator.collectives import AUTO
from simulator.collectives.busbw import bus_factor
from simulator.errors import NetworkError, ScenarioError
from simulator.library import Corrections, NcclLibrary
from simulator.load import load_library, load_topology
from simulator.network.placement import place_ranks
from simulator.network.sizing import network_for
from simulator.topology import TopologySpec

Floats = NDArray[np.float64]


def guessed_topology(samples: Sequence[Samples]) -> tuple[str, str]:
    """(name of a shipped topology, from what it was guessed) for the logs' GPUs and ranks per node.

    Raises ScenarioError listing the shipped topologies where the logs do not tell, or tell of several.
    """
    found: dict[str, str] = {}
    for device in dict.fromkeys(held.device for held in samples if held.device is not None):
        per_node = max((held.per_node or 1) for held in samples if held.device == device)
        where = f"'{device}' with {per_node} rank{'s' if per_node > 1 else ''} a node"
        machine = machine_of(device, per_node)
        if machine is None:
            of_these = [held for held in samples if held.device == device]
            raise _no_guess(of_these, f"no shipped topology is known for {where}")
        found.setdefault(machine.topology, where)
    if len(found) != 1:
        told = " and ".join(found.values())
        raise _no_guess(samples, f"the logs are of {told}" if told else "the log lists no devices")
    return next(iter(found.items()))


def _no_guess(samples: Sequence[Samples], why: str) -> ScenarioError:
    names = ", ".join(dict.fromkeys(name for held in samples for name in held.names))
    return ScenarioError(
        f"{names}: {why}; say with --topology which shipped topology or file is meant: "
        f"{', '.join(shipped.names('topology'))}"
    )


def correctable(ref: str) -> TopologySpec:
    """The topology of that name or file. Raises ScenarioError naming --topology where its library is not a shipped one
    with a cost model: there is nothing to correct then, or nothing that a profile could name.
    """
    try:
        spec = load_topology(ref)
    except ScenarioError as error:
        raise ScenarioError(f"--topology: {error}") from None
    library = spec.library
    if not isinstance(library, NcclLibrary):
        name = getattr(library, "name", str(library))
        raise ScenarioError(
            f"--topology: '{ref}': its library '{name}' has no cost model to correct: it adds fixed times to what the "
            "links give; take a topology with nccl or rccl"
        )
    if library.name not in shipped.names("library") or library != load_library(library.name):
        raise ScenarioError(
            f"--topology: '{ref}': its library '{library.name}' is not one as shipped, which the profile could name "
            "as its base; take a topology with nccl or rccl"
        )
    return spec


def compared(fit: Fit, samples: Samples, spec: TopologySpec) -> Comparison:
    """The fit against the library of ``spec``, a topology that is ``correctable``. Raises ScenarioError where the ranks
    do not fit on it, the library has no cost model for them, or the log is faster than the links.
    """
    library = spec.library
    assert isinstance(library, NcclLibrary)
    check_links(samples, least_times(fit, spec, samples.sizes_bytes), spec.name)
    span = "one_node" if _num_nodes(_field(fit, spec)) == 1 else "several_nodes"
    sizes = np.unique(np.concatenate([correction_sizes(fit, samples), samples.sizes_bytes]))
    shipped_s = dict(zip(sizes.tolist(), library_times(fit, spec, sizes).tolist(), strict=True))

    def shipped_at(wanted: Floats) -> Floats:
        return np.array([shipped_s[size] for size in wanted.tolist()])

    places = correction_sizes(fit, samples)
    corrections = corrections_of(fit, places, shipped_at(places))
    factors: dict[str, Any] = {span: corrections}
    mine = library.model_copy(update={"corrections": {fit.op: Corrections.model_construct(**factors)}})
    priced = library_times(fit, spec.model_copy(update={"library": mine}), sizes)
    calibrated_s = dict(zip(sizes.tolist(), priced.tolist(), strict=True))
    return compare(
        fit, samples, corrections, shipped_at(samples.sizes_bytes),
        np.array([calibrated_s[size] for size in samples.sizes_bytes.tolist()]), span=span,
    )  # fmt: skip


def library_times(fit: Fit, spec: TopologySpec, sizes_bytes: Floats) -> Floats:
    """Time in s that the library of ``spec`` takes for the fit's operation, on ranks placed as the log says: node after
    node, ``per_node`` on each. Raises ScenarioError as ``compared`` does.
    """
    field = _field(fit, spec)
    return np.array([row.time_s for row in rows_of(field, sizes_bytes.tolist()) if row.picked])


def least_times(fit: Fit, spec: TopologySpec, sizes_bytes: Floats) -> Floats:
    """Least time in s of the fit's operation at each size, on the same ranks: what the busiest link needs at its
    nominal rate for the bytes of the library's algorithm that puts the fewest on it.

    An all-reduce over several nodes may have a network that adds (SHARP), and then sends each byte once where a ring
    sends it 2 (n - 1) / n times. Raises ScenarioError as ``compared`` does.
    """
    field = _field(fit, spec, nominal=True)
    pricer = field.pricer
    assert pricer is not None, "only libraries with a cost model come here"
    sizes = sizes_bytes.tolist()
    least = [[pricer.link_s(name, size) for size in sizes] for name in pricer.algorithms]
    if fit.op == "all_reduce" and _num_nodes(field) > 1:
        least.append([pricer.link_s("ring", size) / bus_factor(fit.op, fit.ranks) for size in sizes])
    fewest: Floats = np.array(least).min(axis=0)
    return fewest


def _num_nodes(field: Field) -> int:
    """NVLink domains that hold ranks, as the library counts nodes."""
    return len(np.unique(field.wires.network.domain_of_gpu[field.wires.gpus]))


def _field(fit: Fit, spec: TopologySpec, *, nominal: bool = False) -> Field:
    """The fit's operation on its ranks, on links at their usable or nominal rate."""
    where = f"{', '.join(fit.names)}: {fit.op} on {placed(fit)}"
    try:
        network = network_for(spec, fit.ranks, nodes=fit.nodes, gpus_per_node=fit.per_node)
        gpus = place_ranks(network, ranks=fit.ranks, nodes=fit.nodes, gpus_per_node=fit.per_node)
    except NetworkError as error:
        raise ScenarioError(f"{where} does not fit on '{spec.name}': {error}; another one: --topology") from None
    if nominal:
        rates = [float(network.graph[a][b]["nominal_bytes_per_s"]) for a, b in network.link_names]
        network = replace(network, capacity_bytes_per_s=np.array(rates, dtype=np.float64))
    field = make_field(fit.op, fit.ranks, network, [AUTO], groups=gpus[None, :])
    if field.pricer is None:
        name = network.library.name
        raise ScenarioError(f"{where}: '{name}' has no cost model for these ranks on '{spec.name}'; see --topology")
    return field
