"""A played pipeline as letters: a lane for each rank, a column for each unit of time, micro-batches below."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from rich.text import Text

from simulator.pipelines.order import Action, Pair, PipelineSchedule
from simulator.pipelines.playing import Played, Span

_STYLES = {"F": "blue", "B": "dark_orange", "I": "dark_orange", "W": "green", "&": "magenta"}
_IDLE = "."
#: More ranks than this are shown as the first and the last half of so many.
_MOST_RANKS = 16
#: A column is the longest time of which all durations are multiples, if the shortest of them is no more than so many.
_MOST_COLUMNS_OF_SHORTEST = 6
_FINEST = 10_000
_LABEL = 9
_CUT = " ~ "


@dataclass(frozen=True, slots=True)
class _Axis:
    """Which columns are shown: up to ``head``, and from ``tail`` to ``columns``. ``exact``: no time was rounded."""

    unit: float
    exact: bool
    columns: int
    head: int
    tail: int

    @property
    def cut(self) -> int:
        """Columns left out."""
        return self.tail - self.head


def pipeline_chart(played: Played, width: int) -> Iterator[Text]:
    """Lines of at most ``width`` characters; the last ones say how to read them and what was left out."""
    axis = _axis(played, max(20, width - _LABEL))
    schedule = played.schedule
    ranks = range(schedule.num_ranks)
    shown = [*ranks] if len(ranks) <= _MOST_RANKS else [*ranks[: _MOST_RANKS // 2], *ranks[-_MOST_RANKS // 2 :]]
    for before, rank in zip([-1, *shown], shown, strict=False):
        if rank != before + 1:
            yield Text(f"... ranks {before + 1} to {rank - 1} left out")
        yield from _lane(played, rank, axis)
    yield Text(_legend(schedule, axis))


def _axis(played: Played, width: int) -> _Axis:
    lengths = sorted({round(span.end - span.start, 9) for spans in played.spans for span in spans} - {0.0})
    unit, exact = _unit(lengths)
    columns = max(1, round(played.makespan / unit))
    if columns <= width:
        return _Axis(unit, exact, columns, columns, columns)
    half = (width - len(_CUT)) // 2
    return _Axis(unit, exact, columns, half, columns - half)


def _unit(lengths: list[float]) -> tuple[float, bool]:
    """The time of a column, and whether all durations are multiples of it."""
    if len(lengths) <= 100:
        parts = [Fraction(length).limit_denominator(_FINEST) for length in lengths]
        found = reduce(lambda a, b: Fraction(math.gcd(a.numerator * b.denominator, b.numerator * a.denominator),
                                             a.denominator * b.denominator), parts)  # fmt: skip
        if found and parts[0] / found <= _MOST_COLUMNS_OF_SHORTEST:
            return float(found), True
    return lengths[0] / 2, False


def _lane(played: Played, rank: int, axis: _Axis) -> Iterator[Text]:
    """The letters of a rank, below them the micro-batches and, where letters cannot say it, the chunks."""
    stages = played.schedule.stages_of(rank)
    rows = [[_IDLE] * axis.columns, [" "] * axis.columns, [" "] * axis.columns]
    for span in played.spans[rank]:
        first, last = round(span.start / axis.unit), round(span.end / axis.unit)
        if first < axis.head or last > axis.tail:
            for row, text in zip(rows, _cell(span, stages, last - first), strict=True):
                row[first:last] = text
    labels = (f"rank {rank}", "", "chunk")
    for label, row in zip(labels, rows if len(stages) > 2 else rows[:2], strict=False):
        yield Text(f"{label:<{_LABEL}}").append_text(_styled(row, axis))


def _styled(row: list[str], axis: _Axis) -> Text:
    text, style = Text(), ""
    for letter in [*row[: axis.head], *([_CUT] if axis.cut else []), *row[axis.tail :]]:
        style = style if letter == "-" else _STYLES.get(letter.upper(), "")
        text.append(letter, style=style)
    return text


def _cell(span: Span, stages: tuple[int, ...], columns: int) -> tuple[str, str, str]:
    """What stands in the columns of a step: letters, micro-batches, chunks, each exactly as wide."""
    parts = span.step if isinstance(span.step, Pair) else (span.step,)
    chunks = [stages.index(action.stage) for action in parts]
    letters = [_letter(action, chunk, len(stages)) for action, chunk in zip(parts, chunks, strict=True)]
    if len(parts) == 1:
        number = f"{parts[0].micro_batch}"[-max(columns, 1) :]
        return (letters[0].ljust(columns, "-")[:columns], number.ljust(columns)[:columns],
                f"{chunks[0]}"[-max(columns, 1) :].ljust(columns)[:columns])  # fmt: skip
    if columns < 3:
        return ("&".ljust(columns, "-")[:columns], " " * columns, " " * columns)
    middle = columns // 2
    first, second = (f"{action.micro_batch}" for action in parts)
    return (
        f"{letters[0]}{'-' * (middle - 1)}&{letters[1]}".ljust(columns, "-"),
        f"{first[-middle:]:<{middle + 1}}{second[-(columns - middle - 1) :]}".ljust(columns),
        f"{chunks[0]:<{middle + 1}}{chunks[1]}".ljust(columns),
    )


def _letter(action: Action, chunk: int, stages: int) -> str:
    """Small for the second of two stages."""
    return action.kind.lower() if stages == 2 and chunk == 1 else action.kind


def _legend(schedule: PipelineSchedule, axis: _Axis) -> str:
    kinds = {action.kind for order in schedule.orders for step in order
             for action in (step if isinstance(step, Pair) else (step,))}  # fmt: skip
    words = {"F": "F forward", "B": "B backward", "I": "I input gradient", "W": "W weight gradient"}
    told = [text for kind, text in words.items() if kind in kinds]
    if any(isinstance(step, Pair) for order in schedule.orders for step in order):
        told.append("F&B a pair at once")
    if len(schedule.stages_of(0)) == 2:
        told.append("small letters: the rank's second stage")
    told.append(". idle")
    scale = f"a column is {'' if axis.exact else 'about '}{axis.unit:g} of time"
    digits = "; a number that is too wide shows its last digits" if schedule.num_micro_batches > 10 else ""
    cut = f"\nAbridged: {axis.cut} of {axis.columns} columns are left out at the ~." if axis.cut else ""
    return f"{', '.join(told)}; below: micro-batch{digits}; {scale}{cut}"
