"""``simulator tornado``: which input of a scenario moves its result most."""

from __future__ import annotations

import json
from pathlib import Path

import click

from simulator import units
from simulator.answer import StepAnswer
from simulator.errors import ScenarioError, UnitError
from simulator.load import load_scenario
from simulator.report.console import bar_character, console
from simulator.report.headline import headline
from simulator.report.picture_file import check_picture
from simulator.report.progress import counting
from simulator.report.verdict import Verdict, verdicts
from simulator.uncertainty.tornado import tornado_of
from simulator.uncertainty.tornado_plot import plot_tornado
from simulator.uncertainty.tornado_text import tornado_json, tornado_text

MOST = 0.9


def tornado(scenario: str, overrides: tuple[str, ...], by: str, as_json: bool, plot: Path | None) -> int:
    """Simulate every input at both ends and print them, the one that moves most first; 0."""
    share = _share(by)
    if plot is not None:
        check_picture(plot)
    loaded = load_scenario(scenario, overrides)
    if loaded.collective is not None:
        raise click.UsageError("tornado moves the inputs of a training step; this scenario holds a single collective")
    with counting("simulating inputs") as tell:
        base, found = tornado_of(loaded, share, _judge, tell)
    told = headline(base.report, base.job, base.network)
    if plot is not None:
        plot_tornado(found, plot, told)
    if as_json:
        click.echo(json.dumps(tornado_json(found), indent=2))
        return 0
    out = console()
    out.print(told)
    for piece in tornado_text(found, bar_character(out)):
        out.print(piece)
    return 0


def _judge(answer: StepAnswer) -> list[Verdict]:
    return verdicts(answer.report, answer.job)


def _share(text: str) -> float:
    try:
        share = units.parse_fraction(text)
    except UnitError as error:
        raise ScenarioError(f"--by: {error}; got '{text}'") from None
    if not 0 < share <= MOST:
        raise ScenarioError(f"--by: must lie above 0% and be at most {MOST:.0%}; got '{text}'")
    return share
