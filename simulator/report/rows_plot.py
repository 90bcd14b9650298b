"""Time against size, log-log: one panel per number of ranks, one line per algorithm, crossovers marked.

Where a library's cost model gives the times, two strips under each panel show which algorithm is the fastest at a size
and which one the library runs. Needs the extra ``plot`` (matplotlib), imported only when a picture is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import ceil, floor, log2, log10
from pathlib import Path
from textwrap import fill
from typing import Any

from simulator.errors import ScenarioError
from simulator.report.picture_file import DPI, check_picture, save_figure
from simulator.report.rows_choices import FASTEST, RUNS, binary, choices_of, compared, finding, panel_title, strips_of
from simulator.report.rows_text import LIBRARY
from simulator.rows import Crossover, Row
from simulator.units import format_bytes

#: Okabe and Ito's colours, told apart by colour-blind readers; with markers for print. No two alike for one operation.
STYLES = {
    "ring": ("#0072B2", "o"), "tree": ("#D55E00", "s"), "naive": ("#999999", "x"), "direct": ("#009E73", "h"),
    "halving_doubling": ("#CC79A7", "p"), "pairwise": ("#56B4E9", "<"), "torus": ("#E69F00", "P"),
    "double_tree": ("#E69F00", "D"), "hierarchical": ("#009E73", "^"), "nvls": ("#56B4E9", "X"),
    "nvls_tree": ("#CC79A7", "v"), "rail": ("#D55E00", "P"), "bruck": ("#E69F00", "*"), "pat": ("#D55E00", "d"),
    "eager_tree": ("#E69F00", "<"),
}  # fmt: skip
_OTHER = ("#000000", ".")
_MOST_PANELS = 6
_MOST_TICKS = 7
_INCHES_PER_LEGEND_ENTRY = 1.45
_TITLE_CHARACTERS_PER_INCH = 11
#: Between two labels, and between a label and its line, in points.
_GAP = 4.0


def plot_rows(rows: Sequence[Row], crossings: Sequence[Crossover], where: str, path: Path) -> None:
    """Write a PNG, SVG or PDF by the ending of ``path``. Raises ScenarioError without matplotlib or a bad path."""
    check_picture(path)
    save_figure(draw_rows(rows, crossings, where), path)


def draw_rows(rows: Sequence[Row], crossings: Sequence[Crossover], where: str) -> Any:
    """The picture as a matplotlib Figure. Raises ScenarioError where no size is above zero."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranks = _panels(sorted({row.p for row in rows}))
    shown = [[row for row in rows if row.p == p and row.size_bytes > 0] for p in ranks]
    if not all(shown):
        raise ScenarioError("--plot: the axis of sizes is logarithmic and cannot show 0 B; ask for sizes above zero")
    strips = strips_of([row for panel in shown for row in panel])
    columns = 2 if len(ranks) == 4 else min(3, len(ranks))
    lines = -(-len(ranks) // columns)
    width, height = max(4.6 * columns + 0.6, 7.0), (4.3 if strips else 3.7) * lines + 1.1
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", hspace=0.04, wspace=0.03)
    mains, belows = _axes(figure, lines, columns, [_strips_below(panel, strips) for panel in shown])
    labels = []
    for main, below, panel, p in zip(mains, belows, shown, ranks, strict=True):
        _panel(main, panel)
        above = list(panel_title(panel, strips))
        main.set_title("\n".join(above if len(ranks) > 1 else above[:1]), fontsize=10)
        named = below is not None and FASTEST in strips
        labels.append([_mark(main, crossing, named) for crossing in crossings if crossing.p == p])
        if below is not None:
            _strip(below, panel, strips)
    _label_axes(mains, belows, columns, sorted({row.size_bytes for panel in shown for row in panel}))
    title = finding(rows, crossings, where).splitlines()
    wrapped = "\n".join(fill(line, int(width * _TITLE_CHARACTERS_PER_INCH)) for line in title)
    figure.suptitle(wrapped, fontsize=11)
    _legend(figure, shown, strips, max(1, int(width / _INCHES_PER_LEGEND_ENTRY)))
    _arrange(figure, mains, labels)
    return figure


def _panels(ranks: list[int]) -> list[int]:
    """At most _MOST_PANELS, spread evenly over what was asked."""
    if len(ranks) <= _MOST_PANELS:
        return ranks
    last = len(ranks) - 1
    return [ranks[round(i * last / (_MOST_PANELS - 1))] for i in range(_MOST_PANELS)]


def _strips_below(rows: Sequence[Row], strips: Sequence[str]) -> Sequence[str]:
    return strips if any(row.fidelity == LIBRARY for row in rows) else ()


def _axes(figure: Any, lines: int, columns: int, strips: Sequence[Sequence[str]]) -> tuple[list[Any], list[Any]]:
    """An axis per panel, and below it one for the strips, None where it has none. All share x, the main ones y."""
    each = 2 if any(strips) else 1
    grid = figure.add_gridspec(each * lines, columns, height_ratios=(9, 1)[:each] * lines)
    mains: list[Any] = []
    belows: list[Any] = []
    for number, names in enumerate(strips):
        line, column = divmod(number, columns)
        first = mains[0] if mains else None
        mains.append(figure.add_subplot(grid[each * line, column], sharex=first, sharey=first))
        belows.append(figure.add_subplot(grid[each * line + 1, column], sharex=mains[0]) if names else None)
    return mains, belows


def _panel(axis: Any, rows: Sequence[Row]) -> None:
    """Lines of one number of ranks; dashed and hollow where times are not comparable with the library's."""
    priced = any(row.fidelity == LIBRARY for row in rows)
    for name in dict.fromkeys(row.algorithm for row in rows):
        line = [row for row in rows if row.algorithm == name]
        color, marker = STYLES.get(name, _OTHER)
        played = priced and line[0].fidelity != LIBRARY
        axis.plot(
            [r.size_bytes for r in line], [r.time_s * 1e6 for r in line], color=color, marker=marker, markersize=4,
            linewidth=1.6, label=name, linestyle="--" if played else "-",
            markerfacecolor="white" if played else color,
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _edges(sizes: Sequence[float]) -> list[float]:
    """Ends of the cells of a strip: half-way between neighbouring sizes, on a scale of doublings."""
    if len(sizes) == 1:
        return [sizes[0] / 2**0.5, sizes[0] * 2**0.5]
    inside = [(low * high) ** 0.5 for low, high in pairwise(sizes)]
    return [sizes[0] ** 2 / inside[0], *inside, sizes[-1] ** 2 / inside[-1]]


def _strip(axis: Any, rows: Sequence[Row], names: Sequence[str]) -> None:
    """A row of cells for each strip, neighbours of one algorithm as one; framed where what runs is not the fastest."""
    choices = choices_of(rows)
    edges = _edges([choice.size_bytes for choice in choices])
    for height, strip in enumerate(reversed(names)):
        keys = [(choice.algorithm(strip), strip == RUNS and choice.slower > 0) for choice in choices]
        for (name, worse), run in groupby(range(len(keys)), key=keys.__getitem__):
            if name is None:
                continue
            cells = list(run)
            low, high = edges[cells[0]], edges[cells[-1] + 1]
            color, marker = STYLES.get(name, _OTHER)
            axis.barh(
                height, high - low, left=low, height=0.8, color=color, edgecolor="black" if worse else "white",
                linewidth=1.2 if worse else 0.6, zorder=3 if worse else 2, clip_on=False,
            )  # fmt: skip
            axis.plot([(low * high) ** 0.5], [height], color="white", marker=marker, markersize=3.5, zorder=4)
    axis.set_ylim(-0.5, len(names) - 0.5)
    axis.set_yticks(range(len(names)), labels=list(reversed(names)), fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left", "bottom"]].set_visible(False)


def _mark(axis: Any, crossing: Crossover, short: bool) -> Any:
    """The dotted line at a crossover and its label, only the size where a strip names the algorithms."""
    axis.axvline(crossing.size_bytes, color="#444444", linewidth=0.9, linestyle=":")
    size = format_bytes(crossing.size_bytes, 3)
    label = axis.annotate(
        size if short else f"{crossing.below} → {crossing.above}\n{size}", xy=(crossing.size_bytes, 0),
        xycoords=("data", "axes fraction"), xytext=(_GAP, _GAP), textcoords="offset points", fontsize=8,
        color="#444444", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip
    label.set_in_layout(False)
    return label


def _arrange(figure: Any, mains: Sequence[Any], labels: Sequence[Sequence[Any]]) -> None:
    """Put the labels of each panel into lanes from the bottom so that none hides another, below all lines.

    A label that would leave its panel stands left of its line. The layout stays as it is from here on.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    points = 72 / figure.dpi
    highest = 0.0
    for axis, found in zip(mains, labels, strict=True):
        right = axis.get_window_extent().x1
        lanes: list[float] = []  # where the last label of each lane ends
        for label in sorted(found, key=lambda one: float(one.xy[0])):
            box = label.get_window_extent()
            leaves = box.x1 > right
            start, end = box.x0 - leaves * (box.width + 2 * _GAP / points), box.x1
            lane = next((n for n, taken in enumerate(lanes) if taken + _GAP / points <= start), len(lanes))
            lanes[lane : lane + 1] = [end if not leaves else start + box.width]
            label.set_horizontalalignment("right" if leaves else "left")
            pitch = box.height * points + _GAP
            label.set_position((-_GAP if leaves else _GAP, _GAP + lane * pitch))
            highest = max(highest, (_GAP + (lane + 1) * pitch) / points / axis.get_window_extent().height)
    low, high = mains[0].get_ylim()
    least = min(float(min(line.get_ydata())) for axis in mains for line in axis.lines if line.get_label()[0] != "_")
    if highest and least > 0:
        room = min(highest, 0.6)
        mains[0].set_ylim(min(low, 10 ** ((log10(least) - room * log10(high)) / (1 - room))), high)


def _label_axes(mains: Sequence[Any], belows: Sequence[Any], columns: int, sizes: Sequence[float]) -> None:
    """Sizes under the lowest panel of each column, times left of the first."""
    edges, ticks = _edges(sizes), _ticks(sizes)
    for number, (main, below) in enumerate(zip(mains, belows, strict=True)):
        lowest, first = number + columns >= len(mains), number % columns == 0
        axis = main if below is None else below
        main.set_xlim(edges[0], edges[-1])
        for one in {main, axis}:
            one.set_xticks(ticks, labels=[binary(tick) for tick in ticks], fontsize=9)
            one.set_xticks([], minor=True)
        if axis is not main:
            main.tick_params(axis="x", labelbottom=False, length=0)
            axis.tick_params(axis="y", labelleft=first)
        axis.tick_params(axis="x", labelbottom=lowest)
        main.tick_params(axis="y", labelleft=first)
        axis.set_xlabel("message size" if lowest else "")
        main.set_ylabel("time of one call (us)" if first else "")


def _ticks(sizes: Sequence[float]) -> list[float]:
    """Powers of two, few enough that their names do not collide; the ends of a range that holds none."""
    low, high = ceil(log2(sizes[0])), floor(log2(sizes[-1]))
    for step in (1, 2, 5, 10, 20):
        powers = [2.0**exponent for exponent in range(-(-low // step) * step, high + 1, step)]
        if len(powers) <= _MOST_TICKS:
            return powers or sorted({sizes[0], sizes[-1]})
    return [sizes[0], sizes[-1]]


def _legend(figure: Any, shown: Sequence[Sequence[Row]], strips: Sequence[str], columns: int) -> None:
    """One legend for all panels, below them; it says what a dashed line and a frame mean where there are any."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for name in dict.fromkeys(row.algorithm for panel in shown for row in panel):
        color, marker = STYLES.get(name, _OTHER)
        handles.append(Line2D([], [], color=color, marker=marker, markersize=5, linewidth=1.6, label=name))
    notes: list[Any] = []
    if any({row.fidelity for row in panel} > {LIBRARY} for panel in shown):
        notes.append(Line2D([], [], color="black", linestyle="--", label="played on bare links, not compared"))
    if any(choice.slower > 0 for panel in shown for choice in compared(panel, strips)):
        notes.append(Patch(facecolor="white", edgecolor="black", linewidth=1.2, label="runs, but is not the fastest"))
    fits = len(handles) + 2 * len(notes) <= columns
    several = len(handles + notes) if fits else max(1, columns // 2 if notes else columns)
    figure.legend(handles=handles + notes, loc="outside lower center", ncols=several, fontsize=9, frameon=False)
