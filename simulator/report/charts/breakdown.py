"""Where a step goes, as bars."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.report.charts.palette import PARTS, Look
from simulator.report.metrics import StepReport
from simulator.units import format_percent, format_time

#: Parts shorter than this share of the step are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a step: ``seconds`` of it, ``share`` of 1. key: of ``palette.PARTS``."""

    key: str
    seconds: float
    share: float

    @property
    def look(self) -> Look:
        return PARTS[self.key]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownChart:
    """Parts in a fixed order; they add up to the step."""

    finding: str
    parts: tuple[Part, ...]
    step_s: float


def breakdown_chart(report: StepReport) -> BreakdownChart:
    """The parts of the ranks that set the step; without what takes no time, but with exposed communication."""
    parts, idle = report.breakdown, report.idle
    seconds = {
        "passes": parts.compute - report.copies_s, "copies": report.copies_s, "optimizer": parts.optimizer,
        "exposed": parts.exposed_comm, "bubble": parts.bubble, "host": idle.host_s, "exposed_copies": idle.copies_s,
        "idle": idle.other_s,
    }  # fmt: skip
    step_s = report.step_time_s
    shown = tuple(
        Part(key=key, seconds=value, share=value / step_s if step_s else 0.0)
        for key, value in seconds.items()
        if value > _ROUNDING * step_s or (key == "exposed" and report.collectives)
    )
    return BreakdownChart(finding=_finding(report, shown), parts=shown, step_s=step_s)


def _finding(report: StepReport, parts: tuple[Part, ...]) -> str:
    working = report.breakdown.compute + report.breakdown.optimizer
    step = format_time(report.step_time_s)
    said = f"{format_percent(working / report.step_time_s)} of the {step} of a step is compute"
    lost = [part for part in parts if part.key not in ("passes", "copies", "optimizer") and part.share > _ROUNDING]
    if not lost:
        return f"{said}; nothing is waited for" if not report.collectives else f"{said}; all communication is hidden"
    worst = max(lost, key=lambda part: part.seconds)
    return (
        f"{said}; the largest loss is {worst.look.words}, {format_percent(worst.share)} ({format_time(worst.seconds)})"
    )
