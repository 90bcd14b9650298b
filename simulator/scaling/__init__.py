"""One number of a scenario times a factor, as a new scenario: shared by ranges, tornado diagrams and ``cluster.scale``.

``INPUTS`` lists what can be scaled. A loaded scenario has its own ``cluster.scale`` applied already.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.scaling.inputs import INPUTS, Input
from simulator.scenario import Scenario

__all__ = ["INPUTS", "Input", "faster_network", "lacking", "scaled"]


def scaled(scenario: Scenario, factors: Mapping[str, float]) -> Scenario:
    """The scenario with each input times its factor; the same again gives the factors' product.

    Every input must be one that the scenario's cluster has (``lacking``). A factor of 1 changes nothing.
    """
    for name, factor in factors.items():
        assert factor > 0, f"{name} times {factor} is nothing"
        if factor != 1.0:
            scenario = INPUTS[name].apply(scenario, factor)
    return scenario


def lacking(scenario: Scenario, name: str) -> str:
    """Why an input of this name cannot be scaled; '' where it can."""
    entry, spec = INPUTS[name], scenario.cluster.spec
    if entry.has(scenario):
        return ""
    accepted = ", ".join(other for other, held in INPUTS.items() if held.has(scenario) and held.group != "money")
    return f"'{spec.name}' has no {entry.words} to scale; it has {accepted}"


def faster_network(scenario: Scenario, factor: float = 2.0) -> tuple[str, ...]:
    """Overrides that make what joins the nodes ``factor`` times as fast, on top of the scenario's own scale.

    NICs and the PCIe before them, which would otherwise be the next to limit; or the links of a uniform network, a
    torus or a graph. Nothing where all ranks are in one node.
    """
    names = ("nic_bandwidth", "pcie_bandwidth", "link_bandwidth")
    own = dict(scenario.cluster.scale.factors())
    return tuple(
        f"cluster.scale.{name}={own.get(name, 1.0) * factor:g}"
        for name in names if INPUTS[name].has(scenario) and INPUTS[name].used(scenario)
    )  # fmt: skip
