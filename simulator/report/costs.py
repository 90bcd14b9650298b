"""What a step, a million tokens and the whole run cost, in time and money. Pure arithmetic on a report.

    $ per step = price x GPUs x step time        $ per million tokens = $ per step / tokens per step x 1e6
    days of a run = tokens / (tokens/s) / 86,400

beside the estimate that needs no simulation, days = 6 N D / (GPUs x peak x MFU) (Kaplan et al. 2020), which at the
simulated MFU differs by what the FLOP count leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.budget_spec import Cost
from simulator.job import Job
from simulator.report.metrics import StepReport
from simulator.strategies.sharding import computing_precision
from simulator.units import format_dollars

_HOUR_S, _DAY_S = 3600.0, 86_400.0
#: MFU of the 6ND estimate when the scenario's own is unknown: what the lectures plan with.
PLANNED_MFU = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """US dollars at the stated price, and at the lowest and highest."""

    typical: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """gpu_hours: of the whole run. All of the run is None without ``goal.tokens``, all money without ``cost``.

    days_by_6nd: 6 N D FLOP at ``PLANNED_MFU`` of the device's peak, N the active parameters; None without a device.
    """

    gpu_hours_per_million_tokens: float
    per_step: Money | None
    per_million_tokens: Money | None
    steps: float | None
    days: float | None
    days_by_6nd: float | None
    gpu_hours: float | None
    run: Money | None


def costs_of(report: StepReport, job: Job) -> Costs:
    """The costs of a simulated step, and of as many as the goal takes."""
    price, goal = job.scenario.cost, job.scenario.goal
    gpu_hours_per_step = job.num_ranks * report.step_time_s / _HOUR_S
    per_million = gpu_hours_per_step / report.tokens_per_step * 1e6
    tokens = None if goal is None else goal.tokens
    steps = None if tokens is None else tokens / report.tokens_per_step
    gpu_hours = None if steps is None else steps * gpu_hours_per_step
    return Costs(
        gpu_hours_per_million_tokens=per_million, per_step=_money(price, gpu_hours_per_step),
        per_million_tokens=_money(price, per_million), steps=steps, gpu_hours=gpu_hours, run=_money(price, gpu_hours),
        days=None if steps is None else steps * report.step_time_s / _DAY_S, days_by_6nd=_days_by_6nd(job, tokens),
    )  # fmt: skip


def run_dollars(report: StepReport, job: Job) -> float | None:
    """The whole run at the stated price; None without a price or a goal."""
    run = costs_of(report, job).run
    return None if run is None else run.typical


def run_s(report: StepReport, job: Job) -> float | None:
    """Seconds of the whole run; None without a goal."""
    days = costs_of(report, job).days
    return None if days is None else days * _DAY_S


def money_words(money: Money | None) -> str:
    """``$2.50 ($2.00 to $3.00)``, the range only where there is one; '' without a price."""
    if money is None:
        return ""
    if money.low == money.high:
        return format_dollars(money.typical)
    return f"{format_dollars(money.typical)} ({format_dollars(money.low)} to {format_dollars(money.high)})"


def _money(price: Cost | None, gpu_hours: float | None) -> Money | None:
    if price is None or gpu_hours is None:
        return None
    low, high = price.range
    return Money(typical=price.gpu_hour * gpu_hours, low=low * gpu_hours, high=high * gpu_hours)


def _days_by_6nd(job: Job, tokens: float | None) -> float | None:
    if tokens is None or job.device is None or job.whole.measured:
        return None
    peak = job.device.peak_flop_per_s(computing_precision(job.inputs.precision, job.scenario.parallel).dtype)
    return 6.0 * job.whole.num_active_parameters * tokens / (job.num_ranks * peak * PLANNED_MFU) / _DAY_S
