"""Published tables -> rows that all say the same: this operation, on these GPUs, at this size, took so long.

``nccl_tests.yaml`` holds the tables as printed, ``systems.yaml`` says which of our topologies stands for which table.
A bandwidth that was printed without a time gives one: ``time = size * factor / busbw``, with nccl-tests' factor of the
operation (``collectives.busbw``). Printed bandwidths are rounded, so each row carries by how much; those with fewer
than two significant digits are left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simulator.collectives.busbw import bus_factor
from simulator.yaml_source import read

_HERE = Path(__file__).resolve().parent
#: nccl-tests' names of the operations that are not ours.
_OPERATIONS = {"alltoall": "all_to_all"}
#: A bandwidth of fewer steps of its last printed digit than this has less than two significant digits.
_FEWEST_STEPS = 10

Entry = Mapping[str, Any]
Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured call. ``size_bytes`` is nccl-tests' size: the whole vector, of all_to_all the buffer of one rank.

    algorithm: what the run forced, None where the library chose. rounding: the time is known to within this share, as
    its bandwidth was printed with few digits. constants: what of the model was read off these rows, empty where
    nothing was; fitted is whether anything was. peak: a plateau whose size the source does not state.
    """

    table: str
    system: str
    op: str
    topology: str
    nodes: int
    gpus_per_node: int
    ranks: int
    size_bytes: float
    time_s: float
    algorithm: str | None
    rounding: float
    constants: str
    peak: bool
    source: str

    @property
    def fitted(self) -> bool:
        """Whether a constant of the model came from this row."""
        return bool(self.constants)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """``rows`` rows of a table that are not used, and why."""

    table: str
    rows: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """All rows that can be compared with a prediction, and what is left out of the tables."""

    rows: tuple[Measured, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class _Point:
    """A row of a table before its system is known: ``time_s`` as measured, or ``busbw`` in bytes/s."""

    entry: Entry
    size_bytes: float
    time_s: float | None = None
    busbw: float | None = None
    rounding: float = 0.0


@cache
def published() -> Published:
    """The tables that come with the package. Raises ScenarioError when one of the two files is damaged."""
    tables, systems = _value("nccl_tests.yaml")["tables"], _value("systems.yaml")["tables"]
    unknown = set(systems) - {table["id"] for table in tables}
    assert not unknown, f"systems.yaml names tables that do not exist: {sorted(unknown)}"
    rows: list[Measured] = []
    left_out: list[LeftOut] = []
    for table in tables:
        for found in _rows_of(table, systems.get(table["id"], {})):
            (rows if isinstance(found, Measured) else left_out).append(found)  # type: ignore[arg-type]
    return Published(rows=tuple(rows), left_out=tuple(left_out))


def _value(name: str) -> Any:
    source = read(_HERE / name)
    if source.problems:
        raise source.error(*source.problems)
    return source.value


def _rows_of(table: Table, entry: Entry) -> Iterator[Measured | LeftOut]:
    """Rows of one table and, last, what is left out of it."""
    name, count = table["id"], len(table["rows"])
    if table["status"] != "healthy":
        yield LeftOut(table=name, rows=count, reason=f"{table['status']}: {table.get('notes', 'see the source')}")
        return
    if "not_modelled" in entry:
        yield LeftOut(table=name, rows=count, reason=f"not modelled: {entry['not_modelled']}")
        return
    assert entry, f"systems.yaml has no entry for the healthy table '{name}'"
    coarse = 0
    reasons: dict[str, int] = {}
    for point in _KINDS[table["kind"]](table, entry):
        reason = point.entry.get("not_modelled")
        if reason is not None:
            reasons[reason] = reasons.get(reason, 0) + 1
        elif point.rounding > 0.5 / _FEWEST_STEPS:
            coarse += 1
        else:
            yield _measured(table, point)
    for reason, rows in reasons.items():
        yield LeftOut(table=name, rows=rows, reason=f"not modelled: {reason}")
    if coarse:
        yield LeftOut(table=name, rows=coarse, reason="bandwidth printed with fewer than two significant digits")


def _measured(table: Table, point: _Point) -> Measured:
    entry, collective = point.entry, table["collective"]
    op = entry.get("op", _OPERATIONS.get(collective, collective))
    ranks = entry["nodes"] * entry["gpus_per_node"]
    time_s = point.time_s
    if time_s is None:
        assert point.busbw is not None
        time_s = point.size_bytes * bus_factor(op, ranks) / point.busbw
    return Measured(
        table=table["id"], system=f"{entry['topology']} {entry['nodes']}x{entry['gpus_per_node']}", op=op,
        topology=entry["topology"], nodes=entry["nodes"], gpus_per_node=entry["gpus_per_node"], ranks=ranks,
        size_bytes=point.size_bytes, time_s=time_s, algorithm=entry.get("algorithm"), rounding=point.rounding,
        constants=entry.get("fitted", ""), peak=table["kind"] == "vendor_peak", source=source_of(table),
    )  # fmt: skip


def source_of(table: Table) -> str:
    """Where a table was published, in one line."""
    source = table["source"]
    if "repo" in source:
        lines = f" lines {source['lines']}" if "lines" in source else ""
        return f"{source['repo']}@{source.get('commit', '?')} {source.get('path', '')}{lines}".strip()
    return str(source["ref"])


def _by_time(column: str, unit_s: float) -> Callable[[Table, Entry], Iterator[_Point]]:
    """Reader of tables with a column of times."""

    def points(table: Table, entry: Entry) -> Iterator[_Point]:
        size, time = table["columns"].index("size_bytes"), table["columns"].index(column)
        for row in table["rows"]:
            yield _Point(entry, float(row[size]), time_s=row[time] * unit_s)

    return points


def _payload_busbw(table: Table, entry: Entry) -> Iterator[_Point]:
    """One or more columns of bus bandwidth against size; without ``columns`` the one called busbw_GBs."""
    size = table["columns"].index("size_bytes")
    for name, place in entry.get("columns", {"busbw_GBs": entry}).items():
        for row, (rate, rounding) in zip(table["rows"], _rates(table, name), strict=True):
            yield _Point(place, float(row[size]), busbw=rate, rounding=rounding)


def _busbw_by_ranks(table: Table, entry: Entry) -> Iterator[_Point]:
    """Bus bandwidth at one size over ranks of one node: as the library chose, and with NVLS switched off."""
    ranks, size = table["columns"].index("ranks"), table["columns"].index("size_bytes")
    for name, forced in (("busbw_GBs", {}), ("busbw_nvls_off_GBs", {"algorithm": "ring"})):
        for row, (rate, rounding) in zip(table["rows"], _rates(table, name), strict=True):
            place = {**entry, **forced, "gpus_per_node": row[ranks]}
            yield _Point(place, float(row[size]), busbw=rate, rounding=rounding)


def _busbw_by_name(table: Table, entry: Entry) -> Iterator[_Point]:
    """Bus bandwidth at one size; each row, by its first column, is another system, operation or setting."""
    columns = table["columns"]
    for row, (rate, rounding) in zip(table["rows"], _rates(table, "busbw_GBs"), strict=True):
        size = row[columns.index("size_bytes")] if "size_bytes" in columns else entry["size"]
        yield _Point(entry["rows"][row[0]], float(size), busbw=rate, rounding=rounding)


_KINDS: dict[str, Callable[[Table, Entry], Iterator[_Point]]] = {
    "nccl_tests": _by_time("time_us", 1e-6),
    "lookup_table": _by_time("time_ns", 1e-9),
    "latency_rows": _by_time("time_us", 1e-6),
    "payload_busbw": _payload_busbw,
    "busbw_by_ranks": _busbw_by_ranks,
    "busbw_single_size": _busbw_by_name,
    "vendor_peak": _busbw_by_name,
}


def _rates(table: Table, column: str) -> Sequence[tuple[float, float]]:
    """(bytes/s, relative half of the last printed digit) of a column of GB/s; the column's longest number tells."""
    place = table["columns"].index(column)
    values = [row[place] for row in table["rows"]]
    decimals = max(len(repr(value).partition(".")[2]) if isinstance(value, float) else 0 for value in values)
    half = 0.5 * 10.0**-decimals
    return [(value * 1e9, half / value if value > 0 else 1.0) for value in values]
