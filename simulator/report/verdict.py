"""What the numbers of a step mean: what bounds it, whether it fits and hides, and the first thing to change. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.job import Job
from simulator.report.advice import Change, changes, whole_bytes
from simulator.report.costs import costs_of
from simulator.report.lanes import slowest
from simulator.report.metrics import CollectiveUse, StepReport, grouped
from simulator.report.slack import slack_of
from simulator.units import format_bandwidth, format_bytes, format_dollars, format_gib, format_percent, format_time

#: Kinds of memory in the words of reports.
KIND_WORDS = {
    "params": "weights", "grads": "gradients", "optimizer": "optimizer states", "activations": "activations",
    "gathered": "gathered weights", "buffers": "buffers", "workspace": "context and communicators",
}  # fmt: skip
#: Kinds below this share of the peak go unnamed where a step does not fit.
_NAMED = 0.1
#: Shares of the step below this bound nothing.
_MATTERS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One judgement: what was judged, whether it is fine, the value and its limit in words, why, and what to try."""

    what: str
    ok: bool
    value: str
    limit: str
    why: str
    changes: tuple[Change, ...] = ()


def memory_verdict(report: StepReport, job: Job) -> Verdict | None:
    """Whether the peak of one rank fits its device; None when the topology names no device.

    The allocator's slack is not counted (``report.slack``), but a step that it may break is called tight.
    """
    if job.device is None:
        return None
    capacity = job.device.memory * job.scenario.limits.memory
    peak = report.memory.peak_bytes
    limit = f"{format_gib(capacity)} of {job.device.title}"
    if peak <= capacity:
        why = f"peak at {peak_place(report)}; {_room(report, capacity - peak)}"
        return Verdict(what="memory", ok=True, value=format_gib(peak), limit=limit, why=why)
    advised = changes(report.memory, job, capacity)
    return Verdict(
        what="memory", ok=False, value=format_gib(peak), limit=limit, why=_why_not_fit(report, job, peak - capacity),
        changes=advised,
    )  # fmt: skip


def peak_place(report: StepReport) -> str:
    """When the peak is reached, and on which ranks where they have several roles."""
    return report.memory.peak_words + (f" on {report.memory.ranks}" if report.stages else "")


def _room(report: StepReport, free: float) -> str:
    slack = slack_of(report.memory.by_kind_bytes, report.memory.pools_bytes)
    if free >= slack.high_bytes:
        return f"{format_gib(free)} free"
    range_words = f"{format_gib(slack.low_bytes)} to {format_gib(slack.high_bytes)}"
    return f"tight: {format_gib(free)} free, and an allocator's slack may take {range_words}"


def _why_not_fit(report: StepReport, job: Job, over: float) -> str:
    kinds, peak = report.memory.by_kind_bytes, report.memory.peak_bytes
    large = sorted((kind for kind in kinds if kinds[kind] >= _NAMED * peak), key=lambda kind: -kinds[kind])
    held = ", ".join(f"{KIND_WORDS[kind]} {format_gib(kinds[kind])}" for kind in large)
    sizes = whole_bytes(job, as_now=True) if job.num_ranks > 1 and not job.inputs.mesh else {}
    whole = [kind for kind, size in sizes.items() if kinds[kind] >= size > 0]
    names = [KIND_WORDS[kind] for kind in whole]
    told = f"; all {' and '.join(names)} are whole on every GPU" if names else ""
    return f"+{format_gib(over)} at {peak_place(report)}: {held}{told}"


def verdicts(report: StepReport, job: Job) -> list[Verdict]:
    """All judgements that the scenario asks for: an answer is feasible when each is ok."""
    found = (memory_verdict(report, job), exposed_verdict(report, job), *_run_verdicts(report, job))
    return [verdict for verdict in found if verdict is not None]


