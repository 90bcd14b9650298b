"""An answer as one HTML page: what ``run`` and ``check`` know about a step, put in the words of ``report.html``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table as RichTable

from simulator.answer import StepAnswer
from simulator.checking.search import Cure
from simulator.checking.text import cure_table, shown_cures
from simulator.load import scenario_text
from simulator.report.html.page import Shown, write_page
from simulator.report.html.tables import Table
from simulator.report.verdict import Verdict
from simulator.uncertainty.corners import Ranges
from simulator.uncertainty.text import flip_sentence, range_table
from simulator.units import format_gib, format_percent, format_time


def write_step_page(
    answer: StepAnswer, path: Path, asked: tuple[str, Sequence[str]], verdicts: Sequence[Verdict], *,
    cures: Sequence[Cure] | None = None, ranges: Ranges | None = None, zoom: Sequence[str] = (),
) -> None:  # fmt: skip
    """Write the page. asked: the scenario as named, and the overrides. cures: None where none were looked for.

    Raises ScenarioError without the extra ``report``, or for a file that cannot be written.
    """
    scenario, overrides = asked
    failing = not all(verdict.ok for verdict in verdicts)
    shown = Shown(
        report=answer.report, job=answer.job, network=answer.network, timeline=answer.timeline, verdicts=verdicts,
        scenario_name=scenario, scenario_text=scenario_text(scenario), overrides=overrides, zoom=zoom,
        extra=tuple(_cures(answer, cures)) if cures else (),
        searched=_searched(cures) if cures is not None and failing else "", advice=not cures,
        ranges=tuple(_ranges(ranges)) if ranges is not None else (),
    )  # fmt: skip
    write_page(shown, path)


def _searched(cures: Sequence[Cure]) -> str:
    if not cures:
        return "Changes of the scenario were simulated; none of them mends it, alone or with another."
    best = cures[0]
    still = f"Nothing that was tried mends everything; {', '.join(best.failing)} still fails with"
    return (
        f"{'Mended by' if best.cures else still} {' '.join(best.change.overrides)} ({best.change.why}): simulated, a "
        f"step then takes {format_time(best.step_time_s)}, memory {format_gib(best.peak_bytes)}, and "
        f"{format_percent(best.exposed_share)} is exposed."
    )


def _cures(answer: StepAnswer, cures: Sequence[Cure]) -> Iterator[Table]:
    more = len(cures) - len(shown_cures(cures))
    note = f"{more} more that mend it are left out; 'check --json' lists all." if more > 0 else ""
    yield table_of(cure_table(cures, 1.0 / answer.report.tokens_per_s_per_gpu), note)


def _ranges(ranges: Ranges) -> Iterator[Table]:
    note = " ".join(f"{flip_sentence(flip, ranges)}." for flip in ranges.flips)
    yield table_of(range_table(ranges), note or "All verdicts hold, or fail, everywhere in the range.")


def table_of(table: RenderableType, note: str = "") -> Table:
    """A table of the terminal as one of the page. Its cells must be plain texts."""
    assert isinstance(table, RichTable), table
    return Table(
        title=str(table.title or ""), columns=tuple(str(column.header) for column in table.columns), note=note,
        rows=tuple(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)),
    )  # fmt: skip
