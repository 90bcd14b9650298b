"""``simulator run``: a scenario in, an answer out."""

from __future__ import annotations

import json
import time

import click

from simulator.answer import StepAnswer, answer_collective, answer_step
from simulator.commands.collective import print_rows, where
from simulator.load import load_scenario
from simulator.placing import words
from simulator.report.console import bar_character, console
from simulator.report.step_json import step_json
from simulator.report.step_text import step_text
from simulator.report.trace import check_target, write_trace
from simulator.report.verdict import verdicts
from simulator.scenario import Scenario


def run(scenario: str, overrides: tuple[str, ...], as_json: bool, trace: str | None) -> int:
    """Simulate a step or a single collective, print the answer, and return 1 when it is infeasible, else 0."""
    started = time.perf_counter()
    loaded = load_scenario(scenario, overrides)
    if loaded.collective is not None:
        return run_collective(loaded, as_json, trace)
    if trace is not None:
        check_target(trace)
    answer = answer_step(loaded)
    if trace is not None:
        for warning in write_trace(answer.timeline, trace, device=answer.job.device).warnings:
            click.echo(f"warning: {warning}", err=True)
    print_step(answer, as_json, time.perf_counter() - started)
    return exit_code(answer)


def print_step(answer: StepAnswer, as_json: bool, wall_s: float) -> None:
    """The report on stdout."""
    if as_json:
        click.echo(json.dumps(step_json(answer.report, answer.job, wall_s), indent=2))
        return
    out = console()
    for piece in step_text(answer.report, answer.job, answer.network, bar_character(out)):
        out.print(piece)


def exit_code(answer: StepAnswer) -> int:
    """1 when a verdict fails, else 0."""
    return int(not all(v.ok for v in verdicts(answer.report, answer.job)))


def run_collective(scenario: Scenario, as_json: bool, trace: str | None) -> int:
    """A scenario that holds one collective: the row that ``simulator collective`` would print."""
    if trace is not None:
        raise click.UsageError("--trace shows a training step; this scenario holds a single collective")
    asked = scenario.collective
    assert asked is not None, "a scenario with a model has no collective of its own"
    nodes = str(asked.nodes or "") if isinstance(asked.nodes, int | None) else ",".join(map(str, asked.nodes))
    placed = words(nodes, asked.gpus_per_node, [fault.words() for fault in scenario.cluster.faults])
    described = where(scenario.cluster.spec) + placed
    print_rows(answer_collective(scenario), (), described, as_json=as_json, as_csv=False)
    return 0
