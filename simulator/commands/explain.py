"""``simulator explain``: what keys of outputs and of scenarios mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simulator.explanations.finding import SCENARIO, Found, everything, find
from simulator.explanations.outputs import Explanation, outputs
from simulator.explanations.scenario_keys import FILES, ScenarioKey
from simulator.report.console import console

SCHEMA_VERSION = 1
#: Up to so many different explanations are written out; more are a table.
_WRITTEN_OUT = 12
#: Left of what is said about a key.
_INDENTED = (0, 0, 0, 2)


def explain(column: str | None, as_json: bool) -> None:
    """Print the explanations of a word, or all. Raises ScenarioError with the nearest key for an unknown one."""
    found = everything() if column is None else find(column)
    if as_json:
        click.echo(json.dumps(_json(found), indent=2))
        return
    out = console()
    for piece in _tables(found) if _is_long(found) else _paragraphs(found):
        out.print(piece)


def _json(found: Found) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION, "kind": "explanations",
        "outputs": [asdict(one) for one in found.outputs], "scenario": [asdict(one) for one in found.scenario],
    }  # fmt: skip


def _is_long(found: Found) -> bool:
    return len(_alike(found.outputs)) + len(found.scenario) > _WRITTEN_OUT


def _alike(explanations: Sequence[Explanation]) -> tuple[tuple[Explanation, ...], ...]:
    """Keys that say the same, together."""
    groups: dict[tuple[str, str, str], list[Explanation]] = {}
    for one in explanations:
        groups.setdefault((one.unit, one.means, one.how), []).append(one)
    return tuple(tuple(group) for group in groups.values())


def _paragraphs(found: Found) -> Iterator[RenderableType]:
    for group in _alike(found.outputs):
        first = group[0]
        shown = next((f"; '{one.shown}' in the text output" for one in group if one.shown), "")
        yield Text.assemble((_places(group), "bold"), f": {first.unit}{shown}")
        yield Padding(Text(first.means), _INDENTED, expand=False)
        if first.how:
            yield Padding(Text(f"from: {first.how}"), _INDENTED, expand=False)
    for key in found.scenario:
        yield Text.assemble((f"{key.key} of a scenario", "bold"), f": {key.accepts}{_default(key)}")
        yield Padding(Text(key.means), _INDENTED, expand=False)
        if key.key in FILES:
            yield Padding(Text(f"its keys: simulator schema {FILES[key.key]}"), _INDENTED, expand=False)


def _default(key: ScenarioKey) -> str:
    if key.default:
        return f"; {key.default} when left out"
    return "; must be given" if key.required else ""


def _places(group: Sequence[Explanation]) -> str:
    """``collectives[].time_s, buckets[].time_s of run; rows[].time_s of sweep``."""
    by_output: dict[str, list[str]] = {}
    for one in group:
        by_output.setdefault(one.of, []).append(one.key)
    return "; ".join(f"{', '.join(keys)} of {of}" for of, keys in by_output.items())


def _tables(found: Found) -> Iterator[RenderableType]:
    for output in outputs():
        keys = [one for one in found.outputs if one.of == output.name]
        if keys:
            yield Text(f"{output.command}: {output.title}", style="bold")
            yield _table("unit", [(one.key, one.unit, one.means) for one in keys])
            yield ""
    if found.scenario:
        yield Text(f"{SCENARIO}: what a YAML file may say", style="bold")
        yield _table("default", [(one.key, one.default, one.means) for one in found.scenario])


def _table(middle: str, rows: Sequence[tuple[str, str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("key", max_width=46, overflow="fold")
    table.add_column(middle, max_width=14)
    table.add_column("meaning")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
