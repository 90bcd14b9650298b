"""The text that nccl-tests and rccl-tests print -> Log values. Columns are found by the names in the header line.

Headers differ by version (NVIDIA/nccl-tests src/common.cu and src/util.cu):

* before 2.13: ``size count type [redop] time algbw busbw error``, twice; ``error`` is a rounding error, not a count
* from 2.13: ``size count type redop root time algbw busbw #wrong``, twice; ``-C`` says ``cputime``, ``-S`` adds a
  timestamp of two words; rccl-tests may add ``algo proto nchannels``

Between the rows may stand what NCCL, mpirun (``[1,0]<stdout>:``) or srun (``0:``) write; only lines that begin with two
whole numbers and a data type are rows. The last row of a log without a footer may be cut off: the job was killed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simulator.calibration.log import Log, LogRow, program_in
from simulator.errors import ScenarioError

_LABEL = re.compile(r"^\s*(?:>\s?)*(?:\[\d+,\d+\]<std(?:out|err)>:\s?|\d+:\s+)?")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
_DEVICE = re.compile(r"Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_FOOTER = re.compile(r"Out of bounds values\s*:\s*(\d+)")
_TIMES = ("time", "cputime")
_WRONG = ("#wrong", "wrong")
#: Words that a column's value is printed with, where it is not one.
_WORDS = {"timestamp": 2}


@dataclass(slots=True)
class _Open:
    """A table that is being read: its columns, and what stood before its header. broken: line and error of a row that
    does not fit, which only a log that ends with it may have.
    """

    columns: tuple[str, ...]
    program: str | None
    devices: list[tuple[int, str, str]]
    rows: list[LogRow] = field(default_factory=list)
    out_of_bounds: int | None = None
    broken: tuple[int, ScenarioError] | None = None

    def read(self, name: str, number: int, line: str) -> None:
        """Takes in one row. Raises ScenarioError when the row before did not fit the header."""
        self.whole()
        try:
            self.rows += _row(name, number, line.split(), self.columns)
        except ScenarioError as error:
            self.broken = (number, error)

    def whole(self) -> None:
        """Raises ScenarioError when the last row did not fit the header: called where it was not the end of the log."""
        if self.broken is not None:
            raise self.broken[1]


def parse_text(name: str, text: str) -> tuple[Log, ...]:
    """Every table of a log, in order. Raises ScenarioError: a row without a header, or that does not fit it."""
    tables: list[_Open] = []
    program: str | None = None
    devices: list[tuple[int, str, str]] = []
    fresh = True
    for number, raw in enumerate(text.splitlines(), 1):
        line = _LABEL.sub("", raw, count=1)
        program = program_in(line) or program
        if device := _DEVICE.search(line):
            devices = [] if not fresh else devices
            devices.append((int(device[1]), device[2], device[3].strip()))
            fresh = True
        elif columns := _header(line):
            _check_header(name, number, columns)
            tables.append(_Open(columns, program, list(devices)))
            fresh = False
        elif footer := _FOOTER.search(line):
            if tables:
                tables[-1].whole()
                tables[-1].out_of_bounds = int(footer[1])
        elif _ROW.match(line):
            if not tables:
                raise ScenarioError(f"{name}:{number}: a row of numbers before any header line (size count type ...)")
            tables[-1].read(name, number, line)
    for table in tables:
        if not table.rows:
            table.whole()
    return tuple(_closed(name, table) for table in tables if table.rows)


def _header(line: str) -> tuple[str, ...] | None:
    words = line.strip().lstrip("#").split()
    if words[:2] != ["size", "count"] or "busbw" not in words or not any(word in words for word in _TIMES):
        return None
    return tuple(words)


def _check_header(name: str, number: int, columns: Sequence[str]) -> None:
    """Raises ScenarioError where the columns do not stand as nccl-tests prints them, in whatever version."""
    starts = [place for place, column in enumerate(columns) if column in _TIMES]
    groups = [tuple(columns[start + 1 : start + 3]) for start in starts]
    before = columns[: starts[0]]
    if before[2:3] != ("type",) or {"algbw", "busbw"} & {*before} or any(g != ("algbw", "busbw") for g in groups):
        raise ScenarioError(
            f"{name}:{number}: the header's columns are not in the order that nccl-tests prints: expected 'size count "
            f"type ... time algbw busbw ... [time algbw busbw ...]'; got '{' '.join(columns)[:100]}'; was it edited?"
        )


def _row(name: str, number: int, words: Sequence[str], columns: Sequence[str]) -> Iterator[LogRow]:
    """The out-of-place and the in-place half of a row. Raises ScenarioError when it does not fit the header."""
    wanted = sum(_WORDS.get(column, 1) for column in columns)
    if len(words) != wanted:
        raise ScenarioError(
            f"{name}:{number}: {len(words)} columns where the header has {wanted} ({' '.join(columns)}); got "
            f"{' '.join(words)[:80]!r}"
        )
    starts = [place for place, column in enumerate(columns) if column in _TIMES]
    for half, (start, end) in enumerate(zip(starts, [*starts[1:], len(columns)], strict=True)):
        held = dict(zip(columns[start:end], words[start:end], strict=False))
        wrong = next((held[key] for key in _WRONG if key in held), "N/A")
        time, algbw, busbw = (_number(name, number, key, held) for key in (columns[start], "algbw", "busbw"))
        yield LogRow(
            line=number, size_bytes=int(words[0]), dtype=words[columns.index("type")], in_place=half == 1,
            time_s=time * 1e-6, algbw_bytes_per_s=algbw * 1e9, busbw_bytes_per_s=busbw * 1e9,
            wrong=None if wrong == "N/A" else _number(name, number, "#wrong", {"#wrong": wrong}),
        )  # fmt: skip


def _number(name: str, number: int, column: str, held: dict[str, str]) -> float:
    text = held.get(column)
    try:
        value = float(text) if text is not None else None
    except ValueError:
        value = None
    if value is None or not 0 <= value < float("inf"):
        raise ScenarioError(
            f"{name}:{number}: {column}: {text!r}: expected a number; do the columns match the header?"
        )  # fmt: skip
    return value


def _closed(name: str, table: _Open) -> Log:
    ranks = {rank for rank, _, _ in table.devices}
    hosts = Counter(host for host, _ in {(host, rank) for rank, host, _ in table.devices})
    cut = f"{name}:{table.broken[0]}: the log ends in this row, which is cut off; left out" if table.broken else ""
    return Log(
        name=name, program=table.program, ranks=len(ranks) or None,
        nodes=len(hosts) or None, per_node=max(hosts.values(), default=None),
        device=table.devices[0][2] if table.devices else None,
        lone=len(table.devices) > 1 and ranks == {0}, cpu_time="cputime" in table.columns,
        out_of_bounds=table.out_of_bounds, rows=tuple(table.rows), notes=(cut,) if cut else (),
    )  # fmt: skip
