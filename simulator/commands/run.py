"""``simulator run``: a scenario in, an answer out."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from simulator.answer import StepAnswer, answer_collective, answer_step, uncollected
from simulator.commands.collective import print_rows, where
from simulator.load import load_scenario
from simulator.placing import words
from simulator.report.console import bar_character, console
from simulator.report.headline import headline
from simulator.report.html.page import check_page
from simulator.report.memory import class_memory
from simulator.report.picture_file import check_picture
from simulator.report.pictures.drawn import LANES, Step, check_name, draw_picture
from simulator.report.step_json import step_json
from simulator.report.step_text import step_text
from simulator.report.swimlanes import swimlanes_of
from simulator.report.swimlanes_plot import plot_step
from simulator.report.trace import check_target, write_trace
from simulator.report.verdict import Verdict, picture_finding, verdicts
from simulator.scenario import Scenario
from simulator.step_page import write_step_page
from simulator.uncertainty.corners import Ranges, ranges_of
from simulator.uncertainty.text import range_json, range_lines


@uncollected()
def run(
    scenario: str, overrides: tuple[str, ...], as_json: bool, trace: str | None, html: Path | None, plot: Path | None,
    picture: str | None, zoom: str | None, with_range: bool,
) -> int:  # fmt: skip
    """Simulate a step or a single collective, print the answer, and return 1 when it is infeasible, else 0.

    trace, html, plot: files to write beside it. picture: which one --plot draws. zoom: layers that pictures show
    closely, separated by commas. with_range: simulate the ends of what the profiles say as well.
    """
    started = time.perf_counter()
    loaded = load_scenario(scenario, overrides)
    files = Files(trace=trace, html=html, plot=plot, picture=picture, zoom=zoom)
    _check_options(files)
    if loaded.collective is not None and with_range:
        raise click.UsageError("--range is of a training step; this scenario holds a single collective")
    if loaded.collective is not None:
        return run_collective(loaded, as_json, trace, plot, html)
    _check_targets(files)
    answer = answer_step(loaded)
    ranges = {"range": ranges_of(answer, _judge)} if with_range else {}
    _write(answer, files, (scenario, overrides), ranges.get("range"))
    print_step(answer, as_json, time.perf_counter() - started, **ranges)
    return exit_code(answer)


class Files(NamedTuple):
    """What is written beside the answer: a trace, a page, a picture and which, with the layers ``zoom`` closely."""

    trace: str | None
    html: Path | None
    plot: Path | None
    picture: str | None
    zoom: str | None


def _check_options(files: Files) -> None:
    """Raises UsageError for options that do not belong together."""
    if files.picture is not None:
        check_name(files.picture)
        if files.plot is None:
            raise click.UsageError("--picture says what --plot draws: give both")
    if files.zoom is None:
        return
    if files.plot is None and files.html is None:
        raise click.UsageError("--zoom says what --plot shows closely: give both")
    if files.html is None and files.picture not in (None, LANES):
        raise click.UsageError(f"--zoom is of the lanes; --picture {files.picture} has none")
    if not _names(files.zoom):
        raise click.UsageError(
            f"--zoom: {files.zoom!r} names no layer; accepted: names separated by commas, as layers.10"
        )


def _check_targets(files: Files) -> None:
    """Raises ScenarioError for a file that could not be written, before anything is simulated."""
    if files.trace is not None:
        check_target(files.trace)
    if files.html is not None:
        check_page(files.html)
    if files.plot is not None:
        check_picture(files.plot)


def _write(answer: StepAnswer, files: Files, asked: tuple[str, Sequence[str]], ranges: Ranges | None) -> None:
    if files.trace is not None:
        for warning in write_trace(answer.timeline, files.trace, device=answer.job.device).warnings:
            click.echo(f"warning: {warning}", err=True)
    if files.html is not None:
        zoom = _names(files.zoom or "")
        write_step_page(answer, files.html, asked, _judge(answer), ranges=ranges, zoom=zoom)
    if files.plot is not None:
        draw(answer, files.plot, files.picture or LANES, files.zoom)


def draw(answer: StepAnswer, path: Path, picture: str, zoom: str | None) -> None:
    """One picture of the step; the lanes with the layers ``zoom`` closely."""
    if picture != LANES:
        draw_picture(picture, Step(answer.timeline, answer.report, answer.job, answer.network), path)
        return
    layers, job, report = _names(zoom or ""), answer.job, answer.report
    capacity = None if job.device is None else job.device.memory * job.scenario.limits.memory
    memory = class_memory(answer.timeline, (lanes := swimlanes_of(answer.timeline, layers)).ranks)
    title = (headline(report, job, answer.network), picture_finding(report))
    plot_step(lanes, memory, capacity, title, path)


def _names(zoom: str) -> list[str]:
    return [name.strip() for name in zoom.split(",") if name.strip()]


def print_step(answer: StepAnswer, as_json: bool, wall_s: float, **ranges: Ranges | None) -> None:
    """The report on stdout; with ``range`` (None where nothing is uncertain) also that."""
    if as_json:
        told = {name: range_json(found) for name, found in ranges.items()}
        click.echo(json.dumps(step_json(answer.report, answer.job, wall_s) | told, indent=2))
        return
    out = console()
    beside = [line for found in ranges.values() for line in range_lines(found)]
    for piece in step_text(answer.report, answer.job, answer.network, bar_character(out), beside):
        out.print(piece)


def _judge(answer: StepAnswer) -> list[Verdict]:
    return verdicts(answer.report, answer.job)


def exit_code(answer: StepAnswer) -> int:
    """1 when a verdict fails, else 0."""
    return int(not all(v.ok for v in _judge(answer)))


def run_collective(
    scenario: Scenario, as_json: bool, trace: str | None, plot: Path | None = None, html: Path | None = None
) -> int:
    """A scenario that holds one collective: the row that ``simulator collective`` would print."""
    if html is not None:
        raise click.UsageError("--html is a report of a training step; this scenario holds a single collective")
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
