"""The figure of a pipeline: a row for each kind of ranks, bars with the numbers of their micro-batches."""

from __future__ import annotations

from simulator.report.charts.axes import Unit, time_unit
from simulator.report.charts.palette import stage_look
from simulator.report.charts.stages import StageBar, StagesChart
from simulator.report.html.figures import Figure, axis, label, layout, numbers, safe, times
from simulator.units import format_percent

_ROW = 26
#: More bars than these have no numbers inside: a browser takes long to measure texts, and they would not fit.
_MOST_NUMBERS = 1500


def stages_figure(chart: StagesChart) -> Figure:
    """Time to the right, the first stage on top; what is left white is the bubble."""
    unit = time_unit(chart.end_s)
    looks = dict.fromkeys((bar.style, bar.later) for row in chart.rows for bar in row.bars)
    rows = len(chart.rows)
    shares = [
        {"text": format_percent(row.bubble), "x": 1, "xref": "paper", "xanchor": "left", "xshift": 4, "y": place,
         "showarrow": False}
        for place, row in enumerate(chart.rows)
    ]  # fmt: skip
    heading = {"text": "bubble", "x": 1, "xref": "paper", "xanchor": "left", "xshift": 4, "y": -0.9, "showarrow": False}
    return {
        "data": [_trace(style, later, chart, unit) for style, later in looks],
        "layout": layout(
            80 + _ROW * (rows + 1),
            axis(f"time since the step began ({unit.name})", range=[0, chart.end_s / unit.factor], minallowed=0,
                 maxallowed=chart.end_s / unit.factor),
            axis(range=[rows - 0.4, -1.3], fixedrange=True, ticks="", tickvals=list(range(rows)),
                 ticktext=[label(row.name, 16) for row in chart.rows], showgrid=False),
            bargap=0, barmode="overlay", dragmode="zoom", annotations=[heading, *shares],
            margin={"l": 8, "r": 62, "t": 4, "b": 44}, uniformtext={"minsize": 8, "mode": "hide"},
        ),
    }  # fmt: skip


def _trace(style: str, later: bool, chart: StagesChart, unit: Unit) -> Figure:
    bars = [
        (place, bar) for place, row in enumerate(chart.rows) for bar in row.bars
        if (bar.style, bar.later) == (style, later)
    ]  # fmt: skip
    look = stage_look(style, later)
    few = sum(len(row.bars) for row in chart.rows) <= _MOST_NUMBERS
    return {
        "type": "bar", "orientation": "h", "name": safe(look.words), "y": [place for place, _ in bars],
        "base": numbers(bar.start_s / unit.factor for _, bar in bars),
        "x": numbers((bar.end_s - bar.start_s) / unit.factor for _, bar in bars), "width": 0.86,
        "marker": {"color": look.colour, "line": {"width": 0.5, "color": "@paper" if few else look.colour}},
        "hovertext": [f"{safe(bar.title)}<br>{times(bar.start_s, bar.end_s)}" for _, bar in bars],
        "hovertemplate": "%{hovertext}<extra></extra>", "text": [_number(bar) if few else "" for _, bar in bars],
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
    }  # fmt: skip


def _number(bar: StageBar) -> str:
    return "" if bar.micro_batch is None else str(bar.micro_batch)
