"""``simulate(plan, network)``: the only place where simulated time passes for a training step.

One SimPy process per task and rank class. A task waits for the task before it on its lane and for its ``after``;
then a compute task works, slowed while a collective is active on its ranks, and a collective plays: as a coflow,
or message by message with every rank simulated (``fidelity='message'``).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from simulator.engine.by_coflow import ByCoflow
from simulator.engine.by_message import ByMessage
from simulator.engine.machine import Machine
from simulator.engine.maker import CoflowMaker
from simulator.errors import DeadlockError, UnsupportedError
from simulator.network.graph import Network
from simulator.plan import Communicate, Compute, Plan, Task, absences, unfolded
from simulator.timeline import Span, Timeline

#: ``fidelity: message`` keeps every rank and every message; it is for small clusters.
MAX_MESSAGE_RANKS = 64


def simulate(
    plan: Plan, network: Network, *, slowdown: float = 0.0, fidelity: str = "coflow", maker: CoflowMaker | None = None
) -> Timeline:
    """Run the plan on the network.

    slowdown: share of a rank's compute speed that is lost while a collective is active on it, 0 <= s < 1.
    fidelity: 'coflow' (rank classes, whole collectives) or 'message' (every rank, every message).
    maker: share one between runs on the same network to keep what it has simulated.
    Raises UnsupportedError above MAX_MESSAGE_RANKS in 'message', DeadlockError if tasks are left waiting.
    """
    assert 0 <= slowdown < 1, "the slowdown is a share of the speed"
    if fidelity == "message":
        if plan.num_ranks > MAX_MESSAGE_RANKS:
            raise UnsupportedError(
                f"engine.fidelity: 'message' simulates every rank, at most {MAX_MESSAGE_RANKS}; this plan has "
                f"{plan.num_ranks}; use 'auto' or 'coflow'"
            )
        plan = unfolded(plan)
    made = maker or CoflowMaker(network)
    machine = Machine([c.name for c in plan.classes], network.capacity_bytes_per_s, slowdown)
    runner = ByMessage(plan, made, machine) if fidelity == "message" else ByCoflow(plan, made, machine)
    spans = _Run(plan, machine, runner).spans()
    return Timeline(
        plan=plan, spans=spans, costs=runner.costs, end_s=max((s.end_s for s in spans), default=0.0),
        link_names=network.link_names, link_bytes=runner.link_bytes,
        link_bytes_per_s=network.capacity_bytes_per_s, fidelity=runner.fidelity, events=len(spans),
    )  # fmt: skip


class _Run:
    """Starts a process per task and class, and keeps the spans as they end."""

    def __init__(self, plan: Plan, machine: Machine, runner: ByCoflow | ByMessage) -> None:
        self._plan, self._machine, self._runner = plan, machine, runner
        self._order = {c.name: i for i, c in enumerate(plan.classes)}
        self._spans: list[tuple[float, int, int, Span]] = []
        self._over: dict[tuple[str, str], simpy.Event] = {}
        self._tasks = {task.name: task for task in plan.tasks}

    def spans(self) -> tuple[Span, ...]:
        """Run everything; spans in start order, ties in plan order."""
        tails: dict[tuple[str, str], simpy.Event] = {}
        for number, task in enumerate(self._plan.tasks):
            for ranks in task.classes:
                over = self._over[task.name, ranks] = self._machine.env.event()
                waits = [event for name in task.after for event in self._ends(name, ranks)]
                if (ranks, task.lane) in tails:
                    waits.append(tails[ranks, task.lane])
                tails[ranks, task.lane] = over
                self._machine.env.process(self._one(number, task, ranks, waits, over))
        self._machine.env.run()
        self._refuse_leftovers()
        return tuple(span for *_, span in sorted(self._spans, key=lambda entry: entry[:3]))

    def _ends(self, name: str, ranks: str) -> list[simpy.Event]:
        """What a class waits for: its own part of a task it shares, else the whole task."""
        if (name, ranks) in self._over:
            return [self._over[name, ranks]]
        return [self._over[name, other] for other in self._tasks[name].classes]

    def _one(
        self, number: int, task: Task, ranks: str, waits: list[simpy.Event], over: simpy.Event
    ) -> Generator[simpy.Event, Any, None]:
        for event in waits:
            if not event.processed:
                yield event
        start = self._machine.env.now
        if isinstance(task, Communicate):
            yield from self._runner.join(task, ranks)
            alone_s = self._runner.costs[task.name].alone_s
        else:
            assert isinstance(task, Compute)
            yield self._machine.compute(ranks, task.seconds)
            alone_s = task.seconds
        span = Span(task=task, ranks=ranks, start_s=start, end_s=self._machine.env.now, alone_s=alone_s)
        self._spans.append((start, number, self._order[ranks], span))
        over.succeed()

    def _refuse_leftovers(self) -> None:
        stuck = [key for key, event in self._over.items() if not event.triggered]
        if not stuck:
            return
        waiting = "; ".join(f"{name} on {ranks}" for name, ranks in stuck[:8])
        missing = absences(self._plan)
        never = "".join(f"; '{name}' is never called by {_some(missing[name])}" for name in missing)
        raise DeadlockError(f"plan '{self._plan.title}' stopped with {len(stuck)} tasks waiting: {waiting}{never}")


def _some(ranks: tuple[int, ...]) -> str:
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return ", ".join(f"rank {rank}" for rank in ranks[:8]) + more
