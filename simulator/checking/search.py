"""Which change mends a scenario: every candidate is simulated, and cures are ranked by what a token then costs.

Single changes first. Where none of them is enough, or memory is then tight with each, the most helpful ones are
combined, two at a time, with all others. A change counts as a cure when every judgement that failed holds, and none
that held fails.

Where no single change mends the scenario on its machines with its batch, the model is laid out anew over the same GPUs
(``layouts``): the layouts, then variants of the best. One that fits in memory where the scenario did not is told even
if it then exposes more than usual: it can be run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from simulator.answer import StepAnswer, Wiring, answer_step
from simulator.checking.changes import Change, changes_of
from simulator.checking.layouts import MOST_REFINED, change_of, layouts_of, neighbours_of, refined
from simulator.errors import SimulatorError
from simulator.report.slack import slack_of
from simulator.report.verdict import Verdict
from simulator.scenario import Scenario

#: Single changes that are combined with others when none is enough.
_COMBINED = 4
#: How many changes are told where none mends everything.
_NEAREST = 3
#: How many are told that only fit, where their token costs less than this share of the best cure's.
_CHEAPER, _WORTH = 2, 0.98
#: A verdict of all that is judged; a loader of the scenario with more overrides.
Judge = Callable[[StepAnswer], Sequence[Verdict]]
Load = Callable[[Sequence[str]], Scenario]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A change and the step that it gives. gpu_s_per_token: what a token costs, before prices. tight: what is
    free is less than an allocator takes at least (``report.slack``), so that it may well run out of memory. fits: that
    it has room in memory where the scenario has not.
    """

    change: Change
    step_time_s: float
    gpu_s_per_token: float
    peak_bytes: float
    exposed_share: float
    num_ranks: int
    failing: tuple[str, ...]
    tokens_per_step: int
    tight: bool
    fits: bool

    @property
    def cures(self) -> bool:
        return not self.failing


def find_cures(
    base: StepAnswer, load: Load, judge: Judge, tell: Callable[[int, int], None] = lambda done, total: None,
    wiring: Wiring | None = None,
) -> tuple[Cure, ...]:  # fmt: skip
    """Cures of a failing scenario; first those that keep the machines and the tokens of a step, the cheapest per token
    first; then those with another batch, the smallest first; then those on other machines. Work that only gives room
    (recomputation) is tried where memory is what fails: slower compute hides communication, but nobody wants it.
    Where nothing mends everything, the changes that come nearest, which say what still fails.

    load: the scenario with these overrides on top. tell: called with how many of how many are simulated. wiring: that
    of the scenario as it is, for all changes of anything but the cluster.
    """
    broken = {verdict.what for verdict in judge(base) if not verdict.ok}
    singles = (
        *changes_of(base.job, base.network, memory_only=broken == {"memory"}), *neighbours_of(base.job, base.network)
    )  # fmt: skip
    alone = [change for change in singles if "memory" in broken or not change.only_room]
    trial = _Trial(base, load, judge, tell, wiring, broken)
    found = list(trial.of(alone))
    if not any(_good(cure, base) for cure in found):
        found += trial.of_layouts()
    cured = [cure for cure in found if cure.cures]
    if all(cure.tight for cure in cured) and not any(cure.fits and not cure.tight for cure in found):
        pairs = list(trial.of(_pairs(broken, singles, found)))
        cured += [cure for cure in pairs if cure.cures]
        found += pairs
    if not cured:
        return _nearest(found, len(broken))
    return (*sorted(cured, key=_rank), *_cheaper(found, cured))


def _cheaper(found: Sequence[Cure], cured: Sequence[Cure]) -> tuple[Cure, ...]:
    """Layouts that fit on the same machines and give a cheaper token than any cure there, whatever else they exceed."""
    least = min(cure.gpu_s_per_token for cure in cured)
    fitting = [cure for cure in found if cure.fits and not cure.cures and not cure.change.hardware]
    better = [cure for cure in fitting if cure.gpu_s_per_token < _WORTH * least]
    return tuple(sorted(better, key=_rank)[:_CHEAPER])


def _good(cure: Cure, base: StepAnswer) -> bool:
    """Whether it mends everything with room to spare, on the same machines and with the same batch."""
    same = cure.num_ranks == base.job.num_ranks and cure.tokens_per_step == base.report.tokens_per_step
    return cure.cures and same and not cure.tight and not cure.change.hardware


def _nearest(found: Sequence[Cure], now: int) -> tuple[Cure, ...]:
    """What fits in memory at last, the cheapest token first; else those with which less fails, the fewest failures
    first, and of the same failures only the best.
    """
    fitting = sorted((cure for cure in found if cure.fits), key=lambda cure: (cure.tight, *_rank(cure)))
    if fitting:
        return tuple(fitting[:_NEAREST])
    best: dict[tuple[str, ...], Cure] = {}
    for cure in sorted(found, key=lambda one: (len(one.failing), one.change.hardware, one.gpu_s_per_token)):
        if len(cure.failing) < now:
            best.setdefault(cure.failing, cure)
    return tuple(best.values())[:_NEAREST]


