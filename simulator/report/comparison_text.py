"""``simulator compare`` as text: what differs in the input, then all quantities, each against the first scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table

from simulator.report.comparison import Line

#: Smaller changes are not shown; larger ratios are told as such, not in percent.
_SAME, _MANIFOLD = 5e-4, 3.0


def comparison_text(
    names: Sequence[str], differing: Mapping[str, Sequence[str]], lines: Sequence[Line]
) -> Iterator[RenderableType]:  # fmt: skip
    """Names by letters, then the two tables. names: of the scenarios, in the order of all values."""
    letters = [chr(ord("A") + number) for number in range(len(names))]
    for letter, name in zip(letters, names, strict=True):
        yield f"{letter}: {name}"
    yield ""
    if differing:
        inputs = _table("what differs", letters)
        for key, values in differing.items():
            inputs.add_row(key, *values)
        yield inputs
    else:
        yield "The scenarios say the same."
    yield ""
    results = _table("what comes out", letters)
    for line in lines:
        results.add_row(
            line.name, *(f"{text}{_change(ratio)}" for text, ratio in zip(line.shown, line.ratios, strict=True))
        )
    yield results


def _change(ratio: float | None) -> str:
    """`` (+12.3 %)`` or `` (24 x)``; nothing for the first scenario, and for what is equal."""
    if ratio is None or abs(ratio - 1) < _SAME:
        return ""
    return f" ({ratio:,.3g} x)" if ratio > _MANIFOLD else f" ({100 * (ratio - 1):+.1f} %)"


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(pad_edge=False, box=None)
    table.add_column(title)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    return table
