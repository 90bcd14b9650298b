"""What stands on a page beside its charts: numbers, costs, limits of the model. Pure; texts only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulator.job import Job
from simulator.network.graph import Network
from simulator.report.costs import PLANNED_MFU, costs_of, money_words
from simulator.report.html.tables import Table
from simulator.report.metrics import StepReport
from simulator.report.ranks_text import rank_notes
from simulator.report.slack import slack_of
from simulator.report.words import rate_words, sample_words
from simulator.units import format_dollars, format_gib, format_percent, format_time

#: In short, what a reader must know before trusting a number.
LIMITS = (
    "One job on a healthy cluster: nothing fails, and there are no other tenants.",
    "Compute is a roofline with achieved rates per device generation: a tenth either way is normal.",
    "Collectives follow a cost model of the communication library: for messages of 64 MiB and more its median error "
    "against published measurements is 1 to 2 %, below 1 MiB it is 20 to 30 %.",
    "Links share their rate fairly; there are no packets and no congestion control. Many latencies are estimates.",
    "Memory is every tensor from its making to its end; what a caching allocator holds beside them is not counted.",
    "Reading data, checkpoints and evaluation are not part of a step.",
)


class Number(NamedTuple):
    """One of the numbers at the top: what it is, its value, and a word more."""

    what: str
    value: str
    more: str = ""


def key_numbers(report: StepReport, job: Job) -> Iterator[Number]:
    """The numbers that a decision starts from."""
    unit = sample_words(job)
    yield Number("step time", format_time(report.step_time_s), f"{report.tokens_per_step:,} {unit} a step")
    yield Number(
        f"{unit}/s per GPU", rate_words(report.tokens_per_s_per_gpu), f"{rate_words(report.tokens_per_s)} in all"
    )
    if report.mfu is not None:
        rate = f"{rate_words(report.tflops_per_gpu)} TFLOP/s per GPU"
        yield Number("MFU", format_percent(report.mfu), f"{rate}, by {report.mfu_definition}")
    if report.collectives:
        hidden = f"{format_percent(report.hidden_share)} of communication hidden"
        yield Number("exposed communication", format_percent(report.exposed_share), hidden)
    capacity = "" if job.device is None else f"of {format_gib(job.device.memory * job.scenario.limits.memory)}"
    yield Number("peak memory", format_gib(report.memory.peak_bytes), capacity)
    costs = costs_of(report, job)
    if costs.per_million_tokens is not None:
        yield Number(f"a million {unit}", format_dollars(costs.per_million_tokens.typical), "at the price given")


def cost_table(report: StepReport, job: Job) -> Table:
    """Time and money of a million tokens, a step, and the run, as far as the scenario states them."""
    costs, unit = costs_of(report, job), sample_words(job)
    rows = [
        (f"a million {unit}", f"{costs.gpu_hours_per_million_tokens:,.3g}", "", money_words(costs.per_million_tokens))
    ]
    if costs.per_step is not None:
        rows.append(("a step", f"{job.num_ranks * report.step_time_s / 3600:,.3g}", "", money_words(costs.per_step)))
    if costs.days is not None and costs.gpu_hours is not None and costs.steps is not None:
        time = f"{costs.days:,.1f} days, {costs.steps:,.0f} steps"
        rows.append(("the run", f"{costs.gpu_hours:,.0f}", time, money_words(costs.run)))
    if costs.days_by_6nd is not None:
        rows.append((f"the run by 6ND at {PLANNED_MFU:.0%} MFU", "", f"{costs.days_by_6nd:,.1f} days", ""))
    used = [0, *(column for column in (1, 2, 3) if any(row[column] for row in rows))]
    names = ("", "GPU-hours", "time", "dollars")
    return Table(
        title="Time and money", columns=tuple(names[column] for column in used), note=_price_words(job),
        rows=tuple(tuple(row[column] for column in used) for row in rows),
    )  # fmt: skip


def _price_words(job: Job) -> str:
    price = job.scenario.cost
    if price is None:
        return "The scenario states no price: add a 'cost' block for dollars."
    low, high = map(format_dollars, price.range)
    between = f", {low} to {high}" if low != high else ""
    return f"At {format_dollars(price.gpu_hour)} per GPU-hour{between}; price as of {price.as_of}."


def limits(report: StepReport, job: Job, network: Network) -> tuple[str, ...]:
    """The model's limits in short, those of this answer first."""
    slack = slack_of(report.memory.by_kind_bytes, report.memory.pools_bytes)
    beside = f"{format_gib(slack.low_bytes)} to {format_gib(slack.high_bytes)}"
    own = [*rank_notes(job), f"An allocator's slack may take {beside} beside the peak of memory; it is not counted."]
    if report.handed_over:
        own.append(f"The message engine was used: {report.handed_over}.")
    return (*own, *LIMITS)
