"""Which change mends a scenario: every candidate is simulated, and cures are ranked by what a token then costs.

Single changes first. Where none of them is enough, or memory is then tight with each, the most helpful ones are
combined, two at a time, with all others. A change counts as a cure when every judgement that failed holds, and none
that held fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simulator.answer import StepAnswer, Wiring, answer_step
from simulator.checking.changes import Change, changes_of
from simulator.errors import SimulatorError
from simulator.report.slack import slack_of
from simulator.report.verdict import Verdict
from simulator.scenario import Scenario

#: Single changes that are combined with others when none is enough.
_COMBINED = 4
#: How many changes are told where none mends everything.
_NEAREST = 3
#: A verdict of all that is judged; a loader of the scenario with more overrides.
Judge = Callable[[StepAnswer], Sequence[Verdict]]
Load = Callable[[Sequence[str]], Scenario]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A change and the step that it gives. gpu_s_per_token: what a token costs, before prices. tight: what is
    free is less than an allocator takes at least (``report.slack``), so that it may well run out of memory.
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
    singles = changes_of(base.job, base.network, memory_only=broken == {"memory"})
    alone = [change for change in singles if "memory" in broken or not change.only_room]
    found = list(_tried(alone, load, judge, tell, wiring))
    cured = [cure for cure in found if cure.cures]
    if all(cure.tight for cure in cured):
        pairs = list(_tried(_pairs(broken, singles, found), load, judge, tell, wiring))
        cured += [cure for cure in pairs if cure.cures]
        found += pairs
    return tuple(sorted(cured, key=_rank)) if cured else _nearest(found, len(broken))


def _nearest(found: Sequence[Cure], now: int) -> tuple[Cure, ...]:
    """Those with which less fails, the fewest failures first; of the same failures only the best."""
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


def _tried(
    changes: Sequence[Change], load: Load, judge: Judge, tell: Callable[[int, int], None], wiring: Wiring | None
) -> Iterator[Cure]:  # fmt: skip
    climbed: set[str] = set()
    for done, change in enumerate(changes):
        tell(done, len(changes))
        if change.ladder in climbed:
            continue
        try:
            same = not any(key.startswith("cluster") for key in change.keys)
            answer = answer_step(load(change.overrides), wiring if same else None, with_startup=False)
        except SimulatorError:  # what the strategy, the library or the topology does not allow is no candidate
            continue
        cure = _cure(change, answer, judge)
        if cure.cures and change.ladder and not cure.tight:
            climbed.add(change.ladder)
        yield cure
    tell(len(changes), len(changes))


def _cure(change: Change, answer: StepAnswer, judge: Judge) -> Cure:
    report = answer.report
    return Cure(
        change=change, step_time_s=report.step_time_s, gpu_s_per_token=1.0 / report.tokens_per_s_per_gpu,
        peak_bytes=report.memory.peak_bytes, exposed_share=report.exposed_share, num_ranks=answer.job.num_ranks,
        failing=tuple(v.what for v in judge(answer) if not v.ok), tokens_per_step=report.tokens_per_step,
        tight=_tight(answer),
    )  # fmt: skip


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
