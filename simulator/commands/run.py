"""``simulator run``: a scenario in, an answer out."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from simulator.answer import StepAnswer, answer_collective, answer_step
from simulator.commands.collective import print_rows, where
from simulator.load import load_scenario
from simulator.placing import words
from simulator.report.console import bar_character, console
from simulator.report.memory import class_memory
from simulator.report.picture_file import check_picture
from simulator.report.step_json import step_json
from simulator.report.step_text import headline, step_text
from simulator.report.swimlanes import swimlanes_of
from simulator.report.swimlanes_plot import plot_step
from simulator.report.trace import check_target, write_trace
from simulator.report.verdict import picture_finding, verdicts
from simulator.scenario import Scenario


def run(
    scenario: str, overrides: tuple[str, ...], as_json: bool, trace: str | None, plot: Path | None, zoom: str | None
) -> int:
    """Simulate a step or a single collective, print the answer, and return 1 when it is infeasible, else 0.

    trace, plot: files to write beside it. zoom: layers of the picture, separated by commas.
    """
    started = time.perf_counter()
    loaded = load_scenario(scenario, overrides)
    if zoom is not None and plot is None:
        raise click.UsageError("--zoom says what --plot shows closely: give both")
    if zoom is not None and not _names(zoom):
        raise click.UsageError(f"--zoom: {zoom!r} names no layer; accepted: names separated by commas, as layers.10")
    if loaded.collective is not None:
        return run_collective(loaded, as_json, trace, plot)
    if trace is not None:
        check_target(trace)
    if plot is not None:
        check_picture(plot)
    answer = answer_step(loaded)
    if trace is not None:
        for warning in write_trace(answer.timeline, trace, device=answer.job.device).warnings:
            click.echo(f"warning: {warning}", err=True)
    if plot is not None:
        draw(answer, plot, zoom)
    print_step(answer, as_json, time.perf_counter() - started)
    return exit_code(answer)


def draw(answer: StepAnswer, path: Path, zoom: str | None) -> None:
    """The picture of the step, with the layers ``zoom`` closely."""
    layers, job, report = _names(zoom or ""), answer.job, answer.report
    capacity = None if job.device is None else job.device.memory * job.scenario.limits.memory
    memory = class_memory(answer.timeline, (lanes := swimlanes_of(answer.timeline, layers)).ranks)
    title = (headline(report, job, answer.network), picture_finding(report))
    plot_step(lanes, memory, capacity, title, path)


def _names(zoom: str) -> list[str]:
    return [name.strip() for name in zoom.split(",") if name.strip()]


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


def run_collective(scenario: Scenario, as_json: bool, trace: str | None, plot: Path | None = None) -> int:
    """A scenario that holds one collective: the row that ``simulator collective`` would print."""
    if trace is not None:
        raise click.UsageError("--trace shows a training step; this scenario holds a single collective")
    if plot is not None:
        raise click.UsageError(
            "--plot shows a training step; this scenario holds a single collective, which 'simulator collective "
            "OP --plot FILE' draws over sizes"
        )
    asked = scenario.collective
    assert asked is not None, "a scenario with a model has no collective of its own"
    nodes = str(asked.nodes or "") if isinstance(asked.nodes, int | None) else ",".join(map(str, asked.nodes))
    placed = words(nodes, asked.gpus_per_node, [fault.words() for fault in scenario.cluster.faults])
    described = where(scenario.cluster.spec) + placed
    print_rows(answer_collective(scenario), (), described, as_json=as_json, as_csv=False)
    return 0
