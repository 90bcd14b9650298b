"""A scenario in the lab: what a real torch run takes on shaped virtual hosts, and what the simulator says of the same.

The simulator gets the stated layer times and what was measured on the empty fabric: alpha and rate of messages, and per
operation the time of one tiny collective. Nothing else: no number is taken from the training run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from simulator.answer import StepAnswer, answer_step, cluster_network
from simulator.collectives import algorithms_of, make_schedule
from simulator.collectives.layout import Layout
from simulator.engine.collective import simulate_collective
from simulator.engine.wires import make_wires
from simulator.errors import ScenarioError
from simulator.lab.fabric import MAX_HOSTS, ShapedFabric
from simulator.lab.measuring import Answers, Numbers, measuring_jobs, needs_torch, numbers_of, run_jobs
from simulator.lab.model import fabric_of, topology_of
from simulator.lab.shaped import open_lab
from simulator.lab.training_job import check_scenario, training_job
from simulator.lab_compare import Compared, compare, stages_of_layers
from simulator.library import AlphaBetaLibrary
from simulator.load import load_library
from simulator.network.builders import build_network
from simulator.network.graph import Network
from simulator.scenario import Cluster, Engine, Scenario


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabAnswer:
    """What both said. real_s: of each timed step, until its last rank was done. real_time: see ``Lab``.

    unmatched: the collectives of the real step and those of the plan, where they are not the same; else ''.
    """

    fabric: ShapedFabric
    numbers: Numbers
    simulated: StepAnswer
    real_s: tuple[float, ...]
    spans: tuple[Compared, ...]
    real_time: bool
    unmatched: str

    @property
    def real_step_s(self) -> float:
        """The median of the timed steps."""
        return median(self.real_s)

    @property
    def simulated_step_s(self) -> float:
        """The simulated step."""
        return self.simulated.timeline.end_s

    @property
    def error(self) -> float:
        """How much longer the simulated step is, as a share of the real one; negative when it is shorter."""
        return self.simulated_step_s / self.real_step_s - 1


def answer_lab(scenario: Scenario, steps: int, told: Callable[[str], None]) -> LabAnswer:
    """Build the scenario's hosts, measure, run the real step ``steps`` times, simulate it, remove the hosts.

    told: gets a line of progress. Raises LabError where no lab can be built or torch is missing; ScenarioError for
    what the lab cannot build or run.
    """
    check_scenario(scenario)
    fabric, job = _planned(scenario, steps)
    needs_torch()
    with open_lab(fabric) as lab:
        told(f"{fabric.num_hosts} hosts are up; measuring them, then {job['warm_up'] + steps} steps ...")
        *measured, real = run_jobs(lab, [*measuring_jobs(lab), job])
        numbers, real_time = numbers_of(lab, measured), lab.real_time
    simulated = simulate_lab(scenario, fabric, numbers)
    spans, unmatched = compare(simulated, real, stages_of_layers(job))
    return LabAnswer(
        fabric=fabric, numbers=numbers, simulated=simulated, real_s=tuple(step_times(real)), spans=spans,
        real_time=real_time, unmatched=unmatched,
    )  # fmt: skip


def _planned(scenario: Scenario, steps: int) -> tuple[ShapedFabric, dict[str, Any]]:
    """What to build and what to run on it; what either cannot be is said before anything is built."""
    network = cluster_network(scenario)
    fabric = fabric_of(network)
    if fabric.num_hosts == 1:
        raise ScenarioError(f"'{network.name}': one host sends nothing to itself; the lab needs 2 to {MAX_HOSTS}")
    simulated = answer_step(scenario, with_startup=False)
    speed_of = {rank: ranks.speed for ranks in simulated.timeline.plan.classes for rank in ranks.ranks}
    speeds = [speed_of[rank] for rank in range(fabric.num_hosts)] if scenario.cluster.stragglers else ()
    job = training_job(scenario, fabric.num_hosts, network.gpus_per_node, steps, speeds)
    return fabric, job | {"collectives": True}


def step_times(real: Answers) -> list[float]:
    """Of each timed step, when its last rank was done."""
    return [max(times) for times in zip(*(rank["steps_s"] for rank in real), strict=True)]


# ------------------------------------------------------------------------------------------------ the simulated step


def simulate_lab(scenario: Scenario, fabric: ShapedFabric, numbers: Numbers) -> StepAnswer:
    """The scenario on links and with launches as measured; every message unless it says otherwise, there are few."""
    spec = topology_of(fabric, numbers.near, numbers.across, measured_gloo(fabric, numbers))
    fidelity = "message" if scenario.engine.fidelity == "auto" else scenario.engine.fidelity
    asked = {
        "cluster": Cluster(topology=spec, stragglers=scenario.cluster.stragglers),
        "engine": Engine(fidelity=fidelity),
    }
    return answer_step(scenario.model_copy(update=asked), with_startup=False)


def measured_gloo(fabric: ShapedFabric, numbers: Numbers) -> AlphaBetaLibrary:
    """gloo whose launch of an operation is what a tiny collective takes beyond the alphas of its messages."""
    shipped = load_library("gloo")
    assert isinstance(shipped, AlphaBetaLibrary)
    free = shipped.model_copy(update={"message_overhead": 0.0, "collective_launch": 0.0, "fabrics": ()})
    network = build_network(topology_of(fabric, numbers.near, numbers.across, free))
    launches = {op: max(0.0, tiny_s - _messages_s(op, network)) for op, tiny_s in numbers.tiny_s.items()}
    usual = launches.get("all_reduce", 0.0)
    # gloo's threads have no part in lone messages: alpha, which is of pings, holds all of their software
    launches |= dict.fromkeys(("send", "send_recv"), 0.0)
    return free.model_copy(update={"collective_launch": usual, "operation_launch": launches})


def _messages_s(op: str, network: Network) -> float:
    library, ranks = network.library, network.num_gpus
    assert isinstance(library, AlphaBetaLibrary)
    runs = library.runs_as.get(op, op)
    algorithm = library.algorithms.get(op) or algorithms_of(runs)[0]
    schedule = make_schedule(runs, algorithm, Layout(num_ranks=ranks), 4.0 * ranks)
    return simulate_collective(schedule, make_wires(network, np.arange(ranks))).time_s
