"""Figures with two dimensions of their own: links by kind and place, operations under their roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simulator.report.charts.axes import log_ticks, nice_share
from simulator.report.charts.links import LinkCell, LinkRow, LinksChart
from simulator.report.charts.palette import OPERATIONS, Look
from simulator.report.charts.roofline import RooflineChart, RooflinePoint, names_of
from simulator.report.html.figures import Figure, axis, layout, numbers, safe
from simulator.units import format_bandwidth, format_bytes, format_flop_per_s, format_percent, format_time

_OTHER = Look("#999999", "other", "cross")


def links_figure(chart: LinksChart, num_gpus: int) -> Figure:
    """A row for each kind of link; rows with fewer cells have wider ones."""
    columns = max(len(row.cells) for row in chart.rows)
    spread = [[row.cells[column * len(row.cells) // columns] for column in range(columns)] for row in chart.rows]
    names = [_row_name(row) for row in chart.rows]
    return {
        "data": [
            {
                "type": "heatmap", "z": [numbers((100 * cell.use for cell in cells), 4) for cells in spread],
                "x0": num_gpus / columns / 2 - 0.5, "dx": num_gpus / columns, "y": names, "ygap": 3,
                "zmin": 0, "zmax": 100 * nice_share(max(row.use for row in chart.rows)), "colorscale": "Cividis",
                "hovertext": [
                    [_cell(row, cell) for cell in cells] for row, cells in zip(chart.rows, spread, strict=True)
                ],
                "hovertemplate": "%{hovertext}<extra></extra>",
                "colorbar": {
                    "orientation": "h", "thickness": 10, "y": 1.01, "yanchor": "bottom", "x": 0.5, "len": 0.9,
                    "ticksuffix": " %", "title": {"text": "share of the step in use", "side": "top"}, "outlinewidth": 0,
                },
            }
        ],
        "layout": layout(
            120 + 38 * max(3, len(names)), axis("GPU number", fixedrange=True),
            axis(autorange="reversed", fixedrange=True, ticks="", showgrid=False),
        ),
    }  # fmt: skip


def _row_name(row: LinkRow) -> str:
    return f"{safe(row.name)}<br>{format_percent(row.use)}"


def _cell(row: LinkRow, cell: LinkCell) -> str:
    """The busiest link of a cell in words."""
    mean = f"<br>mean of {cell.num_links:,} links: {format_percent(cell.mean)}" if cell.num_links > 1 else ""
    return (
        f"{safe(cell.busiest)}<br>in use {format_percent(cell.use)} of the step: {format_bytes(cell.num_bytes, 3)} at "
        f"{format_bandwidth(row.bytes_per_s, 3)}{mean}"
    )


def roofline_figure(chart: RooflineChart) -> Figure:
    """Log-log: both roofs, and a point for each kind of operation, as large as its share of time."""
    low, high, bottom = chart.extent
    top = 1.6 * chart.peak_flop_per_s
    roof_x = [low, chart.knee_flop_per_byte, high]
    roof_y = [chart.memory_bytes_per_s * low, chart.peak_flop_per_s, chart.peak_flop_per_s]
    roof: Figure = {
        "type": "scatter", "mode": "lines", "x": numbers(roof_x), "y": numbers(y / 1e12 for y in roof_y),
        "line": {"color": "@ink", "width": 2}, "hoverinfo": "skip",
    }  # fmt: skip
    named = names_of(chart.points)
    return {
        "data": [roof, *(_points(kind, chart, named) for kind in dict.fromkeys(point.kind for point in chart.points))],
        "layout": layout(
            430, axis("intensity (FLOP per byte)", **_logarithmic(low, high)),
            axis("achieved rate (TFLOP/s)", **_logarithmic(bottom / 1e12, top / 1e12)),
            annotations=list(_roof_names(chart)),
        ),
    }  # fmt: skip


def _logarithmic(low: float, high: float) -> Figure:
    shown = log_ticks(low, high)
    return {
        "type": "log", "fixedrange": True, "range": [math.log10(low), math.log10(high)], "tickvals": shown,
        "ticktext": [f"{value:,g}" for value in shown],
    }  # fmt: skip


def _points(kind: str, chart: RooflineChart, named: dict[tuple[str, str], str]) -> Figure:
    points, look = [point for point in chart.points if point.kind == kind], OPERATIONS.get(kind, _OTHER)
    return {
        "type": "scatter", "mode": "markers+text", "name": look.words,
        "x": numbers(point.flop_per_byte for point in points),
        "y": numbers(point.flop_per_s / 1e12 for point in points),
        "text": [safe(named.get((point.name, point.direction), "")) for point in points],
        "textposition": "bottom center", "cliponaxis": False,
        "marker": {
            "color": look.colour, "size": numbers((8 + 40 * math.sqrt(point.share) for point in points), 4),
            "symbol": [look.pattern + ("-open" if point.direction == "forward" else "") for point in points],
            "opacity": 0.85, "line": {"width": 2, "color": look.colour},
        },
        "hovertext": [_point(point, chart) for point in points], "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip


def _point(point: RooflinePoint, chart: RooflineChart) -> str:
    roof = min(chart.peak_flop_per_s, point.flop_per_byte * chart.memory_bytes_per_s)
    return (
        f"{safe(point.name)} {point.direction} ({point.count:,})<br>{format_flop_per_s(point.flop_per_s)}, "
        f"{format_percent(point.flop_per_s / roof)} of its roof<br>{point.flop_per_byte:,.0f} FLOP per byte<br>"
        f"{format_time(point.seconds)}, {format_percent(point.share)} of compute time"
    )


def _roof_names(chart: RooflineChart) -> Iterator[Figure]:
    yield {
        "text": f"{chart.dtype} peak {format_flop_per_s(chart.peak_flop_per_s, 3)}", "xref": "paper", "x": 1,
        "xanchor": "right", "y": math.log10(chart.peak_flop_per_s / 1e12), "yanchor": "bottom", "showarrow": False,
    }  # fmt: skip
    yield {
        "text": f"memory {format_bandwidth(chart.memory_bytes_per_s, 3)}", "x": math.log10(chart.slope[0]),
        "y": math.log10(chart.slope[1] / 1e12), "xanchor": "left", "yanchor": "top", "xshift": 8, "showarrow": False,
        "name": "wide",
    }  # fmt: skip
