"""Figures over the time of a step: lanes as bars, memory as stacked areas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.report.charts.axes import Unit, memory_unit, time_unit
from simulator.report.charts.lanes import LaneBar, LaneRow, LanesChart, bars_of, is_inside
from simulator.report.charts.memory import MemoryChart
from simulator.report.charts.palette import MEMORY, lane_look
from simulator.report.html.figures import Figure, axis, label, layout, numbers, safe, times
from simulator.report.swimlanes import Window
from simulator.units import format_gib, format_time

_LANE = 34
#: Up to so many bars all are labelled inside, where that fits; of more only those that the buttons show closely, as
#: a browser takes long to measure texts.
_MOST_LABELS = 1200


def lanes_figure(chart: LanesChart) -> Figure:
    """Bars of all rows, a trace for each style; time runs to the right and zooms."""
    unit = time_unit(chart.end_s)
    places = _places(chart.rows)
    styles = dict.fromkeys(bar.style for row in chart.rows for bar in row.bars)
    near = () if bars_of(chart.rows) <= _MOST_LABELS else chart.windows
    data = [_trace(style, chart.rows, places, unit, near) for style in styles]
    lowest = places[-1] if places else 0.0
    groups = _groups(chart.rows, places)
    return {
        "data": data,
        "layout": layout(
            70 + round(_LANE * (lowest + 1)),
            axis(f"time since the step began ({unit.name})", range=[0, chart.end_s / unit.factor], minallowed=0,
                 maxallowed=chart.end_s / unit.factor),
            axis(range=[lowest + 0.6, -0.6 if not groups else -1.0], fixedrange=True, ticks="", tickvals=places,
                 ticktext=[label(row.name, 16) for row in chart.rows], showgrid=False),
            bargap=0, barmode="overlay", dragmode="zoom", annotations=groups,
            uniformtext={"minsize": 9, "mode": "hide"},
        ),
        "windows": [
            {"title": window.title, "range": numbers([window.start_s / unit.factor, window.end_s / unit.factor])}
            for window in chart.windows
        ],
        "end": chart.end_s / unit.factor,
    }  # fmt: skip


def _places(rows: tuple[LaneRow, ...]) -> list[float]:
    """Where rows stand; between classes of ranks is room for a heading."""
    at, found, group = -1.0, [], rows[0].group if rows else ""
    for row in rows:
        at += 1.0 if row.group == group else 1.9
        group = row.group
        found.append(round(at, 1))
    return found


def _groups(rows: tuple[LaneRow, ...], places: list[float]) -> list[dict[str, Any]]:
    headings: dict[str, float] = {}
    for row, place in zip(rows, places, strict=True):
        if row.group:
            headings.setdefault(row.group, place)
    return [
        {"text": f"<b>{safe(group)}</b>", "x": 0, "xref": "paper", "xanchor": "left", "y": place - 0.42,
         "yanchor": "bottom", "showarrow": False}
        for group, place in headings.items()
    ]  # fmt: skip


def _trace(style: str, rows: tuple[LaneRow, ...], places: list[float], unit: Unit, near: Sequence[Window]) -> Figure:
    bars = [(place, bar) for row, place in zip(rows, places, strict=True) for bar in row.bars if bar.style == style]
    look = lane_look(style)
    return {
        "type": "bar", "orientation": "h", "name": safe(look.words), "y": [place for place, _ in bars],
        "base": numbers(bar.start_s / unit.factor for _, bar in bars),
        "x": numbers((bar.end_s - bar.start_s) / unit.factor for _, bar in bars),
        "width": 0.8, "marker": {"color": look.colour, "line": {"width": 0.6, "color": look.colour}},
        "hovertext": [_hover(bar) for _, bar in bars], "hovertemplate": "%{hovertext}<extra></extra>",
        "text": [safe(bar.label) if not near or is_inside(bar, near) else "" for _, bar in bars],
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
    }  # fmt: skip


def _hover(bar: LaneBar) -> str:
    detail = f"<br>{safe(bar.detail)}" if bar.detail else ""
    return f"{label(bar.title, 48)}<br>{times(bar.start_s, bar.end_s)}{detail}"


def memory_figure(chart: MemoryChart) -> Figure:
    """Stacked steps, one colour and pattern for each kind, the limit above them."""
    end_s = float(chart.times_s[-1])
    time, size = time_unit(end_s), memory_unit(chart.peak_bytes)
    at = numbers(chart.times_s / time.factor)
    highest = max(chart.peak_bytes, chart.capacity_bytes or 0.0) / size.factor
    whole = np.sum(list(chart.by_kind_bytes.values()), axis=0)
    return {
        "data": [
            {
                "type": "scatter", "mode": "lines", "stackgroup": "held", "x": at, "name": MEMORY[kind].words,
                "y": numbers(values / size.factor, 6), "fillcolor": MEMORY[kind].colour,
                "line": {"width": 0.5, "shape": "hv", "color": MEMORY[kind].colour},
                **_filled(kind), "hoveron": "points",
                "hovertemplate": f"{MEMORY[kind].words}: %{{y:.3f}} {size.name}<extra></extra>",
            }
            for kind, values in chart.by_kind_bytes.items()
        ] + [
            {
                "type": "scatter", "mode": "lines", "x": at, "y": numbers(whole / size.factor, 6), "name": "all",
                "line": {"width": 1, "shape": "hv", "color": "@ink"},
                "hovertemplate": f"<b>all: %{{y:.3f}} {size.name}</b><extra></extra>",
            }
        ],
        "layout": layout(
            360, axis(f"time since the step began ({time.name})", range=[0, end_s / time.factor], minallowed=0,
                      maxallowed=end_s / time.factor, unifiedhovertitle={"text": f"%{{x:.5~g}} {time.name}"}),
            axis(f"memory of one GPU ({size.name})", range=[0, 1.12 * highest], fixedrange=True),
            dragmode="zoom", hovermode="x unified", shapes=_limit(chart, size), annotations=_notes(chart, time, size),
        ),
    }  # fmt: skip


def _filled(kind: str) -> Figure:
    look = MEMORY[kind]
    if not look.pattern:
        return {}
    shape = {"shape": look.pattern, "fgcolor": "@paper", "bgcolor": look.colour, "fgopacity": 0.4, "size": 8,
             "solidity": 0.16, "fillmode": "overlay"}  # fmt: skip
    return {"fillpattern": shape}


def _limit(chart: MemoryChart, size: Unit) -> list[Figure]:
    if chart.capacity_bytes is None:
        return []
    y = chart.capacity_bytes / size.factor
    return [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y,
             "line": {"color": "@ink", "width": 1.5, "dash": "dash"}}]  # fmt: skip


def _notes(chart: MemoryChart, time: Unit, size: Unit) -> list[Figure]:
    early = chart.peak_s < 0.5 * float(chart.times_s[-1])
    peak: Figure = {
        "text": f"peak {format_gib(chart.peak_bytes)} at {format_time(chart.peak_s)}", "x": chart.peak_s / time.factor,
        "y": chart.peak_bytes / size.factor, "xanchor": "left" if early else "right", "yanchor": "bottom", "ax": 18 if
        early else -18, "ay": -16, "showarrow": True, "arrowhead": 2, "arrowcolor": "@ink", "bgcolor": "@paper",
    }  # fmt: skip
    if chart.capacity_bytes is None:
        return [peak]
    limit: Figure = {
        "text": f"limit {format_gib(chart.capacity_bytes)}", "xref": "paper", "x": 0, "xanchor": "left",
        "y": chart.capacity_bytes / size.factor, "yanchor": "bottom", "showarrow": False, "bgcolor": "@paper",
    }  # fmt: skip
    return [peak, limit]
