"""Charts as figures of plotly: plain dictionaries, no plotly needed to make them.

Names come from scenarios, so every text is escaped: plotly reads a little HTML in texts. Colours called
``@ink`` and ``@paper`` are replaced on the page by those of its text and its ground.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from simulator.report.charts.axes import wrapped
from simulator.report.charts.palette import Look
from simulator.units import format_time

Figure = dict[str, Any]
#: Characters of a label at the side of bars.
_LABEL = 22


def safe(text: str) -> str:
    """Text as plotly shows it literally; no line breaks of its own."""
    return escape(" ".join(text.split()), quote=False)


def short(text: str, width: int) -> str:
    """The beginning of a text, with an ellipsis where it is longer."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def label(text: str, width: int = _LABEL) -> str:
    """A text on as many lines as it needs, for hovering or beside a bar."""
    lines = wrapped(" ".join(text.split()), width).splitlines()
    return "<br>".join(escape(line, quote=False) for line in lines)


def marker(look: Look) -> dict[str, Any]:
    """Colour and pattern of bars."""
    found: dict[str, Any] = {"color": look.colour, "line": {"width": 0}}
    if look.pattern:
        found["pattern"] = {
            "shape": look.pattern, "fillmode": "overlay", "fgcolor": "@paper", "fgopacity": 0.55, "size": 7,
            "solidity": 0.28,
        }  # fmt: skip
    return found


def numbers(values: Iterable[float], digits: int = 7) -> list[float]:
    """Short and exact enough to draw."""
    return [float(f"{value:.{digits}g}") for value in values]


def times(start_s: float, end_s: float) -> str:
    """``from 1.2 ms to 3.4 ms (2.2 ms)``."""
    took = format_time(end_s - start_s, 4)
    return f"from {format_time(start_s, 6)} to {format_time(end_s, 6)} ({took})"


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis in the style of the page."""
    shown: dict[str, Any] = {"zeroline": False, "automargin": True, "ticks": "outside", "ticklen": 4}
    if title:
        shown["title"] = {"text": title, "standoff": 8}
    return shown | more


def layout(height: int, xaxis: dict[str, Any], yaxis: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A layout without title or legend: the page has both in HTML."""
    return {
        "height": height, "margin": {"l": 8, "r": 16, "t": 12, "b": 44}, "xaxis": xaxis, "yaxis": yaxis,
        "showlegend": False, "hovermode": "closest", "bargap": 0.3, "dragmode": False,
        "hoverlabel": {"align": "left", "namelength": -1}, **more,
    }  # fmt: skip
