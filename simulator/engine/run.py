"""``simulate(plan, network)``: the only place where simulated time passes for a training step.

One SimPy process per task and rank class. A task waits for the task before it on its lane and for its ``after``;
then a compute task works, slowed while a collective is active on its ranks, and a collective plays: as a coflow,
or message by message with every rank simulated (``fidelity='message'``). Where issuing tasks takes time, one more
process per class is its host thread, which goes through the plan in order, ahead of the work if it can.

``simulate`` plays a plan once, the host starting with the device. ``simulate_steady`` plays a step as it repeats: its
host has run ahead in the steps before.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import simpy

from simulator.engine.by_coflow import ByCoflow
from simulator.engine.by_message import ByMessage
from simulator.engine.host import HostThreads
from simulator.engine.interference import Interference
from simulator.engine.machine import Machine
from simulator.engine.maker import CoflowMaker
from simulator.errors import DeadlockError, UnsupportedError
from simulator.network.graph import Network
from simulator.plan import HOST_COPY, Communicate, Plan, RankClass, Task, absences, seconds_on, unfolded
from simulator.timeline import Span, Timeline

#: ``fidelity: message`` keeps every rank and every message; it is for small clusters.
MAX_MESSAGE_RANKS = 64
#: Steps until a host's lead repeats itself; a step counts as the same within this share.
_MOST_STEPS = 4
_SAME_STEP = 1e-12
#: Tasks and ranks that an error names.
_MOST_TOLD = 8


def simulate(
    plan: Plan, network: Network, *, interference: Interference | None = None, fidelity: str = "coflow",
    maker: CoflowMaker | None = None,
) -> Timeline:  # fmt: skip
    """Run the plan on the network.

    interference: how collectives slow the compute beside them; not at all when left out.
    fidelity: 'coflow' (rank classes, whole collectives) or 'message' (every rank, every message).
    maker: share one between runs on the same network to keep what it has simulated.
    Raises UnsupportedError above MAX_MESSAGE_RANKS in 'message', DeadlockError if tasks are left waiting.
    """
    made = maker or CoflowMaker(network)
    return _play(plan, network, interference, fidelity, made, host=plan.has_host, ahead_s={})[0]


def simulate_steady(
    plan: Plan, network: Network, *, interference: Interference | None = None, fidelity: str = "coflow",
    maker: CoflowMaker | None = None,
) -> Timeline:  # fmt: skip
    """Run a step as it takes its turn among many equal ones, none of which ends with the host waiting for the device.

    A host that needs less time for the step than the device gets further ahead with every step, and costs nothing.
    Another starts ahead by what the device still had to do when the host was done with the step before, which repeats
    itself after a few steps at most. Arguments and errors as for ``simulate``.
    """
    made = maker or CoflowMaker(network)
    waits = any(task.host_after for task in plan.tasks)
    if not waits:
        alone, _ = _play(plan, network, interference, fidelity, made, host=False, ahead_s={})
        if all(seconds <= alone.end_s for seconds in issue_s(plan).values()):
            return alone
    timeline, ended_s = _play(plan, network, interference, fidelity, made, host=plan.has_host, ahead_s={})
    costs = any(task.host_s for task in plan.tasks)
    for _ in range(_MOST_STEPS if costs else 0):
        before_s = timeline.end_s
        ahead_s = {ranks: max(0.0, before_s - end_s) for ranks, end_s in ended_s.items()}
        timeline, ended_s = _play(plan, network, interference, fidelity, made, host=True, ahead_s=ahead_s)
        if abs(timeline.end_s - before_s) <= _SAME_STEP * before_s:
            break
    return timeline


def issue_s(plan: Plan) -> dict[str, float]:
    """By class, the time that its host thread works in a plan, waiting left out."""
    found = dict.fromkeys((ranks.name for ranks in plan.classes), 0.0)
    for task in plan.tasks:
        for name in task.classes if task.host_s else ():
            found[name] += task.host_s
    return {ranks.name: found[ranks.name] / ranks.speed for ranks in plan.classes}


def _play(
    plan: Plan, network: Network, interference: Interference | None, fidelity: str, made: CoflowMaker, *, host: bool,
    ahead_s: Mapping[str, float],
) -> tuple[Timeline, dict[str, float]]:  # fmt: skip
    """The timeline, and when the host thread of each class had issued everything. host: whether issuing counts."""
    if fidelity == "message":
        if plan.num_ranks > MAX_MESSAGE_RANKS:
            raise UnsupportedError(
                f"engine.fidelity: 'message' simulates every rank, at most {MAX_MESSAGE_RANKS}; this plan has "
                f"{plan.num_ranks}; use 'auto' or 'coflow'"
            )
        plan = unfolded(plan)
    machine = Machine([c.name for c in plan.classes], interference or Interference())
    runner = ByMessage(plan, made, machine) if fidelity == "message" else ByCoflow(plan, made, machine)
    run = _Run(plan, machine, runner, ahead_s if host else None)
    spans = run.spans()
    timeline = Timeline(
        plan=plan, spans=spans, costs=runner.costs, end_s=max((s.end_s for s in spans), default=0.0),
        link_names=network.link_names, link_bytes=runner.link_bytes,
        link_bytes_per_s=network.capacity_bytes_per_s, fidelity=runner.fidelity, events=len(spans),
        host_ahead_s={c.name: ahead_s.get(c.name, 0.0) for c in plan.classes} if host else None,
    )  # fmt: skip
    return timeline, run.host_ended_s


class _Run:
    """Starts a process per task and class, and keeps the spans as they end. ahead_s: None for no host threads."""

    def __init__(
        self, plan: Plan, machine: Machine, runner: ByCoflow | ByMessage, ahead_s: Mapping[str, float] | None
    ) -> None:  # fmt: skip
        self._plan, self._machine, self._runner, self.env = plan, machine, runner, machine.env
        self._classes = {c.name: c for c in plan.classes}
        self._order = {c.name: i for i, c in enumerate(plan.classes)}
        self._spans: list[tuple[float, int, int, Span]] = []
        self._over: dict[tuple[str, str], _Part] = {}
        self._tasks = {task.name: task for task in plan.tasks}
        self._host = None if ahead_s is None else HostThreads(plan, machine.env, self._ends, ahead_s)

    @property
    def host_ended_s(self) -> dict[str, float]:
        return {} if self._host is None else self._host.ended_s

    def spans(self) -> tuple[Span, ...]:
        """Run everything; spans in start order, ties in plan order."""
        tails: dict[tuple[str, str], _Part] = {}
        parts = []
        for number, task in enumerate(self._plan.tasks):
            lane = task.lane
            for ranks in task.classes:
                waits = [event for name in task.after for event in self._before(name, task, ranks)]
                if (ranks, lane) in tails:
                    waits.append(tails[ranks, lane])
                part = self._over[task.name, ranks] = _Part(self, number, task, self._classes[ranks], waits)
                tails[ranks, lane] = part
                parts.append(part)
        for part in parts:
            part.go_on(part)
        if self._host:
            self._host.start()
        self._machine.env.run()
        self._refuse_leftovers()
        self._over.clear()  # they know the run, and it them
        return tuple(span for *_, span in sorted(self._spans))  # no two have the same number on the same class

    def _before(self, name: str, task: Task, ranks: str) -> list[simpy.Event]:
        """What a task waits for on a class. A collective waits for those that it is called with, where they do it."""
        if isinstance(task, Communicate) and (name, ranks) not in self._over:
            partners = self._runner.partners(task, ranks)
            theirs: list[simpy.Event] = [self._over[name, other] for other in partners if (name, other) in self._over]
            if theirs:
                return theirs
        return self._ends(name, ranks)

    def _ends(self, name: str, ranks: str) -> list[simpy.Event]:
        """What a class waits for: its own part of a task it shares, else the whole task."""
        if (name, ranks) in self._over:
            return [self._over[name, ranks]]
        return [self._over[name, other] for other in self._tasks[name].classes]

    def body(self, part: _Part) -> Generator[simpy.Event, Any, None]:
        """What a task does on a class once it has waited for all that comes before it."""
        task, ranks = part.task, part.ranks
        if self._host:
            yield self._host.first_launch(task, ranks.name)
        start = self._machine.env.now
        if isinstance(task, Communicate):
            yield from self._runner.join(task, ranks.name)
            alone_s = self._runner.costs[task.name].alone_s
        else:
            alone_s = seconds_on(task, ranks)
            copies = task.kind == HOST_COPY
            yield self._machine.copy(alone_s) if copies else self._machine.compute(ranks.name, alone_s)
            if self._host:
                yield self._host.last_launch(task, ranks.name)
        span = Span(task=task, ranks=ranks.name, start_s=start, end_s=self._machine.env.now, alone_s=alone_s)
        self._spans.append((start, part.number, self._order[ranks.name], span))
        self.env.soon(part)

    def _refuse_leftovers(self) -> None:
        stuck = [key for key, event in self._over.items() if not event.triggered]
        if not stuck:
            return
        waiting = "; ".join(f"{name} on {ranks}" for name, ranks in stuck[:_MOST_TOLD])
        missing = absences(self._plan)
        told = list(missing)[:_MOST_TOLD]
        never = "".join(f"; '{name}' is never called by {_some(missing[name])}" for name in told)
        never += f"; and {len(missing) - len(told)} more" if len(missing) > len(told) else ""
        raise DeadlockError(f"plan '{self._plan.title}' stopped with {len(stuck)} tasks waiting: {waiting}{never}")


class _Part(simpy.Event):
    """A task on one class: it waits, does what it has to, and is the event of its own end.

    What a SimPy process does, without events for having started, and without anything that runs before it can start.
    """

    def __init__(self, run: _Run, number: int, task: Task, ranks: RankClass, waits: list[simpy.Event]) -> None:
        self.env, self.callbacks = run.env, []
        self.run, self.number, self.task, self.ranks = run, number, task, ranks
        self._waits = waits[::-1]
        self._body: Generator[simpy.Event, Any, None] | None = None

    def go_on(self, _happened: simpy.Event) -> None:
        """On to the next event that it waits for, and further whenever that happens."""
        waits = self._waits
        while waits:
            event = waits.pop()
            if event.callbacks is not None:  # has not happened yet
                event.callbacks.append(self.go_on)
                return
        if self._body is None:
            self._body = self.run.body(self)
        for event in self._body:
            if event.callbacks is not None:
                event.callbacks.append(self.go_on)
                return
        self._body = None


def _some(ranks: tuple[int, ...]) -> str:
    more = f" and {len(ranks) - _MOST_TOLD} more" if len(ranks) > _MOST_TOLD else ""
    return ", ".join(f"rank {rank}" for rank in ranks[:_MOST_TOLD]) + more
