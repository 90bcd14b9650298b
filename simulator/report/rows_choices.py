"""What a library runs against what would be fastest, size by size, in values and in words for a picture's titles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.report.rows_text import LIBRARY
from simulator.rows import Crossover, Row

#: Names of the strips under a panel.
FASTEST, RUNS = "fastest", "runs"

_NEVER_BREAKS = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Of one size and number of ranks: the fastest row and the one that the library runs; None where not among them."""

    size_bytes: float
    fastest: Row | None
    runs: Row | None

    @property
    def slower(self) -> float:
        """How much longer what runs takes than the fastest: 0.2 for a fifth, 0 where they are the same."""
        return self.runs.time_s / self.fastest.time_s - 1 if self.runs and self.fastest else 0.0

    def algorithm(self, strip: str) -> str | None:
        """Of FASTEST or RUNS."""
        row = self.fastest if strip == FASTEST else self.runs
        return row.algorithm if row else None


def choices_of(rows: Sequence[Row]) -> list[Choice]:
    """By number of ranks and size."""
    at: dict[tuple[int, float], list[Row]] = {key: [] for key in sorted({(row.p, row.size_bytes) for row in rows})}
    for row in rows:
        at[row.p, row.size_bytes].append(row)
    return [
        Choice(size, next((r for r in found if r.fastest), None), next((r for r in found if r.picked), None))
        for (_, size), found in at.items()
    ]


def strips_of(rows: Sequence[Row]) -> list[str]:
    """Strips that the panels of a picture have, from above. None without a library's times or with one algorithm; no
    FASTEST where only what runs is shown, for then the fastest may be missing.
    """
    if not any(row.fidelity == LIBRARY for row in rows) or len({row.algorithm for row in rows}) == 1:
        return []
    choices = choices_of(rows)
    fastest = [FASTEST] if all(choice.fastest for choice in choices) else []
    return fastest + ([RUNS] if any(choice.runs for choice in choices) else [])


def compared(rows: Sequence[Row], strips: Sequence[str]) -> list[Choice]:
    """Choices among several library times of which both sides are known. ``strips``: of the whole picture."""
    if FASTEST not in strips or not any(row.fidelity == LIBRARY for row in rows):
        return []
    return [choice for choice in choices_of(rows) if choice.runs]


def panel_title(rows: Sequence[Row], strips: Sequence[str]) -> Iterator[str]:
    """Lines above the panel of one number of ranks. ``strips``: of the whole picture."""
    yield f"{rows[0].p} rank{'s' if rows[0].p > 1 else ''}"
    choices = compared(rows, strips)
    worse = [choice.slower for choice in choices if choice.slower > 0]
    if worse:
        yield f"slower than the fastest at {len(worse)} of {len(choices)} sizes, by up to {_percent(max(worse))}"
    elif choices:
        yield "the library runs the fastest at every size"


def finding(rows: Sequence[Row], crossings: Sequence[Crossover], where: str) -> str:
    """What the picture shows, for its title; ``where`` is the network in words."""
    op, choices = rows[0].op, compared(rows, strips_of(rows))
    if choices:
        worse = [choice for choice in choices if choice.slower > 0]
        said = "the fastest at every size"
        if worse:
            worst = max(worse, key=lambda choice: choice.slower)
            assert worst.runs is not None, "both sides of a compared choice are known"
            at = f"{worst.runs.p} ranks, {binary(worst.size_bytes)}".replace(" ", _NEVER_BREAKS)
            said = f"slower than the fastest at {len(worse)} of {len(choices)} points, by up to "
            said += f"{_percent(worst.slower)} ({at})"
        return f"{op}: what the library runs is {said}\n{where}"
    pairs = {(c.below, c.above) for c in crossings}
    if len(pairs) == 1:
        below, above = pairs.pop()
        return f"{op}: {below} is fastest below the dotted line, {above} above it ({where})"
    winners = {row.algorithm for row in rows if row.fastest}
    if len(winners) == 1 and len({row.algorithm for row in rows}) > 1:
        return f"{op}: {winners.pop()} is fastest at every size ({where})"
    return f"{op} ({where})"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.005 else "less than 0.5 %"


def binary(value_bytes: float) -> str:
    """A size as ticks name it: ``2.0**20`` -> ``"1 MiB"``."""
    for factor, unit in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if value_bytes >= factor:
            return f"{value_bytes / factor:.4g} {unit}"
    return f"{value_bytes:.4g} B"
