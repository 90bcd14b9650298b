"""Why a collective is exposed: what the compute that comes next waits for. Pure functions of a timeline.

A stretch in which a collective runs and no compute does ends when compute goes on, or with the step. What it waits
for is found by going back along ``after`` from the task that goes on: the collective itself, or something else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.job import Job
from simulator.kin import kin_of
from simulator.plan import COMPUTE_LANE, Communicate, RankClass, Task
from simulator.report.intervals import Interval, minus, total
from simulator.report.lanes import covered
from simulator.timeline import Span, Timeline

SLOWER = "waits for slower ranks"
FIRST = "first in the step, with no compute yet to hide behind"
LAST = "last in the step, with no compute left to hide behind"
AFTER_BACKWARD = "after the last backward, with nothing left to hide behind"
QUEUED = "compute needs it, but it started late, behind another collective"
LONGER = "compute needs it, and what runs beside it is shorter"
OTHER = "compute waits for something else meanwhile"
CAUSES = (SLOWER, FIRST, LAST, AFTER_BACKWARD, QUEUED, LONGER, OTHER)
_PASSES = ("forward", "backward")
#: Where less than this share of communication is hidden, nothing overlaps by design.
_SOME = 0.05
#: Times closer than this share of the step are the same.
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """seconds by cause, the largest first; empty for what is hidden."""

    seconds: tuple[tuple[str, float], ...]

    @property
    def cause(self) -> str:
        """The main cause, '' for none."""
        return self.seconds[0][0] if self.seconds else ""


def exposures(timeline: Timeline, ranks: RankClass, job: Job) -> tuple[Exposure, ...]:
    """One for each collective of a class of ranks, in start order, as ``StepReport.collectives`` is."""
    spans = timeline.of_class(ranks.name)
    compute = [s for s in spans if s.task.lane == COMPUTE_LANE and s.end_s > s.start_s]
    busy, talking = covered(compute), covered([s for s in spans if isinstance(s.task, Communicate)])
    overlaps = total(talking) - total(minus(talking, busy)) > _SOME * total(talking)
    view = _View(
        step_s=timeline.end_s, compute=compute, busy=busy, spans={s.task.name: s for s in spans},
        passes_end_s=max((s.end_s for s in compute if s.task.kind in _PASSES), default=0.0),
        starts=[s.start_s for s in compute], reached=_reached(timeline, ranks),
        blocking="" if overlaps else _blocking(job),
    )  # fmt: skip
    before: dict[str, _Before] = {}  # what each communicator ran last
    found = []
    for span in spans:
        if isinstance(span.task, Communicate):
            last = before.get(span.task.lane, _Before(end_s=-1.0, slowed=False))
            found.append(_exposure(span, view, last))
            queued = abs(last.end_s - span.start_s) <= _SAME * timeline.end_s
            waits = view.reached.get(span.task.name, 0.0) > span.start_s + _SAME * timeline.end_s
            before[span.task.lane] = _Before(end_s=span.end_s, slowed=waits or (queued and last.slowed))
    return tuple(found)


class _Before(NamedTuple):
    """The collective before on a communicator. slowed: it, or one that held it up, waited for slower ranks."""

    end_s: float
    slowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What one class of ranks does; ``reached``: when the last rank calls each collective."""

    step_s: float
    compute: Sequence[Span]
    busy: Sequence[Interval]
    spans: Mapping[str, Span]
    starts: Sequence[float]
    passes_end_s: float
    reached: Mapping[str, float]
    blocking: str


def _blocking(job: Job) -> str:
    """Why nothing overlaps at all; '' where it may."""
    if job.scenario.parallel.strategy == "ddp" and job.scenario.parallel.overlap == "none":
        return "nothing overlaps, as parallel.overlap is 'none'"
    return "" if job.inputs.streams else "nothing overlaps, as a call returns only when the collective is done"


def _reached(timeline: Timeline, ranks: RankClass) -> dict[str, float]:
    if len(timeline.plan.classes) == 1:
        return {}
    found_kin = {axis: kin_of(timeline.plan, axis).get(ranks.name) for axis in timeline.plan.axes}
    kin = {axis: set(kin.classes) if kin else set() for axis, kin in found_kin.items()}
    found: dict[str, float] = {}
    for span in timeline.spans:
        if isinstance(span.task, Communicate) and span.ranks in kin[span.task.axis]:
            found[span.task.name] = max(span.start_s, found.get(span.task.name, 0.0))
    return found


def _exposure(span: Span, view: _View, before: _Before) -> Exposure:
    seconds: dict[str, float] = {}
    for stretch, cause in _stretches(span, view, before):
        seconds[cause] = seconds.get(cause, 0.0) + stretch
    order = sorted(seconds.items(), key=lambda item: -item[1])
    return Exposure(seconds=tuple(item for item in order if item[1] > _SAME * view.step_s))


def _stretches(span: Span, view: _View, before: _Before) -> Iterator[tuple[float, str]]:
    reached = min(span.end_s, max(span.start_s, view.reached.get(span.task.name, span.start_s)))
    for start, end in minus([(span.start_s, span.end_s)], _near(view.busy, span)):
        waited = max(0.0, min(end, reached) - start)
        if waited:
            yield waited, SLOWER
        if end > max(start, reached):
            yield end - max(start, reached), _cause(span, (start, end), view, before)


def _near(busy: Sequence[Interval], span: Span) -> Sequence[Interval]:
    """The intervals that a span may touch; all are ascending and disjoint."""
    first = bisect_right(busy, (span.start_s, span.start_s)) - 1
    return busy[max(0, first) : bisect_left(busy, (span.end_s, span.end_s)) + 1]


def _cause(span: Span, stretch: Interval, view: _View, before: _Before) -> str:
    if view.blocking:
        return view.blocking
    same = _SAME * view.step_s
    at = bisect_left(view.starts, stretch[1] - same)
    if at == len(view.compute):
        return LAST
    if at == 0:
        return FIRST
    if stretch[0] >= view.passes_end_s - same:
        return AFTER_BACKWARD
    after = view.compute[at]
    if not _waits_for(after.task, span, stretch[0] - same, view):
        return OTHER
    if abs(before.end_s - span.start_s) > same:
        return LONGER
    return SLOWER if before.slowed else QUEUED


def _waits_for(task: Task, span: Span, since_s: float, view: _View) -> bool:
    """Whether ``task`` comes after the collective, through tasks that end after ``since_s``."""
    todo, seen = [*task.after, *task.host_after], set()
    while todo:
        name = todo.pop()
        if name == span.task.name:
            return True
        before = view.spans.get(name)
        if name in seen or before is None or before.end_s <= since_s:
            continue
        seen.add(name)
        todo += [*before.task.after, *before.task.host_after]
    return False
