"""``simulator lab``: a real run on shaped virtual hosts beside the simulation of the same."""

from __future__ import annotations

import json

import click

from simulator.lab_answer import answer_lab
from simulator.lab_text import lab_json, lab_text
from simulator.load import load_scenario
from simulator.report.console import console


def lab(scenario: str, overrides: tuple[str, ...], steps: int, as_json: bool) -> None:
    """Build, measure, run, simulate, print. Raises LabError, ScenarioError."""
    loaded = load_scenario(scenario, overrides)
    answer = answer_lab(loaded, steps, told=lambda words: click.echo(words, err=True))
    if as_json:
        click.echo(json.dumps(lab_json(answer), indent=2))
        return
    out = console()
    for piece in lab_text(answer, out.width):
        out.print(piece)
