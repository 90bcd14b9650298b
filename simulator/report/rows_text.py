"""Rows of ``simulator collective`` as a table in nccl-tests' columns, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.rows import Crossover, Row, Way
from simulator.units import format_bytes

SCHEMA_VERSION = 1
_FLOAT32 = 4
#: The fidelity of rows that a library's cost model gives.
LIBRARY = "library"


def rows_text(rows: Sequence[Row], crossings: Sequence[Crossover], where: str) -> Iterator[RenderableType]:
    """A table per number of ranks, the fastest algorithm of each size marked, and the crossovers."""
    yield Text(f"# {where}")
    yield Text("# time of one call, out of place; GB/s = 1e9 B/s; busbw as nccl-tests; * = fastest of the algorithms")
    if any(row.fidelity == LIBRARY for row in rows):
        yield Text("# > = what the library runs; times are its cost model with measured constants, * among these only")
    for key in dict.fromkeys((row.p, row.groups) for row in rows):
        yield ""
        yield _table([row for row in rows if (row.p, row.groups) == key])
    if crossings:
        yield ""
        yield _crossings(crossings)
    yield from _notes(rows)


def _table(rows: Sequence[Row]) -> Table:
    ranks, groups = f"{rows[0].p} rank{'s' if rows[0].p > 1 else ''}", rows[0].groups
    title = f"{rows[0].op}, {ranks}" if groups == 1 else f"{rows[0].op}, {groups} groups of {ranks} at once"
    table = Table(title=title, title_justify="left", box=None, title_style="bold", pad_edge=False)
    for name in ("size(B)", "count", "type", "redop", "root"):
        table.add_column(name, justify="right")
    table.add_column("algorithm")
    if any(row.fidelity == LIBRARY for row in rows):
        table.add_column("protocol")
    for name in ("steps", "time(us)", "algbw(GB/s)", "busbw(GB/s)"):
        table.add_column(name, justify="right")
    if groups > 1:
        table.add_column("fastest group(us)", justify="right")
    table.add_column("")
    several = len({row.algorithm for row in rows}) > 1
    protocols = any(row.fidelity == LIBRARY for row in rows)
    for row in rows:
        table.add_row(*_cells(row, several, protocols))
    return table


def _cells(row: Row, several: bool, protocols: bool) -> tuple[str, ...]:
    reduces = row.op in {"all_reduce", "reduce", "reduce_scatter"}
    return (
        f"{row.size_bytes:.0f}", f"{row.size_bytes // _FLOAT32:.0f}", "float", "sum" if reduces else "none",
        str(row.root), row.algorithm, *([row.protocol] if protocols else []), str(row.steps), f"{row.time_s * 1e6:.2f}",
        f"{row.algbw_bytes_per_s / 1e9:.2f}", f"{row.busbw_bytes_per_s / 1e9:.2f}",
        *([f"{row.fastest_group_s * 1e6:.2f}"] if row.groups > 1 else []),
        ("*" if several and row.fastest else "") + (">" if row.picked and row.fidelity == LIBRARY else ""),
    )  # fmt: skip


def _crossings(crossings: Sequence[Crossover]) -> Table:
    table = Table(title="Crossovers", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("p", "below", "above", "same time at", "bytes"):
        table.add_column(name, justify="left" if name in {"below", "above"} else "right")
    for c in crossings:
        table.add_row(str(c.p), c.below, c.above, format_bytes(c.size_bytes, 3), f"{c.size_bytes:,.0f}")
    return table


def _notes(rows: Sequence[Row]) -> Iterator[Text]:
    padded = [row for row in rows if row.padding_bytes]
    if padded:
        most = max(row.padding_bytes for row in padded)
        yield Text(
            f"# {padded[0].op} needs equal slices: {len(padded)} rows are padded by up to {most:.0f} B, which is sent "
            "but not counted in the bandwidths"
        )
    handed = [row for row in rows if row.handed_over]
    if handed:
        kinds = " or ".join(dict.fromkeys(row.fidelity for row in handed))
        yield Text(f"# {len(handed)} rows by the {kinds} engine, not the exact vector engine: {handed[0].handed_over}")
    if any(row.groups > 1 for row in rows):
        yield Text("# groups run at the same time: time and bandwidths are those of the slowest")
    if any(row.fidelity == LIBRARY for row in rows):
        played = dict.fromkeys(row.algorithm for row in rows if row.fidelity != LIBRARY and row.p > 1)
        if played:
            yield Text(
                f"# {', '.join(played)}: not the library's, so played on bare links, which pay for no kernel, no ramp: "
                "not compared"
            )
    if any(row.p == 1 for row in rows):
        yield Text("# one rank moves nothing: its time is the launch, its bus bandwidth 0")


def rows_json(rows: Sequence[Row], crossings: Sequence[Crossover], where: str, ways: Sequence[Way] = ()) -> str:
    """``{"schema_version", "kind", "network", "rows": [...], "crossovers": [...]}``, and "ways" where asked for."""
    value: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION, "kind": "collective", "network": where,
        "rows": [asdict(row) for row in rows],
        "crossovers": [asdict(c) for c in crossings],
    }  # fmt: skip
    if ways:
        value["ways"] = [asdict(way) for way in ways]
    return json.dumps(value, indent=2)


def rows_csv(rows: Sequence[Row]) -> str:
    """A header and one line per row; columns as the JSON keys."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(Row.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()
