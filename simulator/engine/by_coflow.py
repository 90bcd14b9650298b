"""Collectives of a step as coflows: one activity for all groups of an axis, started when the last class arrives."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from simulator.engine.coflow import Coflow
from simulator.engine.machine import Machine
from simulator.engine.maker import CoflowMaker
from simulator.plan import Communicate, Plan, absences, groups_called
from simulator.schedule import Floats
from simulator.timeline import CollectiveCost


class ByCoflow:
    """``join`` is what a rank class does in a collective. ``costs`` and ``link_bytes`` grow as collectives run."""

    fidelity = "coflow"

    def __init__(self, plan: Plan, maker: CoflowMaker, machine: Machine) -> None:
        self._plan, self._maker, self._machine = plan, maker, machine
        self._absences = absences(plan)
        self._arrived: dict[str, int] = {}
        self._over: dict[str, simpy.Event] = {}
        self.costs: dict[str, CollectiveCost] = {}
        self.link_bytes: Floats = np.zeros(len(maker.network.capacity_bytes_per_s))

    def join(self, task: Communicate, ranks: str) -> Generator[simpy.Event, Any, None]:
        """Wait for the other classes, then for the collective itself."""
        over = self._over.setdefault(task.name, self._machine.env.event())
        self._arrived[task.name] = self._arrived.get(task.name, 0) + 1
        self._machine.enter(ranks)
        if self._arrived[task.name] == len(task.classes) and task.name not in self._absences:
            self._machine.env.process(self._play(task, over))
        yield over
        self._machine.leave(ranks)

    def _play(self, task: Communicate, over: simpy.Event) -> Generator[simpy.Event, Any, None]:
        coflow = self._coflow(task)
        self.costs[task.name] = coflow.cost
        self.link_bytes = self.link_bytes + coflow.link_bytes
        yield self._machine.env.timeout(coflow.latency_s)
        if coflow.work_s > 0:
            yield self._machine.transfer(coflow)
        over.succeed()

    def _coflow(self, task: Communicate) -> Coflow:
        return self._maker.coflow(task.op, task.algorithm, task.message_bytes, groups_called(self._plan, task))
