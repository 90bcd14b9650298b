"""A tornado as a picture: bars left and right of the result as it is, the widest on top."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from simulator.report.picture_file import DPI, save_figure
from simulator.uncertainty.tornado import Swing, Tornado
from simulator.uncertainty.tornado_text import finding
from simulator.units import format_percent

#: Okabe and Ito's blue and vermillion: told apart by every kind of colour vision.
_LESS, _MORE = "#0072B2", "#D55E00"
_WIDTH_IN, _ROW_IN = 9.0, 0.42
_FINE = 0.0005


def plot_tornado(tornado: Tornado, path: Path, caption: str) -> None:
    """Write the picture, in the format that its ending says. caption: what was simulated.

    Raises ScenarioError for a path that cannot be written.
    """
    from matplotlib.figure import Figure

    shown = [swing for swing in tornado.swings if swing.reach >= _FINE]
    figure = Figure(figsize=(_WIDTH_IN, 2.1 + _ROW_IN * max(1, len(shown))), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    for place, swing in enumerate(shown):
        _bar(axes, place, swing)
    reach = 130 * max([swing.reach for swing in shown], default=_FINE)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(max(1, len(shown)) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), [swing.words for swing in shown])
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(f"change of the {'cost of a token' if tornado.of_money else 'step time'} (%)")
    _legend(axes, tornado.by)
    figure.suptitle(fill(finding(tornado), 92), x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(fill(_caption(tornado, caption), 130), x=0.01, ha="left", fontsize=8, color="0.35")
    save_figure(figure, path)


def _caption(tornado: Tornado, told: str) -> str:
    """What was simulated, and which inputs have no bar."""
    still = [swing.words for swing in tornado.swings if swing.reach < _FINE]
    return f"{told}. Below {format_percent(_FINE, 2)}: {', '.join(still)}" if still else told


def _bar(axes: object, place: int, swing: Swing) -> None:
    for change, color in ((swing.less_change, _LESS), (swing.more_change, _MORE)):
        axes.barh(place, 100 * change, color=color, height=0.62)  # type: ignore[attr-defined]
        if abs(change) >= _FINE:
            axes.annotate(  # type: ignore[attr-defined]
                f"{100 * change:+.1f}", (100 * change, place), xytext=(4 if change > 0 else -4, 0),
                textcoords="offset points", va="center", ha="left" if change > 0 else "right", fontsize=8,
            )  # fmt: skip


def _legend(axes: object, by: float) -> None:
    from matplotlib.patches import Patch

    ends = ((_LESS, "less"), (_MORE, "more"))
    marks = [Patch(color=color, label=f"{100 * by:g} % {word} of it") for color, word in ends]
    axes.legend(handles=marks, loc="lower right", frameon=False, fontsize=8)  # type: ignore[attr-defined]
