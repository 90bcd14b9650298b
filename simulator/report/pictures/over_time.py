"""Memory over the time of a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.report.charts.axes import memory_unit, time_unit
from simulator.report.charts.memory import MemoryChart
from simulator.report.charts.palette import MEMORY
from simulator.report.pictures.sheet import look_of, patches, sheet
from simulator.units import format_gib, format_time


def draw_memory(chart: MemoryChart, asked: str) -> Any:
    """Bytes by kind, stacked, with the peak and the limit marked; the curve holds its value until the next change."""
    end_s = float(chart.times_s[-1])
    time, size = time_unit(end_s), memory_unit(chart.peak_bytes)
    figure, axis = sheet(3.3, chart.finding, asked)
    at, top = chart.times_s / time.factor, np.zeros(len(chart.times_s))
    for kind, values in chart.by_kind_bytes.items():
        axis.fill_between(
            at, top, top + values / size.factor, step="post", **(look_of(MEMORY[kind]) | {"linewidth": 0})
        )
        top = top + values / size.factor
    highest = chart.peak_bytes
    if chart.capacity_bytes is not None:
        highest = max(highest, chart.capacity_bytes)
        y = chart.capacity_bytes / size.factor
        axis.axhline(y, color="black", ls="--", lw=1)
        axis.text(end_s / time.factor, y, f"limit {format_gib(chart.capacity_bytes)} ", fontsize=7.5, ha="right",
                  va="bottom")  # fmt: skip
    peak = f"peak {format_gib(chart.peak_bytes)} at {format_time(chart.peak_s)}"
    late = chart.peak_s > 0.5 * end_s
    axis.annotate(
        peak, (chart.peak_s / time.factor, chart.peak_bytes / size.factor), xytext=(-14 if late else 14, 8),
        textcoords="offset points", ha="right" if late else "left", fontsize=7.5, arrowprops={"arrowstyle": "->"},
    )  # fmt: skip
    axis.set_xlim(0, end_s / time.factor)
    axis.set_ylim(0, 1.15 * highest / size.factor)
    axis.set_xlabel(f"time since the step began ({time.name})", fontsize=8)
    axis.set_ylabel(f"memory of one GPU ({size.name})", fontsize=8)
    axis.legend(
        handles=patches({MEMORY[kind].words: MEMORY[kind] for kind in chart.by_kind_bytes}), fontsize=7,
        loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=4, frameon=False,
    )  # fmt: skip
    return figure
