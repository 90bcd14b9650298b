"""Where the step of one rank goes: compute, exposed communication, bubble, optimizer, anything else. Pure functions.

The bubble of a pipeline is time in which a rank neither computes nor communicates because it waits for ranks of another
role: a gap is counted when what ends it is a collective with them, or waits for a task of theirs, and so is what is
left of the step once a rank has done all of its own. In a collective with ranks of another role nothing is sent until
they have come, so that waiting is part of the gap, and not communication.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.kin import kin_of
from simulator.plan import COMPUTE_LANE, Communicate, Plan, RankClass
from simulator.report.intervals import Interval, minus, total
from simulator.report.lanes import Idle, Issue, covered, host_lane, idle_of, launch_gaps
from simulator.timeline import Span, Timeline

#: Times closer than this share of the step are the same.
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the step of one rank goes; the parts add up to the step.

    compute: forward, backward and copies beside them, as stretched by interference. exposed_comm: a collective runs
    and no compute does. bubble: neither, while it waits for other pipeline stages. other: neither, for another reason
    (``Idle`` says which).
    """

    compute: float
    exposed_comm: float
    bubble: float
    optimizer: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """compute, comm: the spans of a rank on its compute lane, and its collectives, without waiting for other roles.

    busy, talking: when any of them runs. unissued_s: by task, the part of compute in which kernels were missing.
    """

    ranks: RankClass
    compute: tuple[Span, ...]
    comm: tuple[Span, ...]
    busy: Sequence[Interval]
    talking: Sequence[Interval]
    unissued_s: Mapping[str, float]
    breakdown: Breakdown
    idle: Idle

    @property
    def computing_s(self) -> Mapping[str, float]:
        """By task of the compute lane, how long it works."""
        return {s.task.name: s.duration_s - self.unissued_s.get(s.task.name, 0.0) for s in self.compute}


def rank_times(timeline: Timeline, wanted: Sequence[RankClass]) -> tuple[RankTime, ...]:
    """The time of one rank of each class."""
    plan = timeline.plan
    meetings = _meetings(timeline) if len(plan.roles) > 1 else None
    return tuple(_rank_time(timeline, ranks, timeline.of_class(ranks.name), meetings) for ranks in wanted)


class _Meetings:
    """Which collectives ranks share with other roles, and since when these are there."""

    def __init__(self, plan: Plan, reached: Mapping[tuple[str, str], float]) -> None:
        self._role = {c.name: c.role for c in plan.classes}
        self._kin = {axis: kin_of(plan, axis) for axis in plan.axes}
        self._reached = reached
        self._known: dict[tuple[str, str], list[str]] = {}
        self._tasks = {task.name: task for task in plan.tasks}

    def cut(self, span: Span) -> Span:
        """A collective from when all ranks of other roles are there."""
        others = self._others(span)
        if not others:
            return span
        there_s = max(self._reached.get((span.task.name, name), 0.0) for name in others)
        return replace(span, start_s=min(span.end_s, there_s)) if there_s > span.start_s else span

    def waits(self, span: Span) -> bool:
        """Whether its start depends on ranks of another role."""
        before = (self._tasks[name].classes for name in span.task.after)
        return bool(self._others(span)) or any(span.ranks not in classes for classes in before)

    def _others(self, span: Span) -> list[str]:
        if not isinstance(span.task, Communicate):
            return []
        place = (span.task.axis, span.ranks)
        if place not in self._known:
            kin = self._kin[span.task.axis][span.ranks]
            self._known[place] = [name for name in kin.classes if self._role[name] != self._role[span.ranks]]
        return self._known[place]


def _meetings(timeline: Timeline) -> _Meetings:
    reached = {(s.task.name, s.ranks): s.start_s for s in timeline.spans if isinstance(s.task, Communicate)}
    return _Meetings(timeline.plan, reached)


def _rank_time(timeline: Timeline, ranks: RankClass, spans: Sequence[Span], meetings: _Meetings | None) -> RankTime:
    if meetings:
        spans = [meetings.cut(span) for span in spans]
    issues = host_lane(timeline, ranks)
    compute = tuple(s for s in spans if s.task.lane == COMPUTE_LANE)
    comm = tuple(s for s in spans if isinstance(s.task, Communicate))
    busy, talking, unissued = covered(compute), covered(comm), launch_gaps(compute, issues)
    waiting = _bubbles(timeline.end_s, spans, issues, meetings) if meetings else []
    seconds = {s.task.name: s.duration_s - unissued.get(s.task.name, 0.0) for s in compute}
    optimizer = sum(seconds[s.task.name] for s in compute if s.task.kind == "optimizer")
    working, exposed, bubble = sum(seconds.values()) - optimizer, total(minus(talking, busy)), total(waiting)
    return RankTime(
        ranks=ranks, compute=compute, comm=comm, busy=busy, talking=talking, unissued_s=unissued,
        idle=idle_of(spans, issues, timeline.end_s, waiting),
        breakdown=Breakdown(
            compute=working, exposed_comm=exposed, bubble=bubble, optimizer=optimizer,
            other=max(0.0, timeline.end_s - working - optimizer - exposed - bubble),
        ),
    )  # fmt: skip


def _bubbles(end_s: float, spans: Sequence[Span], issues: Sequence[Issue], meetings: _Meetings) -> list[Interval]:
    """Gaps of a rank that end with what waits for other roles; not those that end with a launch."""
    spans = sorted(spans, key=lambda span: span.start_s)
    starts = [span.start_s for span in spans]
    issued_s = {issue.task.name: issue.first_s for issue in issues}
    same = _SAME * end_s
    found = []
    for gap in minus([(0.0, end_s)], covered(spans)):
        if gap[1] > end_s - same:
            found.append(gap)
            continue
        first = bisect_left(starts, gap[1] - same)
        next_ones = spans[first : bisect_left(starts, gap[1] + same, lo=first)]
        late = any(abs(issued_s.get(span.task.name, -end_s) - gap[1]) <= same for span in next_ones)
        if not late and any(meetings.waits(span) for span in next_ones):
            found.append(gap)
    return found
