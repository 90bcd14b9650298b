"""Predicted against measured: the same sections as text, as Markdown (docs/accuracy.md) and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.collectives.busbw import bus_factor
from simulator.measurements.accuracy import (
    BANDS,
    P90_FACTOR,
    Accuracy,
    Compared,
    by_group,
    held_out,
    system_and_op,
)
from simulator.measurements.reasons import reason_of
from simulator.measurements.tables import LeftOut
from simulator.units import format_bandwidth, format_gib

SCHEMA_VERSION = 1
_STATISTICS = ("rows", "median", "p90", "bias", "target", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled table of text. ``left``: how many of its first columns are words, set to the left."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int


def overall(rows: Sequence[Compared]) -> tuple[Accuracy, ...]:
    """Errors of all rows by band of sizes: together, then those held out and those that constants came from."""
    return (*by_group(rows, lambda _row: ("all",)), *by_group(rows, held_out))


def sections(compared: Sequence[Compared], left_out: Sequence[LeftOut]) -> tuple[Section, ...]:
    """Overall, by system and operation, why some miss, vendors' plateaus, where constants came from, the left out."""
    rows = [row for row in compared if not row.measured.peak]
    peaks = [row for row in compared if row.measured.peak]
    tables = [_overall(rows), _by_system(rows), _reasons(rows), _peaks(peaks), _constants(compared)]
    found = [*tables, _left_out(left_out)]
    return tuple(section for section in found if section.rows)


def _overall(rows: Sequence[Compared]) -> Section:
    return Section(
        title="Overall",
        note="error = predicted / measured - 1 of the time of one call; median and p90 of its size, bias = median with "
        f"its sign; the target of p90 is {P90_FACTOR:g} times that of the median",
        columns=("rows of", "size", *_STATISTICS),
        rows=tuple((*a.group, a.band.name, *_statistics(a)) for a in overall(rows)),
        left=2,
    )


def _by_system(rows: Sequence[Compared]) -> Section:
    return Section(
        title="By system, operation and size",
        note="a system is a topology with nodes x GPUs of each; worst = the row that is farthest off",
        columns=("system", "operation", "size", *_STATISTICS, "worst at", "by"),
        rows=tuple(
            (*a.group, a.band.name, *_statistics(a), *_worst(a.worst)) for a in by_group(rows, system_and_op)
        ),
        left=3,
    )  # fmt: skip


def _reasons(rows: Sequence[Compared]) -> Section:
    missed: dict[tuple[str, ...], list[Accuracy]] = {}
    for a in by_group(rows, system_and_op):
        if not a.met:
            missed.setdefault(a.group, []).append(a)
    return Section(
        title="Why targets are missed",
        note="what is known of the system, or suspected",
        columns=("system", "operation", "sizes", "reason"),
        rows=tuple(
            (*group, ", ".join(a.band.name for a in bands), reason_of(bands[0].worst.measured.topology, group[1]))
            for group, bands in missed.items()
        ),
        left=4,
    )


def _statistics(a: Accuracy) -> tuple[str, ...]:
    return (
        str(a.rows), _percent(a.median), _percent(a.p90), f"{100 * a.bias:+.1f} %", f"{100 * a.band.target:.0f} %",
        "met" if a.met else "MISSED",
    )  # fmt: skip


def _worst(row: Compared) -> tuple[str, ...]:
    return format_gib(row.measured.size_bytes), f"{100 * row.error:+.1f} %"


def _peaks(rows: Sequence[Compared]) -> Section:
    return Section(
        title="Plateaus on vendors' slides",
        note="no size is stated: compared at 16 GiB, and not counted above",
        columns=("system", "operation", "forced", "as", "predicted", "stated", "error of busbw"),
        rows=tuple(_peak(row) for row in rows),
        left=4,
    )


def _peak(row: Compared) -> tuple[str, ...]:
    measured = row.measured
    moved = measured.size_bytes * bus_factor(measured.op, measured.ranks)
    predicted, stated = moved / row.time_s, moved / measured.time_s
    return (
        measured.system, measured.op, measured.algorithm or "-", row.algorithm, format_bandwidth(predicted, 3),
        format_bandwidth(stated, 3), f"{100 * (predicted / stated - 1):+.1f} %",
    )  # fmt: skip


def _constants(rows: Sequence[Compared]) -> Section:
    held = [(row.measured.table, row.measured.system, row.measured.constants) for row in rows if row.measured.fitted]
    return Section(
        title="Where constants came from",
        note="tables that a constant of a topology or a library was read off; their rows are no test of it",
        columns=("table", "system", "constant"),
        rows=tuple(dict.fromkeys(held)),
        left=3,
    )


def _left_out(left_out: Sequence[LeftOut]) -> Section:
    return Section(
        title="Left out",
        note="rows of tables that are not compared, and why",
        columns=("table", "reason", "rows"),
        rows=tuple((item.table, item.reason, str(item.rows)) for item in left_out),
        left=2,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def validation_text(given: Sequence[Section]) -> Iterator[RenderableType]:
    """The sections as rich tables."""
    for section in given:
        table = Table(title=section.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for number, name in enumerate(section.columns):
            table.add_column(name, justify="left" if number < section.left else "right")
        for row in section.rows:
            table.add_row(*row)
        yield table
        yield Text(section.note, style="dim")
        yield ""


def validation_markdown(given: Sequence[Section], command: str) -> str:
    """The sections as a Markdown page that ``command`` writes again."""
    lines = [
        "# Accuracy of collectives",
        "",
        f"Written by `{command}`; do not edit. Every healthy table of simulator/measurements/nccl_tests.yaml, misses",
        "included. GB/s = 1e9 B/s, KiB = 1024 B.",
    ]
    for section in given:
        lines += ["", f"## {section.title}", "", f"{section.note}.", "", _line(section.columns)]
        lines.append(_line(["---" if n < section.left else "---:" for n in range(len(section.columns))]))
        lines += [_line(row) for row in section.rows]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def validation_json(compared: Sequence[Compared], left_out: Sequence[LeftOut]) -> str:
    """``{"schema_version", "kind", "targets", "overall", "systems", "rows", "left_out"}``; errors as fractions."""
    rows = [row for row in compared if not row.measured.peak]
    value: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "validation",
        "targets": [{"size": b.name, "median": b.target, "p90": P90_FACTOR * b.target} for b in BANDS],
        "overall": [{"rows_of": a.group[0], **_numbers(a)} for a in overall(rows)],
        "systems": [
            {"system": a.group[0], "op": a.group[1], **_numbers(a)} for a in by_group(rows, system_and_op)
        ],
        "rows": [_row(row) for row in compared],
        "left_out": [asdict(item) for item in left_out],
    }  # fmt: skip
    return json.dumps(value, indent=2)


def _numbers(a: Accuracy) -> dict[str, Any]:
    return {
        "size": a.band.name, "rows": a.rows, "median": a.median, "p90": a.p90, "bias": a.bias,
        "target": a.band.target, "met": a.met,
    }  # fmt: skip


def _row(row: Compared) -> dict[str, Any]:
    return {
        **asdict(row.measured), "fitted": row.measured.fitted, "predicted_s": row.time_s,
        "predicted_algorithm": row.algorithm, "predicted_protocol": row.protocol, "error": row.error,
    }  # fmt: skip
