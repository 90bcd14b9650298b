"""What the lanes of a rank wait for: the host thread, copies on lanes of their own, slower ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.kin import kin_of
from simulator.plan import COMPUTE_LANE, Communicate, Compute, RankClass, Task
from simulator.report.intervals import Interval, minus, total, union
from simulator.timeline import Span, Timeline

#: Times closer than this share of the step are the same.
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """One task on the host thread: it waits from ``ready_s`` until ``start_s``, and issues kernels until ``end_s``.

    first_s: when the first kernel is queued.
    """

    task: Task
    ready_s: float
    start_s: float
    first_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Time of one rank in which it neither computes nor communicates, and what it waits for.

    host_s: for kernels that the host thread has not issued yet. copies_s: for copies on a lane of their own.
    other_s: for anything else.
    """

    host_s: float = 0.0
    copies_s: float = 0.0
    other_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Ranks of a class, when they are done, how long they wait in collectives for slower ranks, and compute, in all."""

    ranks: RankClass
    end_s: float
    waits_s: float
    computes_s: float = 0.0


def host_lane(timeline: Timeline, ranks: RankClass) -> tuple[Issue, ...]:
    """What the host thread of a class does: as the engine plays it, told from when tasks ended. Empty if it is free."""
    if timeline.host_ahead_s is None:
        return ()
    own = {span.task.name: span.end_s for span in timeline.of_class(ranks.name)}
    anywhere = timeline.ended_s
    now, found = -timeline.host_ahead_s[ranks.name], []
    for task in timeline.plan.tasks:
        if ranks.name not in task.classes:
            continue
        start = max([now, *(own.get(name, anywhere[name]) for name in task.host_after)])
        seconds = task.host_s / ranks.speed
        found.append(
            Issue(
                task=task, ready_s=now, start_s=start, first_s=start + seconds / max(1, task.launches),
                end_s=start + seconds,
            )
        )  # fmt: skip
        now = start + seconds
    return tuple(found)


def launch_gaps(spans: Sequence[Span], issues: Sequence[Issue]) -> dict[str, float]:
    """Compute that ends only when its last kernel is issued: by how much longer it takes than alone, task by task."""
    last = {issue.task.name: issue.end_s for issue in issues if isinstance(issue.task, Compute)}
    found: dict[str, float] = {}
    for span in spans:
        issued_s = last.get(span.task.name)
        more_s = span.duration_s - span.alone_s
        if issued_s is not None and more_s > 0 and abs(span.end_s - issued_s) <= _SAME * max(span.end_s, 1e-300):
            found[span.task.name] = more_s
    return found


def idle_of(spans: Sequence[Span], issues: Sequence[Issue], end_s: float, bubbles: Sequence[Interval] = ()) -> Idle:
    """What the gaps between compute and collectives wait for; with the gaps between kernels (``launch_gaps``).

    bubbles: gaps that are counted apart.
    """
    compute = [s for s in spans if s.task.lane == COMPUTE_LANE]
    talking = [s for s in spans if isinstance(s.task, Communicate)]
    gaps = minus(minus([(0.0, end_s)], covered([*compute, *talking])), bubbles)
    only_these = len(compute) + len(talking) == len(spans)  # and no copies on lanes of their own
    without_copies = gaps if only_these else minus(gaps, covered(spans))
    issuing = union((issue.start_s, issue.end_s) for issue in issues)
    left_s = total(minus(without_copies, issuing))
    between_s = sum(launch_gaps(compute, issues).values())
    return Idle(
        host_s=total(without_copies) - left_s + between_s, copies_s=total(gaps) - total(without_copies), other_s=left_s
    )  # fmt: skip


def covered(spans: Sequence[Span]) -> list[Interval]:
    """When any of the spans runs."""
    return union([(span.start_s, span.end_s) for span in spans])


def waiting_of(timeline: Timeline) -> tuple[Waiting, ...]:
    """Class by class, how long its ranks wait for others once they have reached a collective."""
    plan = timeline.plan
    kin = {axis: kin_of(plan, axis) for axis in plan.axes}
    reached: dict[tuple[str, int], float] = {}
    calls = [
        (span, (task.name, id(kin[task.axis][span.ranks])))
        for span in timeline.spans
        if isinstance(task := span.task, Communicate)
    ]
    for span, call in calls:
        reached[call] = max(span.start_s, reached.get(call, 0.0))
    waits = dict.fromkeys((c.name for c in plan.classes), 0.0)
    for span, call in calls:
        waits[span.ranks] += reached[call] - span.start_s
    ends = dict.fromkeys(waits, 0.0)
    computes = dict.fromkeys(waits, 0.0)
    for span in timeline.spans:
        ends[span.ranks] = max(span.end_s, ends[span.ranks])
        if span.task.lane == COMPUTE_LANE:
            computes[span.ranks] += span.duration_s
    return tuple(
        Waiting(ranks=c, end_s=ends[c.name], waits_s=waits[c.name], computes_s=computes[c.name]) for c in plan.classes
    )


def slowest(waiting: Sequence[Waiting]) -> Waiting:
    """The class that sets the step: the one that waits least, of equal ones that ends last; ties go to the first.

    Not simply the one that ends last: after the last collective a rank with a slow optimizer ends after one whose
    large batch all others have waited for. Of ranks of several roles, such as the stages of a pipeline, the one that
    computes longest: all others wait for it in every micro-batch.
    """
    if len({one.ranks.role for one in waiting}) > 1:
        most_s = max(one.computes_s for one in waiting)
        return next(one for one in waiting if one.computes_s >= most_s * (1 - _SAME))
    last_s, least_s = max(one.end_s for one in waiting), min(one.waits_s for one in waiting)
    return max((one for one in waiting if one.waits_s <= least_s + _SAME * last_s), key=lambda one: one.end_s)
