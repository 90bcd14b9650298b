"""Time against size, log-log: one panel per number of ranks, one line per algorithm, crossovers marked.

Needs the extra ``plot`` (matplotlib), imported only when a picture is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from simulator.errors import ScenarioError
from simulator.rows import Crossover, Row
from simulator.units import format_bytes

#: Okabe and Ito's colours, told apart by colour-blind readers; with markers for print.
_STYLES = {
    "ring": ("#0072B2", "o"), "tree": ("#D55E00", "s"), "naive": ("#999999", "x"), "direct": ("#009E73", "^"),
    "halving_doubling": ("#CC79A7", "D"), "pairwise": ("#56B4E9", "v"), "torus": ("#E69F00", "P"),
}  # fmt: skip
_OTHER = ("#000000", ".")
_MOST_PANELS = 6
_TITLE_CHARACTERS_PER_INCH = 11


def plot_rows(rows: Sequence[Row], crossings: Sequence[Crossover], where: str, path: Path) -> None:
    """Write a PNG, SVG or PDF by the ending of ``path``. Raises ScenarioError without matplotlib or a bad path."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ScenarioError("--plot needs matplotlib: install the extra with  pip install 'clustersim[plot]'") from None
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise ScenarioError(f"--plot: '{path}': the ending says the format; accepted: .png, .svg, .pdf")
    matplotlib.rcParams["svg.hashsalt"] = "clustersim"  # same input, same bytes
    ranks = _panels(sorted({row.p for row in rows}))
    columns = min(3, len(ranks))
    lines = -(-len(ranks) // columns)
    figure = Figure(figsize=(4.6 * columns + 0.6, 3.7 * lines + 0.9), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axis, p in zip(axes, ranks, strict=False):
        _panel(axis, [r for r in rows if r.p == p], [c for c in crossings if c.p == p])
    for axis in axes[len(ranks) :]:
        axis.set_visible(False)
    for axis in axes[::columns]:
        axis.set_ylabel("time (us)")
    for axis in axes[max(0, len(ranks) - columns) : len(ranks)]:
        axis.set_xlabel("message size")
        axis.xaxis.set_tick_params(labelbottom=True)
    width = int(figure.get_figwidth() * _TITLE_CHARACTERS_PER_INCH)
    figure.suptitle(fill(_finding(rows, crossings, where), width), fontsize=11)
    axes[0].legend(fontsize=9, frameon=False)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    try:
        figure.savefig(path, dpi=150, metadata=metadata)
    except OSError as error:
        raise ScenarioError(f"--plot: '{path}': {error.strerror or error}") from None


def _finding(rows: Sequence[Row], crossings: Sequence[Crossover], where: str) -> str:
    """The title says what the picture shows."""
    pairs = {(c.below, c.above) for c in crossings}
    op = rows[0].op
    if len(pairs) == 1:
        below, above = pairs.pop()
        return f"{op}: {below} is fastest below the dotted line, {above} above it ({where})"
    winners = {row.algorithm for row in rows if row.fastest}
    if len(winners) == 1 and len({row.algorithm for row in rows}) > 1:
        return f"{op}: {winners.pop()} is fastest at every size ({where})"
    return f"{op} ({where})"


def _panels(ranks: list[int]) -> list[int]:
    """At most _MOST_PANELS, spread evenly over what was asked."""
    if len(ranks) <= _MOST_PANELS:
        return ranks
    last = len(ranks) - 1
    return [ranks[round(i * last / (_MOST_PANELS - 1))] for i in range(_MOST_PANELS)]


def _panel(axis: Any, rows: Sequence[Row], crossings: Sequence[Crossover]) -> None:
    for name in dict.fromkeys(row.algorithm for row in rows):
        line = [row for row in rows if row.algorithm == name and row.size_bytes > 0]
        color, marker = _STYLES.get(name, _OTHER)
        axis.plot(
            [r.size_bytes for r in line], [r.time_s * 1e6 for r in line], color=color, marker=marker, markersize=4,
            linewidth=1.6, label=name,
        )  # fmt: skip
    for crossing in crossings:
        axis.axvline(crossing.size_bytes, color="#444444", linewidth=0.9, linestyle=":")
        axis.annotate(
            f"{crossing.below} → {crossing.above}\n{format_bytes(crossing.size_bytes, 3)}",
            xy=(crossing.size_bytes, 0.04), xycoords=("data", "axes fraction"), xytext=(4, 0),
            textcoords="offset points", fontsize=8, color="#444444",
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_title(f"{rows[0].p} ranks", fontsize=10)
    axis.xaxis.set_major_formatter(lambda value, _position: _binary(value))
    axis.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _binary(value: float) -> str:
    for factor, unit in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} B"
