"""The timeline: what ran where, from when to when, and what the links carried. Frozen; made by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from simulator.plan import Plan, Task
from simulator.schedule import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One task on one rank class. alone_s: how long it takes when nothing disturbs it."""

    task: Task
    ranks: str
    start_s: float
    end_s: float
    alone_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """What the schedule of a Communicate task moves, per group of its axis.

    protocol: of the library; 'Simple' where messages are played. channels: thread blocks of the library's kernel, each
    on a core of its own; 0 where no model of the library says.
    latency_s: what launch, messages and waiting take, ``alone_s`` minus what its bytes need on the busiest link.
    busiest_s: of each tier of links that it uses, the seconds that its busiest link needs for its bytes at full rate.
    """

    algorithm: str
    group_size: int
    num_steps: int
    num_messages: int
    sent_bytes_per_rank: float
    alone_s: float
    latency_s: float
    fidelity: str
    handed_over: str
    protocol: str = "Simple"
    channels: int = 0
    busiest_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """All spans of a run, in start order (ties: plan order).

    link_names, link_bytes, link_bytes_per_s: (num_links,) names, bytes carried, capacity.
    events: how many events the engine handled. fidelity: 'coflow' or 'message'.
    host_ahead_s: by class, how long before the step its host thread begins; None where issuing takes no time, or the
    host is further ahead than matters.
    """

    plan: Plan
    spans: tuple[Span, ...]
    costs: dict[str, CollectiveCost]
    end_s: float
    link_names: tuple[tuple[str, str], ...]
    link_bytes: Floats
    link_bytes_per_s: Floats
    fidelity: str
    events: int
    host_ahead_s: Mapping[str, float] | None = None

    def of_class(self, ranks: str) -> tuple[Span, ...]:
        """Spans of one rank class, in start order."""
        return self._by_class.get(ranks, ())

    @cached_property
    def ended_s(self) -> Mapping[str, float]:
        """By task, when it is over everywhere."""
        found: dict[str, float] = {}
        for span in self.spans:
            found[span.task.name] = max(span.end_s, found.get(span.task.name, 0.0))
        return found

    @cached_property
    def _by_class(self) -> Mapping[str, tuple[Span, ...]]:
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.ranks, []).append(span)
        return {ranks: tuple(spans) for ranks, spans in found.items()}
