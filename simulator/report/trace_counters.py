"""Counters of a trace: what a rank sends, how full links are and what memory holds, over time; and how a trace writes
times. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from simulator.plan import MEMORY_KINDS, Communicate, RankClass
from simulator.report.memory import class_memory
from simulator.timeline import Span, Timeline

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
    for time, active in _running(timeline, ranks):
        sent = sum(timeline.costs[s.task.name].sent_bytes_per_rank / s.duration_s for s in active)
        yield _counter("sent", ranks.representative, thread, time, {"GB/s": round(sent / 1e9, 6)})


def links_used(timeline: Timeline, ranks: RankClass, thread: int) -> Iterator[Event]:
    """How full the busiest link of each tier is, in percent, by the collectives that the rank takes part in.

    The mean over each collective; of those that overlap the sum, at most 100: their busiest links need not be the same.
    """
    used = dict.fromkeys(tier for cost in timeline.costs.values() for tier in cost.busiest_s)
    if not used:
        return
    for time, active in _running(timeline, ranks):
        values: Event = {}
        for tier in used:
            share = sum(timeline.costs[s.task.name].busiest_s.get(tier, 0.0) / s.duration_s for s in active)
            values[tier] = round(100.0 * min(share, 1.0), 3)
        yield _counter("busiest links (%)", ranks.representative, thread, time, values)


def _running(timeline: Timeline, ranks: RankClass) -> Iterator[tuple[int, list[Span]]]:
    """At each nanosecond at which a collective of the rank starts or ends: those that run from then on."""
    starts: dict[int, list[Span]] = {}
    ends: dict[int, set[str]] = {}
    for span in timeline.of_class(ranks.name):
        start, end = ns(span.start_s), ns(span.end_s)
        if isinstance(span.task, Communicate) and end > start:
            starts.setdefault(start, []).append(span)
            ends.setdefault(end, set()).add(span.task.name)
    active: list[Span] = []
    for time in sorted({*starts, *ends}):
        over = ends.get(time, set())
        active = [span for span in active if span.task.name not in over] + starts.get(time, [])
        yield time, active


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
