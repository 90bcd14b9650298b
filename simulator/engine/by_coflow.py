"""Collectives of a step as coflows: one activity for groups that are alike, started when their last class arrives."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from simulator.engine.coflow import Coflow
from simulator.engine.machine import Machine
from simulator.engine.maker import CoflowMaker
from simulator.plan import Communicate, Kin, Plan, absences, callers, from_root, kin_of
from simulator.schedule import Floats
from simulator.timeline import CollectiveCost

#: One collective of the groups of one kin.
_Call = tuple[str, tuple[str, ...]]


class ByCoflow:
    """``join`` is what a rank class does in a collective. ``costs`` and ``link_bytes`` grow as collectives run."""

    fidelity = "coflow"

    def __init__(self, plan: Plan, maker: CoflowMaker, machine: Machine) -> None:
        self._plan, self._maker, self._machine = plan, maker, machine
        self._absences = absences(plan)
        self._kin = {axis: kin_of(plan, axis) for axis in plan.axes}
        self._arrived: dict[_Call, int] = {}
        self._over: dict[_Call, simpy.Event] = {}
        self.costs: dict[str, CollectiveCost] = {}
        self.link_bytes: Floats = np.zeros(len(maker.network.capacity_bytes_per_s))

    def join(self, task: Communicate, ranks: str) -> Generator[simpy.Event, Any, None]:
        """Wait for the other classes of the same groups, then for the collective itself."""
        kin = self._kin[task.axis][ranks]
        coflow = self._coflow(task, kin)
        call = (task.name, kin.classes)
        over = self._over.setdefault(call, self._machine.env.event())
        self._arrived[call] = self._arrived.get(call, 0) + 1
        self._machine.send(ranks, task.name, coflow.cost, waiting=True)
        if self._arrived[call] == len(kin.classes) and not self._lacks(task, kin):
            for name in kin.classes:
                self._machine.send(name, task.name, coflow.cost, waiting=False)
            self._machine.env.process(self._play(task, coflow, over))
        yield over
        self._machine.leave(ranks, task.name)

    def _play(self, task: Communicate, coflow: Coflow, over: simpy.Event) -> Generator[simpy.Event, Any, None]:
        slowest = self.costs.setdefault(task.name, coflow.cost)
        if coflow.cost.alone_s > slowest.alone_s:
            self.costs[task.name] = coflow.cost
        self.link_bytes = self.link_bytes + coflow.link_bytes
        yield self._machine.env.timeout(coflow.latency_s)
        if coflow.work_s > 0:
            yield self._machine.transfer(coflow)
        over.succeed()

    def _lacks(self, task: Communicate, kin: Kin) -> bool:
        """Whether some rank of these groups never calls the collective."""
        return task.name in self._absences and any(
            rank not in callers(self._plan, task) for group in kin.groups for rank in group
        )

    def _coflow(self, task: Communicate, kin: Kin) -> Coflow:
        return self._maker.coflow(task.op, task.algorithm, task.message_bytes, from_root(kin.groups, task.root))
