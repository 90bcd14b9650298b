"""A tornado as text and as JSON: one sentence that says the finding, then a bar for each input, the widest first."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.uncertainty.tornado import Result, Swing, Tornado
from simulator.units import format_dollars, format_percent, format_time

SCHEMA_VERSION = 1
_HALF_BAR = 14
#: An input that moves the result by less is named in no sentence.
_MATTERS = 0.005
#: A smaller change is shown as none.
_SHOWN = 0.0005


def tornado_text(tornado: Tornado, block: str) -> Iterator[RenderableType]:
    """The finding, the table, and the verdicts that change. block: the character that bars are drawn with."""
    yield Text(finding(tornado), style="bold")
    yield ""
    yield _table(tornado, block)
    still = [swing.words for swing in tornado.swings if not swing.moves]
    if still:
        yield Text(f"Nothing moves with {_listed(still)}: hidden, or not in the way.")
    yield from (Text(line, style="yellow") for line in _verdict_lines(tornado))


def finding(tornado: Tornado) -> str:
    """``Step time hangs on the matrix rate: 20 % less of it moves it by +14.0 %, 20 % more by -9.4 %; no other ...``.

    A price moves a cost one to one, which is no finding: the sentence is about the first of the others.
    """
    result = "The cost of a token" if tornado.of_money else "Step time"
    priced = " besides the price" if tornado.of_money else ""
    by, others = _by(tornado), [swing for swing in tornado.swings if swing.name != "price"]
    moving = [swing for swing in others if swing.reach >= _MATTERS]
    if not moving:
        return f"{result} hangs on no input{priced}: none moves it by {format_percent(_MATTERS)} when changed by {by}."
    first = moving[0]
    rest = max((swing for swing in others if swing is not first), key=lambda swing: swing.reach, default=None)
    change = f"{by} less of it moves it by {_signed(first.less_change)}, {by} more by {_signed(first.more_change)}"
    told = "" if rest is None else "; no other input moves it by 0.1 %" if rest.reach < _SHOWN else (
        f"; no other input moves it by more than {format_percent(rest.reach)} ({rest.words})"
    )  # fmt: skip
    return f"{result} hangs on the {first.words}{priced}: {change}{told}."


def _by(tornado: Tornado) -> str:
    return f"{100 * tornado.by:g} %"


def _signed(change: float) -> str:
    return f"{100 * change:+.1f} %" if abs(change) >= _SHOWN else "0 %"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _table(tornado: Tornado, block: str) -> Table:
    by, base = _by(tornado), tornado.base
    result = "cost of a million tokens" if tornado.of_money else "step time"
    shown = format_dollars(base.value) if tornado.of_money else format_time(base.step_time_s)
    table = Table(
        title=f"Each input alone, {by} less and {by} more; {result} {shown} as it is", title_justify="left",
        title_style="bold", pad_edge=False, box=None,
    )  # fmt: skip
    for number, column in enumerate(("input", f"at -{by}", f"at +{by}", "change", "change", "", "")):
        table.add_column(column, justify="left" if number in (0, 6) else "right", overflow="fold")
    widest = max((abs(c) for s in tornado.swings for c in (s.less_change, s.more_change)), default=0.0)
    for swing in tornado.swings:
        if swing.moves:
            left, right = _bars(swing, widest, block)
            table.add_row(
                swing.words, _value(tornado, swing.less), _value(tornado, swing.more), _signed(swing.less_change),
                _signed(swing.more_change), left, right,
            )  # fmt: skip
    return table


def _value(tornado: Tornado, result: Result) -> str:
    return format_dollars(result.value) if tornado.of_money else format_time(result.step_time_s)


def _bars(swing: Swing, widest: float, block: str) -> tuple[str, str]:
    """Left of the middle what gets less, right of it what gets more."""
    ends = (swing.less_change, swing.more_change, 0.0)
    return tuple(block * round(_HALF_BAR * abs(end) / widest) for end in (min(ends), max(ends)))  # type: ignore[return-value]


def _verdict_lines(tornado: Tornado) -> Iterator[str]:
    """``edge memory: holds as it is, fails with memory capacity -20 %``."""
    found: dict[tuple[str, str], list[str]] = {}
    for swing in tornado.swings:
        for sign, result in (("-", swing.less), ("+", swing.more)):
            end = f"{swing.words} {sign}{_by(tornado)}"
            for what in result.failing:
                found.setdefault((what, "holds as it is, fails"), []).append(end)
            for what in result.mended:
                found.setdefault((what, "fails as it is, holds"), []).append(end)
    for (what, told), ends in found.items():
        yield f"edge {what}: {told} with {', '.join(ends)}"


def tornado_json(tornado: Tornado) -> dict[str, object]:
    """What ``tornado --json`` prints; times in seconds, money in US dollars, changes as fractions of the result."""
    return {
        "schema_version": SCHEMA_VERSION, "kind": "tornado", "by": tornado.by,
        "result": "cost_per_million_tokens" if tornado.of_money else "step_time_s", "finding": finding(tornado),
        "base": _result_json(tornado.base),
        "inputs": [
            {
                "input": swing.name, "words": swing.words, "less_change": swing.less_change,
                "more_change": swing.more_change, "less": _result_json(swing.less), "more": _result_json(swing.more),
            }
            for swing in tornado.swings
        ],
    }  # fmt: skip


def _result_json(result: Result) -> dict[str, object]:
    return {
        "step_time_s": result.step_time_s, "exposed_share": result.exposed_share,
        "cost_per_million_tokens": result.cost_per_million_tokens, "failing": list(result.failing),
        "mended": list(result.mended),
    }  # fmt: skip
