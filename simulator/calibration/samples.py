"""Logs -> samples fit for use: which operation, how many ranks, and no log that cannot mean what it prints.

A log is refused, with the reason, when its bus bandwidth is 0 wherever joined ranks would print more (each process ran
alone), when busbw/algbw is not nccl-tests' factor of the operation and the ranks, when algbw is not size/time, when any
row or the footer counts wrong values, and when its times do not grow with the size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.log import OPERATIONS, Log, LogRow
from simulator.collectives.busbw import bus_factor
from simulator.errors import ScenarioError

Floats = NDArray[np.float64]
#: Relative difference between two printed columns that no rounding explains, beyond half of their last digits.
_TOLERANCE = 0.02
_HALF_DIGIT = 0.005e9
#: From this algbw on, two ranks or more print a busbw above 0.00: nccl-tests' factors are 1/2 and more.
_TELLING = 4 * _HALF_DIGIT
#: Between sizes that differ by this much, and up to 16 MiB and more, a collective must take longer.
_WIDE, _LARGE, _GROWTH = 1024, 16 * 2**20, 1.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Timings of one operation on one number of ranks, by size and as printed. ``names``: the files they came from.

    nodes, per_node: hosts and ranks of the fullest one, None where the logs list no devices.
    """

    op: str
    ranks: int
    nodes: int | None
    per_node: int | None
    device: str | None
    names: tuple[str, ...]
    sizes_bytes: Floats
    times_s: Floats


def samples_of(logs: Sequence[Log], op: str | None = None, ranks: int | None = None) -> tuple[Samples, ...]:
    """The samples of all logs, those of the same operation on ranks placed alike together. Out-of-place times, in-place
    ones only where there are no others; a size of 0 says nothing and is dropped.

    ``op`` and ``ranks`` are for logs that do not say. Raises ScenarioError for a log that is broken, or says nothing.
    """
    groups: dict[tuple[str, int, int | None, int | None], list[Log]] = {}
    for log in logs:
        rows = _used(log)
        operation = _operation(log, op)
        _sound(log, rows)
        count = _ranks(log, operation, rows, ranks)
        _ratio_fits(log, operation, count, rows)
        groups.setdefault((operation, count, log.nodes, log.per_node), []).append(log)
    return tuple(_together(key, held) for key, held in groups.items())


def _together(key: tuple[str, int, int | None, int | None], logs: Sequence[Log]) -> Samples:
    rows = sorted((row for log in logs for row in _used(log)), key=lambda row: row.size_bytes)
    return Samples(
        op=key[0], ranks=key[1], nodes=key[2], per_node=key[3],
        device=next((log.device for log in logs if log.device), None),
        names=tuple(dict.fromkeys(log.name for log in logs)),
        sizes_bytes=np.array([row.size_bytes for row in rows], dtype=np.float64),
        times_s=np.array([row.time_s for row in rows], dtype=np.float64),
    )  # fmt: skip


def _used(log: Log) -> tuple[LogRow, ...]:
    outside = tuple(row for row in log.rows if not row.in_place and row.size_bytes > 0)
    return outside or tuple(row for row in log.rows if row.size_bytes > 0)


def _operation(log: Log, given: str | None) -> str:
    printed = None
    if log.program is not None:
        if log.program not in OPERATIONS:
            accepted = ", ".join(OPERATIONS)
            raise ScenarioError(f"{log.name}: a log of {log.program}_perf cannot be fitted; accepted: {accepted}")
        printed = OPERATIONS[log.program]
    if printed is None and given is None:
        raise ScenarioError(f"{log.name}: the log does not name its test; say which with --op (such as all_reduce)")
    if printed is not None and given is not None and printed != given:
        raise ScenarioError(f"{log.name}: --op {given}: the log says that it is of {printed}")
    return printed or given or ""


