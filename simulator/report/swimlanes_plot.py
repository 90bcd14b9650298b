"""Draws a step: all lanes of one rank, two layers closely, and its memory. Needs the extra ``plot`` (matplotlib).

Colours are of Okabe and Ito's set (jfly.uni-koeln.de/color), which colour-blind readers can tell apart; rows and bars
are named as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from simulator.plan import HOST_COPY, MEMORY_KINDS
from simulator.report.memory import Memory, thinned
from simulator.report.picture_file import check_picture, save_figure
from simulator.report.svg import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from simulator.report.swimlanes import Bar, Row, Swimlanes, Window
from simulator.report.words import layer_words
from simulator.units import format_gib

_YELLOW, _DARK = "#F0E442", "#333333"
#: Colour and words of each style of bar, in the order of the legend.
STYLES = {
    "forward": (SKY, "forward"), "backward": (BLUE, "backward"), "copy": ("#999999", "copy"),
    "optimizer": (PURPLE, "optimizer"), "all_reduce": (ORANGE, "all-reduce (AR)"),
    "reduce_scatter": (VERMILION, "reduce-scatter (RS)"), "all_gather": (GREEN, "all-gather (AG)"),
    "broadcast": (_YELLOW, "broadcast (BC)"), "reduce": (_YELLOW, "reduce (RD)"), "host": (_DARK, "issued by the host"),
    HOST_COPY: ("#DDCC77", "copy to or from the host"),
    "exposed": (BLACK, "exposed: a collective runs, no compute does"),
}  # fmt: skip
_OTHER = ("#BBBBBB", "other")
_ON_DARK = {BLUE, _DARK, BLACK, VERMILION, GREEN}
_KINDS = {
    "params": (BLUE, "weights"), "grads": (SKY, "gradients"), "optimizer": (PURPLE, "optimizer states"),
    "activations": (ORANGE, "activations"), "gathered": (GREEN, "gathered weights"), "buffers": ("#999999", "buffers"),
    "workspace": (_YELLOW, "context, communicators"),
}  # fmt: skip
#: Small in inches, so that letters are still read where a page shows the picture 800 pixels wide.
_DPI = 160
_WIDTH_IN, _ROW_IN, _CURVE_IN, _LEGEND_IN = 9.0, 0.3, 1.8, 0.22
_TITLE_CHARACTERS = 136
#: Width of a letter of a label, in points; a label is shown where it fits its bar.
_LETTER = 3.9
#: Bars narrower than this share of the picture would be hidden by white edges.
_NARROW = 0.004
#: Entries of a legend on one line.
_MOST_COLUMNS = 6
#: Points of the curve that are drawn.
_MOST_POINTS = 3000
#: The capacity is shown where the peak comes this near to it.
_NEAR = 0.4


def plot_step(lanes: Swimlanes, memory: Memory, capacity_bytes: float | None, title: Sequence[str], path: Path) -> None:
    """Write PNG, SVG or PDF by the ending of ``path``. Raises ScenarioError without matplotlib or for a bad path."""
    check_picture(path)
    save_figure(draw_step(lanes, memory, capacity_bytes, title), path)


def draw_step(lanes: Swimlanes, memory: Memory, capacity_bytes: float | None, title: Sequence[str]) -> Any:
    """The picture as a matplotlib Figure. title: what is shown, and the finding."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = _ROW_IN * len(lanes.rows) + 0.5
    entries = _entries(lanes.rows)
    legend = _LEGEND_IN * _lines(entries)
    heights = [height, *([height * 1.1] if lanes.windows else []), legend, _CURVE_IN]
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + 2.2), dpi=_DPI)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", hspace=0.03, wspace=0.03)
    grid = figure.add_gridspec(len(heights), max(1, len(lanes.windows)), height_ratios=heights)
    whole = figure.add_subplot(grid[0, :])
    _lanes(whole, lanes.rows, 0.0, lanes.end_s)
    whole.set_title("the whole step", fontsize=9, loc="left")
    for number, window in enumerate(lanes.windows):
        _zoom(figure, figure.add_subplot(grid[1, number]), lanes, window, named=number == 0)
        whole.axvspan(window.start_s * 1e3, window.end_s * 1e3, color=_YELLOW, alpha=0.35, lw=0, zorder=0)
    _legend(figure.add_subplot(grid[-2, :]), entries)
    curve = figure.add_subplot(grid[-1, :], sharex=whole)
    _memory(curve, memory, lanes.end_s, capacity_bytes)
    figure.suptitle("\n".join(_wrapped(line) for line in title), fontsize=9)
    return figure


def _wrapped(line: str) -> str:
    """Lines of a title; numbers stay with their units."""
    return fill(re.sub(r"(\d) (?=[A-Za-z%])", "\\1\N{NO-BREAK SPACE}", line), _TITLE_CHARACTERS)


