"""Collectives of a step as coflows: one activity for groups that are alike, started when their last class arrives."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import simpy

from simulator.engine.coflow import Coflow, repeated
from simulator.engine.machine import Machine
from simulator.engine.maker import CoflowMaker
from simulator.engine.sharing import Sharing
from simulator.kin import Kin, kin_of
from simulator.plan import Communicate, Plan, absences, callers, from_root
from simulator.schedule import Floats
from simulator.timeline import CollectiveCost


class _Meeting:
    """One collective of the groups of one kin: its classes arrive one by one, and wait until it is over."""

    __slots__ = ("arrived", "coflow", "over")

    def __init__(self, coflow: Coflow, over: simpy.Event) -> None:
        self.coflow, self.over, self.arrived = coflow, over, 0


class ByCoflow:
    """``join`` is what a rank class does in a collective. ``costs`` grow as collectives run.

    All coflows are made before the first task starts, as what can be under way at once says which links can fill.
    """

    fidelity = "coflow"

    def __init__(self, plan: Plan, maker: CoflowMaker, machine: Machine) -> None:
        self._plan, self._maker, self._machine = plan, maker, machine
        self._absences = absences(plan)
        self._kin = {axis: kin_of(plan, axis) for axis in plan.axes}
        self._made: dict[tuple[str, str, float, int, int, int], Coflow] = {}
        self._meetings: dict[tuple[str, int], _Meeting] = {}
        self._played: dict[int, tuple[Coflow, int]] = {}
        self.costs: dict[str, CollectiveCost] = {}
        machine.sharing = Sharing(self._lanes().values(), maker.network.capacity_bytes_per_s)

    @property
    def link_bytes(self) -> Floats:
        """(num_links,) bytes that all collectives so far have put on each link."""
        total = np.zeros(len(self._maker.network.capacity_bytes_per_s))
        for coflow, count in self._played.values():
            total[coflow.links] += count * coflow.carried_bytes
        return total

    def partners(self, task: Communicate, ranks: str) -> tuple[str, ...]:
        """The classes that the ranks of a class share groups with."""
        return self._kin[task.axis][ranks].classes

    def join(self, task: Communicate, ranks: str) -> Generator[simpy.Event, Any, None]:
        """Wait for the other classes of the same groups, then for the collective itself."""
        kin, machine = self._kin[task.axis][ranks], self._machine
        call = (task.name, id(kin))
        if call not in self._meetings:
            self._meetings[call] = _Meeting(self._coflow(task, kin), simpy.Event(machine.env))
        meeting = self._meetings[call]
        meeting.arrived += 1
        machine.send(ranks, task.name, meeting.coflow.cost, waiting=True)
        if meeting.arrived == len(kin.classes) and not self._lacks(task, kin):
            for name in kin.classes:
                machine.send(name, task.name, meeting.coflow.cost, waiting=False)
            self._play(task, meeting.coflow, meeting.over)
        yield meeting.over
        machine.leave(ranks, task.name)

    def _play(self, task: Communicate, coflow: Coflow, over: simpy.Event) -> None:
        """Its latency, then its bytes, then it is over."""
        slowest = self.costs.setdefault(task.name, coflow.cost)
        if coflow.cost.alone_s > slowest.alone_s:
            self.costs[task.name] = coflow.cost
        _, before = self._played.get(id(coflow), (coflow, 0))
        self._played[id(coflow)] = (coflow, before + 1)

        def flow(_late: simpy.Event) -> None:
            if coflow.work_s > 0:
                self._machine.transfer(coflow, over)
            else:
                over.succeed()

        simpy.Timeout(self._machine.env, coflow.latency_s).callbacks.append(flow)

    def _lacks(self, task: Communicate, kin: Kin) -> bool:
        """Whether some rank of these groups never calls the collective."""
        return task.name in self._absences and any(
            rank not in callers(self._plan, task) for group in kin.groups for rank in group
        )

    def _lanes(self) -> dict[tuple[str, int], list[Coflow]]:
        """Coflows of which one at a time is under way: those of a communicator and the same groups."""
        found: dict[tuple[str, int], list[Coflow]] = {}
        for task in self._plan.tasks:
            if isinstance(task, Communicate):
                for kin in self._kins(task):
                    found.setdefault((task.lane, id(kin)), []).append(self._coflow(task, kin))
        return found

    def _kins(self, task: Communicate) -> Iterator[Kin]:
        kin_of_class = self._kin[task.axis]
        yield from {id(kin): kin for kin in (kin_of_class[ranks] for ranks in task.classes)}.values()

    def _coflow(self, task: Communicate, kin: Kin) -> Coflow:
        """The same object for equal collectives: groups are long to compare."""
        key = (task.op, task.algorithm, task.message_bytes, task.root, task.repeat, id(kin))
        if key not in self._made:
            groups = from_root(kin.groups, task.root)
            one = self._maker.coflow(task.op, task.algorithm, task.message_bytes, groups)
            self._made[key] = repeated(one, task.repeat)
        return self._made[key]
