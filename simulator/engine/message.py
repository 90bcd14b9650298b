"""The message engine: every transfer of a schedule is an activity on links. The oracle of the other engine.

Ranks advance by the step rule: a transfer starts when both its ends have finished their steps before it (the
receiver must have posted its receive, as in gloo, MPI rendezvous and NCCL's slots). Whatever happens at one
instant is handled in one batch of array operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import simpy

from simulator.engine.clock import Clock
from simulator.engine.fabric import Fabric
from simulator.engine.outcome import Outcome, outcome
from simulator.engine.wires import Paths, Wires
from simulator.errors import DeadlockError, UnsupportedError
from simulator.schedule import Floats, Ints, Pattern, Schedule

#: The oracle keeps every message; above this many the answer would take minutes.
MAX_MESSAGES = 20_000_000


@dataclass(slots=True, eq=False)
class _Step:
    """A step that some rank has reached. missing[i]: ends of transfer i that have not arrived yet."""

    missing: Ints
    unfinished: int


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A pattern and its place: steps first .. first + steps - 1, and each rank's transfers in it (CSR)."""

    pattern: Pattern
    paths: Paths
    first: int
    steps: int
    ranks: Ints
    offsets: Ints
    items: Ints


def _make_run(pattern: Pattern, paths: Paths, first: int, steps: int) -> _Run:
    ends = np.concatenate([pattern.src, pattern.dst])
    transfer = np.tile(np.arange(len(pattern), dtype=np.int64), 2)
    order = np.argsort(ends, kind="stable")
    ranks, starts = np.unique(ends[order], return_index=True)
    offsets = np.append(starts, len(ends)).astype(np.int64)
    return _Run(
        pattern=pattern, paths=paths, first=first, steps=steps, ranks=ranks, offsets=offsets, items=transfer[order],
    )  # fmt: skip


class Player:
    """Plays one schedule on a fabric. Ranks enter with ``enter``; ``finished(ranks)`` is called as they end.

    Several players may share a fabric, so that collectives contend for its links.
    """

    def __init__(
        self, env: simpy.Environment, fabric: Fabric, wires: Wires, schedule: Schedule, tag_base: int,
        finished: Callable[[Ints], None],
    ) -> None:  # fmt: skip
        self._env = env
        self._fabric = fabric
        self._schedule = schedule
        self._tag_base = tag_base
        self._finished = finished
        self._runs: list[_Run] = []
        first = 0
        for pattern, steps in schedule.runs():
            self._runs.append(_make_run(pattern, wires.paths(pattern), first, steps))
            first += steps
        self._starts = np.array([run.first for run in self._runs], dtype=np.int64)
        self._width = max((len(run.pattern) for run in self._runs), default=1)
        self.num_tags = max(1, first * self._width)
        self._route_of_ranks()
        self._steps: dict[int, _Step] = {}
        self._at = np.full(schedule.num_participants, -1, dtype=np.int64)
        self._pending = np.zeros(schedule.num_participants, dtype=np.int64)
        self._switches = np.arange(schedule.num_ranks, schedule.num_participants, dtype=np.int64)

    def _route_of_ranks(self) -> None:
        """For each rank the runs it takes part in, in order (CSR), and a pointer into them."""
        p = self._schedule.num_participants
        ranks = np.concatenate([run.ranks for run in self._runs] or [np.empty(0, dtype=np.int64)])
        index = np.repeat(np.arange(len(self._runs)), [len(run.ranks) for run in self._runs])
        order = np.argsort(ranks, kind="stable")
        self._route = index[order]
        self._route_end = np.cumsum(np.bincount(ranks, minlength=p))
        self._route_at = np.append(0, self._route_end)[:-1].copy()

    def enter(self, ranks: Ints) -> None:
        """The ranks call the collective now: they go to the first step that they have a part in.

        Switches are there from the first call on.
        """
        self._go(np.append(ranks, self._switches))
        self._switches = self._switches[:0]

    def _go(self, ranks: Ints) -> None:
        """Move ranks to their next step; those without one are finished."""
        run_left = self._at[ranks]
        in_run = np.zeros(len(ranks), dtype=bool)
        started = run_left >= 0
        if started.any():
            index = self._route[np.minimum(self._route_at[ranks], len(self._route) - 1)]
            last = np.array([self._runs[i].first + self._runs[i].steps - 1 for i in index], dtype=np.int64)
            in_run = started & (run_left < last)
            self._route_at[ranks[started & ~in_run]] += 1
        over = ~in_run & (self._route_at[ranks] >= self._route_end[ranks])
        self._at[ranks[in_run]] += 1
        fresh = ranks[~in_run & ~over]
        if len(fresh):
            self._at[fresh] = self._starts[self._route[self._route_at[fresh]]]
        going = ranks[~over]
        for step in np.unique(self._at[going]):
            self._arrive(int(step), going[self._at[going] == step])
        ended = ranks[over & (ranks < self._schedule.num_ranks)]
        if len(ended):
            self._finished(ended)

    def _run_of(self, step: int) -> _Run:
        return self._runs[int(np.searchsorted(self._starts, step, side="right")) - 1]

    def _arrive(self, step: int, ranks: Ints) -> None:
        run = self._run_of(step)
        state = self._steps.get(step)
        if state is None:
            state = _Step(missing=np.full(len(run.pattern), 2, dtype=np.int64), unfinished=len(run.pattern))
            self._steps[step] = state
        place = np.searchsorted(run.ranks, ranks)
        low, high = run.offsets[place], run.offsets[place + 1]
        counts = high - low
        self._pending[ranks] = counts
        picks = np.repeat(low - np.append(0, np.cumsum(counts))[:-1], counts) + np.arange(counts.sum())
        mine = run.items[picks]
        np.subtract.at(state.missing, mine, 1)
        ready = np.unique(mine[state.missing[mine] == 0])
        if not len(ready):
            return
        size_bytes = run.pattern.chunks[ready] * self._schedule.chunk_bytes
        tags = self._tag_base + step * self._width + ready
        self._fabric.send(run.paths.links[ready], run.paths.latency_s[ready], size_bytes, tags)

    def done(self, tags: Ints) -> None:
        """Transfers that have ended now; ranks whose step is complete go on."""
        number = tags - self._tag_base
        steps = number // self._width
        free: list[Ints] = []
        for step in np.unique(steps):
            run = self._run_of(int(step))
            transfers = number[steps == step] - step * self._width
            state = self._steps[int(step)]
            state.unfinished -= len(transfers)
            if not state.unfinished:
                del self._steps[int(step)]
            ends = np.concatenate([run.pattern.src[transfers], run.pattern.dst[transfers]])
            np.subtract.at(self._pending, ends, 1)
            touched = np.unique(ends)
            free.append(touched[self._pending[touched] == 0])
        self._go(np.unique(np.concatenate(free)))

    def waiting(self) -> list[str]:
        """Ranks that are stuck and the step they are in, for a deadlock report."""
        stuck = np.flatnonzero(self._pending > 0)
        return [f"{self._who(r)} in step {self._at[r]} ({self._pending[r]} transfers open)" for r in stuck[:8].tolist()]

    def _who(self, participant: int) -> str:
        p = self._schedule.num_ranks
        return f"rank {participant}" if participant < p else f"switch {participant - p}"


