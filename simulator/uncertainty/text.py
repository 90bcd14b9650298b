"""Ranges as text: what the answer may be instead, and which verdicts do not hold everywhere in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.report.verdict import Verdict
from simulator.uncertainty.corners import Flip, Ranges, Span
from simulator.units import format_dollars, format_gib, format_percent, format_time

_DAY_S = 86_400.0
#: Words of a quantity, how its numbers are shown, and whether the table of ``check`` has it.
_SHOWN: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "step_time_s": ("step time", lambda v: format_time(v, 3)),
    "exposed_share": ("exposed communication", format_percent),
    "mfu": ("MFU", format_percent),
    "memory_peak_bytes": ("peak memory", format_gib),
    "days": ("time of the run", lambda v: format_time(v * _DAY_S, 3)),
    "cost_per_million_tokens": ("cost of a million tokens", format_dollars),
    "cost_of_run": ("cost of the run", format_dollars),
}  # fmt: skip
#: The quantity that a verdict is about.
_BY_VERDICT: Final = {"memory": "memory_peak_bytes", "exposed communication": "exposed_share"}


def range_lines(ranges: Ranges | None) -> Iterator[Text]:
    """One line for each verdict that flips inside the range, and one with the range itself."""
    if ranges is None:
        yield Text("Range: none, as no profile states one of anything that this step reads.")
        return
    yield from flip_lines(ranges)
    step = f"a step takes {_span(ranges, 'step_time_s')}"
    exposed = ranges.spans["exposed_share"]
    told = f", {_span(ranges, 'exposed_share')} of it exposed communication" if exposed.high >= 0.0005 else ""
    yield Text(f"Range: {step}{told}{_money(ranges)}, with {_what(ranges)} as slow and as fast as published runs show.")


def flip_lines(ranges: Ranges) -> Iterator[Text]:
    """``edge exposed communication: holds at 8.0 % (limit 10.0 %), but fails with a slow network (13.9 %)``."""
    for flip in ranges.flips:
        yield Text(f"edge {flip_sentence(flip, ranges)}", style="yellow")


def flip_sentence(flip: Flip, ranges: Ranges) -> str:
    """What a verdict says at the typical values, and where it says the opposite."""
    typical = flip.typical
    here, other = ("holds", "fails") if typical.ok else ("fails", "holds")
    return (
        f"{typical.what}: {here} at {typical.value} (limit {typical.limit}), but {other} with {_where(flip, ranges)} "
        f"({_worst(flip).value})"
    )


def _where(flip: Flip, ranges: Ranges) -> str:
    """``a slow network`` where that alone decides, else the corners: ``slow compute and a fast network``."""
    if flip.typical.what == "memory":
        return "what processes and communicators may take beside their tensors"
    for axis in flip.at[0].ends:
        end = flip.at[0].ends[axis]
        if [corner for corner in ranges.corners if corner.ends[axis] == end] == list(flip.at):
            return _ends({axis: end})
    return ", or ".join(_ends(corner.ends) for corner in flip.at)


def _ends(ends: Mapping[str, str]) -> str:
    return " and ".join(f"{'a ' if axis == 'network' else ''}{end} {axis}" for axis, end in ends.items())


def _worst(flip: Flip) -> Verdict:
    """What it says at the corner that is furthest on the other side."""
    name = _BY_VERDICT.get(flip.typical.what, "step_time_s")
    pick = max if flip.typical.ok else min
    return flip.there[pick(range(len(flip.at)), key=lambda place: flip.at[place].quantities.get(name, 0.0))]


def _span(ranges: Ranges, name: str) -> str:
    """``2.03 s to 2.47 s``."""
    span, show = ranges.spans[name], _SHOWN[name][1]
    return f"{show(span.low)} to {show(span.high)}"


def _money(ranges: Ranges) -> str:
    """``, a million tokens cost $0.09 to $0.17, the run $91,000 to $173,000``, as far as the scenario has prices."""
    found = {"cost_per_million_tokens": "a million tokens cost", "cost_of_run": "the run"}
    return "".join(f", {words} {_span(ranges, name)}" for name, words in found.items() if name in ranges.spans)


def _what(ranges: Ranges) -> str:
    axes = list(dict.fromkeys(moved.axis for moved in ranges.inputs))
    return f"{' and '.join(axes)} each" if len(axes) > 1 else axes[0]


def range_table(ranges: Ranges) -> RenderableType:
    """Low, typical and high of what a decision hangs on."""
    title = "Range: ends of what published runs show"
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False, box=None)
    for number, column in enumerate(("", "low", "typical", "high")):
        table.add_column(column, justify="left" if number == 0 else "right")
    for name, (words, show) in _SHOWN.items():
        span = ranges.spans.get(name)
        if span is not None and span.is_open:
            table.add_row(words, show(span.low), show(span.typical), show(span.high))
    return table


def range_json(ranges: Ranges | None) -> dict[str, object] | None:
    """The block ``range`` of ``run --json`` and ``check --json``; None where nothing is uncertain.

    Each quantity holds low, typical and high in the unit that its name says, shares as fractions, money in US dollars.
    """
    if ranges is None:
        return None
    return {
        **{name: _span_json(span) for name, span in ranges.spans.items()},
        "flips": [
            {
                "what": flip.typical.what, "ok": flip.typical.ok, "value": flip.typical.value,
                "limit": flip.typical.limit, "words": flip_sentence(flip, ranges),
                "at": [
                    {"ends": dict(corner.ends), "value": there.value}
                    for corner, there in zip(flip.at, flip.there, strict=True)
                ],
            }
            for flip in ranges.flips
        ],
        "corners": [{"ends": dict(corner.ends), **corner.quantities} for corner in ranges.corners],
        "inputs": [
            {"input": moved.name, "axis": moved.axis, "low": moved.low, "high": moved.high, "source": moved.source}
            for moved in ranges.inputs
        ],
    }  # fmt: skip


def _span_json(span: Span) -> dict[str, float]:
    return {"low": span.low, "typical": span.typical, "high": span.high}
