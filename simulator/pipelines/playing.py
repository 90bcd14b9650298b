"""A schedule with times but without communication: when each step starts and ends, and who is idle for how long.

A step starts when its rank is free and what it needs is there:

- F needs the F of the stage before;
- I and B need the F of their own stage, and the I or B of the stage after;
- W needs the I of its own stage.

Times are in any unit. What this leaves out: messages between stages, which a training step adds on links.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.errors import DeadlockError, ScenarioError
from simulator.pipelines.order import Action, Kind, Pair, PipelineSchedule, Step

#: Longest list of ranks in a message.
_NAMED = 8


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of one micro-batch in one stage: forward, gradient of the input, gradient of the weights."""

    forward: float
    input_grad: float
    weight_grad: float

    def of(self, kind: Kind) -> float:
        """Time of one kind of work; a whole backward is both gradients."""
        if kind == "F":
            return self.forward
        return (self.input_grad if kind != "W" else 0.0) + (self.weight_grad if kind != "I" else 0.0)


def even_times(schedule: PipelineSchedule, rank: StageTimes) -> tuple[StageTimes, ...]:
    """Times of every part of the model where ``rank`` are those of all layers of a rank, cut into equal chunks."""
    v = schedule.chunks
    one = StageTimes(rank.forward / v, rank.input_grad / v, rank.weight_grad / v)
    return (one,) * schedule.stages_per_chain


class Span(NamedTuple):
    """A step, from when to when."""

    step: Step
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What ran when: the spans of every rank in their order. The first start of all is at 0."""

    schedule: PipelineSchedule
    spans: tuple[tuple[Span, ...], ...]

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max(spans[-1].end for spans in self.spans)

    def busy(self, rank: int) -> float:
        """Time in which a rank works."""
        return math.fsum(span.end - span.start for span in self.spans[rank])

    def idle(self, rank: int) -> float:
        """Time in which a rank waits, from the first start on any rank to the last end on any."""
        return self.makespan - self.busy(rank)

    @property
    def bubble_share(self) -> float:
        """Idle time of all ranks over all their time: (p - 1) / (m + p - 1) for 1F1B."""
        ranks = self.schedule.num_ranks
        return math.fsum(map(self.idle, range(ranks))) / (self.makespan * ranks)


def play(schedule: PipelineSchedule, times: Sequence[StageTimes], *, hidden: float = 0.0) -> Played:
    """Start and end of every step, as early as the order and the dependencies allow; linear in the number of steps.

    times: of every part of the model, from the input on; stages of two chains that hold the same part take the same.
    hidden: share, 0 to 1, of the shorter one of a pair that hides behind the longer one. The two of a pair start
    together, when both can, and end together: what comes next needs all of it.

    Raises ScenarioError for another number of times, DeadlockError for orders that can never run.
    """
    if len(times) != schedule.stages_per_chain:
        wanted = schedule.stages_per_chain
        raise ScenarioError(f"{schedule.name}: {len(times)} times for {wanted} stages: expected one for each stage")
    run = _Run(schedule, times, hidden)
    run.play()
    return Played(schedule=schedule, spans=tuple(map(tuple, run.spans)))


def needs(schedule: PipelineSchedule, action: Action) -> tuple[Action, ...]:
    """What must be done before an action. I stands for the gradient of the input, also where a B brings it."""
    stage, kind, micro_batch = action
    if kind == "W":
        return (Action(stage, "I", micro_batch),)
    if kind == "F":
        return () if schedule.is_first(stage) else (Action(stage - 1, "F", micro_batch),)
    own = Action(stage, "F", micro_batch)
    return (own,) if schedule.is_last(stage) else (own, Action(stage + 1, "I", micro_batch))


class _Run:
    """How far every rank has come, when what was done, and who waits for what."""

    def __init__(self, schedule: PipelineSchedule, times: Sequence[StageTimes], hidden: float) -> None:
        self._schedule, self._hidden = schedule, hidden
        self._times = [times[schedule.part_of_model(stage)] for stage in range(schedule.num_stages)]
        self._done: dict[Action, float] = {}
        self._waiting: dict[Action, list[int]] = {}
        self.spans: list[list[Span]] = [[] for _ in schedule.orders]

    def play(self) -> None:
        """Takes each rank as far as it comes, and on when what it waits for is done. Raises DeadlockError."""
        ready = deque(range(self._schedule.num_ranks))
        while ready:
            rank = ready.popleft()
            order, spans = self._schedule.orders[rank], self.spans[rank]
            while len(spans) < len(order):
                step = order[len(spans)]
                parts = step if isinstance(step, Pair) else (step,)
                start = self._start(parts, spans[-1].end if spans else 0.0)
                if isinstance(start, Action):
                    self._waiting.setdefault(start, []).append(rank)
                    break
                spans.append(Span(step, start, start + self._length(parts)))
                ready.extend(self._finish(parts, spans[-1].end))
        if self._waiting:
            raise DeadlockError(self._stuck())

    def _start(self, parts: tuple[Action, ...], free: float) -> float | Action:
        """When a step of a rank that is free from then on can start; or the first thing it needs that is not done."""
        for action in parts:
            for need in needs(self._schedule, action):
                end = self._done.get(need)
                if end is None:
                    return need
                free = max(free, end)
        return free

    def _length(self, parts: tuple[Action, ...]) -> float:
        lengths = [self._times[action.stage].of(action.kind) for action in parts]
        return lengths[0] if len(parts) == 1 else math.fsum(lengths) - self._hidden * min(lengths)

    def _finish(self, parts: tuple[Action, ...], end: float) -> list[int]:
        """Notes that a step is done; returns the ranks that waited for it."""
        free: list[int] = []
        for action in parts:
            done = action._replace(kind="I") if action.kind == "B" else action
            self._done[done] = end
            free += self._waiting.pop(done, ())
        return free

    def _stuck(self) -> str:
        """``rank 1 waits at 1B0 for the forward of micro-batch 0 in stage 1 (rank 1)``, for every rank that waits."""
        lines = []
        for need, ranks in self._waiting.items():
            home = self._schedule.ranks_of_stages[need.stage]
            what = f"the {_WORDS[need.kind]} of micro-batch {need.micro_batch} in stage {need.stage} (rank {home})"
            lines += [
                f"rank {rank} waits at {self._schedule.orders[rank][len(self.spans[rank])]} for {what}"
                for rank in ranks
            ]
        more = f"; and {len(lines) - _NAMED} more ranks" if len(lines) > _NAMED else ""
        return f"{self._schedule.name}: this order can never run: {'; '.join(lines[:_NAMED])}{more}"


_WORDS: dict[Kind, str] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
