"""Parts of a loaded scenario replaced, the rest as it was."""

from __future__ import annotations

from typing import Any

from simulator.device import DeviceSpec
from simulator.library import AlphaBetaLibrary, NcclLibrary
from simulator.scenario import Scenario


def with_cluster(scenario: Scenario, **update: Any) -> Scenario:
    """The scenario with other values of ``cluster``; it still knows where it was written."""
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update=update)})


def with_topology(scenario: Scenario, **update: Any) -> Scenario:
    """The scenario with other values of its topology."""
    return with_cluster(scenario, topology=scenario.cluster.spec.model_copy(update=update))


def with_device(scenario: Scenario, device: DeviceSpec) -> Scenario:
    """The scenario with another device."""
    return with_topology(scenario, device=device)


def library_of(scenario: Scenario) -> AlphaBetaLibrary | NcclLibrary:
    """The communication library of a loaded scenario."""
    library = scenario.cluster.spec.library
    assert isinstance(library, AlphaBetaLibrary | NcclLibrary), "the loader reads a library given by name or base"
    return library
