"""Counters of a trace: what a rank sends and what its memory holds, over time; and how a trace writes times. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from simulator.plan import MEMORY_KINDS, Communicate, RankClass
from simulator.report.memory import class_memory
from simulator.timeline import Timeline

Event = dict[str, object]


def us(nanoseconds: int) -> float:
    """Microseconds ``x`` such that ``x * 1000`` rounds and truncates to ``nanoseconds``."""
    value = nanoseconds / 1000
    return value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf)


def ns(seconds: float) -> int:
    """Whole nanoseconds, which is what Perfetto counts."""
    return round(seconds * 1e9)


def _counter(name: str, pid: int, thread: int, nanoseconds: int, values: Event) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": thread, "ts": us(nanoseconds), "args": values}


def sending(timeline: Timeline, ranks: RankClass, thread: int) -> Iterator[Event]:
    """What the rank sends, in GB/s: bytes of each collective over its time, added up where they overlap."""
    changes: dict[int, dict[str, float]] = {}
    for span in timeline.of_class(ranks.name):
        start, end = ns(span.start_s), ns(span.end_s)
        if isinstance(span.task, Communicate) and end > start:
            rate = timeline.costs[span.task.name].sent_bytes_per_rank / span.duration_s
            changes.setdefault(start, {})[span.task.name] = rate
            changes.setdefault(end, {})[span.task.name] = 0.0
    active: dict[str, float] = {}
    for time in sorted(changes):
        active = {name: rate for name, rate in (active | changes[time]).items() if rate}
        values: Event = {"GB/s": round(sum(active.values()) / 1e9, 6)}
        yield _counter("sent", ranks.representative, thread, time, values)


def memory_counter(timeline: Timeline, ranks: RankClass, thread: int) -> Iterator[Event]:
    """Memory in GiB, a series for each kind that the rank ever holds; the peak is one of the points.

    Of changes within one nanosecond the largest sum is shown, then what is left after the last.
    """
    memory = class_memory(timeline, ranks)
    held = [number for number, _ in enumerate(MEMORY_KINDS) if memory.curve_bytes[:, number].any()]
    if not held:
        return
    totals = memory.curve_bytes.sum(axis=1)
    times = np.array([ns(time_s) for time_s in memory.times_s])
    starts = np.flatnonzero(np.diff(times, prepend=-1))
    for first, last in zip(starts, [*(starts[1:] - 1), len(times) - 1], strict=True):
        top = first + int(totals[first : last + 1].argmax())
        for point in (top, last) if totals[top] > totals[last] else (last,):
            values: Event = {MEMORY_KINDS[k]: round(float(memory.curve_bytes[point, k]) / 2**30, 6) for k in held}
            yield _counter("memory (GiB)", ranks.representative, thread, int(times[first]), values)
