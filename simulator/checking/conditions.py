"""``--fail-if 'exposed>10%'``: a condition on one number of a step, with the unit that its metric has."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from simulator import units
from simulator.errors import ScenarioError, UnitError
from simulator.job import Job
from simulator.problems import nearest
from simulator.report.costs import run_dollars, run_s
from simulator.report.metrics import StepReport
from simulator.report.verdict import Verdict

_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_FORM = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*(.+?)\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How a number is read from a condition, taken from a step (None: this scenario has none), and shown."""

    parse: Callable[[object], float]
    value: Callable[[StepReport, Job], float | None]
    show: Callable[[float], str]
    words: str


def _parse_share(value: object) -> float:
    """A share of a whole; ``10`` for 10 % is refused, since a gate that reads it as 1000 % never closes."""
    share = units.parse_fraction(value)
    if share > 1 or (share == 1 and "%" not in str(value)):
        raise UnitError(f"is {share:.0%}; expected a share such as '10%' or 0.1")
    return share


def bubble_share(report: StepReport) -> float | None:
    """Share of the step that the ranks which set it wait for other stages; None where there are none."""
    return report.breakdown.bubble / report.step_time_s if report.stages else None


def _memory_share(report: StepReport, job: Job) -> float | None:
    return None if job.device is None else report.memory.peak_bytes / job.device.memory


METRICS: Final[Mapping[str, Metric]] = {
    "exposed": Metric(
        parse=_parse_share, value=lambda r, _: r.exposed_share, show=units.format_percent,
        words="exposed communication",
    ),
    "bubble": Metric(
        parse=_parse_share, value=lambda r, _: bubble_share(r), show=units.format_percent, words="pipeline bubble",
    ),
    "memory": Metric(
        parse=units.parse_bytes, value=lambda r, _: r.memory.peak_bytes, show=units.format_gib, words="peak memory"
    ),
    "memory_share": Metric(
        parse=_parse_share, value=_memory_share, show=units.format_percent, words="peak memory's share of the device"
    ),
    "step": Metric(parse=units.parse_time, value=lambda r, _: r.step_time_s, show=units.format_time, words="step time"),
    "mfu": Metric(parse=_parse_share, value=lambda r, _: r.mfu, show=units.format_percent, words="MFU"),
    "tokens_per_s": Metric(
        parse=units.parse_count, value=lambda r, _: r.tokens_per_s, show=lambda v: f"{v:,.0f}", words="tokens/s"
    ),
    "time": Metric(parse=units.parse_time, value=run_s, show=units.format_time, words="time of the run"),
    "cost": Metric(parse=units.parse_dollars, value=run_dollars, show=units.format_dollars, words="cost of the run"),
}  # fmt: skip
#: What a scenario must state for a metric to exist.
_NEEDS: Final = {
    "bubble": "parallel.pp above 1", "time": "goal.tokens", "cost": "goal.tokens and cost", "mfu": "a device",
    "memory_share": "a device",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One ``--fail-if``: the answer is infeasible where it holds."""

    text: str
    metric: str
    sign: str
    bound: float

    def verdict(self, report: StepReport, job: Job) -> Verdict:
        """Raises ScenarioError when the scenario lacks what the metric needs."""
        metric = METRICS[self.metric]
        value = metric.value(report, job)
        if value is None:
            raise ScenarioError(f"--fail-if '{self.text}': {metric.words} needs {_NEEDS[self.metric]} in the scenario")
        side = {">": "at most", ">=": "below", "<": "at least", "<=": "above"}[self.sign]
        return Verdict(
            what=metric.words, ok=not _COMPARE[self.sign](value, self.bound), value=metric.show(value),
            limit=f"{side} {metric.show(self.bound)}", why=f"--fail-if '{self.text}'",
        )  # fmt: skip


def parse_condition(text: str) -> Condition:
    """``exposed>10%`` -> a Condition. Raises ScenarioError that says what is accepted."""
    match = _FORM.match(text)
    if match is None:
        raise ScenarioError(
            f"--fail-if {text!r}: expected METRIC, one of < <= > >=, and a value, such as 'exposed>10%'; metrics are "
            f"{', '.join(METRICS)}"
        )
    name, sign, bound = match.groups()
    if name == "memory" and "%" in bound:
        name = "memory_share"
    if name not in METRICS:
        raise ScenarioError(
            f"--fail-if {text!r}: no metric '{name}'; accepted: {', '.join(METRICS)}{nearest(name, METRICS)}"
        )
    try:
        value = METRICS[name].parse(bound)
    except UnitError as error:
        raise ScenarioError(f"--fail-if {text!r}: {error}; got '{bound}'") from None
    return Condition(text=text, metric=name, sign=sign, bound=value)
