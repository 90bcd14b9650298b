"""Swimlanes of one rank of each class: every task as a bar, or, where they are too many to draw, said together.

Bars inside the windows (two layers, forward and backward) are never merged. Others are: first the operations of a
layer, then whatever follows in the same colour without a gap that could be seen; last, the shortest are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.plan import Communicate, RankClass
from simulator.report.charts.palette import op_words
from simulator.report.lanes import Waiting, slowest
from simulator.report.metrics import StepReport
from simulator.report.swimlanes import Bar, Row, Window, rows_of, swimlanes_of
from simulator.report.words import layer_words, micro_batch_of, task_words
from simulator.timeline import Timeline
from simulator.units import format_bytes, format_percent, format_time

#: Bars that a browser draws and redraws at once without effort; classes of ranks that are shown.
MOST_BARS, MOST_CLASSES = 3000, 4
#: Gaps and bars below this share of the step are less than a pixel.
_PIXEL = 1 / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBar:
    """start_s, end_s: of one task, or of ``count`` neighbours together. detail: its bytes in words, '' for none."""

    start_s: float
    end_s: float
    style: str
    title: str
    detail: str
    label: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow:
    """A lane of one class of ranks: bars in time order. group: the class in words, '' where there is one only."""

    group: str
    name: str
    bars: tuple[LaneBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesChart:
    """Rows from top to bottom; the class that sets the step first. notes: what is merged or left out."""

    finding: str
    rows: tuple[LaneRow, ...]
    windows: tuple[Window, ...]
    end_s: float
    notes: tuple[str, ...]


def lanes_chart(timeline: Timeline, report: StepReport, zoom: Sequence[str] = (), most: int = MOST_BARS) -> LanesChart:
    """At most about ``most`` bars. zoom: layers of the windows, as for ``swimlanes_of``."""
    shown, notes = _classes(report.waiting)
    windows = swimlanes_of(timeline, zoom).windows
    rows = [(_words(waiting, len(shown)), row) for waiting in shown for row in rows_of(timeline, waiting.ranks)]
    micro_batches = len({micro_batch_of(task) for task in timeline.plan.tasks} - {None})
    thin, merged = _thinned([row for _, row in rows], windows, timeline.end_s, most)
    drawn = tuple(
        LaneRow(group=group, name=row.name, bars=tuple(_bar(bar, count, micro_batches) for bar, count in bars))
        for (group, row), bars in zip(rows, thin, strict=True)
    )
    return LanesChart(
        finding=_finding(report), rows=drawn, windows=windows, end_s=timeline.end_s, notes=(*notes, *merged)
    )


def _classes(waiting: Sequence[Waiting]) -> tuple[list[Waiting], list[str]]:
    """The class that sets the step, then those that wait longest."""
    first = slowest(waiting)
    order = [first, *sorted((w for w in waiting if w is not first), key=lambda w: -w.waits_s)]
    left_out = len(order) - MOST_CLASSES
    if left_out <= 0:
        return order, []
    kept = f"Of {len(order)} different kinds of ranks {MOST_CLASSES} are shown: the one that sets the step, and those "
    return order[:MOST_CLASSES], [f"{kept}that wait longest."]


def _words(waiting: Waiting, classes: int) -> str:
    return "" if classes == 1 else class_words(waiting.ranks)


def class_words(ranks: RankClass) -> str:
    """A class by its name, with its speed and work where they are not those of all."""
    told = {"speed": format_percent(ranks.speed, 0), "work": format_percent(ranks.work, 0)}
    marks = [f"{share} {what}" for what, share in told.items() if share != format_percent(1.0, 0)]
    return ranks.name + (f" ({', '.join(marks)})" if marks else "")


Counted = list[tuple[Bar, int]]


def _thinned(
    rows: Sequence[Row], windows: Sequence[Window], end_s: float, most: int
) -> tuple[list[Counted], list[str]]:  # fmt: skip
    """Bars with the number of tasks that each stands for, and what was done to them in words."""
    bars = [[(bar, 1) for bar in row.bars] for row in rows]
    total = _size(bars)
    if total <= most:
        return bars, []
    bars = [_joined(row, windows, _one_layer) for row in bars]
    notes = [f"{total:,} tasks are drawn as {_size(bars):,} bars: outside the two layers that the buttons show, the "
             "operations of a layer are one bar."]  # fmt: skip
    if _size(bars) > most:
        gap_s = _PIXEL * end_s
        bars = [_joined(row, windows, lambda a, b: a.style == b.style and b.start_s - a.end_s < gap_s) for row in bars]
        notes = [f"{total:,} tasks are drawn as {_size(bars):,} bars: outside the two layers that the buttons show, "
                 f"neighbours of one colour less than {format_time(gap_s, 2)} apart are one bar."]  # fmt: skip
    if _size(bars) > most:
        bars, left_out, left_s = _longest(bars, most)
        notes.append(f"{left_out:,} of these bars, the shortest, are left out: {format_time(left_s)} in all.")
    return bars, [*notes, "A trace (--trace) holds every task."]


def _size(bars: Sequence[Sequence[object]]) -> int:
    return sum(len(row) for row in bars)


def _one_layer(one: Bar, more: Bar) -> bool:
    """Operations of one pass over one layer."""
    return bool(one.layer) and (one.style, one.layer) == (more.style, more.layer)


def _joined(row: Counted, windows: Sequence[Window], alike: object) -> Counted:
    """Neighbours that are ``alike`` as one, except inside a window."""
    assert callable(alike)
    found: Counted = []
    for bar, count in row:
        if found and not is_inside(bar, windows) and not is_inside(found[-1][0], windows) and alike(found[-1][0], bar):
            before, several = found[-1]
            both = Bar(start_s=before.start_s, end_s=bar.end_s, style=bar.style, labels=(), layer=_shared(before, bar))
            found[-1] = (both, several + count)
        else:
            found.append((bar, count))
    return found


def _shared(one: Bar, more: Bar) -> str:
    return one.layer if one.layer == more.layer else ""


def is_inside(bar: Bar | LaneBar, windows: Sequence[Window]) -> bool:
    """Whether a bar is seen in any of the windows."""
    return any(bar.start_s < window.end_s and bar.end_s > window.start_s for window in windows)


def _longest(bars: Sequence[Counted], most: int) -> tuple[list[Counted], int, float]:
    """The ``most`` longest of all rows in their places (more where lengths are equal), how many are not among them and
    how long these are.
    """
    lengths = sorted((bar.end_s - bar.start_s for row in bars for bar, _ in row), reverse=True)
    least = lengths[most - 1]
    left = [length for length in lengths[most:] if length < least]
    kept = [[item for item in row if item[0].end_s - item[0].start_s >= least] for row in bars]
    return kept, len(left), sum(left)


def _bar(bar: Bar, count: int, micro_batches: int) -> LaneBar:
    return LaneBar(
        start_s=bar.start_s, end_s=bar.end_s, style=bar.style, title=_title(bar, count, micro_batches),
        detail=_detail(bar), label=bar.labels[-1] if bar.labels else layer_words(bar.layer), count=count,
    )  # fmt: skip


def _title(bar: Bar, count: int, micro_batches: int) -> str:
    if bar.task is not None:
        words = task_words(bar.task, micro_batches)
        return op_words(bar.task.op) + words.removeprefix(bar.task.op) if isinstance(bar.task, Communicate) else words
    kind = op_words(bar.style)
    if bar.layer:
        return f"{kind} of {layer_words(bar.layer)} ({count:,} operations)"
    return f"{kind} ({count:,} tasks together)" if count > 1 else kind


def _detail(bar: Bar) -> str:
    """Bytes of a collective's message, or of the memory that compute takes when it starts."""
    if isinstance(bar.task, Communicate):
        return f"message of {format_bytes(bar.task.message_bytes, 3)}"
    taken = sum(buffer.size_bytes for buffer in bar.task.allocates) if bar.task is not None else 0.0
    return f"allocates {format_bytes(taken, 3)}" if taken and bar.style != "host" else ""


def bars_of(rows: Iterable[LaneRow]) -> int:
    """How many bars the rows hold."""
    return sum(len(row.bars) for row in rows)


def _finding(report: StepReport) -> str:
    step = f"A step takes {format_time(report.step_time_s)}"
    if not report.collectives:
        return f"{step}; a single rank communicates nothing"
    exposed = report.breakdown.exposed_comm
    if report.comm_hidden_s >= report.comm_total_s * (1 - 1e-9):
        return f"{step}; compute covers all of its {format_time(report.comm_total_s)} of communication"
    return (
        f"{step}; compute covers {format_percent(report.hidden_share)} of its {format_time(report.comm_total_s)} of "
        f"communication and leaves {format_time(exposed)} exposed"
    )
