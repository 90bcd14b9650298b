"""Communication of a step by kind of collective: what compute hides, what it does not, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.job import Job
from simulator.report.charts.causes import exposures
from simulator.report.charts.palette import op_words
from simulator.report.lanes import slowest
from simulator.report.metrics import CollectiveUse, StepReport
from simulator.timeline import Timeline
from simulator.units import format_bytes, format_percent, format_time

MOST_ROWS = 12
_HIDDEN = "hidden behind compute"
#: Shares closer to 1 than this are all.
_SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedRow:
    """Equal collectives with one cause. purpose: what they carry. time_s: of all of them, exposed_s in the open.

    op: '' for several kinds that are summed up.
    """

    purpose: str
    op: str
    axis: str
    count: int
    message_bytes: float
    time_s: float
    exposed_s: float
    cause: str

    @property
    def name(self) -> str:
        """``all-gather of weights layers.1``."""
        return f"{op_words(self.op)} of {self.purpose}" if self.op else self.purpose

    @property
    def hidden_s(self) -> float:
        return max(0.0, self.time_s - self.exposed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedChart:
    """Rows with the most exposed first. note: what is summed up, '' for nothing."""

    finding: str
    rows: tuple[ExposedRow, ...]
    note: str


def exposed_chart(timeline: Timeline, report: StepReport, job: Job) -> ExposedChart:
    """Of the ranks that set the step; rows are empty where nothing is sent."""
    causes = exposures(timeline, slowest(report.waiting).ranks, job)
    joined: dict[tuple[object, ...], ExposedRow] = {}
    for use, exposure in zip(report.collectives, causes, strict=True):
        row = _row(use, exposure.cause)
        key = (row.op, row.axis, row.message_bytes, row.cause)
        joined[key] = _together(joined[key], row) if key in joined else row
    rows = sorted(joined.values(), key=lambda row: (-row.exposed_s, -row.time_s))
    rows, note = _shortened(rows)
    return ExposedChart(finding=_finding(report, rows), rows=tuple(rows), note=note)


def _row(use: CollectiveUse, cause: str) -> ExposedRow:
    size = format_bytes(use.message_bytes, 3)
    return ExposedRow(
        purpose=use.purpose or size, op=use.op, axis=use.axis, count=use.count,
        message_bytes=use.message_bytes, time_s=use.time_s, exposed_s=use.exposed_s if cause else 0.0,
        cause=cause or _HIDDEN,
    )  # fmt: skip


def _together(one: ExposedRow, more: ExposedRow) -> ExposedRow:
    return replace(
        one, count=one.count + more.count, time_s=one.time_s + more.time_s, exposed_s=one.exposed_s + more.exposed_s
    )


def _shortened(rows: Sequence[ExposedRow]) -> tuple[list[ExposedRow], str]:
    """The first rows, and the rest as one."""
    if len(rows) <= MOST_ROWS:
        return list(rows), ""
    kept, rest = list(rows[: MOST_ROWS - 1]), rows[MOST_ROWS - 1 :]
    count = sum(row.count for row in rest)
    kept.append(
        ExposedRow(
            purpose=f"{len(rest)} more kinds ({count:,} collectives)", op="", axis="", count=count, message_bytes=0.0,
            time_s=sum(row.time_s for row in rest), exposed_s=sum(row.exposed_s for row in rest), cause="various",
        )
    )  # fmt: skip
    return kept, f"The {len(rest)} kinds of collectives with the least exposed time are summed in one row."


def _finding(report: StepReport, rows: Sequence[ExposedRow]) -> str:
    if not rows:
        return "A single rank communicates nothing"
    exposed_s = report.breakdown.exposed_comm
    if not any(row.exposed_s for row in rows):
        return f"All {format_time(report.comm_total_s)} of communication hides behind compute"
    worst = rows[0]
    hidden = f"{format_percent(report.hidden_share)} of {format_time(report.comm_total_s)} of communication is hidden"
    alone = worst.exposed_s >= exposed_s * (1 - _SAME)
    part = "all" if alone else f"{format_time(worst.exposed_s)} of it"
    return f"{hidden}; {format_time(exposed_s)} is exposed, {part} the {worst.name}: {worst.cause}"
