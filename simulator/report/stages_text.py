"""The stages of a pipeline as a table: what each computes, waits for and holds."""

from __future__ import annotations

from rich.table import Table

from simulator.job import Job
from simulator.report.metrics import StepReport
from simulator.report.stages import StageUse
from simulator.units import format_gib, format_percent, format_time

#: Rows of the table; of more, the first and the last are shown.
_MOST_ROWS = 24


def stages_table(report: StepReport, job: Job) -> Table:
    """One row per class of equal ranks, in the order of the stages."""
    capacity = None if job.device is None else job.device.memory * job.scenario.limits.memory
    table = Table(
        title=f"Stages, {len(report.stages)} kinds of ranks", title_justify="left", title_style="bold", pad_edge=False,
        box=None,
    )  # fmt: skip
    others = any(_matters(stage.breakdown.other, report) for stage in report.stages)
    seconds = ("compute", "bubble", "exposed", "optimizer", *(("other",) if others else ()))
    titles = ("ranks", "count", "layers", *seconds, "peak", "")
    for number, title in enumerate(("runs", *titles)):
        table.add_column(title, justify="right" if number > 1 else "left", no_wrap=number > 0)
    for stage in _shown(report.stages):
        if stage is None:
            table.add_row("...")
            continue
        parts = stage.breakdown
        share = format_percent(parts.bubble / report.step_time_s)
        times = (
            format_time(parts.compute, 3), f"{format_time(parts.bubble, 3)} ({share})",
            format_time(parts.exposed_comm, 3), format_time(parts.optimizer, 3),
        )  # fmt: skip
        table.add_row(
            stage.parts_words, stage.ranks.name, f"{len(stage.ranks.ranks):,}", str(stage.layers), *times,
            *((format_time(parts.other, 3),) if others else ()), format_gib(stage.peak_bytes),
            "" if capacity is None or stage.peak_bytes <= capacity else "does not fit",
        )  # fmt: skip
    return table


def _matters(seconds: float, report: StepReport) -> bool:
    return seconds > 1e-9 * report.step_time_s


def _shown(stages: tuple[StageUse, ...]) -> list[StageUse | None]:
    """All, or the first and the last with None between."""
    if len(stages) <= _MOST_ROWS:
        return list(stages)
    return [*stages[: _MOST_ROWS // 2], None, *stages[-_MOST_ROWS // 2 :]]
