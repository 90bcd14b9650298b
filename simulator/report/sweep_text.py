"""Rows of ``simulator sweep`` as a table, as CSV and as JSON. Rows are flat mappings, in the order of the points."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.units import format_bandwidth, format_bytes, format_gib, format_percent, format_time

SCHEMA_VERSION = 1
#: Above this many rows the table shows the best ones only.
MOST_ROWS = 200
_BEST_ROWS = 20
_MOST_ERRORS = 10

#: Columns of the table after the settings, unless the user names others.
STEP_COLUMNS = ("step_time_s", "tokens_per_s_per_gpu", "mfu", "exposed_share", "memory_peak_bytes", "fits")
COLLECTIVE_COLUMNS = ("op", "p", "size_bytes", "algorithm", "time_s", "busbw_bytes_per_s")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _count(value: float) -> str:
    return f"{value:,.0f}"


#: column -> (heading, how a value is written); columns that are not here keep their name and are written as they are.
_FORMATS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "step_time_s": ("step", format_time),
    "tokens_per_s": ("tokens/s", _count),
    "tokens_per_s_per_gpu": ("tokens/s/GPU", _count),
    "mfu": ("MFU", format_percent),
    "exposed_comm_s": ("exposed", format_time),
    "exposed_share": ("exposed", format_percent),
    "comm_total_s": ("comm", format_time),
    "memory_peak_bytes": ("memory", format_gib),
    "fits": ("fits", _yes),
    "feasible": ("feasible", _yes),
    "gpus": ("GPUs", _count),
    "size_bytes": ("size", format_bytes),
    "time_s": ("time", format_time),
    "algbw_bytes_per_s": ("algbw", format_bandwidth),
    "busbw_bytes_per_s": ("busbw", format_bandwidth),
    "wire_bytes_per_rank": ("sent per rank", format_bytes),
    "seconds": ("simulated in", format_time),
}


def best_row(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Index of the feasible row with most tokens/s, or the highest bus bandwidth; the first of equals."""
    able = [i for i, row in enumerate(rows) if row["error"] is None and row["feasible"]]
    return max(able, key=lambda i: _merit(rows[i]), default=None)


def _merit(row: Mapping[str, Any]) -> float:
    return float(row["tokens_per_s"] if "tokens_per_s" in row else row["busbw_bytes_per_s"])


def sweep_text(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str], columns: Sequence[str], title: str
) -> Iterator[RenderableType]:  # fmt: skip
    """The table, what its marks mean, and each error once with the number of rows that have it."""
    best = best_row(rows)
    errors = list(dict.fromkeys(row["error"] for row in rows if row["error"] is not None))
    shown = _shown(rows)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in (*_short(keys), *(_heading(name) for name in columns)):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for index in shown:
        row = rows[index]
        table.add_row(
            *_settings(row, keys), *(_cell(row, name) for name in columns), _mark(row, index == best, errors),
            style="bold" if index == best else "",
        )  # fmt: skip
    yield table
    if best is not None:
        yield Text(f"# * = {'most tokens/s' if 'tokens_per_s' in rows[best] else 'highest busbw'} of the feasible rows")
    elif len(errors) < len(rows):
        yield Text("# no row is feasible")
    if len(shown) < len(rows):
        yield Text(f"# the best {len(shown)} of {len(rows):,} rows; --csv or --json prints all")
    for number, error in enumerate(errors[:_MOST_ERRORS], start=1):
        count = sum(row["error"] == error for row in rows)
        yield Text(f"# ({number}) {count} row{'' if count == 1 else 's'}: {error}")
    if len(errors) > _MOST_ERRORS:
        yield Text(f"# and {len(errors) - _MOST_ERRORS} more kinds of error; --csv or --json prints all")


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    if len(rows) <= MOST_ROWS:
        return list(range(len(rows)))
    able = [i for i, row in enumerate(rows) if row["error"] is None]
    return sorted(sorted(able, key=lambda i: (not rows[i]["feasible"], -_merit(rows[i]), i))[:_BEST_ROWS])


def _short(keys: Sequence[str]) -> list[str]:
    """``parallel.bucket_cap`` -> ``bucket_cap`` where no other key ends so."""
    ends = [key.rpartition(".")[2] for key in keys]
    return [end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)]


def _settings(row: Mapping[str, Any], keys: Sequence[str]) -> Iterator[str]:
    typed = {key.strip(): value.strip() for key, _, value in (text.partition("=") for text in row["overrides"])}
    return (typed[key] for key in keys)


def _heading(name: str) -> str:
    return _FORMATS[name][0] if name in _FORMATS else name


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return "-"
    return _FORMATS[name][1](value) if name in _FORMATS else str(value)


def _mark(row: Mapping[str, Any], best: bool, errors: Sequence[str]) -> str:
    if row["error"] is not None:
        return f"failed ({errors.index(row['error']) + 1})"
    if best:
        return "*"
    return "over the limit" if not row["feasible"] and row.get("fits") is not False else ""


def sweep_json(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], columns: Sequence[str], scenario: str) -> str:
    """``{"schema_version", "kind", "scenario", "keys", "best", "rows"}``; no ``columns``: all of them."""
    value = {
        "schema_version": SCHEMA_VERSION, "kind": "sweep", "scenario": scenario, "keys": list(keys),
        "best": best_row(rows), "rows": [_picked(row, keys, columns) for row in rows],
    }  # fmt: skip
    return json.dumps(value, indent=2)


def sweep_csv(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], columns: Sequence[str]) -> str:
    """A header and one line per row: settings first. Empty: unknown or not applicable."""
    names = columns or [name for name in dict.fromkeys(n for row in rows for n in row) if name != "overrides"]
    names = [*keys, *(name for name in names if name not in keys)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_plain(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def _picked(row: Mapping[str, Any], keys: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
    return dict(row) if not columns else {name: row.get(name) for name in (*keys, *columns)}


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
