"""Memory of one GPU over a step, by kind, below its capacity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.job import Job
from simulator.plan import MEMORY_KINDS
from simulator.report.memory import thinned
from simulator.report.metrics import StepReport
from simulator.schedule import Floats
from simulator.units import format_gib, format_percent

MOST_POINTS = 800


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryChart:
    """times_s: (n,) when bytes change, and the end of the step. by_kind_bytes: (n,) each, of kinds that are ever held.

    capacity_bytes: what the scenario lets a rank use; None without a device. note: what is not shown, '' for nothing.
    """

    finding: str
    times_s: Floats
    by_kind_bytes: dict[str, Floats]
    peak_s: float
    peak_bytes: float
    peak_words: str
    capacity_bytes: float | None
    ranks: str
    note: str


def memory_chart(report: StepReport, job: Job) -> MemoryChart:
    """Of the class of ranks whose peak is the highest."""
    memory = report.memory
    times_s, curve = thinned(memory, MOST_POINTS)
    held = {
        kind: np.append(curve[:, number], curve[-1:, number])
        for number, kind in enumerate(MEMORY_KINDS) if curve[:, number].any()
    }  # fmt: skip
    left_out = len(memory.times_s) - len(times_s)
    return MemoryChart(
        finding=_finding(report, job), times_s=np.append(times_s, report.step_time_s), by_kind_bytes=held,
        peak_s=memory.peak_s, peak_bytes=memory.peak_bytes, peak_words=memory.peak_words,
        capacity_bytes=None if job.device is None else job.device.memory * job.scenario.limits.memory,
        ranks=memory.ranks,
        note=f"Of {len(memory.times_s):,} changes {left_out:,} are left out: of each stretch of the step the highest "
        "is drawn, so the peak is exact." if left_out else "",
    )  # fmt: skip


def _finding(report: StepReport, job: Job) -> str:
    peak, where = report.memory.peak_bytes, report.memory.peak_words
    if job.device is None:
        return f"Memory peaks at {format_gib(peak)}, at {where}"
    capacity = job.device.memory * job.scenario.limits.memory
    if peak > capacity:
        return f"Memory does not fit: {format_gib(peak)} at {where}, {format_gib(peak - capacity)} too much"
    return f"Memory fits: it peaks at {format_gib(peak)}, {format_percent(peak / capacity)} of the limit, at {where}"