def _rank(cure: Cure) -> tuple[int, bool, int, float, int, tuple[str, ...]]:
    """What keeps machines and batch first; then what alters the batch; then other machines. In each what has room in
    memory first, then the smallest batch where it alters, then the cheapest token (to three digits); of equals the
    smaller change.
    """
    change, tokens = cure.change, cure.tokens_per_step if cure.change.alters_batch else 0
    altered = 2 * change.hardware + change.alters_batch
    return (altered, cure.tight, tokens, float(f"{cure.gpu_s_per_token:.3g}"), len(change.overrides), change.overrides)


@dataclass(frozen=True, slots=True)
class _Trial:
    """How changes are simulated. broken: what fails in the scenario."""

    base: StepAnswer
    load: Load
    judge: Judge
    tell: Callable[[int, int], None]
    wiring: Wiring | None
    broken: set[str]

    def of(self, changes: Sequence[Change]) -> Iterator[Cure]:
        """Each that can be simulated, in order; of a ladder none above one that is enough."""
        climbed: set[str] = set()
        for done, change in enumerate(changes):
            self.tell(done, len(changes))
            if change.ladder in climbed:
                continue
            try:
                same = not any(key.startswith("cluster") for key in change.keys)
                answer = answer_step(self.load(change.overrides), self.wiring if same else None, with_startup=False)
            except SimulatorError:  # what the strategy, the library or the topology does not allow is no candidate
                continue
            cure = self._cure(change, answer)
            if cure.cures and change.ladder and not cure.tight:
                climbed.add(change.ladder)
            yield cure
        self.tell(len(changes), len(changes))

    def of_layouts(self) -> list[Cure]:
        """The model laid out anew, and variants of the layouts that do best."""
        job = self.base.job
        layouts = {change_of(layout, job): layout for layout in layouts_of(job, self.base.network)}
        found = list(self.of(list(layouts)))
        best = sorted(found, key=lambda cure: ("memory" in cure.failing, *_rank(cure)))[:MOST_REFINED]
        variants = (change_of(one, job) for cure in best for one in refined(layouts[cure.change], job))
        return found + list(self.of(list(_new(variants, layouts))))

    def _cure(self, change: Change, answer: StepAnswer) -> Cure:
        report, failing = answer.report, tuple(v.what for v in self.judge(answer) if not v.ok)
        return Cure(
            change=change, step_time_s=report.step_time_s, gpu_s_per_token=1.0 / report.tokens_per_s_per_gpu,
            peak_bytes=report.memory.peak_bytes, exposed_share=report.exposed_share, num_ranks=answer.job.num_ranks,
            failing=failing, tokens_per_step=report.tokens_per_step, tight=_tight(answer),
            fits="memory" in self.broken and "memory" not in failing,
        )  # fmt: skip


def _new(changes: Iterable[Change], known: Iterable[Change]) -> Iterator[Change]:
    before = set(known)
    return (change for change in dict.fromkeys(changes) if change not in before)


def _tight(answer: StepAnswer) -> bool:
    device, memory = answer.job.device, answer.report.memory
    if device is None:
        return False
    free = device.memory * answer.job.scenario.limits.memory - memory.peak_bytes
    return free < slack_of(memory.by_kind_bytes, memory.pools_bytes).low_bytes


def _pairs(broken: set[str], singles: Sequence[Change], found: Sequence[Cure]) -> list[Change]:
    """The most helpful changes, each with every other that sets other keys."""
    helpful = sorted(found, key=lambda cure: _badness(cure, broken))[:_COMBINED]
    pairs: dict[frozenset[str], Change] = {}
    for cure in helpful:
        for other in singles:
            needed = not other.only_room or "memory" in broken.union(cure.failing)
            if needed and not (cure.change.keys & other.keys):
                both = (*cure.change.overrides, *other.overrides)
                pairs.setdefault(frozenset(both), Change(
                    overrides=both, why=f"{cure.change.why}; {other.why}",
                    alters_batch=cure.change.alters_batch or other.alters_batch,
                    hardware=cure.change.hardware or other.hardware,
                    only_room=cure.change.only_room or other.only_room,
                    ladder=other.ladder and f"{' '.join(cure.change.overrides)} {other.ladder}",
                ))  # fmt: skip
    return list(pairs.values())


def _badness(cure: Cure, broken: set[str]) -> tuple[int, float, float]:
    """Fewer failures first, then less of what is too much: memory, or exposed communication."""
    if "memory" in broken:
        return (len(cure.failing), cure.peak_bytes, cure.exposed_share)
    return (len(cure.failing), cure.exposed_share, cure.gpu_s_per_token)
