"""The table behind each chart: the same numbers in words, for those who cannot or do not want to look at a picture."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.report.charts.breakdown import BreakdownChart
from simulator.report.charts.exposed import ExposedChart
from simulator.report.charts.lanes import LaneRow, LanesChart
from simulator.report.charts.links import LinkRow, LinksChart
from simulator.report.charts.memory import MemoryChart
from simulator.report.charts.palette import MEMORY
from simulator.report.charts.roofline import RooflineChart
from simulator.report.charts.stages import StagesChart
from simulator.report.intervals import total, union
from simulator.report.memory import Memory
from simulator.report.words import purpose_words
from simulator.units import (
    format_bandwidth,
    format_bytes,
    format_flop_per_s,
    format_gib,
    format_percent,
    format_time,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Texts: a heading, names of columns, rows. The first column is text, the others are numbers unless ``words``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    note: str = ""


def breakdown_table(chart: BreakdownChart) -> Table:
    """Parts of the step."""
    return Table(
        title="Parts of a step", columns=("part", "time", "share"),
        rows=tuple((p.look.words, format_time(p.seconds), format_percent(p.share)) for p in chart.parts),
    )  # fmt: skip


def lanes_table(chart: LanesChart) -> Table:
    """How long each lane is busy."""
    several = len({row.group for row in chart.rows}) > 1
    return Table(
        title="Lanes", columns=(*(("ranks",) if several else ()), "lane", "bars", "busy", "share of the step"),
        rows=tuple(_lane(row, chart.end_s, several=several) for row in chart.rows),
        words=(0, 1) if several else (0,),
    )  # fmt: skip


def _lane(row: LaneRow, end_s: float, *, several: bool) -> tuple[str, ...]:
    busy = total(union((bar.start_s, bar.end_s) for bar in row.bars))
    share = format_percent(busy / end_s) if end_s else ""
    return (*((row.group,) if several else ()), row.name, f"{len(row.bars):,}", format_time(busy), share)


def memory_table(chart: MemoryChart, memory: Memory) -> Table:
    """What is held at the peak."""
    held = [(kind, size) for kind, size in memory.by_kind_bytes.items() if size]
    return Table(
        title=f"Memory at the peak, {chart.peak_words}", columns=("kind", "bytes", "share", "most of it"),
        rows=tuple(
            (MEMORY[kind].words, format_gib(size), format_percent(size / chart.peak_bytes), _holders(memory, kind))
            for kind, size in held
        ),
        words=(0, 3),
    )  # fmt: skip


def _holders(memory: Memory, kind: str) -> str:
    found = [holder for holder in memory.holders if holder.kind == kind]
    return ", ".join(f"{purpose_words(h.name)} {format_gib(h.size_bytes)}" for h in found[:2])


def exposed_table(chart: ExposedChart) -> Table:
    """Kinds of collectives with what of them is exposed, and why."""
    return Table(
        title="Collectives", columns=("collective", "count", "message", "time", "exposed", "cause"),
        rows=tuple(
            (
                row.name + (" and its like" if row.count > 1 and row.op else ""), f"{row.count:,}",
                format_bytes(row.message_bytes, 3) if row.op else "", format_time(row.time_s),
                format_time(row.exposed_s) if row.exposed_s else "0", row.cause,
            )
            for row in chart.rows
        ),
        words=(0, 5),
    )  # fmt: skip


def links_table(chart: LinksChart) -> Table:
    """Kinds of links with the busiest of each."""
    return Table(
        title="Links", columns=("links", "count", "rate of each", "in use, busiest", "mean", "busiest link"),
        rows=tuple(
            (
                row.name, f"{row.num_links:,}", format_bandwidth(row.bytes_per_s, 3), format_percent(row.use),
                format_percent(_mean(row)), max(row.cells, key=lambda cell: cell.use).busiest if row.use else "none",
            )
            for row in chart.rows
        ),
        words=(0, 5),
    )  # fmt: skip


def _mean(row: LinkRow) -> float:
    return sum(cell.mean * cell.num_links for cell in row.cells) / row.num_links


def roofline_table(chart: RooflineChart) -> Table:
    """Kinds of operations, those that take the most time first."""
    return Table(
        title=f"Operations on {chart.device}",
        columns=("operation", "pass", "count", "FLOP per byte", "rate", "of the peak", "time", "of compute"),
        rows=tuple(
            (
                p.name, p.direction, f"{p.count:,}", f"{p.flop_per_byte:,.0f}", format_flop_per_s(p.flop_per_s),
                format_percent(p.flop_per_s / chart.peak_flop_per_s), format_time(p.seconds), format_percent(p.share),
            )
            for p in sorted(chart.points, key=lambda point: -point.share)
        ),
        words=(0, 1),
    )  # fmt: skip


def stages_table(chart: StagesChart) -> Table:
    """Each kind of ranks: what it runs, how long it computes and waits, and the most that it holds."""
    return Table(
        title="Stages",
        columns=("ranks", "runs", "count", "compute", "bubble", "exposed", "optimizer", "peak memory"),
        rows=tuple(
            (
                use.ranks.name, use.parts_words, f"{len(use.ranks.ranks):,}", format_time(use.breakdown.compute),
                f"{format_time(use.breakdown.bubble)} ({format_percent(use.breakdown.bubble / chart.end_s)})",
                format_time(use.breakdown.exposed_comm), format_time(use.breakdown.optimizer),
                format_gib(use.peak_bytes),
            )
            for use in chart.uses
        ),
    )  # fmt: skip
