"""What a log of nccl-tests or rccl-tests holds, whichever way it was printed. Values only."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Operation by the name of the test program, ours by nccl-tests'.
OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send_recv",
}
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf(?:_mpi)?\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One timing: the out-of-place or the in-place half of a printed row. ``line`` is where it stands, from 1.

    size_bytes is nccl-tests' size; wrong is the count of wrong elements, None where it was not checked.
    """

    line: int
    size_bytes: int
    dtype: str
    in_place: bool
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One table of a log. ``ranks`` and ``nodes`` are those of its list of devices, None where it has none; per_node is
    how many ranks the fullest node has.

    lone: every process called itself rank 0. out_of_bounds: the footer's count of wrong values, None without one.
    cpu_time: the times are those of the launching thread (-C), not of the collective. notes: what was left out.
    """

    name: str
    program: str | None
    ranks: int | None
    nodes: int | None
    per_node: int | None
    device: str | None
    lone: bool
    cpu_time: bool
    out_of_bounds: int | None
    rows: tuple[LogRow, ...]
    notes: tuple[str, ...] = ()


def program_in(text: str) -> str | None:
    """The last test program named in ``text``, without ``_perf``: ``"all_reduce"``; None where there is none."""
    found = _PROGRAM.findall(text)
    return found[-1] if found else None
