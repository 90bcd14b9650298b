"""A user's fits against a library's shipped profile, which prices the same calls on a network of the same shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator import shipped
from simulator.calibration.comparison import Comparison, compare, correction_sizes, corrections_of
from simulator.calibration.fit import Fit
from simulator.calibration.machines import machine_of
from simulator.calibration.profile import placed
from simulator.calibration.samples import Samples
from simulator.collective_rows import make_field, rows_of
from simulator.collectives import AUTO
from simulator.errors import NetworkError, ScenarioError
from simulator.library import NcclLibrary
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
    do not fit on it, or the library has no cost model for them.
    """
    library = spec.library
    assert isinstance(library, NcclLibrary)
    sizes = np.unique(np.concatenate([correction_sizes(fit, samples), samples.sizes_bytes]))
    shipped_s = dict(zip(sizes.tolist(), library_times(fit, spec, sizes).tolist(), strict=True))

    def shipped_at(wanted: Floats) -> Floats:
        return np.array([shipped_s[size] for size in wanted.tolist()])

    places = correction_sizes(fit, samples)
    corrections = corrections_of(fit, places, shipped_at(places))
    mine = library.model_copy(update={"corrections": {fit.op: corrections}})
    priced = library_times(fit, spec.model_copy(update={"library": mine}), sizes)
    calibrated_s = dict(zip(sizes.tolist(), priced.tolist(), strict=True))
    return compare(
        fit, samples, corrections, shipped_at(samples.sizes_bytes),
        np.array([calibrated_s[size] for size in samples.sizes_bytes.tolist()]),
    )  # fmt: skip


def library_times(fit: Fit, spec: TopologySpec, sizes_bytes: Floats) -> Floats:
    """Time in s that the library of ``spec`` takes for the fit's operation, on ranks placed as the log says: node after
    node, ``per_node`` on each. Raises ScenarioError as ``compared`` does.
    """
    where = f"{', '.join(fit.names)}: {fit.op} on {placed(fit)}"
    try:
        network = network_for(spec, fit.ranks, nodes=fit.nodes, gpus_per_node=fit.per_node)
        gpus = place_ranks(network, ranks=fit.ranks, nodes=fit.nodes, gpus_per_node=fit.per_node)
    except NetworkError as error:
        raise ScenarioError(f"{where} does not fit on '{spec.name}': {error}; another one: --topology") from None
    field = make_field(fit.op, fit.ranks, network, [AUTO], groups=gpus[None, :])
    if field.pricer is None:
        name = network.library.name
        raise ScenarioError(f"{where}: '{name}' has no cost model for these ranks on '{spec.name}'; see --topology")
    return np.array([row.time_s for row in rows_of(field, sizes_bytes.tolist()) if row.picked])
