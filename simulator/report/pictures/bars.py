"""Pictures of bars: where the step goes, and which collectives are exposed and why."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from simulator.report.charts.axes import time_unit
from simulator.report.charts.breakdown import BreakdownChart
from simulator.report.charts.exposed import ExposedChart, ExposedRow
from simulator.report.charts.palette import EXPOSED, HIDDEN, op_words
from simulator.report.pictures.sheet import look_of, patches, sheet
from simulator.units import format_percent, format_time

_ROW_IN, _AROUND_IN = 0.36, 0.55
#: Characters of a row's name, and of a line across the picture. The axis is so much longer than the longest bar.
_NAME, _LINE, _WIDER = 100, 145, 1.75


def draw_breakdown(chart: BreakdownChart, asked: str) -> Any:
    """One bar for each part of the step."""
    unit = time_unit(chart.step_s)
    figure, axis = sheet(_AROUND_IN + _ROW_IN * len(chart.parts), chart.finding, asked)
    longest = max(part.seconds for part in chart.parts) / unit.factor
    for number, part in enumerate(chart.parts):
        value = part.seconds / unit.factor
        axis.barh(number, value, height=0.68, **look_of(part.look))
        words = f" {format_percent(part.share)}, {format_time(part.seconds)}" if part.seconds else " none"
        axis.text(value, number, words, va="center", fontsize=8)
    axis.set_yticks(range(len(chart.parts)), [part.look.words for part in chart.parts])
    axis.set_xlim(0, 1.22 * longest)
    axis.invert_yaxis()
    axis.set_xlabel(f"time in a step ({unit.name})", fontsize=8)
    return figure


def draw_exposed(chart: ExposedChart, asked: str) -> Any:
    """One bar for each kind of collective, its cause beside it."""
    if not chart.rows:
        return _nothing(chart.finding, asked)
    unit = time_unit(max(row.time_s for row in chart.rows))
    figure, axis = sheet(_AROUND_IN + 0.25 + 0.46 * len(chart.rows), chart.finding, asked)
    longest = max(row.time_s for row in chart.rows) / unit.factor
    for number, row in enumerate(chart.rows):
        exposed, hidden = row.exposed_s / unit.factor, row.hidden_s / unit.factor
        axis.barh(number, exposed, height=0.5, **look_of(EXPOSED))
        axis.barh(number, hidden, left=exposed, height=0.5, **look_of(HIDDEN))
        axis.text(0, number - 0.29, _name(row), fontsize=7.5, va="bottom")
        room = int(_LINE * (1 - (exposed + hidden) / (_WIDER * longest)))
        axis.text(exposed + hidden, number, f" {_said(row, room)}", fontsize=7, va="center", color="#333333")
    axis.set_yticks([])
    axis.set_xlim(0, _WIDER * longest)
    axis.set_ylim(len(chart.rows) - 0.6, -0.85)
    axis.set_xlabel(f"time in collectives of a step ({unit.name}); several at once count in full", fontsize=8)
    axis.legend(handles=patches({"exposed": EXPOSED, "hidden behind compute": HIDDEN}), fontsize=7.5, loc="lower right")
    return figure


def _name(row: ExposedRow) -> str:
    times = f"{row.count:,} x " if row.count > 1 and row.op else ""
    name = f"{op_words(row.op)} of {row.purpose}" if row.op else row.purpose
    return times + (name if len(name) <= _NAME else name[: _NAME - 1] + "…")


def _said(row: ExposedRow, room: int) -> str:
    if not row.exposed_s:
        return format_time(row.time_s, 3)
    return shorten(f"{format_time(row.exposed_s, 3)} exposed: {row.cause}", max(20, room), placeholder=" …")


def _nothing(finding: str, asked: str) -> Any:
    figure, axis = sheet(0.4, finding, asked)
    axis.axis("off")
    return figure