def _sound(log: Log, rows: Sequence[LogRow]) -> None:
    """What is wrong with a log whatever its operation. Raises ScenarioError."""
    if not rows:
        raise ScenarioError(f"{log.name}: no row with a size above 0")
    if log.cpu_time:
        raise ScenarioError(f"{log.name}: holds CPU times (-C), not the times of the collective; run it without -C")
    wrong = next((row for row in log.rows if row.wrong), None)  # in place too, whatever the footer says
    if wrong is not None:
        half = "in-place" if wrong.in_place else "out-of-place"
        raise ScenarioError(
            f"{log.name}:{wrong.line}: {wrong.wrong:g} wrong values at {wrong.size_bytes} B ({half}): the data arrived "
            "broken"
        )
    if log.out_of_bounds:
        raise ScenarioError(f"{log.name}: 'Out of bounds values : {log.out_of_bounds}': the data arrived broken")
    zero = next((row for row in rows if row.time_s <= 0), None)
    if zero is not None:
        raise ScenarioError(f"{log.name}:{zero.line}: a time of 0 at {zero.size_bytes} B")
    telling = [row for row in rows if row.algbw_bytes_per_s >= _TELLING]
    if log.lone or (telling and max(row.busbw_bytes_per_s for row in telling) == 0):
        raise ScenarioError(
            f"{log.name}: {'every process is rank 0' if log.lone else 'busbw is 0 at every size'}: each process ran "
            "alone, the ranks never joined; build nccl-tests with MPI=1 and start it with mpirun, or use -g for the "
            "GPUs of one process"
        )
    for row in rows:
        _times_fit(log, row)
    _grows(log, rows)


def _times_fit(log: Log, row: LogRow) -> None:
    """nccl-tests prints algbw = size / time."""
    wanted = row.size_bytes / row.time_s
    if abs(row.algbw_bytes_per_s - wanted) > _TOLERANCE * wanted + 2 * _HALF_DIGIT:
        raise ScenarioError(
            f"{log.name}:{row.line}: algbw {row.algbw_bytes_per_s / 1e9:.2f} GB/s where {row.size_bytes} B in "
            f"{row.time_s * 1e6:.2f} us are {wanted / 1e9:.2f}: wrong columns?"
        )


def _grows(log: Log, rows: Iterable[LogRow]) -> None:
    ordered = sorted(rows, key=lambda row: row.size_bytes)
    first, last = ordered[0], ordered[-1]
    wide = last.size_bytes >= max(_LARGE, _WIDE * first.size_bytes)
    if wide and last.time_s < _GROWTH * first.time_s:
        raise ScenarioError(
            f"{log.name}:{last.line}: {last.size_bytes} B take {last.time_s * 1e6:.1f} us, hardly longer than the "
            f"{first.time_s * 1e6:.1f} us of {first.size_bytes} B: nothing was sent between ranks"
        )


def _clear(rows: Iterable[LogRow]) -> list[tuple[float, float, LogRow]]:
    """(busbw/algbw, how far rounding can move it, row) of rows whose bandwidths have digits enough, best first."""
    found = []
    for row in rows:
        algbw, busbw = row.algbw_bytes_per_s, row.busbw_bytes_per_s
        if algbw >= 20 * _HALF_DIGIT and busbw > 0:
            found.append((busbw / algbw, (busbw / algbw) * (_HALF_DIGIT / algbw + _HALF_DIGIT / busbw), row))
    return sorted(found, key=lambda item: item[1] / item[0])


def _ranks(log: Log, op: str, rows: Sequence[LogRow], given: int | None) -> int:
    """From the list of devices, or what the factor busbw/algbw of the most precise row says, or ``given``."""
    if log.ranks is not None and given is not None and log.ranks != given:
        raise ScenarioError(f"{log.name}: --ranks {given}: the log lists {log.ranks} devices")
    known = log.ranks if log.ranks is not None else given
    if known is not None:
        if known < 2:
            raise ScenarioError(f"{log.name}: one rank sends nothing; a fit needs two or more")
        return known
    clear = _clear(rows)
    if not clear or bus_factor(op, 2) == bus_factor(op, 3):
        raise ScenarioError(f"{log.name}: the log lists no devices and its numbers do not tell; give --ranks")
    ratio = clear[0][0] / (2.0 if op == "all_reduce" else 1.0)
    if not 0 < ratio < 1:
        raise ScenarioError(f"{log.name}: busbw/algbw is {ratio:.3f}, which no number of ranks gives for {op}")
    return round(1 / (1 - ratio))


def _ratio_fits(log: Log, op: str, ranks: int, rows: Sequence[LogRow]) -> None:
    wanted = bus_factor(op, ranks)
    for ratio, slack, row in _clear(rows):
        if abs(ratio - wanted) > slack + _TOLERANCE * wanted / 4:
            raise ScenarioError(
                f"{log.name}:{row.line}: busbw/algbw is {ratio:.3f} where {op} over {ranks} ranks gives {wanted:.3f}: "
                "another operation, another number of ranks, or wrong columns"
            )
