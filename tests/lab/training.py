"""Training steps of small sleeping models: real ones on the hosts of a lab, and simulated from the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from unlike import unlike

from simulator.answer import StepAnswer, answer_step
from simulator.engine.run import simulate
from simulator.lab.fabric import ShapedFabric
from simulator.lab.measuring import Answers, Numbers, measuring_jobs, numbers_of, run_jobs
from simulator.lab.model import Way, topology_of
from simulator.lab.shaped import Lab, open_lab
from simulator.lab.training_job import training_job
from simulator.lab_answer import measured_gloo, simulate_lab, step_times
from simulator.library import AlphaBetaLibrary
from simulator.load import load_library
from simulator.network.builders import build_network
from simulator.plan import Communicate, Plan, RankClass, Task
from simulator.scenario import Scenario

STEPS = 3
#: Steps measured again where the medians were further off than this: what else the machine does can only add time.
CLOSE, ROUNDS = 0.03, 1
ROUNDING = 1e-9


class Case(NamedTuple):
    """One configuration. parallel: the scenario's block. micro_batches: of the step."""

    layers: tuple[Mapping[str, Any], ...]
    parallel: Mapping[str, Any]
    micro_batches: int = 1


class Found(NamedTuple):
    """Of each case, by name: real_s, the median over STEPS of the last rank's end; simulated_s; unlike, see ``unlike``,
    where steps were traced.
    """

    real_s: dict[str, float]
    simulated_s: dict[str, float]
    numbers: Numbers
    real_time: bool
    unlike: dict[str, list[str]]

    def error(self, name: str) -> float:
        """Simulated over real, minus 1."""
        return self.simulated_s[name] / self.real_s[name] - 1

    def said(self) -> str:
        """All cases, for the message of a failing test."""
        return "\n".join(
            f"{name:28s} real {self.real_s[name]:.4f} s, simulated {self.simulated_s[name]:.4f} s, "
            f"{self.error(name):+.2%}"
            for name in self.real_s
        )  # fmt: skip


def layer(name: str, params: int | list[int], forward_ms: int, backward_ms: int) -> dict[str, Any]:
    """A layer of a scenario."""
    return {"name": name, "params": params, "forward": f"{forward_ms} ms", "backward": f"{backward_ms} ms"}


def scenario_of(case: Case, fabric: ShapedFabric) -> Scenario:
    """The case on the fabric; rates are stated, alphas nothing: only for planning the real run."""
    nothing = Way(alpha_s=0.0, bytes_per_s=fabric.host_bit_per_s / 8)
    across = None if fabric.uplink_bit_per_s is None else Way(alpha_s=0.0, bytes_per_s=fabric.uplink_bit_per_s / 8)
    gloo = load_library("gloo")
    assert isinstance(gloo, AlphaBetaLibrary)
    topology = topology_of(fabric, nothing, across, gloo.model_copy(update={"fabrics": ()}))
    return Scenario.model_validate({
        "cluster": {"topology": topology}, "model": {"layers": list(case.layers)}, "parallel": dict(case.parallel),
        "train": {"micro_batch": 1, "precision": "fp32", "optimizer": "sgd", "grad_accumulation": case.micro_batches},
    })  # fmt: skip


def ran(fabric: ShapedFabric, cases: Mapping[str, Case], *, traced: bool = False) -> Found:
    """Run every case for real, simulate it from the numbers measured on the same hosts. traced: note the operations of
    one more step.
    """
    scenarios = {name: scenario_of(case, fabric) for name, case in cases.items()}
    with open_lab(fabric) as lab:
        numbers, jobs, answers = _real(lab, fabric, scenarios, traced=traced)
        real = _medians(answers)
        steps = {name: simulate_lab(scenario, fabric, numbers) for name, scenario in scenarios.items()}
        simulated = {name: step.timeline.end_s for name, step in steps.items()}
        differences = {name: unlike(steps[name], jobs[name], answers[name]) for name in scenarios if traced}
        for _ in range(ROUNDS):
            slow = {name: s for name, s in scenarios.items() if simulated[name] < (1 - CLOSE) * real[name]}
            if not slow:
                break
            again = _medians(_real(lab, fabric, slow)[2])
            real |= {name: min(real[name], again[name]) for name in slow}
        return Found(real, simulated, numbers, lab.real_time, differences)


