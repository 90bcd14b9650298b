"""``simulator compare``: several scenarios, or one with changes, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from simulator.answer import answer_step
from simulator.checking.overriding import merged
from simulator.load import load_scenario
from simulator.report.comparison import Line, differences, lines
from simulator.report.comparison_text import comparison_text
from simulator.report.console import console
from simulator.report.verdict import bound_sentence, verdicts
from simulator.scenario import Scenario

SCHEMA_VERSION = 1
MOST = 6


def compare(arguments: tuple[str, ...], variants: tuple[str, ...], as_json: bool) -> int:
    """Simulate all, print them beside each other; 0, also where some are infeasible.

    arguments: scenarios, and ``key=value`` that hold for all. variants: settings on top of the first scenario,
    separated by blanks.
    """
    paths = [text for text in arguments if "=" not in text]
    shared = tuple(text for text in arguments if "=" in text)
    if len(paths) + len(variants) < 2:
        raise click.UsageError("compare needs two scenarios, or one and --vs 'KEY=VALUE ...'")
    if len(paths) + len(variants) > MOST:
        raise click.UsageError(f"at most {MOST} scenarios fit beside each other; 'simulator sweep' takes any number")
    scenarios = [load_scenario(path, shared) for path in paths]
    scenarios += [load_scenario(paths[0], merged(shared, _settings(text))) for text in variants]
    names = [*(" ".join([path, *shared]) for path in paths), *(f"{paths[0]} {text}" for text in variants)]
    for name, scenario in zip(names, scenarios, strict=True):
        if scenario.collective is not None:
            raise click.UsageError(f"compare shows training steps; '{name}' holds a single collective")
    answers = [answer_step(scenario, with_startup=False) for scenario in scenarios]
    found = lines([(answer.report, answer.job) for answer in answers])
    if as_json:
        feasible = [all(v.ok for v in verdicts(a.report, a.job)) for a in answers]
        click.echo(json.dumps(_json(names, scenarios, found, feasible), indent=2))
        return 0
    out = console()
    for piece in comparison_text(names, differences(scenarios), found):
        out.print(piece)
    for number, answer in enumerate(answers):
        failing = [f"{v.what} {v.value}" for v in verdicts(answer.report, answer.job) if not v.ok]
        told = f" FAIL: {', '.join(failing)}." if failing else ""
        out.print(f"{chr(ord('A') + number)}:{told} {bound_sentence(answer.report, answer.job)}")
    return 0


def _settings(text: str) -> tuple[str, ...]:
    """``a.b=1 c.d={x: 2, y: 3}`` -> one text per setting: a new one begins at a word with '='."""
    found: list[str] = []
    for word in text.split(" "):
        if "=" in word or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return tuple(setting.strip() for setting in found if setting.strip())


def _json(
    names: Sequence[str], scenarios: Sequence[Scenario], found: Sequence[Line], feasible: Sequence[bool]
) -> dict[str, object]:  # fmt: skip
    return {
        "schema_version": SCHEMA_VERSION, "kind": "comparison", "names": list(names),
        "feasible": list(feasible),
        "differences": {key: list(values) for key, values in differences(scenarios).items()},
        "quantities": {line.name: list(line.values) for line in found},
    }  # fmt: skip
