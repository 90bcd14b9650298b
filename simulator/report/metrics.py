"""Numbers of a training step, derived from its timeline. Pure functions: they run nothing and know no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.collectives.busbw import bus_factor
from simulator.job import Job
from simulator.plan import Communicate
from simulator.report.intervals import Interval, minus, total
from simulator.report.lanes import Idle, Waiting, slowest, waiting_of
from simulator.report.memory import Memory, class_memory
from simulator.report.rank_time import Breakdown, rank_times
from simulator.report.stages import StageUse, layers_of_roles, stage_uses
from simulator.strategies.sharding import computing_precision
from simulator.timeline import Span, Timeline
from simulator.training.flop import convention_for, model_flop_per_token, model_flop_utilisation

#: Differences of times below this share of the step are rounding.
_ROUNDING = 1e-9
#: Communication shorter than this share of itself in the open counts as hidden.
_HIDDEN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveUse:
    """One collective of the step, or ``count`` equal ones together. Times are sums over ``count``; latency_s and
    wire_bytes_per_rank are those of one.
    """

    op: str
    axis: str
    purpose: str
    group_size: int
    message_bytes: float
    count: int
    algorithm: str
    protocol: str
    fidelity: str
    time_s: float
    exposed_s: float
    latency_s: float
    wire_bytes_per_rank: float
    bus_bytes_per_s: float

    @property
    def reduces_gradients(self) -> bool:
        """Whether it is a gradient bucket (or tensor, or unit), not weights, buffers of the model or a norm."""
        return self.purpose.split()[0] in ("gradient", "gradients")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Bytes over one link in the step, and the share of the step that carrying them takes at full rate."""

    link: str
    num_bytes: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A training step in numbers. Rates are per step of all ranks unless the name says per gpu.

    copies_s: the part of ``breakdown.compute`` in which gradients or weights are scaled or copied. idle: what
    ``breakdown.other`` is. waiting: how long ranks of each class wait for slower ones; all other times are those of
    the class that sets the step. memory: of the class whose peak is the highest. stages: of a pipeline, else empty.
    """

    title: str
    step_time_s: float
    startup_time_s: float
    breakdown: Breakdown
    copies_s: float
    interference_s: float
    comm_total_s: float
    comm_hidden_s: float
    tokens_per_step: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    flop_per_token: float
    tflops_per_gpu: float
    mfu: float | None
    mfu_definition: str
    collectives: tuple[CollectiveUse, ...]
    links: tuple[LinkUse, ...]
    num_links: int
    ranks_simulated: int
    ranks_total: int
    events: int
    fidelity: str
    handed_over: str
    memory: Memory
    idle: Idle
    waiting: tuple[Waiting, ...]
    stages: tuple[StageUse, ...] = ()

    @property
    def exposed_share(self) -> float:
        """Share of the step in which a collective runs and no compute does."""
        return self.breakdown.exposed_comm / self.step_time_s if self.step_time_s else 0.0

    @property
    def hidden_share(self) -> float:
        """Share of the communication time that compute covers; 1 without communication."""
        return self.comm_hidden_s / self.comm_total_s if self.comm_total_s else 1.0

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes that collectives run on, in the order of their first."""
        return tuple(dict.fromkeys(use.axis for use in self.collectives))


def measure(timeline: Timeline, startup: Timeline, job: Job) -> StepReport:
    """The report of a simulated step. ``startup`` is the timeline of what is sent once, before the first step."""
    waiting = waiting_of(timeline)
    classes, first = timeline.plan.classes, slowest(waiting).ranks
    staged = len(timeline.plan.roles) > 1
    memories = {ranks.name: class_memory(timeline, ranks) for ranks in classes}
    times = {time.ranks.name: time for time in rank_times(timeline, classes if staged else (first,))}
    time = times[first.name]
    computing_s = time.computing_s  # made anew whenever it is asked for
    costs = list(timeline.costs.values())
    return StepReport(
        title=timeline.plan.title, step_time_s=timeline.end_s, startup_time_s=startup.end_s,
        breakdown=time.breakdown,
        copies_s=sum(computing_s[s.task.name] for s in time.compute if s.task.kind == "copy"),
        interference_s=_stretched([s for s in time.compute if s.task.name not in time.unissued_s], timeline.end_s),
        comm_total_s=total(time.talking), comm_hidden_s=total(time.talking) - time.breakdown.exposed_comm,
        **_rates(timeline, job),
        collectives=tuple(_collectives(time.comm, timeline, time.busy)),
        links=_links(timeline), num_links=len(timeline.link_names),
        ranks_simulated=len(classes), ranks_total=job.num_ranks, events=timeline.events,
        fidelity=timeline.fidelity, handed_over=next((c.handed_over for c in costs if c.handed_over), ""),
        memory=max(memories.values(), key=lambda m: m.peak_bytes), idle=time.idle, waiting=waiting,
        stages=stage_uses(tuple(times.values()), memories, layers_of_roles(timeline.plan, job)) if staged else (),
    )  # fmt: skip


