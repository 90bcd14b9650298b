"""Scenario -> answer: the five calls in one place, for commands, sweeps and notebooks."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from simulator.collective_rows import Field, make_field, rows_of
from simulator.collectives import AUTO
from simulator.engine.interference import Interference
from simulator.engine.maker import CoflowMaker
from simulator.engine.run import simulate, simulate_steady
from simulator.errors import NetworkError, ScenarioError
from simulator.job import Job
from simulator.network.builders import build_network
from simulator.network.faults import with_faults
from simulator.network.graph import Ints, Network
from simulator.network.placement import place_ranks, split
from simulator.planner import make_job
from simulator.report.fragment import step_fragment
from simulator.report.metrics import StepReport, measure
from simulator.rows import Row
from simulator.scenario import Collective, Scenario
from simulator.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepAnswer:
    """A simulated training step: every value on the way, so that a report can show any of it."""

    network: Network
    job: Job
    timeline: Timeline
    startup: Timeline
    report: StepReport

    def _repr_html_(self) -> str:
        """Verdict, numbers and bars, where a notebook shows the answer as the value of a cell."""
        return step_fragment(self.report, self.job, self.network)


def cluster_network(scenario: Scenario) -> Network:
    """The scenario's cluster as a network, sized as the scenario says. Raises NetworkError naming line and key."""
    cluster = scenario.cluster
    try:
        network = build_network(
            cluster.spec, nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node, shape=cluster.shape
        )  # fmt: skip
        return with_faults(network, cluster.faults)
    except NetworkError as error:
        raise NetworkError(_placed(scenario, "cluster", "topology", str(error))) from None


def _placed(scenario: Scenario, block: str, otherwise: str, message: str) -> str:
    """``nodes: 9: ...`` or ``faults[0]: ...`` with file, line and block of the key that it begins with; without one it
    is about the key ``otherwise``.
    """
    found = re.match(r"(nodes|gpus_per_node|shape|faults|ranks|groups)(?:\[(\d+)\])?: ", message)
    if found is None:
        return scenario.describe((block, otherwise), message)
    item = () if found[2] is None else (int(found[2]),)
    return scenario.describe((block, found[1], *item), message[found.end() :])


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cyclic garbage meanwhile: over tens of thousands of tasks and spans, all of them in use, it takes
    longer than the simulation itself (8.6 s against 3.4 s for 30,000 tasks) and finds next to nothing. Around what
    drops them all before it ends they are never searched.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wiring:
    """A scenario's network, and the collectives made on it so far: what scenarios that differ in compute can share."""

    network: Network
    maker: CoflowMaker


def wiring_of(scenario: Scenario) -> Wiring:
    """The scenario's cluster, wired. Raises NetworkError naming line and key."""
    network = cluster_network(scenario)
    return Wiring(network=network, maker=CoflowMaker(network))


@uncollected()
def answer_step(scenario: Scenario, wiring: Wiring | None = None, *, with_startup: bool = True) -> StepAnswer:
    """Simulate one training step of a scenario that has a model. Raises ScenarioError for what cannot be.

    wiring: that of a scenario with the same network and library, which saves making them again.
    with_startup: also what is sent once before the first step, which can take longer to simulate than the step; without
    it ``startup`` is empty and takes no time.
    """
    network, maker = (wired := wiring or wiring_of(scenario)).network, wired.maker
    job = make_job(scenario, network)
    fidelity = "message" if scenario.engine.fidelity == "message" else "coflow"
    interference = Interference(
        core_share=job.core_share, channel_share=job.channel_share, memory_s_per_byte=job.memory_s_per_byte
    )
    play = simulate_steady if job.train.host_syncs == "never" else simulate
    timeline = play(job.step, network, interference=interference, fidelity=fidelity, maker=maker)
    before = job.startup if with_startup else replace(job.startup, tasks=())
    startup = simulate(before, network, maker=maker)
    return StepAnswer(
        network=network, job=job, timeline=timeline, startup=startup, report=measure(timeline, startup, job)
    )  # fmt: skip


def answer_collective(scenario: Scenario) -> list[Row]:
    """Time the collective of a scenario that holds one: a row per algorithm; for 'auto' only what the library runs.

    Raises ScenarioError for an unknown algorithm, NetworkError for ranks or groups that do not fit the cluster; both
    name line and key.
    """
    asked = scenario.collective
    assert asked is not None, "a scenario with a model has no collective of its own"
    network = cluster_network(scenario)
    try:
        gpus = place_ranks(network, ranks=asked.ranks, nodes=asked.nodes, gpus_per_node=asked.gpus_per_node)
        size, by = (asked.groups.size, asked.groups.by) if asked.groups else (gpus.size, "block")
        groups = split(network, gpus, size, by)
    except NetworkError as error:
        raise NetworkError(_placed(scenario, "collective", "ranks", str(error))) from None
    rows = rows_of(_field(scenario, asked, network, groups), [asked.size])
    return [row for row in rows if row.picked or asked.algorithm != AUTO]


def _field(scenario: Scenario, asked: Collective, network: Network, groups: Ints) -> Field:
    fidelity = "message" if scenario.engine.fidelity == "message" else "auto"
    try:
        return make_field(asked.op, groups.shape[1], network, [asked.algorithm], fidelity=fidelity, groups=groups)
    except ScenarioError as error:
        message = str(error).replace("--library textbook", "cluster.library=textbook")
        key = "op" if asked.algorithm == AUTO else "algorithm"
        raise type(error)(scenario.describe(("collective", key), message)) from None
