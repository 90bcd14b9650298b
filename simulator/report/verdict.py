"""What the numbers of a step mean: what bounds it, whether it fits and hides, and the first thing to change. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.job import Job
from simulator.report.metrics import CollectiveUse, StepReport
from simulator.units import format_bandwidth, format_bytes, format_gib, format_percent, format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One judgement: what was judged, whether it is fine, the value and its limit in words, and why."""

    what: str
    ok: bool
    value: str
    limit: str
    why: str


def memory_verdict(job: Job) -> Verdict | None:
    """Whether the peak of one rank fits its device; None when the topology names no device."""
    if job.device is None:
        return None
    capacity = job.device.memory * job.scenario.limits.memory
    peak = job.memory.peak_bytes
    fits = peak <= capacity
    limit = f"{format_gib(capacity)} of {job.device.title}"
    why = f"peak at {job.memory.peak_at}; {format_gib(capacity - peak)} free" if fits else _why_not_fit(job, capacity)
    return Verdict(what="memory", ok=fits, value=format_gib(peak), limit=limit, why=why)


def _why_not_fit(job: Job, capacity: float) -> str:
    kinds = job.memory.by_kind_bytes
    peak = job.memory.peak_bytes
    parameters = job.model.num_parameters
    states = kinds["params"] + kinds["grads"] + kinds["optimizer"]
    over = f"+{format_gib(peak - capacity)} at {job.memory.peak_at}"
    fixed = peak - kinds["activations"]
    if fixed >= capacity:
        rest = ", ".join(
            f"{name} {format_gib(kinds[kind])}"
            for kind, name in (("buffers", "bucket copies"), ("workspace", "context and communicator"))
            if kinds[kind]
        )  # fmt: skip
        return (
            f"{over}: weights, gradients and optimizer states take {format_gib(states)} "
            f"({states / parameters:.0f} B x {parameters / 1e9:.2f}e9 parameters), which DDP keeps whole on every GPU"
            f"{'; ' + rest if rest else ''}; no smaller batch helps: it takes states sharded over the GPUs, fewer "
            "bytes per parameter or more memory"
        )
    per_sample = kinds["activations"] / job.train.micro_batch
    most = int((capacity - fixed) / per_sample) if per_sample else 0
    advice = f"micro_batch {most} fits" if most else "not even micro_batch 1 fits: shorter sequences or recompute"
    return f"{over}: activations take {format_gib(kinds['activations'])}; {advice}"


def verdicts(report: StepReport, job: Job) -> list[Verdict]:
    """All judgements that the scenario asks for: an answer is feasible when each is ok."""
    return [v for v in (memory_verdict(job), exposed_verdict(report, job)) if v is not None]


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
    return max(report.collectives, key=lambda use: use.exposed_s, default=None)


def _worst_exposed(report: StepReport) -> str:
    worst = _worst(report)
    if worst is None or not worst.exposed_s:
        return "all communication hides behind compute"
    size = format_bytes(worst.message_bytes, 3)
    return f"{format_time(worst.exposed_s, 3)} of it is the {worst.op} of {worst.purpose} ({size})"


def bound_sentence(report: StepReport, job: Job) -> str:
    """One sentence that says what bounds the step, and why."""
    parts = report.breakdown
    if report.exposed_share < 0.05 or parts.exposed_comm < parts.compute * 0.05:
        return _compute_bound(report, cause=job.scenario.limits.exposed is None)
    latency = sum(use.latency_s for use in report.collectives)
    share = f"{format_percent(report.exposed_share)} of the step waits for communication"
    if parts.exposed_comm <= parts.compute and job.scenario.parallel.overlap == "none":
        return f"Communication is not overlapped: {share}, because parallel.overlap is 'none'."
    if latency > report.comm_total_s / 2:
        small = f"{len(report.collectives)} collectives whose latency, not their bytes, takes the time"
        return f"Latency bounds the step: {share}, in {small}; fewer, larger messages would help."
    name, rate = _slowest_link(report)
    verb = "Communication bounds the step" if parts.exposed_comm > parts.compute else "Communication is partly exposed"
    return f"{verb}: {share}; {_worst_exposed(report)}; the busiest link is {name}{rate}."


def _compute_bound(report: StepReport, *, cause: bool) -> str:
    """cause: say what is exposed, unless the verdict on exposed communication says it already."""
    working = format_percent((report.breakdown.compute + report.breakdown.optimizer) / report.step_time_s)
    if not report.collectives:
        return f"Compute bounds the step: {working} of it; a single rank communicates nothing."
    hidden = f"{format_percent(report.hidden_share)} of the communication hides behind it"
    exposed = "" if not (cause and report.breakdown.exposed_comm) else f" ({_worst_exposed(report)})"
    return f"Compute bounds the step: {working} of it, and {hidden}{exposed}."


def _slowest_link(report: StepReport) -> tuple[str, str]:
    if not report.links:
        return "none", ""
    top = report.links[0]
    carried = format_bandwidth(top.num_bytes / report.step_time_s, 3)
    return top.link, f", {format_percent(top.utilization)} used ({carried} over the step)"
