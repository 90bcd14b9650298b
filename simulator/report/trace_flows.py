"""The arrows of a trace. Pure.

For each span, the one thing on another lane that it waited for to the last; and between ranks, for each collective,
from the rank that comes last to those that wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.kin import kin_of
from simulator.plan import HOST_COPY, Communicate, Compute, Plan
from simulator.timeline import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """``target`` could start only when ``source`` had ended. through: a copy of the source's result in between."""

    number: int
    source: Span
    through: Span | None
    target: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """``waiting`` was in a collective, on another rank, before ``last`` came, with which it could begin."""

    number: int
    last: Span
    waiting: Span


def key(span: Span) -> tuple[str, str]:
    """A task and the class that it ran on name one span of a timeline."""
    return span.task.name, span.ranks


def flows_of(spans: Sequence[Span]) -> dict[tuple[str, str], list[Flow]]:
    """Flows between ``spans`` (in timeline order), under the key of each span that they touch.

    A copy that was waited for, such as the scaling of a gradient bucket, passes the arrow on to the operation before
    it on its lane: the one whose result it copied.
    """
    places: dict[str, dict[str, Span]] = {}
    for span in spans:
        places.setdefault(span.task.name, {})[span.ranks] = span
    copied = _copied(spans)
    touching: dict[tuple[str, str], list[Flow]] = {}
    number = 0
    for span in spans:
        last = _waited_for(span, places)
        if last is None:
            continue
        number += 1
        source = copied.get(key(last), last)
        flow = Flow(number=number, source=source, through=None if source is last else last, target=span)
        for touched in (flow.source, flow.through, flow.target):
            if touched is not None:
                touching.setdefault(key(touched), []).append(flow)
    return touching


def _waited_for(span: Span, places: Mapping[str, Mapping[str, Span]]) -> Span | None:
    """Of what the span's task waits for outside its lane, what ended last; on its own class where it can choose."""
    waited: list[Span] = []
    for name in span.task.after:
        parts = places.get(name, {})
        waited += [parts[span.ranks]] if span.ranks in parts else parts.values()
    elsewhere = [other for other in waited if (other.task.lane, other.ranks) != (span.task.lane, span.ranks)]
    return max(elsewhere, key=lambda other: (other.end_s, other.ranks == span.ranks), default=None)


def _copied(spans: Sequence[Span]) -> dict[tuple[str, str], Span]:
    """For each copy, the span before it on its lane that is none."""
    latest: dict[str, Span] = {}
    found: dict[tuple[str, str], Span] = {}
    for span in spans:
        if not isinstance(span.task, Compute) or span.task.kind == HOST_COPY:
            continue
        if span.task.kind != "copy":
            latest[span.ranks] = span
        elif span.ranks in latest:
            found[key(span)] = latest[span.ranks]
    return found


def meetings_of(plan: Plan, spans: Sequence[Span]) -> list[Meeting]:
    """Meetings between ``spans`` (in timeline order), numbered behind their flows; none of ranks that come at once."""
    together: dict[str, dict[str, tuple[str, ...]]] = {}
    calls: dict[tuple[str, tuple[str, ...]], list[Span]] = {}
    for span in spans:
        if isinstance(span.task, Communicate):
            axis = span.task.axis
            if axis not in together:
                together[axis] = {ranks: kin.classes for ranks, kin in kin_of(plan, axis).items()}
            calls.setdefault((span.task.name, together[axis].get(span.ranks, ())), []).append(span)
    found = [
        (max(call, key=lambda span: span.start_s), span)
        for call in calls.values() if len(call) > 1 for span in call
    ]  # fmt: skip
    apart = [(last, span) for last, span in found if span.start_s < last.start_s < span.end_s]
    return [
        Meeting(number=len(spans) + number, last=last, waiting=span) for number, (last, span) in enumerate(apart, 1)
    ]  # fmt: skip
