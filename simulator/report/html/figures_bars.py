"""Bars: where the step goes, and which collectives are exposed."""

from __future__ import annotations

from simulator.report.charts.axes import time_unit
from simulator.report.charts.breakdown import BreakdownChart, Part
from simulator.report.charts.exposed import ExposedChart, ExposedRow
from simulator.report.charts.palette import EXPOSED, HIDDEN, op_words
from simulator.report.html.figures import Figure, axis, label, layout, marker, numbers, safe, short
from simulator.units import format_bytes, format_percent, format_time

_ROW, _AROUND = 46, 70
#: Characters of what a collective carries, beside its bar.
_PURPOSE = 24


def breakdown_figure(chart: BreakdownChart) -> Figure:
    """One bar for each part of the step."""
    unit = time_unit(chart.step_s)
    names = [f"{label(part.look.words)}<br>{_said(part)}" for part in chart.parts]
    return {
        "data": [
            {
                "type": "bar", "orientation": "h", "y": [name], "x": numbers([part.seconds / unit.factor]),
                "marker": marker(part.look),
                "hovertemplate": f"{safe(part.look.words)}<br>{_said(part)} of the step<extra></extra>",
            }
            for part, name in zip(chart.parts, names, strict=True)
        ],
        "layout": layout(
            _AROUND + _ROW * len(names), axis(f"time in a step ({unit.name})", fixedrange=True, rangemode="tozero"),
            axis(autorange="reversed", fixedrange=True, ticks=""),
        ),
    }  # fmt: skip


def _said(part: Part) -> str:
    return f"{format_percent(part.share)}, {format_time(part.seconds)}" if part.seconds else "none"


def exposed_figure(chart: ExposedChart) -> Figure:
    """One bar for each kind of collective: exposed time first, then what compute hides."""
    unit = time_unit(max(row.time_s for row in chart.rows))
    names = [_name(row) for row in chart.rows]
    hover = [
        f"{safe(row.name)}<br>{row.count:,} of {format_bytes(row.message_bytes, 3)}, {format_time(row.time_s)} in all"
        f"<br>exposed: {format_time(row.exposed_s) if row.exposed_s else 'none'}<br>{label(row.cause, 44)}"
        for row in chart.rows
    ]
    series = (
        (EXPOSED, [row.exposed_s for row in chart.rows]), (HIDDEN, [row.hidden_s for row in chart.rows]),
    )  # fmt: skip
    return {
        "data": [
            {
                "type": "bar", "orientation": "h", "name": look.words, "y": list(range(len(names))),
                "x": numbers(value / unit.factor for value in values), "marker": marker(look), "hovertext": hover,
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
            for look, values in series
        ],
        "layout": layout(
            _AROUND + _ROW * len(names), axis(f"time in collectives ({unit.name})", fixedrange=True),
            axis(autorange="reversed", fixedrange=True, ticks="", tickvals=list(range(len(names))), ticktext=names),
            barmode="stack",
        ),
    }  # fmt: skip


def _name(row: ExposedRow) -> str:
    """On two lines: how many of which operation, and the beginning of what they carry."""
    times = f"{row.count:,} x " if row.count > 1 else ""
    if not row.op:
        return label(row.purpose, _PURPOSE)
    return f"{times}{op_words(row.op)}<br>{safe(short(row.purpose, _PURPOSE))}"
