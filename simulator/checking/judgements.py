"""What ``check`` judges: memory, exposed communication, the batch, and the user's own conditions."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.answer import StepAnswer
from simulator.checking.conditions import Condition
from simulator.report.verdict import Verdict, verdicts
from simulator.scenario import Scenario
from simulator.units import format_count

#: Exposed communication that ``check`` accepts where the scenario sets no limit: a tenth of the money.
USUAL_EXPOSED = 0.10


def with_usual_limits(scenario: Scenario) -> Scenario:
    """The scenario with a limit on exposed communication, its own if it has one."""
    if scenario.limits.exposed is not None:
        return scenario
    limits = scenario.limits.model_copy(update={"exposed": USUAL_EXPOSED})
    return scenario.model_copy(update={"limits": limits})


def judgements(answer: StepAnswer, conditions: Sequence[Condition]) -> list[Verdict]:
    """All judgements, in a fixed order. Raises ScenarioError for a condition that the scenario cannot answer."""
    report, job = answer.report, answer.job
    return [
        *verdicts(report, job), *_batch(answer), *(condition.verdict(report, job) for condition in conditions)
    ]  # fmt: skip


def _batch(answer: StepAnswer) -> list[Verdict]:
    """Whether the tokens of a step stay within the critical batch; nothing where none is stated."""
    goal = answer.job.scenario.goal
    if goal is None or goal.critical_batch is None:
        return []
    tokens = answer.report.tokens_per_step
    ok = tokens <= goal.critical_batch
    why = "every token counts in full" if ok else (
        f"at {tokens / goal.critical_batch:.1f} times the critical batch a step is worth little more than one at it"
    )  # fmt: skip
    return [
        Verdict(
            what="batch", ok=ok, value=f"{format_count(tokens)} tokens a step", why=why,
            limit=f"{format_count(goal.critical_batch)} of goal.critical_batch",
        )
    ]  # fmt: skip
