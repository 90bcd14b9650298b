"""Scenario -> answer: the five calls in one place, for commands, sweeps and notebooks."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine.coflow import CoflowMaker
from simulator.engine.run import simulate
from simulator.errors import NetworkError
from simulator.job import Job
from simulator.network.builders import build_network
from simulator.network.graph import Network
from simulator.planner import make_job
from simulator.report.metrics import StepReport, measure
from simulator.scenario import Scenario
from simulator.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepAnswer:
    """A simulated training step: every value on the way, so that a report can show any of it."""

    network: Network
    job: Job
    timeline: Timeline
    startup: Timeline
    report: StepReport


def cluster_network(scenario: Scenario) -> Network:
    """The scenario's cluster as a network, sized as the scenario says. Raises NetworkError naming the key."""
    cluster = scenario.cluster
    try:
        return build_network(
            cluster.spec, nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node, shape=cluster.shape
        )  # fmt: skip
    except NetworkError as error:
        key = "cluster." if str(error).startswith(("nodes:", "gpus_per_node:", "shape:")) else "cluster.topology: "
        raise NetworkError(f"{key}{error}") from None


def answer_step(scenario: Scenario) -> StepAnswer:
    """Simulate one training step of a scenario that has a model. Raises ScenarioError for what cannot be."""
    network = cluster_network(scenario)
    job = make_job(scenario, network)
    maker = CoflowMaker(network)
    fidelity = "message" if scenario.engine.fidelity == "message" else "coflow"
    timeline = simulate(job.step, network, slowdown=job.slowdown, fidelity=fidelity, maker=maker)
    startup = simulate(job.startup, network, slowdown=job.slowdown, maker=maker)
    return StepAnswer(
        network=network, job=job, timeline=timeline, startup=startup, report=measure(timeline, startup, job)
    )  # fmt: skip
