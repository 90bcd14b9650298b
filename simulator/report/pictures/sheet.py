"""What all pictures share: the sheet with its titles, the looks of bars, the units of axes."""

from __future__ import annotations

import re
from textwrap import fill
from typing import Any

from simulator.report.charts.palette import INK, Look
from simulator.report.svg import BLACK

DPI = 160
#: Small in inches, so that letters are still read where a page shows the picture 800 pixels wide.
WIDTH_IN = 8.0
_TITLE_CHARACTERS, _FINDING_CHARACTERS = 118, 90
#: plotly's names of patterns -> matplotlib's.
_HATCHES = {"/": "///", "\\": "\\\\\\", "-": "---", "|": "|||", ".": "..", "x": "xxx", "+": "+++"}


def sheet(height_in: float, finding: str, asked: str) -> tuple[Any, Any]:
    """A figure and its one axis, with the finding as title above what was asked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found, under = _lines(finding, _FINDING_CHARACTERS), _lines(asked, _TITLE_CHARACTERS)
    above = 0.17 * (found.count("\n") + 1) + 0.14 * (under.count("\n") + 1) + 0.15
    figure = Figure(figsize=(WIDTH_IN, height_in + above), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", rect=(0.008, 0, 0.984, 1 - above / (height_in + above)))
    top = 1 - 0.06 / (height_in + above)
    figure.text(0.012, top, found, fontsize=10.5, weight="bold", va="top")
    below = top - 0.175 * (found.count("\n") + 1) / (height_in + above) - 0.02 / (height_in + above)
    figure.text(0.012, below, under, fontsize=8, color="#555555", va="top")
    axis = figure.add_subplot()
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def _lines(text: str, characters: int) -> str:
    """Numbers stay with their units."""
    return fill(re.sub(r"(\d) (?=[A-Za-z%])", "\\1\N{NO-BREAK SPACE}", text), characters, break_on_hyphens=False)


def look_of(look: Look) -> dict[str, Any]:
    """Colour and hatch of a bar or an area."""
    colour = BLACK if look.colour == INK else look.colour
    if not look.pattern:
        return {"facecolor": colour}
    return {"facecolor": colour, "hatch": _HATCHES.get(look.pattern, ""), "edgecolor": "white", "linewidth": 0.0}


def patches(looks: dict[str, Look]) -> list[Any]:
    """Entries of a legend."""
    from matplotlib.patches import Patch

    return [Patch(label=words, **look_of(look)) for words, look in looks.items()]
