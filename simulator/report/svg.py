"""The few SVG shapes that pictures of networks need. Plain strings; same input, same bytes.

Colours are of Okabe and Ito's set (jfly.uni-koeln.de/color), which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, PALE = "#666666", "#F2F2F2"
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"


def number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, *, size: float = 13, anchor: str = "middle", colour: str = BLACK,
         bold: bool = False) -> str:  # fmt: skip
    """Selectable text with its baseline at ``y``."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" text-anchor="{anchor}" '
        f'fill="{colour}"{weight}>{escape(words, quote=False)}</text>'
    )


def box(x: float, y: float, width: float, height: float, *, fill: str = "white", stroke: str = BLACK,
        dashed: bool = False, thick: float = 1.2) -> str:  # fmt: skip
    """A rectangle with slightly round corners; ``x, y`` is its upper left corner."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="4" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="{number(thick)}"{dash}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, colour: str, thick: float = 2, faint: bool = False,
         dashed: bool = False) -> str:  # fmt: skip
    """A straight line."""
    extra = (' stroke-opacity="0.4"' if faint else "") + (' stroke-dasharray="5 4"' if dashed else "")
    return (
        f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" '
        f'stroke="{colour}" stroke-width="{number(thick)}"{extra}/>'
    )


def arc(x1: float, x2: float, y: float, drop: float, *, colour: str, thick: float = 1.6) -> str:
    """A curve hanging below the line from (x1, y) to (x2, y); ``drop`` is how deep it reaches."""
    low = number(y + drop * 4 / 3)
    return (
        f'<path d="M {number(x1)} {number(y)} C {number(x1)} {low} {number(x2)} {low} {number(x2)} {number(y)}" '
        f'fill="none" stroke="{colour}" stroke-width="{number(thick)}"/>'
    )


def label_box(x: float, y: float, width: float, height: float, words: str, *, fill: str, size: float = 13,
              light: bool = False) -> str:  # fmt: skip
    """A filled box centred on (x, y) with its label inside, the text no wider than the box."""
    fitted = min(size, (width - 4) / (0.56 * max(1, len(words))))
    return box(x - width / 2, y - height / 2, width, height, fill=fill) + text(
        x, y + fitted * 0.35, words, size=fitted, colour="white" if light else BLACK
    )


def document(width: float, height: float, title: str, elements: Iterable[str]) -> str:
    """A whole picture on white, ``width`` x ``height`` units, at most 1,600 pixels wide on screen."""
    shown = min(width, 1600)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(height)}" '
        f'width="{number(shown)}" height="{number(height * shown / width)}" font-family="{FONT}" role="img">'
    )
    body = "\n".join(elements)
    background = f'<rect width="{number(width)}" height="{number(height)}" fill="white"/>'
    return f"{head}\n<title>{escape(title, quote=False)}</title>\n{background}\n{body}\n</svg>\n"
