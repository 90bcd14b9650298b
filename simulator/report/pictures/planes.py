"""Pictures with two dimensions of their own: links by kind and place, operations under their roofline."""

from __future__ import annotations

import math
from typing import Any

from simulator.report.charts.axes import log_ticks, nice_share
from simulator.report.charts.links import LinksChart
from simulator.report.charts.palette import OPERATIONS, Look
from simulator.report.charts.roofline import RooflineChart, names_of
from simulator.report.pictures.sheet import sheet
from simulator.units import format_bandwidth, format_flop_per_s, format_percent

_OTHER = Look("#999999", "other", "cross")
_MARKERS = {"circle": "o", "diamond": "D", "square": "s", "cross": "X"}


def draw_links(chart: LinksChart, num_gpus: int, asked: str) -> Any:
    """A row of cells for each kind of link, coloured by use, with the use of the busiest beside it."""
    figure, axis = sheet(0.9 + 0.34 * max(3, len(chart.rows)), chart.finding, asked)
    if not chart.rows:
        axis.axis("off")
        return figure
    end = 100 * nice_share(max(row.use for row in chart.rows))
    for number, row in enumerate(chart.rows):
        drawn = axis.imshow(
            [[100 * cell.use for cell in row.cells]], aspect="auto", cmap="cividis", vmin=0, vmax=end,
            extent=(-0.5, num_gpus - 0.5, number + 0.44, number - 0.44), interpolation="nearest",
        )  # fmt: skip
        axis.text(num_gpus - 0.5, number, f" {format_percent(row.use)}", va="center", fontsize=8, clip_on=False)
    axis.set_ylim(len(chart.rows) - 0.5, -0.5)
    axis.set_xlim(-0.5, num_gpus - 0.5)
    axis.set_yticks(range(len(chart.rows)), [row.name for row in chart.rows])
    axis.spines[:].set_visible(False)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel(
        "position in the cluster (GPU number)" + (f"; {chart.note[0].lower()}{chart.note[1:]}" if chart.note else ""),
        fontsize=8,
    )
    bar = figure.colorbar(drawn, ax=axis, pad=0.09, fraction=0.04)
    bar.set_label("share of the step in use (%)", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return figure


def draw_roofline(chart: RooflineChart, asked: str) -> Any:
    """Log-log: both roofs, and a mark for each kind of operation, as large as its share of time."""
    figure, axis = sheet(3.9, chart.finding, asked)
    tera = 1e12
    low, high, bottom = chart.extent
    axis.plot(
        [low, chart.knee_flop_per_byte, high],
        [chart.memory_bytes_per_s * low / tera, chart.peak_flop_per_s / tera, chart.peak_flop_per_s / tera],
        color="black", lw=1.5,
    )  # fmt: skip
    names = names_of(chart.points)
    for point in chart.points:
        look = OPERATIONS.get(point.kind, _OTHER)
        axis.scatter(
            point.flop_per_byte, point.flop_per_s / tera, s=(4 + 22 * math.sqrt(point.share)) ** 2,
            marker=_MARKERS[look.pattern], edgecolors=look.colour, linewidths=1.4, zorder=3,
            facecolors="none" if point.direction == "forward" else look.colour,
        )  # fmt: skip
        axis.annotate(
            names.get((point.name, point.direction), ""), (point.flop_per_byte, point.flop_per_s / tera),
            xytext=(0, -9 - 9 * math.sqrt(point.share)), textcoords="offset points", ha="center", va="top",
            fontsize=7.5,
        )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom / tera, 1.6 * chart.peak_flop_per_s / tera))
    axis.minorticks_off()
    for scale, ends in ((axis.xaxis, (low, high)), (axis.yaxis, (bottom / tera, 1.6 * chart.peak_flop_per_s / tera))):
        scale.set_ticks(ticks := log_ticks(*ends), [f"{value:,g}" for value in ticks])
    peak = f"{chart.dtype} peak {format_flop_per_s(chart.peak_flop_per_s, 3)}"
    axis.text(high, chart.peak_flop_per_s / tera, peak, ha="right", va="bottom", fontsize=8)
    axis.annotate(
        f"memory {format_bandwidth(chart.memory_bytes_per_s, 3)}", (chart.slope[0], chart.slope[1] / tera),
        xytext=(8, -6), textcoords="offset points", va="top", fontsize=8,
    )  # fmt: skip
    axis.set_xlabel("arithmetic intensity (FLOP per byte of memory traffic)", fontsize=8)
    axis.set_ylabel("achieved rate (TFLOP/s)", fontsize=8)
    axis.legend(handles=_marks(chart), fontsize=7.5, loc="lower right")
    return figure


def _marks(chart: RooflineChart) -> list[Any]:
    from matplotlib.lines import Line2D

    looks = dict.fromkeys(OPERATIONS.get(point.kind, _OTHER) for point in chart.points)
    marks = [
        Line2D([], [], ls="", marker=_MARKERS[look.pattern], color=look.colour, label=look.words) for look in looks
    ]
    hollow = Line2D([], [], ls="", marker="o", color="#555555", markerfacecolor="none", label="hollow: forward")
    return [*marks, hollow, Line2D([], [], ls="", marker="o", color="#555555", label="filled: backward")]