def _run_verdicts(report: StepReport, job: Job) -> Iterator[Verdict]:
    """Whether the whole run keeps ``limits.time`` and ``limits.cost``."""
    limits, costs = job.scenario.limits, costs_of(report, job)
    if limits.time is not None and costs.days is not None and costs.steps is not None:
        days, most = costs.days, limits.time / 86_400.0
        yield Verdict(
            what="time of the run", ok=days <= most, value=f"{days:,.3g} days", limit=f"{most:,.3g} days",
            why=f"{costs.steps:,.0f} steps of {format_time(report.step_time_s, 3)}",
        )  # fmt: skip
    if limits.cost is not None and costs.run is not None and costs.gpu_hours is not None:
        yield Verdict(
            what="cost of the run", ok=costs.run.typical <= limits.cost, value=format_dollars(costs.run.typical),
            limit=format_dollars(limits.cost), why=f"{costs.gpu_hours:,.0f} GPU-hours",
        )  # fmt: skip


def exposed_verdict(report: StepReport, job: Job) -> Verdict | None:
    """Whether exposed communication stays within ``limits.exposed``; None without such a limit."""
    limit = job.scenario.limits.exposed
    if limit is None or not report.collectives:
        return None
    return Verdict(
        what="exposed communication", ok=report.exposed_share <= limit, value=format_percent(report.exposed_share),
        limit=format_percent(limit), why=_worst_exposed(report),
    )  # fmt: skip


def _worst(report: StepReport) -> CollectiveUse | None:
    """What is exposed longest: one collective, or equal ones together."""
    return max(grouped(report.collectives), key=lambda use: use.exposed_s, default=None)


def _worst_exposed(report: StepReport) -> str:
    worst = _worst(report)
    if worst is None or not worst.exposed_s:
        return "all communication hides behind compute"
    return f"{format_time(worst.exposed_s, 3)} of it is {_named(worst)}"


def _named(use: CollectiveUse) -> str:
    if use.count > 1:
        return f"{use.count} {use.op}s such as {use.purpose} ({format_bytes(use.message_bytes, 3)} each)"
    return f"the {use.op} of {use.purpose} ({format_bytes(use.message_bytes, 3)})"


def bound_sentence(report: StepReport, job: Job) -> str:
    """One sentence that says what bounds the step, and why."""
    parts = report.breakdown
    if report.idle.host_s > _MATTERS * report.step_time_s and report.idle.host_s > parts.exposed_comm:
        return _host_bound(report)
    if _waits_for_host_memory(report):
        return _copy_bound(report)
    if parts.bubble > _MATTERS * report.step_time_s and parts.bubble > parts.exposed_comm:
        return _bubble_bound(report)
    if report.exposed_share < _MATTERS or parts.exposed_comm < parts.compute * _MATTERS:
        return _compute_bound(report, cause=job.scenario.limits.exposed is None)
    share = f"{format_percent(report.exposed_share)} of the step waits for communication"
    unhidden = _why_nothing_hides(report, job)
    if unhidden and parts.exposed_comm <= parts.compute:
        return f"Communication is not overlapped: {share}, because {unhidden}."
    waits_s = _waits_of_the_slowest(report)
    if waits_s > report.breakdown.exposed_comm / 2:
        return f"Slower ranks bound the step: {share}, {format_time(waits_s, 3)} of it for ranks that come later."
    if sum(use.latency_s * use.count for use in report.collectives) > report.comm_total_s / 2:
        small = (
            f"{sum(use.count for use in report.collectives)} collectives whose latency, not their bytes, takes the time"
        )
        return f"Latency bounds the step: {share}, in {small}; fewer, larger messages would help."
    name, rate = _slowest_link(report)
    verb = "Communication bounds the step" if parts.exposed_comm > parts.compute else "Communication is partly exposed"
    return f"{verb}: {share}; {_worst_exposed(report)}; the busiest link is {name}{rate}."


