"""``simulator validate``: predictions against what others measured."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.errors import ScenarioError
from simulator.measurements.tables import LeftOut, Measured, published
from simulator.problems import nearest
from simulator.report.console import console
from simulator.report.validation_text import (
    overall,
    sections,
    validation_json,
    validation_markdown,
    validation_text,
)
from simulator.validation import compare

#: What docs/accuracy.md says about itself.
COMMAND = "simulator validate collectives --markdown docs/accuracy.md"


def validate(
    what: str, tables: tuple[str, ...], markdown: Path | None, fail_if_missed: bool, as_json: bool
) -> int | None:
    """Compare and print; 1 when a target is missed and that was asked for. Raises ScenarioError."""
    assert what == "collectives"
    rows, left_out = _chosen(tables)
    compared = compare(rows)
    found = sections(compared, left_out)
    if markdown is not None:
        _write(markdown, validation_markdown(found, COMMAND))
    if as_json:
        click.echo(validation_json(compared, left_out))
    else:
        out = console()
        for piece in validation_text(found):
            out.print(piece)
    missed = any(not a.met for a in overall([row for row in compared if not row.measured.peak]) if a.group == ("all",))
    return 1 if fail_if_missed and missed else None


def _chosen(tables: tuple[str, ...]) -> tuple[tuple[Measured, ...], tuple[LeftOut, ...]]:
    """The rows of the tables named, or all. Raises ScenarioError for a table that does not exist."""
    held = published()
    if not tables:
        return held.rows, held.left_out
    known = dict.fromkeys([*(row.table for row in held.rows), *(item.table for item in held.left_out)])
    for name in tables:
        if name not in known:
            raise ScenarioError(
                f"--table: no table {name!r} is held; 'simulator validate collectives --json' lists all "
                f"{len(known)}{nearest(name, known)}"
            )
    return (
        tuple(row for row in held.rows if row.table in tables),
        tuple(item for item in held.left_out if item.table in tables),
    )


def _write(path: Path, text: str) -> None:
    if path.suffix != ".md":
        raise ScenarioError(f"--markdown: {str(path)!r}: the page is Markdown; give a name that ends in .md")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"--markdown: {str(path)!r}: {error.strerror or error}") from None