def _lanes(axis: Any, rows: Sequence[Row], start_s: float, end_s: float, *, named: bool = True) -> None:
    """Bars of all rows between two times, in milliseconds. Those wide enough have white edges."""
    narrow_s = _NARROW * (end_s - start_s)
    for number, row in enumerate(rows):
        for style in dict.fromkeys(bar.style for bar in row.bars):
            shown = [b for b in row.bars if b.style == style and b.end_s > start_s and b.start_s < end_s]
            colour = STYLES.get(style, _OTHER)[0]
            axis.broken_barh(
                [(b.start_s * 1e3, (b.end_s - b.start_s) * 1e3) for b in shown], (number - 0.4, 0.8), facecolors=colour,
                edgecolors=["white" if b.end_s - b.start_s > narrow_s else colour for b in shown], linewidth=0.5,
            )  # fmt: skip
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(start_s * 1e3, end_s * 1e3)
    axis.set_yticks(range(len(rows)), [row.name for row in rows] if named else [""] * len(rows), fontsize=8)
    axis.set_xlabel("ms since the step began", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _zoom(figure: Any, axis: Any, lanes: Swimlanes, window: Window, *, named: bool) -> None:
    """A stretch of the step with named bars, and lines between layers."""
    _lanes(axis, lanes.rows, window.start_s, window.end_s, named=named)
    axis.set_ylim(len(lanes.rows) - 0.4, -0.85)  # room for the names of layers
    axis.set_title(window.title, fontsize=9, loc="left")
    inches = (_WIDTH_IN - 1.6) / len(lanes.windows)
    per_second = inches * 72 / (window.end_s - window.start_s)
    for number, row in enumerate(lanes.rows):
        for bar in row.bars:
            _label(axis, bar, number, window, per_second)
    _layer_edges(axis, lanes.rows, window, per_second)


def _label(axis: Any, bar: Bar, row: int, window: Window, points_per_second: float) -> None:
    """The longest label that fits the part of the bar that is shown."""
    start, end = max(bar.start_s, window.start_s), min(bar.end_s, window.end_s)
    room = (end - start) * points_per_second - 2
    for text in bar.labels:
        if len(text) * _LETTER <= room:
            colour = "white" if STYLES.get(bar.style, _OTHER)[0] in _ON_DARK else "black"
            axis.text(
                (start + end) / 2 * 1e3, row, text, ha="center", va="center", fontsize=6.5, color=colour, clip_on=True
            )
            return


def _layer_edges(axis: Any, rows: Sequence[Row], window: Window, points_per_second: float) -> None:
    """A dashed line where a layer of the model begins, with its name above where that fits before the next."""
    begun = list(_begun(rows, window))
    for (start_s, layer), (next_s, _) in pairwise([*begun, (window.end_s, "")]):
        axis.axvline(start_s * 1e3, color=GREY, lw=0.8, ls="--", zorder=3)
        name = layer_words(layer)
        if len(name) * _LETTER <= (next_s - start_s) * points_per_second - 2:
            axis.annotate(
                name, (start_s * 1e3, 1.0), xycoords=("data", "axes fraction"), fontsize=6.5, xytext=(2, -1),
                textcoords="offset points", va="top", color=_DARK,
            )  # fmt: skip


def _begun(rows: Sequence[Row], window: Window) -> Iterator[tuple[float, str]]:
    """When layers begin inside the window."""
    compute = next((row for row in rows if row.name == "compute"), None)
    before = ""
    for bar in compute.bars if compute else ():
        if not bar.layer or bar.end_s <= window.start_s or bar.start_s >= window.end_s:
            continue
        if bar.layer != before and bar.start_s >= window.start_s:
            yield bar.start_s, bar.layer
        before = bar.layer


def _memory(axis: Any, memory: Memory, end_s: float, capacity_bytes: float | None) -> None:
    """Bytes by kind, stacked, with the peak marked; the curve holds its value until the next change."""
    times, curve = thinned(memory, _MOST_POINTS)
    unit, name = (2.0**30, "GiB") if memory.peak_bytes >= 2**30 else (2.0**20, "MiB")
    at, top = np.append(times, end_s) * 1e3, np.zeros(len(times) + 1)
    for number, kind in enumerate(MEMORY_KINDS):
        values = np.append(curve[:, number], curve[-1:, number]) / unit
        if values.any():
            colour, words = _KINDS[kind]
            axis.fill_between(at, top, top + values, step="post", color=colour, label=words, lw=0)
            top = top + values
    highest = memory.peak_bytes
    if capacity_bytes is not None and memory.peak_bytes > _NEAR * capacity_bytes:
        highest = max(highest, capacity_bytes)
        axis.axhline(capacity_bytes / unit, color=BLACK, ls="--", lw=1)
        words = f"limit {format_gib(capacity_bytes)} "
        axis.annotate(
            words, (end_s * 1e3, capacity_bytes / unit), xytext=(0, 2), textcoords="offset points", ha="right",
            va="bottom", fontsize=7.5,
        )  # fmt: skip
    axis.set_ylim(0, 1.18 * highest / unit)
    axis.annotate("▼", (memory.peak_s * 1e3, memory.peak_bytes / unit), ha="center", va="bottom", fontsize=8)
    axis.set_title(
        f"memory of one GPU: {format_gib(memory.peak_bytes)} at {memory.peak_words} (marked)", fontsize=9, loc="left"
    )
    axis.set_ylabel(name, fontsize=8)
    axis.set_xlabel("ms since the step began", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(
        fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.27), ncols=len(MEMORY_KINDS), frameon=False,
        columnspacing=1.2, handlelength=1.2, handletextpad=0.5,
    )  # fmt: skip


def _entries(rows: Sequence[Row]) -> list[Any]:
    """Of the legend of lanes: the styles that are drawn, in the order of ``STYLES``."""
    from matplotlib.patches import Patch

    used = {bar.style for row in rows for bar in row.bars}
    entries = [Patch(color=colour, label=words) for style, (colour, words) in STYLES.items() if style in used]
    if any(style not in STYLES for style in used):
        entries.append(Patch(color=_OTHER[0], label=_OTHER[1]))
    return entries


def _lines(entries: Sequence[Any]) -> int:
    return -(-len(entries) // _MOST_COLUMNS)


def _legend(axis: Any, entries: Sequence[Any]) -> None:
    """On a place of its own between the lanes, which it explains, and the memory."""
    axis.axis("off")
    axis.legend(
        handles=entries, loc="center", ncols=-(-len(entries) // _lines(entries)), fontsize=7, frameon=False,
        borderaxespad=0.0, borderpad=0.0,
    )  # fmt: skip
