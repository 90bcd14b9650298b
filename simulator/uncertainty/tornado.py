"""Which input moves the result most: each one alone times 1 - by and 1 + by, everything else as it is.

The result is the step time, or, where the scenario states a price, what a token costs; either as a change against the
scenario as it is. Choices (micro-batch, sequence, strategy) are not moved: they are not uncertain. An input whose
change hides behind others moves nothing. Limits: inputs that differ in how much is known of them move by the same
share; ``run`` and ``check`` give ranges instead. A library that picks another algorithm at another rate makes a jump.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulator.answer import StepAnswer, answer_step, wiring_of
from simulator.job import Job
from simulator.report.costs import costs_of
from simulator.report.verdict import Verdict
from simulator.scaling import INPUTS, Input, scaled
from simulator.scenario import Scenario

#: Changes below this share of the result are rounding.
NOTHING = 1e-9
Judge = Callable[[StepAnswer], Sequence[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A step at one end of one input. failing: what fails there and does not as it is; mended: the reverse."""

    step_time_s: float
    exposed_share: float
    gpu_s_per_token: float
    cost_per_million_tokens: float | None
    failing: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """What is ranked: money where there is any, else GPU time, of a token."""
        return self.gpu_s_per_token if self.cost_per_million_tokens is None else self.cost_per_million_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """What one input does: the results at less and at more of it, as changes of the result (-0.1 = a tenth less)."""

    name: str
    words: str
    less: Result
    more: Result
    less_change: float
    more_change: float

    @property
    def width(self) -> float:
        """The difference that the two ends make."""
        return abs(self.more_change - self.less_change)

    @property
    def reach(self) -> float:
        """The larger of the two changes, without its sign."""
        return max(abs(self.less_change), abs(self.more_change))

    @property
    def moves(self) -> bool:
        """Whether the result changes at all."""
        return self.reach > NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado:
    """Swings, the widest first. by: the share that each input moves by."""

    by: float
    base: Result
    swings: tuple[Swing, ...]

    @property
    def of_money(self) -> bool:
        """Whether the result is a cost."""
        return self.base.cost_per_million_tokens is not None


def tornado_of(
    scenario: Scenario, by: float, judge: Judge, tell: Callable[[int, int], None] = lambda done, total: None
) -> tuple[StepAnswer, Tornado]:
    """The scenario's step, and its step with every input at both ends.

    tell: called with how many of how many inputs are done. Raises ScenarioError as ``answer_step`` does.
    """
    wiring = wiring_of(scenario)
    base = answer_step(scenario, wiring, with_startup=False)
    verdicts = judge(base)
    now = _result(base, verdicts, verdicts)
    inputs = moved_inputs(base.job)
    found = []
    for done, (name, entry) in enumerate(inputs):
        tell(done, len(inputs))
        shared = None if entry.group == "network" else wiring
        ends = [
            answer_step(scaled(scenario, {name: factor}), shared, with_startup=False) for factor in (1 - by, 1 + by)
        ]
        less, more = (_result(end, judge(end), verdicts) for end in ends)
        found.append(Swing(
            name=name, words=entry.words, less=less, more=more,
            less_change=less.value / now.value - 1, more_change=more.value / now.value - 1,
        ))  # fmt: skip
    tell(len(inputs), len(inputs))
    return base, Tornado(by=by, base=now, swings=tuple(sorted(found, key=_rank)))


def _rank(swing: Swing) -> tuple[float, bool]:
    """Widest first; of those that move nothing, first what changes a verdict; then in the order of ``INPUTS``."""
    told = swing.less.failing or swing.less.mended or swing.more.failing or swing.more.mended
    return (-round(swing.width, 12), not told)


def _result(answer: StepAnswer, verdicts: Sequence[Verdict], here: Sequence[Verdict]) -> Result:
    report, money = answer.report, costs_of(answer.report, answer.job).per_million_tokens
    pairs = list(zip(here, verdicts, strict=True))
    return Result(
        step_time_s=report.step_time_s, exposed_share=report.exposed_share,
        gpu_s_per_token=1.0 / report.tokens_per_s_per_gpu,
        cost_per_million_tokens=None if money is None else money.typical,
        failing=tuple(now.what for before, now in pairs if before.ok and not now.ok),
        mended=tuple(now.what for before, now in pairs if now.ok and not before.ok),
    )  # fmt: skip


def moved_inputs(job: Job) -> list[tuple[str, Input]]:
    """The inputs that a step has, in the order of ``INPUTS``."""
    return [(name, entry) for name, entry in INPUTS.items() if entry.swings and _has(name, entry, job)]


def _has(name: str, entry: Input, job: Job) -> bool:
    alone = entry.group == "network" and job.num_ranks == 1
    read = entry.has(job.scenario) and entry.used(job.scenario) and not alone
    return read and (name not in _READ or _READ[name](job))


#: What of a planned step says whether it reads an input.
_READ: Mapping[str, Callable[[Job], bool]] = {
    "matmul_rate": lambda job: any(operation.gemm for operation in job.model.operations),
    "attention_rate": lambda job: any(operation.kind == "attention" for operation in job.model.operations),
    "kernel_gap": lambda job: job.inputs.launch_s > 0,
    "host_launch": lambda job: job.inputs.host.kernel_s > 0 or job.inputs.host.collective_s > 0,
    "channel_sms": lambda job: job.core_share > 0 and job.num_ranks > 1,
    "comm_memory_traffic": lambda job: job.memory_s_per_byte > 0 and job.num_ranks > 1,
}