def finish_times(schedule: Schedule, wires: Wires, starts_s: Floats, max_work: float = np.inf) -> Floats:
    """Simulate every message of ``schedule``; rank r calls it at ``starts_s[r]``. When each ends, (num_ranks,).

    Raises UnsupportedError above MAX_MESSAGES, fabric.TooMuchWorkError above ``max_work`` and DeadlockError if ranks
    are left waiting. Growth: messages times the flows that share links with one at a time (``Fabric.work``); a ring
    of p ranks has 2 p (p-1) messages, trees 2 (p-1), recursive doubling 2 p log2 p, an all-to-all p (p-1).
    """
    if schedule.num_messages > MAX_MESSAGES:
        raise UnsupportedError(
            f"{schedule.op}/{schedule.algorithm} on {schedule.num_ranks} ranks has {schedule.num_messages:,} "
            f"messages; the message engine takes at most {MAX_MESSAGES:,}"
        )
    env = Clock()
    finish = np.full(schedule.num_ranks, np.nan)

    def finished(ranks: Ints) -> None:
        finish[ranks] = env.now

    player: Player
    fabric = Fabric(env, wires.capacity, lambda tags: player.done(tags), max_work)
    player = Player(env, fabric, wires, schedule, 0, finished)
    for start in np.unique(starts_s).tolist():
        ranks = np.flatnonzero(starts_s == start)
        env.timeout(start).callbacks.append(partial(_enter, player, ranks))
    env.run()
    if np.isnan(finish).any():
        raise DeadlockError(
            f"{schedule.op}/{schedule.algorithm} stopped with ranks waiting: " + "; ".join(player.waiting())
        )
    return finish


def play(schedule: Schedule, wires: Wires, starts_s: Floats) -> Outcome:
    """``finish_times`` with the traffic. Raises as it does."""
    return outcome(schedule, wires, starts_s, finish_times(schedule, wires, starts_s), "message")


def _enter(player: Player, ranks: Ints, _event: simpy.Event) -> None:
    player.enter(ranks)
