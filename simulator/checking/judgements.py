"""What ``check`` judges: memory, exposed communication, the bubble, the batch, and the user's own conditions."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.answer import StepAnswer
from simulator.checking.conditions import Condition, bubble_share
from simulator.report.verdict import Verdict, verdicts
from simulator.scenario import Scenario
from simulator.units import format_count, format_percent

#: Exposed communication that ``check`` accepts where the scenario sets no limit: a tenth of the money.
USUAL_EXPOSED = 0.10
#: The same of a pipeline's bubble.
USUAL_BUBBLE = 0.10


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
        *verdicts(report, job), *_bubble(answer), *_batch(answer),
        *(condition.verdict(report, job) for condition in conditions),
    ]  # fmt: skip


def _bubble(answer: StepAnswer) -> list[Verdict]:
    """Whether ranks wait little for other stages; nothing without stages, or where a condition judges it."""
    share = bubble_share(answer.report)
    if share is None:
        return []
    return [
        Verdict(
            what="pipeline bubble", ok=share <= USUAL_BUBBLE, value=format_percent(share),
            limit=format_percent(USUAL_BUBBLE), why=_why_bubble(answer),
        )
    ]  # fmt: skip


def _why_bubble(answer: StepAnswer) -> str:
    """The bubble of even stages without communication, where a formula says it, and what makes it smaller.

    (p - 1) / (v m + p - 1) of the step, with p ranks, v stages on each and m micro-batches: Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2, where it stands over the ideal time, (p - 1) / (v m).
    """
    job = answer.job
    parallel, m = job.scenario.parallel, job.inputs.micro_batches
    p, v = parallel.pp, parallel.chunks or 1
    cures = "more micro-batches (train.grad_accumulation) or more stages on each rank (parallel.chunks) make it smaller"
    if parallel.schedule not in (None, "1f1b", "gpipe", "interleaved-1f1b"):
        return f"{parallel.schedule} with {p} ranks and {m} micro-batches; {cures}"
    v = 2 if parallel.schedule == "interleaved-1f1b" and parallel.chunks is None else v
    formula = f"(p - 1)/({'' if v == 1 else f'{v} '}m + p - 1)"
    even = format_percent((p - 1) / (v * m + p - 1))
    return f"{formula} is {even} with p = {p} ranks and m = {m} micro-batches; {cures}"


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
