"""``write_trace``: a timeline as JSON that Perfetto, chrome://tracing and Holistic Trace Analysis open.

A file holds one rank of each class of equal ranks. HTA reads one rank per file, so a directory gets one file per
rank. Same timeline, same bytes: also when compressed.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from simulator.device import DeviceSpec
from simulator.errors import ScenarioError
from simulator.plan import RankClass
from simulator.report.trace_events import trace_events
from simulator.timeline import Timeline

#: A trace shows at most so many ranks, and its reader is warned of more events than this. ui.perfetto.dev gets slow
#: at some hundred MB of JSON (github.com/google/perfetto/issues/99), about 200 B to an event.
MAX_RANKS, MANY_EVENTS = 16, 500_000
ACCEPTED = "FILE.json, FILE.json.gz, or a directory (ending in '/') for one file per rank"

#: Compact, but with the space behind colons by which HTA finds the rank of a file.
_json = json.JSONEncoder(separators=(",", ": "), allow_nan=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """What was written. num_events: lines of all files. warnings: sentences for the user, none when all is shown."""

    files: tuple[Path, ...]
    ranks: tuple[int, ...]
    num_events: int
    size_bytes: int
    warnings: tuple[str, ...]


def check_target(target: str | os.PathLike[str]) -> None:
    """Raise ScenarioError for a target that ``write_trace`` would refuse by its name alone."""
    name = os.fspath(target)
    if not (_is_directory(name) or name.endswith((".json", ".json.gz"))):
        raise ScenarioError(f"--trace: {name!r}: expected {ACCEPTED}")


def write_trace(
    timeline: Timeline, target: str | os.PathLike[str], *, device: DeviceSpec | None = None
) -> TraceSummary:  # fmt: skip
    """Write ``timeline`` to ``target``: NAME.json, NAME.json.gz, or a directory that exists or ends in '/'.

    device: named in the file, when known. Raises ScenarioError for another name and for what cannot be written.
    """
    check_target(target)
    shown = timeline.plan.classes[:MAX_RANKS]
    parts, warnings = {Path(target): shown}, _too_many_ranks(timeline, shown)
    try:
        if _is_directory(os.fspath(target)):
            directory = Path(target)
            directory.mkdir(parents=True, exist_ok=True)
            parts = {directory / f"rank_{ranks.representative}.json.gz": (ranks,) for ranks in shown}
            warnings += _left_over(directory, parts)
        num_events = sum(_write(file, timeline, classes, device) for file, classes in parts.items())
        size_bytes = sum(file.stat().st_size for file in parts)
    except OSError as error:
        raise ScenarioError(f"--trace: {os.fspath(target)!r}: {error.strerror or error}") from None
    if num_events > MANY_EVENTS:
        warnings += (f"the trace has {num_events:,} events, which a browser may not open",)
    return TraceSummary(
        files=tuple(parts), ranks=tuple(ranks.representative for ranks in shown), num_events=num_events,
        size_bytes=size_bytes, warnings=warnings,
    )  # fmt: skip


def _is_directory(name: str) -> bool:
    return name.endswith(("/", os.sep)) or (bool(name) and Path(name).is_dir())


def _too_many_ranks(timeline: Timeline, shown: Sequence[RankClass]) -> tuple[str, ...]:
    classes = len(timeline.plan.classes)
    if classes == len(shown):
        return ()
    return (f"the trace shows the first {len(shown)} of {classes} different ranks",)


def _left_over(directory: Path, parts: dict[Path, tuple[RankClass, ...]]) -> tuple[str, ...]:
    """HTA reads all files of a directory, so ranks of an earlier run would pass for ranks of this one."""
    others = sorted(file.name for file in directory.iterdir() if file.suffix in {".json", ".gz"} and file not in parts)
    if not others:
        return ()
    return (f"{directory} also holds {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}: HTA reads them too",)


def _write(path: Path, timeline: Timeline, shown: Sequence[RankClass], device: DeviceSpec | None) -> int:
    """Write one file, an event a line; returns how many."""
    count = 0
    with _open(path) as file:
        file.write(_header(timeline, shown, device))
        for event in trace_events(timeline, shown):
            file.write((",\n" if count else "\n") + _json(event))
            count += 1
        file.write("\n]}\n")
    return count


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    """Text file, compressed if the name says so: without name and time in it, so that equal traces are equal files."""
    if path.suffix != ".gz":
        with path.open("w", encoding="ascii", newline="\n") as file:
            yield file
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="ascii", newline="\n") as file,
    ):
        yield file


def _header(timeline: Timeline, shown: Sequence[RankClass], device: DeviceSpec | None) -> str:
    """All that comes before the events. HTA takes the first "rank" that it finds, so these lines come first."""
    rank = shown[0].representative
    properties = [_device_properties(ranks.representative, device) for ranks in shown]
    lines = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": timeline.plan.num_ranks},
        "deviceProperties": properties,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceName": timeline.plan.title,
        "simulated": {"fidelity": timeline.fidelity, "ranks": [ranks.representative for ranks in shown]},
    }
    return "{" + ",\n".join(f"{_json(name)}: {_json(value)}" for name, value in lines.items()) + ',\n"traceEvents": ['


def _device_properties(rank: int, device: DeviceSpec | None) -> dict[str, object]:
    if device is None:
        return {"id": rank, "name": "unknown"}
    return {"id": rank, "name": device.title, "totalGlobalMem": round(device.memory), "numSms": device.sm_count}
