"""Collectives of a step message by message: every rank of every group plays its schedule on one shared fabric."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from simulator.engine.coflow import repeated
from simulator.engine.fabric import Fabric
from simulator.engine.machine import Machine
from simulator.engine.maker import CoflowMaker
from simulator.engine.message import Player
from simulator.engine.pricer import operation_run
from simulator.plan import Communicate, Plan, from_root, groups_called
from simulator.schedule import Floats, Ints
from simulator.timeline import CollectiveCost

#: One collective of one group, and which of the equal ones that follow each other in it.
_Call = tuple[str, tuple[int, ...]]
_Played = tuple[str, tuple[int, ...], int]


class ByMessage:
    """``join`` is what one rank does in a collective. ``costs`` and ``link_bytes`` grow as collectives run."""

    fidelity = "message"

    def __init__(self, plan: Plan, maker: CoflowMaker, machine: Machine) -> None:
        self._plan, self._maker, self._machine = plan, maker, machine
        self._rank_of = {c.name: c.representative for c in plan.classes}
        self._class_of = {rank: name for name, rank in self._rank_of.items()}
        self._fabric = Fabric(machine.env, np.append(maker.network.capacity_bytes_per_s, np.inf), self._flows_done)
        self._players: dict[_Played, Player] = {}
        self._ended: dict[_Played, list[simpy.Event]] = {}
        self._arrived: dict[_Call, int] = {}
        self._inside: dict[_Call, dict[str, None]] = {}
        self._by_tag: list[Player] = []
        self._first_tags: list[int] = []
        self.costs: dict[str, CollectiveCost] = {}
        self.link_bytes: Floats = np.zeros(len(maker.network.capacity_bytes_per_s))

    def join(self, task: Communicate, ranks: str) -> Generator[simpy.Event, Any, None]:
        """Pay the launch, enter the schedule, and wait for the rank's own last step."""
        rank, group = self._rank_of[ranks], self._group(task, ranks)
        place, network = group.index(rank), self._maker.network
        for number in range(task.repeat):
            played = (task.name, group, number)
            if played not in self._players:
                self._open(task, group, number)
            over = self._ended[played][place]
            if number == 0:
                self._arrive(task, group, ranks)
            yield self._machine.env.timeout(network.launch_s(operation_run(task.op, network)))
            self._players[played].enter(np.array([place], dtype=np.int64))
            if not over.processed:
                yield over
        self._machine.leave(ranks, task.name)
        del self._inside[task.name, group][ranks]

    def _group(self, task: Communicate, ranks: str) -> tuple[int, ...]:
        rank = self._rank_of[ranks]
        return next(g for g in from_root(self._plan.axes[task.axis], task.root) if rank in g)

    def partners(self, task: Communicate, ranks: str) -> tuple[str, ...]:
        """The classes that the rank of a class shares its group with."""
        return tuple(self._class_of[rank] for rank in self._group(task, ranks))

    def _arrive(self, task: Communicate, group: tuple[int, ...], ranks: str) -> None:
        """Ranks send once all of the group are there: what flows before the last one comes is taken as nothing."""
        call = (task.name, group)
        self._arrived[call] = self._arrived.get(call, 0) + 1
        inside = self._inside.setdefault(call, {})
        inside[ranks] = None
        self._machine.send(ranks, task.name, self.costs[task.name], waiting=True)
        if self._arrived[call] == len(group):
            for name in inside:
                self._machine.send(name, task.name, self.costs[task.name], waiting=False)

    def _open(self, task: Communicate, group: tuple[int, ...], number: int) -> None:
        env = self._machine.env
        ended = [env.event() for _ in group]

        def finished(places: Ints) -> None:
            for place in places.tolist():
                ended[place].succeed()

        if task.name not in self.costs:
            groups = from_root(groups_called(self._plan, task), task.root)
            coflow = repeated(self._maker.coflow(task.op, task.algorithm, task.message_bytes, groups), task.repeat)
            self.costs[task.name] = coflow.cost
            self.link_bytes = self.link_bytes + coflow.link_bytes
        schedule = self._maker.schedule(task.op, self.costs[task.name].algorithm, task.message_bytes, group)
        first_tag = self._first_tags[-1] + self._by_tag[-1].num_tags if self._by_tag else 0
        player = Player(env, self._fabric, self._maker.wires(group), schedule, first_tag, finished)
        self._players[task.name, group, number], self._ended[task.name, group, number] = player, ended
        self._by_tag.append(player)
        self._first_tags.append(first_tag)

    def _flows_done(self, tags: Ints) -> None:
        owner = np.searchsorted(np.array(self._first_tags), tags, side="right") - 1
        for index in np.unique(owner).tolist():
            self._by_tag[index].done(tags[owner == index])
