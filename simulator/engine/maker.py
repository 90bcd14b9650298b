"""Makes coflows: of what the network's library runs by its cost model, of other schedules by playing them.

A played coflow's byte part is what its busiest link needs at full rate and the rest is latency, so that alone on the
network it takes exactly the time that playing its schedule takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.collectives import AUTO, make_schedule
from simulator.collectives.layout import Layout
from simulator.engine.coflow import Coflow, make_coflow
from simulator.engine.collective import floor_s, simulate_collective
from simulator.engine.composite import Composite, make_composite
from simulator.engine.folding import Folded, fold
from simulator.engine.layouts import layout_of
from simulator.engine.outcome import Outcome
from simulator.engine.placings import Groups, by_placing
from simulator.engine.pricer import LIBRARY, Pricer, algorithms_for, make_pricer, operation_run
from simulator.engine.wires import Wires, make_wires
from simulator.network.graph import Network
from simulator.network.routes import Routes
from simulator.schedule import Floats, Schedule
from simulator.timeline import CollectiveCost
from simulator.tuning.belief import graph_of
from simulator.tuning.choice import Option
from simulator.tuning.choice import option as way

#: A step has many collectives: about a second for each to play messages one by one, counted as in MAX_AUTO_WORK.
MAX_WORK = 300_000

_PAIR = Layout(num_ranks=2)


class _Played(NamedTuple):
    """A schedule and what playing it alone gives."""

    schedule: Schedule
    outcome: Outcome


class _Part(NamedTuple):
    """What the library runs on the groups of one kind. alone, link_bytes: (num_links,) of one of them, of all."""

    option: Option
    schedule: Schedule
    group: tuple[int, ...]
    alone: Floats
    link_bytes: Floats


class CoflowMaker:
    """Makes coflows for the collectives of a run; equal ones are simulated once, and of groups that are alike one.

    The cache lives as long as one run: a plan asks for the same few (op, algorithm, size) many times.
    """

    def __init__(self, network: Network, routes: Routes | None = None) -> None:
        self.network = network
        self._routes = routes or Routes(network)
        self._wires: dict[tuple[int, ...], Wires] = {}
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._schedules: dict[tuple[str, str, Layout], Schedule] = {}
        self._folded: dict[tuple[int, Groups], tuple[Schedule, Folded]] = {}
        self._pricers: dict[tuple[str, tuple[int, ...]], tuple[Pricer | None, Composite | None]] = {}
        self._made: dict[tuple[str, str, float, Groups], Coflow] = {}

    def wires(self, group: tuple[int, ...]) -> Wires:
        """Wires of one group of ranks; rank r sits on gpu r."""
        if group not in self._wires:
            self._wires[group] = make_wires(self.network, np.array(group, dtype=np.int64), self._routes)
        return self._wires[group]

    def schedule(self, op: str, algorithm: str, size_bytes: float, group: tuple[int, ...]) -> Schedule:
        """The schedule that a group plays; its layout comes from where the ranks sit.

        Other sizes share the patterns of the first, so that their routes are looked up and kept once.
        """
        key = (op, algorithm, self._layout(op, group))
        if key not in self._schedules:
            run = operation_run(op, self.network)
            self._schedules[key] = make_schedule(run, algorithm, key[2], size_bytes)
        return self._schedules[key].resized(size_bytes)

    def _layout(self, op: str, group: tuple[int, ...]) -> Layout:
        if op == "send":  # the same wherever the two are, and there are many pairs
            return _PAIR
        if group not in self._layouts:
            self._layouts[group] = layout_of(self.network, np.array(group))
        return self._layouts[group]

    def coflow(self, op: str, algorithm: str, size_bytes: float, groups: Groups) -> Coflow:
        """All groups of an axis at once. Groups that share links slow each other: the bytes then set the time.

        algorithm 'auto' is what the network's library runs; without a library that chooses, the fastest here.
        """
        key = (op, algorithm, size_bytes, groups)
        if key not in self._made:
            kinds = by_placing(self.network.domain_of_gpu, groups)
            ways = [self._option(op, algorithm, size_bytes, members[0]) for members in kinds]
            known = [one for one in ways if one is not None]
            if len(known) < len(kinds):
                self._made[key] = self._make(self._first(op, algorithm, size_bytes, groups[0]), groups)
            else:
                parts = [self._part(op, *way, size_bytes) for way in zip(known, kinds, strict=True)]
                self._made[key] = self._priced(op, parts, size_bytes, groups)
        return self._made[key]

    def _option(self, op: str, algorithm: str, size_bytes: float, group: tuple[int, ...]) -> Option | None:
        """How the library runs it on one group alone; None where it has no cost model for that."""
        if (op, group) not in self._pricers:
            gpus = np.array(group, dtype=np.int64)
            pricer = make_pricer(op, lambda name: [self.schedule(op, name, 1.0, group)], self.wires(group), len(group))
            composite = make_composite(op, self.network, gpus[None, :]) if pricer else None
            self._pricers[op, group] = (pricer, composite)
        pricer, composite = self._pricers[op, group]
        if pricer is None:
            return None
        if algorithm == AUTO:
            return pricer.picked(size_bytes)
        if algorithm == "hierarchical" and composite:
            return composite.option(size_bytes)
        return pricer.best(algorithm, size_bytes) if algorithm in pricer.algorithms else None

    def _part(self, op: str, option: Option, members: Groups, size_bytes: float) -> _Part:
        schedule = self.schedule(op, option.algorithm, size_bytes, members[0])
        alone = self.wires(members[0]).link_chunks(schedule)[:-1] * schedule.chunk_bytes
        link_bytes = alone if len(members) == 1 else self._bytes(schedule, members)
        return _Part(option, schedule, members[0], alone, link_bytes)

    def _priced(self, op: str, parts: list[_Part], size_bytes: float, groups: Groups) -> Coflow:
        """The library's latency and transfer, of the kind of groups that takes longest; where groups share links, the
        transfer that all their bytes take.
        """
        link_bytes = parts[0].link_bytes if len(parts) == 1 else np.sum([part.link_bytes for part in parts], axis=0)
        options = [part.option for part in parts]
        if len(groups) > 1:  # the bytes of all groups on the links
            options = [self._shared(op, part, size_bytes, link_bytes) for part in parts]
        number = max(range(len(parts)), key=lambda at: options[at].cost.time_s)
        option, schedule, group = options[number], parts[number].schedule, parts[number].group
        work_s = option.cost.transfer_s
        cost = CollectiveCost(
            algorithm=option.algorithm, group_size=len(group), num_steps=schedule.num_steps,
            num_messages=schedule.num_messages, sent_bytes_per_rank=float(schedule.sent_bytes().max()),
            alone_s=option.cost.latency_s + work_s, latency_s=option.cost.latency_s, fidelity=LIBRARY, handed_over="",
            protocol=option.protocol, channels=self._channels(op, group), busiest_s=self._busiest_s(link_bytes),
        )  # fmt: skip
        return make_coflow(
            cost, latency_s=option.cost.latency_s, work_s=work_s, link_bytes=link_bytes,
            inflation=option.cost.inflation,
        )  # fmt: skip

    def _channels(self, op: str, group: tuple[int, ...]) -> int:
        """Thread blocks of the kernel on each rank: NCCL runs every channel of its graph twice."""
        pricer, _ = self._pricers[op, group]
        if pricer is None or pricer.library.choice is None:
            return 0
        return 2 * graph_of(pricer.shapes[0], pricer.library.choice).channels

    def _shared(self, op: str, part: _Part, size_bytes: float, link_bytes: Floats) -> Option:
        """The same way where the links of its groups carry ``link_bytes``, (num_links,)."""
        pricer, _ = self._pricers[op, part.group]
        assert pricer is not None, "what is priced has a pricer"
        option, need_s = part.option, self._full_rate_s(np.where(part.link_bytes > 0, link_bytes, 0.0))
        if option.algorithm not in pricer.algorithms:  # calls that follow each other share the links alike
            slower = max(1.0, need_s / max(self._full_rate_s(part.alone), 1e-300))
            return replace(option, cost=replace(option.cost, transfer_s=option.cost.transfer_s * slower))
        return way(op, option.algorithm, option.protocol, size_bytes, need_s, pricer.shapes[0], pricer.library)

    def _bytes(self, one: Schedule, groups: Groups) -> Floats:
        """Bytes that all groups put on the links."""
        total = np.zeros(len(self.network.capacity_bytes_per_s))
        for schedule, members in self._by_schedule(one, groups):
            total = total + self._fold(schedule, members).link_chunks * schedule.chunk_bytes
        return total

    def _first(self, op: str, algorithm: str, size_bytes: float, group: tuple[int, ...]) -> _Played:
        """The group's collective by itself, played; for 'auto' by the algorithm that the library is known to run, else
        the one with the least time of those that fit. Ties go to the table's first.

        Those are played first that may be quickest; one that cannot be quicker than the best so far is not played.
        """
        fitting = algorithms_for(op, self.network, np.array(group, dtype=np.int64))
        names = fitting if algorithm == AUTO else (algorithm,)
        schedules = [self.schedule(op, name, size_bytes, group) for name in names]
        if len(schedules) == 1:
            return self._alone(schedules[0], group)
        wires, launch_s = self.wires(group), self.network.launch_s(operation_run(op, self.network))
        floors = [launch_s + floor_s(schedule, wires) for schedule in schedules]
        best: tuple[float, int, _Played] | None = None
        for place in sorted(range(len(names)), key=lambda number: (floors[number], number)):
            if best is not None and floors[place] * (1 - 1e-9) > best[0]:
                break
            played = self._alone(schedules[place], group)
            if best is None or (played.outcome.time_s, place) < best[:2]:
                best = (played.outcome.time_s, place, played)
        assert best is not None, "some algorithm always fits"
        return best[2]

    def _full_rate_s(self, link_bytes: Floats) -> float:
        """Seconds that the busiest link needs for its bytes."""
        return float((link_bytes / self.network.capacity_bytes_per_s).max(initial=0.0))

    def _busiest_s(self, link_bytes: Floats) -> dict[str, float]:
        """Of each tier that carries any, the seconds that its busiest link needs."""
        needs = np.zeros(len(self.network.tiers))
        np.maximum.at(needs, self.network.tier_of_link, link_bytes / self.network.capacity_bytes_per_s)
        return {tier: float(need) for tier, need in zip(self.network.tiers, needs, strict=True) if need > 0}

    def _alone(self, schedule: Schedule, group: tuple[int, ...]) -> _Played:
        return _Played(schedule, simulate_collective(schedule, self.wires(group), max_work=MAX_WORK))

    def _make(self, first: _Played, groups: Groups) -> Coflow:
        outcomes, link_bytes = self._all(first, groups)
        waiting_s = max(o.time_s - self._full_rate_s(o.link_bytes) for o in outcomes)
        busiest_s = self._full_rate_s(link_bytes)
        alone_s = max(waiting_s + busiest_s, *(o.time_s for o in outcomes))
        latency_s = max(0.0, alone_s - busiest_s)  # where nothing but bytes takes time, rounding may fall below
        slowest = max(outcomes, key=lambda o: (bool(o.handed_over), o.time_s))  # an estimate taints the whole axis
        cost = CollectiveCost(
            algorithm=first.schedule.algorithm, group_size=len(groups[0]), num_steps=slowest.num_steps,
            num_messages=slowest.num_messages, sent_bytes_per_rank=max(float(o.sent_bytes.max()) for o in outcomes),
            alone_s=alone_s, latency_s=latency_s, fidelity=slowest.fidelity,
            handed_over=slowest.handed_over, busiest_s=self._busiest_s(link_bytes),
        )  # fmt: skip
        return make_coflow(cost, latency_s=latency_s, work_s=busiest_s, link_bytes=link_bytes)

    def _all(self, first: _Played, groups: Groups) -> tuple[list[Outcome], Floats]:
        """Outcomes of the distinct kinds of groups, each alone, and the bytes that all groups put on links."""
        one = first.schedule
        outcomes, link_bytes = [first.outcome], np.zeros_like(first.outcome.link_bytes)
        if len(groups) == 1:
            return outcomes, link_bytes + first.outcome.link_bytes
        for schedule, members in self._by_schedule(one, groups):
            folded = self._fold(schedule, members)
            link_bytes = link_bytes + folded.link_chunks * schedule.chunk_bytes
            kinds = [members[k] for k in np.unique(folded.like).tolist()]
            outcomes += [self._alone(schedule, group).outcome for group in kinds if group != groups[0]]
        return outcomes, link_bytes

    def _by_schedule(self, one: Schedule, groups: Groups) -> list[tuple[Schedule, Groups]]:
        """Groups by what they play: those of one layout play the same schedule."""
        found: dict[Layout, list[tuple[int, ...]]] = {}
        for group in groups:
            found.setdefault(self._layout(one.op, group), []).append(group)
        return [
            (self.schedule(one.op, one.algorithm, one.size_bytes, members[0]), tuple(members))
            for members in found.values()
        ]

    def _fold(self, schedule: Schedule, members: Groups) -> Folded:
        key = (id(schedule.phases), members)
        if key not in self._folded:
            gpus = np.array(members, dtype=np.int64)
            self._folded[key] = (schedule, fold(self.network, self._routes, schedule, gpus))
        return self._folded[key][1]
