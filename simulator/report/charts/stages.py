"""A pipeline as papers draw it: a row for each kind of ranks in the order of the stages, a bar for each pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from simulator.plan import Compute, RankClass
from simulator.report.charts.lanes import class_words
from simulator.report.intervals import minus, union
from simulator.report.metrics import StepReport
from simulator.report.rank_time import RankTime, rank_times
from simulator.report.stages import StageUse
from simulator.timeline import Span, Timeline
from simulator.units import format_gib, format_percent, format_time

#: Rows and bars that a browser draws without effort.
MOST_ROWS, MOST_BARS = 32, 5000
#: Gaps below this share of the step are less than a pixel.
_PIXEL = 1 / 1000
_PASS = re.compile(r"(forward|backward) (\d+): (?:stage )?(\d+)?(.*)$")
_HALVES = {"(input)": "input", "(weights)": "weights"}
MIXED = "passes"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBar:
    """style: forward, backward, input, weights, optimizer, exposed, or ``MIXED`` of several passes together.

    micro_batch: None where it is none's, or several are one bar. later: a pass of another than the rank's first stage.
    """

    start_s: float
    end_s: float
    style: str
    title: str
    micro_batch: int | None = None
    later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One kind of ranks. bubble: share of the step."""

    name: str
    bubble: float
    bars: tuple[StageBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesChart:
    """Rows from top to bottom, first stage first; no rows where there is no pipeline."""

    finding: str
    rows: tuple[StageRow, ...]
    uses: tuple[StageUse, ...]
    end_s: float
    notes: tuple[str, ...]


def stages_chart(timeline: Timeline, report: StepReport) -> StagesChart:
    """Of a pipeline with at least two ranks; of many stages some, evenly spaced, with the first and the last."""
    ranked = sorted(report.stages, key=lambda use: (_place(use.ranks), use.ranks.representative))
    if len({use.ranks.role for use in ranked}) < 2:
        return StagesChart(finding="", rows=(), uses=(), end_s=timeline.end_s, notes=())
    shown = _spread(ranked, MOST_ROWS)
    times = {time.ranks.name: time for time in rank_times(timeline, [use.ranks for use in shown])}
    rows = [_row(use, times[use.ranks.name], timeline.end_s) for use in shown]
    notes = [] if len(shown) == len(ranked) else [f"Of {len(ranked)} kinds of ranks {len(shown)} are shown."]
    bars = sum(len(row.bars) for row in rows)
    if bars > MOST_BARS:
        gap_s = _PIXEL * timeline.end_s
        rows = [replace(row, bars=tuple(_joined(row.bars, gap_s))) for row in rows]
        notes.append(f"{bars:,} passes are too many to draw: those under {format_time(gap_s, 2)} apart are one bar. "
                     "The shares count the bubble between them too.")  # fmt: skip
    return StagesChart(
        finding=_finding(report, ranked), rows=tuple(rows), uses=tuple(shown), end_s=timeline.end_s, notes=tuple(notes)
    )  # fmt: skip


def _place(ranks: RankClass) -> int:
    found = re.search(r"\d+", ranks.role)
    return int(found[0]) if found else 0


def _spread(uses: Sequence[StageUse], most: int) -> list[StageUse]:
    if len(uses) <= most:
        return list(uses)
    places = sorted({round(n * (len(uses) - 1) / (most - 1)) for n in range(most)})
    return [uses[place] for place in places]


def _row(use: StageUse, time: RankTime, end_s: float) -> StageRow:
    bars = list(_passes(time.compute))
    bars += [
        StageBar(start_s=s.start_s, end_s=s.end_s, style="optimizer", title="optimizer")
        for s in time.compute if s.task.kind == "optimizer" and s.end_s > s.start_s
    ]  # fmt: skip
    drawn = union((bar.start_s, bar.end_s) for bar in bars)
    bars += [
        StageBar(start_s=a, end_s=b, style="exposed", title="communication") for a, b in minus(time.talking, drawn)
    ]  # fmt: skip
    return StageRow(
        name=class_words(use.ranks), bubble=use.breakdown.bubble / end_s if end_s else 0.0,
        bars=tuple(sorted(bars, key=lambda bar: (bar.start_s, bar.end_s))),
    )  # fmt: skip


def _passes(compute: Iterable[Span]) -> Iterable[StageBar]:
    """Each pass from its first task to its last, with what its ranks send each other meanwhile."""
    found: dict[tuple[str, int, str], StageBar] = {}
    stages: list[str] = []
    for span in compute:
        told = _PASS.match(span.task.name)
        if told is None or not isinstance(span.task, Compute) or span.end_s <= span.start_s:
            continue
        kind, number, stage = told[1], int(told[2]), span.task.part
        if told[3] is None:  # a task for each operation: all of a rank's are one stage
            stage = ""
        style = next((style for word, style in _HALVES.items() if word in told[4]), kind)
        stages += [stage] if stage not in stages else []
        bar = StageBar(
            start_s=span.start_s, end_s=span.end_s, style=style, micro_batch=number, later=stage != stages[0],
            title=f"{_words(style)}, micro-batch {number}" + (f", {stage}" if stage else ""),
        )  # fmt: skip
        before = found.get((style, number, stage))
        found[style, number, stage] = replace(bar, start_s=before.start_s) if before else bar
    return found.values()


def _words(style: str) -> str:
    return {"input": "backward (gradients of inputs)", "weights": "backward (gradients of weights)"}.get(style, style)


def _joined(bars: Sequence[StageBar], gap_s: float) -> Iterable[StageBar]:
    """Passes in a row as one bar; what is exposed between them is less than a pixel too."""
    found: list[StageBar] = []
    counts: list[int] = []
    for bar in bars:
        if found and bar.style not in ("optimizer",) and bar.start_s - found[-1].end_s < gap_s:
            last = found[-1]
            if last.style != "optimizer":
                style = last.style if last.style == bar.style else MIXED
                counts[-1] += 1
                found[-1] = StageBar(
                    start_s=last.start_s, end_s=max(last.end_s, bar.end_s), style=style,
                    title=f"{counts[-1]:,} passes and what is sent between them",
                )  # fmt: skip
                continue
        found.append(bar)
        counts.append(1)
    return found


def _finding(report: StepReport, uses: Sequence[StageUse]) -> str:
    shares = [use.breakdown.bubble / report.step_time_s for use in uses]
    low, high = format_percent(min(shares)), format_percent(max(shares))
    waits = low if low == high else f"{low} to {high}"
    return f"Stages wait for each other for {waits} of a step; memory peaks at {_peaks(uses)}"


def _peaks(uses: Sequence[StageUse]) -> str:
    most = max(uses, key=lambda use: use.peak_bytes)
    return f"{format_gib(most.peak_bytes)} on {most.ranks.name}"
