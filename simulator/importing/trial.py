"""What the simulator would refuse of an imported scenario, as a warning that names the option it comes from.

The scenario is planned as ``simulator run`` plans it, without being simulated: on its whole network, with as few
micro-batches as make the same plan. A schedule's own rules are asked with all of them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.draft import Draft
from simulator.importing.writer import scenario_text
from simulator.load import scenario_of
from simulator.network.builders import build_network
from simulator.pipelines import PIPELINES, named, refusal
from simulator.pipelines.claims import Shape
from simulator.planner import make_job
from simulator.scenario import Scenario
from simulator.yaml_source import parse, validate

_NAME: Final = "the scenario"
#: ``the scenario:12: parallel.tp: told``, of which a key may be missing.
_PLACE = re.compile(rf"{_NAME}(?::\d+)?: (?:((?:cluster|model|parallel|train)\.\w+)[^:]*: )?(.*)", re.DOTALL)
#: Micro-batches for each rank of a pipeline that any schedule can take.
_ENOUGH: Final = 2


def tried(draft: Draft) -> Draft:
    """The draft, with a warning for what keeps it from being simulated. One that is no scenario is left alone."""
    source = parse(scenario_text(draft), _NAME, directory=Path())
    try:
        validate(source, Scenario)
    except ScenarioError:
        return draft
    try:
        _plan(scenario_of(source))
    except ScenarioError as error:
        told = [_told(draft, line) for line in str(error).splitlines()]
        return replace(draft, warnings=(*draft.warnings, *told))
    return draft


def _plan(scenario: Scenario) -> None:
    """Raises what planning raises."""
    cluster, parallel, train = scenario.cluster, scenario.parallel, scenario.train
    assert train is not None, "an import makes a training step"
    rank_rounds = parallel.pp * _ENOUGH
    if parallel.pp > 1:
        name = named(parallel.schedule_name)
        problem = refusal(name, Shape(parallel.pp, train.grad_accumulation, parallel.chunks or PIPELINES[name].chunks))
        if problem:
            raise ScenarioError(f"{_NAME}: parallel.schedule: {problem} (micro-batches are train.grad_accumulation)")
    fewer = train.model_copy(update={"grad_accumulation": min(train.grad_accumulation, rank_rounds)})
    network = build_network(
        cluster.spec, nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node, shape=cluster.shape
    )  # fmt: skip
    make_job(scenario.model_copy(update={"train": fewer}), network)


def _told(draft: Draft, line: str) -> str:
    """One refusal, with the option of the file that the key comes from."""
    found = _PLACE.fullmatch(line)
    place, told = (found[1], found[2]) if found else (None, line)
    entry = next((entry for entry in draft.entries if entry.place == place), None)
    if entry is None:
        return f"'simulator run' refuses this scenario: {told}"
    return f"{entry.comment}: 'simulator run' refuses {place}: {told}"