def _real(
    lab: Lab, fabric: ShapedFabric, scenarios: Mapping[str, Scenario], *, traced: bool = False
) -> tuple[Numbers, dict[str, dict[str, Any]], dict[str, Answers]]:
    per_side = fabric.hosts_per_side[0] if fabric.uplink_bit_per_s else 1
    jobs = {
        name: {**training_job(scenario, fabric.num_hosts, per_side, STEPS), "trace": traced}
        for name, scenario in scenarios.items()
    }
    measuring = measuring_jobs(lab)
    answers = run_jobs(lab, [*measuring, *jobs.values()])
    real = dict(zip(scenarios, answers[len(measuring) :], strict=True))
    return numbers_of(lab, answers[: len(measuring)]), jobs, real


def _medians(answers: Mapping[str, Answers]) -> dict[str, float]:
    return {name: median(step_times(answer)) for name, answer in answers.items()}


def misordered(found: Found, names: Sequence[str], apart: float) -> list[tuple[str, str]]:
    """Pairs of cases whose real steps differ by more than ``apart`` and whose simulated steps differ the other way.

    Simulated steps that are equal but for rounding are no order.
    """
    return [
        (one, other)
        for one in names
        for other in names
        if found.real_s[one] * (1 + apart) < found.real_s[other]
        and found.simulated_s[one] > found.simulated_s[other] * (1 + ROUNDING)
    ]


# --------------------------------------------------------------------------------------------- two trainings at once


class Together(NamedTuple):
    """Trainings at once on disjoint ranks: the medians of their steps, and the simulated ones; alone_s: simulated."""

    real_s: tuple[float, ...]
    simulated_s: tuple[float, ...]
    alone_s: float
    real_time: bool


def together(fabric: ShapedFabric, case: Case, ranks: Sequence[tuple[int, ...]]) -> Together:
    """The same case on each of these sets of ranks, all beginning each step at the same instant."""
    scenario = scenario_of(case, fabric)
    one = training_job(scenario, len(ranks[0]), 1, STEPS)
    job = {**one, "kind": "together", "parts": [{"ranks": list(held)} for held in ranks]}
    with open_lab(fabric) as lab:
        measuring = measuring_jobs(lab)
        answers = run_jobs(lab, [*measuring, job])
        numbers, real_time = numbers_of(lab, answers[: len(measuring)]), lab.real_time
    real = tuple(median(step_times([answers[-1][rank] for rank in held])) for held in ranks)
    plans = [_on(scenario, held) for held in ranks]
    network = build_network(topology_of(fabric, numbers.near, numbers.across, measured_gloo(fabric, numbers)))
    timeline = simulate(_beside(plans), network, fidelity="message")
    ends = tuple(
        max(span.end_s for span in timeline.spans if span.ranks in {f"rank {rank}" for rank in held}) for held in ranks
    )
    alone = simulate(_beside(plans[:1]), network, fidelity="message").end_s
    return Together(real, ends, alone, real_time)


def _on(scenario: Scenario, ranks: tuple[int, ...]) -> Plan:
    """The step of a training on so many ranks, put on these."""
    pair = ShapedFabric(hosts_per_side=(len(ranks),), host_bit_per_s=1e8)
    spec = topology_of(pair, Way(alpha_s=0.0, bytes_per_s=1e7), None, load_gloo())
    cluster = scenario.cluster.model_copy(update={"topology": spec})
    answer: StepAnswer = answer_step(scenario.model_copy(update={"cluster": cluster}))
    plan = answer.job.step
    axes = {axis: tuple(tuple(ranks[r] for r in group) for group in groups) for axis, groups in plan.axes.items()}
    classes = tuple(RankClass(name=f"rank {rank}", ranks=(rank,)) for rank in ranks)
    names = tuple(ranks.name for ranks in classes)
    return replace(plan, classes=classes, axes=axes, tasks=tuple(replace(t, classes=names) for t in plan.tasks))


def load_gloo() -> AlphaBetaLibrary:
    """gloo as shipped, on any network."""
    gloo = load_library("gloo")
    assert isinstance(gloo, AlphaBetaLibrary)
    return gloo.model_copy(update={"fabrics": ()})


def _beside(plans: Sequence[Plan]) -> Plan:
    """Plans of disjoint ranks as one, each with names of its own."""
    return Plan(
        title="together", classes=tuple(c for plan in plans for c in plan.classes),
        axes={f"{axis} of {k}": groups for k, plan in enumerate(plans) for axis, groups in plan.axes.items()},
        tasks=tuple(_renamed(task, f" of {k}") for k, plan in enumerate(plans) for task in plan.tasks),
    )  # fmt: skip


def _renamed(task: Task, mark: str) -> Task:
    """A task with names of its own; without its memory."""
    new = replace(
        task, name=task.name + mark, after=tuple(name + mark for name in task.after),
        host_after=tuple(name + mark for name in task.host_after), allocates=(), frees=(),
    )  # fmt: skip
    return replace(new, axis=new.axis + mark) if isinstance(new, Communicate) else new