def picture_finding(report: StepReport) -> str:
    """The title of a picture: how long a step takes, and what it waits for most. Shorter than ``bound_sentence``."""
    worst, idle_s = _worst(report), report.idle.host_s
    if idle_s > _MATTERS * report.step_time_s and idle_s > report.breakdown.exposed_comm:
        waits = f"{format_percent(idle_s / report.step_time_s)} of it waits for the host thread"
    elif _waits_for_host_memory(report):
        waits = (
            f"{format_percent(report.idle.copies_s / report.step_time_s)} of it waits for copies to and from the host"
        )
    elif report.breakdown.bubble > max(_MATTERS * report.step_time_s, report.breakdown.exposed_comm):
        waits = f"{format_percent(report.breakdown.bubble / report.step_time_s)} of it waits for other stages"
    elif worst is None:
        waits = "a single rank communicates nothing"
    elif not worst.exposed_s:
        waits = "all communication hides behind compute"
    elif _waits_of_the_slowest(report) > report.breakdown.exposed_comm / 2:
        waits = f"{format_percent(report.exposed_share)} of it waits for communication, most of that for slower ranks"
    else:
        share = format_percent(report.exposed_share)
        waits = f"{share} of it waits for communication, most for {_named(worst)}"
    return f"{format_time(report.step_time_s)} a step: {waits}"


def _host_bound(report: StepReport) -> str:
    share = format_percent(report.idle.host_s / report.step_time_s)
    return (
        f"The host thread bounds the step: for {share} of it the GPU waits for kernels that are not issued yet; larger "
        "kernels, fewer of them (a compiler, CUDA graphs) or a faster CPU would help."
    )


def _waits_for_host_memory(report: StepReport) -> bool:
    """Whether offloaded activations keep the GPU waiting for more than anything that it sends."""
    least = max(_MATTERS * report.step_time_s, report.breakdown.exposed_comm)
    return bool(report.memory.host_bytes) and report.idle.copies_s > least


def _copy_bound(report: StepReport) -> str:
    share = format_percent(report.idle.copies_s / report.step_time_s)
    return (
        f"The host link bounds the step: for {share} of it the GPU waits for activations on their way to the host or "
        "back; offloading fewer layers (train.offload_activations), or recomputing them (train.recompute), would help."
    )


def _bubble_bound(report: StepReport) -> str:
    first = slowest(report.waiting).ranks.name
    return (
        f"The pipeline's bubble bounds the step: {first}, which computes longest, waits for other stages for "
        f"{format_percent(report.breakdown.bubble / report.step_time_s)} of it; more micro-batches "
        "(train.grad_accumulation) or a schedule with a smaller bubble (parallel.schedule) would help."
    )


def _why_nothing_hides(report: StepReport, job: Job) -> str:
    """What keeps all communication from overlapping; '' when some of it does overlap."""
    if report.comm_hidden_s > _MATTERS * report.comm_total_s:
        return ""
    if job.scenario.parallel.strategy == "ddp" and job.scenario.parallel.overlap == "none":
        return "parallel.overlap is 'none'"
    return "" if job.inputs.streams else "a call to a collective returns only when it is done"


def _waits_of_the_slowest(report: StepReport) -> float:
    """How long the class that sets the step waits for others."""
    return slowest(report.waiting).waits_s


def _compute_bound(report: StepReport, *, cause: bool) -> str:
    """cause: say what is exposed, unless the verdict on exposed communication says it already."""
    working = format_percent((report.breakdown.compute + report.breakdown.optimizer) / report.step_time_s)
    if not report.collectives:
        return f"Compute bounds the step: {working} of it; a single rank communicates nothing."
    hidden = f"{format_percent(report.hidden_share)} of the communication hides behind it"
    worst = _worst(report)
    if not (cause and worst and worst.exposed_s):
        return f"Compute bounds the step: {working} of it, and {hidden}."
    rest = f"of the rest, {format_time(worst.exposed_s, 3)} is {_named(worst)}"
    return f"Compute bounds the step: {working} of it, and {hidden}; {rest}."


def _slowest_link(report: StepReport) -> tuple[str, str]:
    if not report.links:
        return "none", ""
    top = report.links[0]
    carried = format_bandwidth(top.num_bytes / report.step_time_s, 3)
    return top.link, f", {format_percent(top.utilization)} used ({carried} over the step)"