def _rates(timeline: Timeline, job: Job) -> dict[str, Any]:
    """Tokens and FLOP per second. Replicas with more or fewer samples count with what they have."""
    samples = sum(len(ranks.ranks) * ranks.work for ranks in timeline.plan.classes) / job.ranks_of_replica
    tokens = round(job.whole.tokens * job.train.grad_accumulation * samples)
    convention = convention_for(job.whole, job.train.mfu)
    per_token = model_flop_per_token(job.whole, convention)
    rate = tokens / timeline.end_s
    dtype = computing_precision(job.inputs.precision, job.scenario.parallel).dtype
    peak = job.device.peak_flop_per_s(dtype) if job.device and per_token else None
    return {
        "tokens_per_step": tokens, "tokens_per_s": rate, "tokens_per_s_per_gpu": rate / job.num_ranks,
        "flop_per_token": per_token, "tflops_per_gpu": rate / job.num_ranks * per_token / 1e12,
        "mfu": model_flop_utilisation(per_token, rate / job.num_ranks, peak) if peak else None,
        "mfu_definition": convention,
    }  # fmt: skip


def _stretched(compute: Iterable[Span], step_s: float) -> float:
    """How much longer compute took than alone; what is only rounding counts as nothing."""
    stretched = sum(s.duration_s - s.alone_s for s in compute)
    return stretched if stretched > _ROUNDING * step_s else 0.0


def _collectives(comm: Iterable[Span], timeline: Timeline, busy: Sequence[Interval]) -> Iterable[CollectiveUse]:
    """One entry per collective of the step, or per task of several equal ones, in launch order."""
    for span in comm:
        task = span.task
        assert isinstance(task, Communicate)
        cost = timeline.costs[task.name]
        factor = bus_factor(task.op, cost.group_size)
        yield CollectiveUse(
            op=task.op, axis=task.axis, purpose=task.purpose, group_size=cost.group_size,
            message_bytes=task.message_bytes, count=task.repeat, algorithm=cost.algorithm, protocol=cost.protocol,
            fidelity=cost.fidelity,
            time_s=span.duration_s, exposed_s=total(minus([(span.start_s, span.end_s)], busy)),
            latency_s=cost.latency_s / task.repeat, wire_bytes_per_rank=cost.sent_bytes_per_rank / task.repeat,
            bus_bytes_per_s=task.repeat * task.message_bytes * factor / span.duration_s if span.duration_s else 0.0,
        )  # fmt: skip


def grouped(collectives: Iterable[CollectiveUse]) -> tuple[CollectiveUse, ...]:
    """Neighbours with the same operation, size and exposure (all hidden, or not) joined, for short tables."""
    joined: list[CollectiveUse] = []
    places: dict[tuple[object, ...], int] = {}
    for use in collectives:
        hidden = use.exposed_s <= _HIDDEN * use.time_s
        key = (use.op, use.axis, use.message_bytes, use.algorithm, use.protocol, hidden)
        if key not in places:
            places[key] = len(joined)
            joined.append(use)
            continue
        joined[places[key]] = _together(joined[places[key]], use)
    return tuple(joined)


def _together(one: CollectiveUse, more: CollectiveUse) -> CollectiveUse:
    count, time_s = one.count + more.count, one.time_s + more.time_s
    moved = one.bus_bytes_per_s * one.time_s + more.bus_bytes_per_s * more.time_s
    return CollectiveUse(
        op=one.op, axis=one.axis, purpose=one.purpose, group_size=one.group_size, message_bytes=one.message_bytes,
        count=count, algorithm=one.algorithm, protocol=one.protocol, fidelity=one.fidelity, time_s=time_s,
        exposed_s=one.exposed_s + more.exposed_s, latency_s=one.latency_s,
        wire_bytes_per_rank=one.wire_bytes_per_rank, bus_bytes_per_s=moved / time_s if time_s else 0.0,
    )  # fmt: skip


def _links(timeline: Timeline, most: int = 10) -> tuple[LinkUse, ...]:
    """The busiest links; equal ones in link order."""
    use = timeline.link_bytes / timeline.link_bytes_per_s / timeline.end_s if timeline.end_s else timeline.link_bytes
    order = sorted(range(len(use)), key=lambda i: (-round(float(use[i]), 12), i))[:most]
    return tuple(
        LinkUse(
            link=" -> ".join(timeline.link_names[i]), num_bytes=float(timeline.link_bytes[i]),
            utilization=float(use[i]),
        )
        for i in order if use[i] > 0
    )  # fmt: skip
