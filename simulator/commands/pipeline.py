"""``simulator pipeline``: a pipeline schedule as a chart, with its idle time and what ranks hold; or all of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click

from simulator import units
from simulator.errors import ScenarioError, UnitError
from simulator.pipelines import PIPELINES, pipeline_schedule, refusal
from simulator.pipelines.claims import Shape
from simulator.pipelines.order import PipelineSchedule
from simulator.pipelines.playing import StageTimes, even_times, play
from simulator.report.console import console
from simulator.report.picture_file import check_picture
from simulator.report.pipeline_chart import pipeline_chart
from simulator.report.pipeline_plot import plot_pipeline
from simulator.report.pipeline_text import (
    PipelineAnswer,
    comparison_json,
    comparison_table,
    pipeline_finding,
    pipeline_json,
    ranks_table,
)

ALL = "all"
#: Visits of micro-batches to stages; a million takes some 10 s and 1 GB.
MOST_VISITS = 1_000_000


def pipeline(
    schedule: str, ranks: int, micro_batches: int, chunks: int | None, forward: str, input_grad: str, weight_grad: str,
    hidden: str, as_json: bool, plot: Path | None,
) -> None:  # fmt: skip
    """Print the schedule, or the table of all."""
    times = _times(forward, input_grad, weight_grad)
    share = _share(hidden)
    _check_size(ranks, micro_batches, chunks)
    if plot is not None:
        check_picture(plot)
    if schedule.lower() == ALL:
        if plot is not None:
            raise click.UsageError("--plot draws one schedule; name it in place of 'all'")
        _compare(ranks, micro_batches, chunks, times, share, as_json)
        return
    answer = _answer(pipeline_schedule(schedule, ranks, micro_batches, chunks), times, share)
    if plot is not None:
        plot_pipeline(answer, plot)
    if as_json:
        click.echo(json.dumps(pipeline_json(answer), indent=2))
        return
    out = console()
    out.print(pipeline_finding(answer), style="bold")
    out.print()
    for line in pipeline_chart(answer.played, out.width):
        out.print(line)
    out.print()
    out.print(ranks_table(answer))


def _answer(schedule: PipelineSchedule, times: tuple[StageTimes, ...], hidden: float) -> PipelineAnswer:
    """Plays it. Raises ScenarioError for times of another number of stages."""
    parts = even_times(schedule, times[0]) if len(times) == 1 else times
    return PipelineAnswer(played=play(schedule, parts, hidden=hidden), times=times, hidden=hidden)


def _compare(
    ranks: int, micro_batches: int, chunks: int | None, times: tuple[StageTimes, ...], hidden: float, as_json: bool
) -> None:  # fmt: skip
    """All schedules that take these numbers; with --chunks those that can have so many."""
    if len(times) > 1:
        raise ScenarioError(
            "times of each stage: schedules have different stages; give one number where 'all' compares"
        )
    shapes = {name: Shape(ranks, micro_batches, chunks or kind.chunks) for name, kind in PIPELINES.items()}
    refused = [(name, why) for name, shape in shapes.items() if (why := refusal(name, shape))]
    answers = [
        _answer(pipeline_schedule(name, ranks, micro_batches, shape.v), times, hidden)
        for name, shape in shapes.items()
        if name not in dict(refused)
    ]
    if as_json:
        click.echo(json.dumps(comparison_json(answers, refused), indent=2))
        return
    out = console()
    out.print(comparison_table(answers))
    for _, why in refused:
        out.print(f"not {why}")


def _check_size(ranks: int, micro_batches: int, chunks: int | None) -> None:
    for flag, value in (("-p", ranks), ("-m", micro_batches), ("--chunks", chunks)):
        if value is not None and value < 1:
            raise ScenarioError(f"{flag}: {value}: expected at least 1")
    visits = ranks * micro_batches * (chunks or 2)
    if visits > MOST_VISITS:
        raise ScenarioError(
            f"-p {ranks} -m {micro_batches}: {visits:,} visits of micro-batches to stages are too many; accepted: "
            f"up to {MOST_VISITS:,}"
        )


def _times(forward: str, input_grad: str, weight_grad: str) -> tuple[StageTimes, ...]:
    """One for all stages, or one for each."""
    given = {"--forward": forward, "--input-grad": input_grad, "--weight-grad": weight_grad}
    numbers = {flag: _numbers(flag, text) for flag, text in given.items()}
    count = max(map(len, numbers.values()))
    for flag, found in numbers.items():
        if len(found) not in (1, count):
            raise ScenarioError(f"{flag}: '{given[flag][:60]}': {len(found)} times where another flag has {count}")
    columns = [found * count if len(found) == 1 else found for found in numbers.values()]
    return tuple(StageTimes(*row) for row in zip(*columns, strict=True))


def _numbers(flag: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1e-9 <= value <= 1e9 for value in found):
        raise ScenarioError(
            f"{flag}: '{text[:60]}': expected a number above 0, of any unit of time, or one for each stage: 1,1,2,1"
        )
    return found


def _share(text: str) -> float:
    try:
        share = units.parse_fraction(text)
    except UnitError as error:
        raise ScenarioError(f"--hidden: {error}; got '{text[:60]}'") from None
    if not (math.isfinite(share) and 0 <= share <= 1):
        raise ScenarioError(f"--hidden: must lie between 0% and 100%; got '{text[:60]}'")
    return share
