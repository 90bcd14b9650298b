"""A scenario in the lab: what a real torch run takes on shaped virtual hosts, and what the simulator says of the same.

The simulator gets the stated layer times and what was measured on the empty fabric: alpha and rate of messages, and per
operation the time of one tiny collective. Nothing else: no number is taken from the training run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from simulator.answer import StepAnswer, answer_step, cluster_network
from simulator.collectives import make_schedule
from simulator.collectives.layout import Layout
from simulator.engine.collective import simulate_collective
from simulator.engine.wires import make_wires
from simulator.errors import ScenarioError
from simulator.lab.fabric import MAX_HOSTS, ShapedFabric
from simulator.lab.measuring import Answers, Numbers, measuring_jobs, needs_torch, numbers_of, run_jobs
from simulator.lab.model import fabric_of, topology_of
from simulator.lab.shaped import open_lab
from simulator.lab.training_job import check_scenario, training_job
from simulator.library import AlphaBetaLibrary
from simulator.load import load_library
from simulator.network.builders import build_network
from simulator.network.graph import Network
from simulator.plan import Communicate
from simulator.scenario import Cluster, Engine, Scenario
from simulator.timeline import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One span of the step, on the slowest rank: seconds from the step's begin. None: not seen in the real run."""

    name: str
    kind: str
    real_start_s: float | None
    real_end_s: float | None
    simulated_start_s: float
    simulated_end_s: float


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
    spans, unmatched = compare(simulated, real)
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
    return free.model_copy(update={"collective_launch": usual, "operation_launch": launches})


def _messages_s(op: str, network: Network) -> float:
    library, ranks = network.library, network.num_gpus
    assert isinstance(library, AlphaBetaLibrary)
    runs = library.runs_as.get(op, op)
    schedule = make_schedule(runs, library.algorithms[op], Layout(num_ranks=ranks), 4.0 * ranks)
    return simulate_collective(schedule, make_wires(network, np.arange(ranks))).time_s


# -------------------------------------------------------------------------------------------------------- comparing


def compare(simulated: StepAnswer, real: Answers) -> tuple[tuple[Compared, ...], str]:
    """Span by span, in the order in which they start when simulated; and what could not be matched, '' where all was.

    A span's real start is that of the first rank and its end that of the last. Layers: medians over the timed steps.
    Collectives: of one more step, run under torch's profiler.
    """
    spans = _joined(simulated.timeline.spans)
    layers, collectives = _layer_times(real), [rank["collectives"] for rank in real]
    sent = [span for span in spans if isinstance(span.task, Communicate)]
    order = {task.name: number for number, task in enumerate(simulated.timeline.plan.tasks)}
    sent.sort(key=lambda span: order[span.task.name])
    asked = [span.task.op for span in sent if isinstance(span.task, Communicate)]
    launched = [op for op, *_ in collectives[0]]
    times = dict(zip((span.task.name for span in sent), _collective_times(collectives), strict=False))
    unmatched = "" if asked == launched else f"real: {_counted(launched)}; simulated: {_counted(asked)}"
    found = {**layers, **({} if unmatched else times)}
    shown = (span for span in spans if isinstance(span.task, Communicate) or span.task.kind in {"forward", "backward"})
    return tuple(_compared(span, found.get(span.task.name)) for span in shown), unmatched


def _joined(spans: Sequence[Span]) -> list[Span]:
    """A span per task, from the first rank that begins it to the last that ends it, in the order of these begins."""
    joined: dict[str, Span] = {}
    for span in spans:
        known = joined.get(span.task.name, span)
        start_s, end_s = min(known.start_s, span.start_s), max(known.end_s, span.end_s)
        joined[span.task.name] = replace(known, start_s=start_s, end_s=end_s)
    return sorted(joined.values(), key=lambda span: span.start_s)


def _counted(operations: Sequence[str]) -> str:
    return ", ".join(f"{operations.count(op)} {op}" for op in dict.fromkeys(operations)) or "no collective"


def _compared(span: Span, real: tuple[float, float] | None) -> Compared:
    start, end = real or (None, None)
    return Compared(
        name=span.task.name, kind=span.task.kind, real_start_s=start, real_end_s=end, simulated_start_s=span.start_s,
        simulated_end_s=span.end_s,
    )  # fmt: skip


def _layer_times(real: Answers) -> Mapping[str, tuple[float, float]]:
    """By the names of the plan's tasks: 'forward 0: layer'."""
    by_rank = [[dict(_named(step)) for step in rank["spans"]] for rank in real]
    steps = [list(ranks) for ranks in zip(*by_rank, strict=True)]
    return {
        name: (
            median(min(rank[name][0] for rank in ranks) for ranks in steps),
            median(max(rank[name][1] for rank in ranks) for ranks in steps),
        )
        for name in steps[0][0]
    }


def _named(step: Sequence[Sequence[Any]]) -> Iterator[tuple[str, tuple[float, float]]]:
    micro: dict[tuple[str, str], int] = {}
    for layer, way, start, end in step:
        number = micro.get((layer, way), 0)
        micro[layer, way] = number + 1
        yield f"{way} {number}: {layer}", (start, end)


def _collective_times(by_rank: Sequence[Sequence[Sequence[Any]]]) -> list[tuple[float, float]]:
    """Of each collective, when its first rank began and its last was done."""
    return [(min(c[3] for c in ranks), max(c[4] for c in ranks)) for ranks in zip(*by_rank, strict=False)]
