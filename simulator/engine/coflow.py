"""Coflows: a whole collective as one activity, a latency part and bytes on links, both taken from its schedule.

The byte part is what its busiest link needs at full rate; the latency part is the rest, so that alone on the network a
coflow takes exactly the time that playing its schedule takes. Coflows that overlap share
links max-min: all progress at full speed until a link is full, then those that cross it slow down together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from simulator.collectives import AUTO, algorithms_of, make_schedule
from simulator.collectives.layout import Layout
from simulator.engine.collective import simulate_collective
from simulator.engine.outcome import Outcome
from simulator.engine.wires import Wires, make_wires
from simulator.network.graph import Network
from simulator.network.routes import Routes
from simulator.schedule import Floats, Ints, Schedule
from simulator.timeline import CollectiveCost

_SAME = 1e-12
#: A step has many collectives: longer schedules that are not exact for the vector engine are played in lockstep.
MAX_WORK = 2_000_000
#: 'direct' puts p**2 messages in one step; larger groups leave it out of 'auto'.
MAX_DIRECT_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coflow:
    """latency_s: before bytes flow. work_s: seconds of full-speed transfer. link_bytes: (num_links,) carried.

    asked_bytes_per_s: (num_links,) what it asks of each link at full speed, the mean over ``work_s``.
    """

    latency_s: float
    work_s: float
    link_bytes: Floats
    asked_bytes_per_s: Floats
    cost: CollectiveCost


class _Played(NamedTuple):
    """A schedule and what playing it alone gives."""

    schedule: Schedule
    outcome: Outcome


def speeds(coflows: list[Coflow], capacity: Floats) -> list[float]:
    """Progress of each coflow between 0 and 1, by progressive filling over the links that they share."""
    speed = np.zeros(len(coflows))
    open_flows = np.ones(len(coflows), dtype=bool)
    asked = np.array([c.asked_bytes_per_s for c in coflows])
    left = capacity.astype(np.float64).copy()
    level = 0.0
    while open_flows.any():
        demand = asked[open_flows].sum(axis=0)
        room = np.full(len(left), np.inf)
        np.divide(left, demand, out=room, where=demand > 0)
        step = min(float(room.min()), 1.0 - level)
        level += step
        left -= step * demand
        if level >= 1.0 - _SAME:
            speed[open_flows] = 1.0
            break
        full = (room <= step * (1 + _SAME)) & (demand > 0)
        stopped = open_flows & (asked[:, full] > 0).any(axis=1)
        speed[stopped] = level
        open_flows &= ~stopped
    return [float(s) for s in speed]


class CoflowMaker:
    """Makes coflows for the collectives of a run; equal ones are simulated once.

    The cache lives as long as one run: a plan asks for the same few (op, algorithm, size) many times.
    """

    def __init__(self, network: Network, routes: Routes | None = None) -> None:
        self.network = network
        self._routes = routes or Routes(network)
        self._wires: dict[tuple[int, ...], Wires] = {}
        self._schedules: dict[tuple[str, str, tuple[int, ...]], Schedule] = {}
        self._made: dict[tuple[str, str, float, tuple[tuple[int, ...], ...]], Coflow] = {}

    def wires(self, group: tuple[int, ...]) -> Wires:
        """Wires of one group of ranks; rank r sits on gpu r."""
        if group not in self._wires:
            self._wires[group] = make_wires(self.network, np.array(group, dtype=np.int64), self._routes)
        return self._wires[group]

    def schedule(self, op: str, algorithm: str, size_bytes: float, group: tuple[int, ...]) -> Schedule:
        """The schedule that a group plays; its layout comes from where the ranks sit.

        Other sizes share the patterns of the first, so that their routes are looked up and kept once.
        """
        key = (op, algorithm, group)
        if key not in self._schedules:
            self._schedules[key] = make_schedule(op, algorithm, layout_of(self.network, np.array(group)), size_bytes)
        return self._schedules[key].resized(size_bytes)

    def coflow(self, op: str, algorithm: str, size_bytes: float, groups: tuple[tuple[int, ...], ...]) -> Coflow:
        """All groups of an axis at once. Groups that share links slow each other: the bytes then set the time.

        algorithm 'auto' is the one that this network runs fastest at this size.
        """
        key = (op, algorithm, size_bytes, groups)
        if key not in self._made:
            first = self._first(op, algorithm, size_bytes, groups[0])
            self._made[key] = self._make(first, groups)
        return self._made[key]

    def _first(self, op: str, algorithm: str, size_bytes: float, group: tuple[int, ...]) -> _Played:
        """The group's collective by itself; for 'auto' by the algorithm with the least time, ties to the table's first.

        Says what is fastest in this model, not what a library would pick.
        """
        names = candidates(op, self.network, np.array(group, dtype=np.int64)) if algorithm == AUTO else (algorithm,)
        played = (self._alone(self.schedule(op, name, size_bytes, group), group) for name in names)
        return min(played, key=lambda one: one.outcome.time_s)

    def _full_rate_s(self, link_bytes: Floats) -> float:
        """Seconds that the busiest link needs for its bytes."""
        return float((link_bytes / self.network.capacity_bytes_per_s).max(initial=0.0))

    def _alone(self, schedule: Schedule, group: tuple[int, ...]) -> _Played:
        return _Played(schedule, simulate_collective(schedule, self.wires(group), max_work=MAX_WORK))

    def _make(self, first: _Played, groups: tuple[tuple[int, ...], ...]) -> Coflow:
        op, algorithm, size_bytes = first.schedule.op, first.schedule.algorithm, first.schedule.size_bytes
        others = (self._alone(self.schedule(op, algorithm, size_bytes, group), group) for group in groups[1:])
        outcomes = [first.outcome, *(one.outcome for one in others)]
        waiting_s = max(o.time_s - self._full_rate_s(o.link_bytes) for o in outcomes)
        link_bytes = np.sum([o.link_bytes for o in outcomes], axis=0)
        busiest_s = self._full_rate_s(link_bytes)
        alone_s = max(waiting_s + busiest_s, *(o.time_s for o in outcomes))
        slowest = max(outcomes, key=lambda o: (bool(o.handed_over), o.time_s))  # an estimate taints the whole axis
        cost = CollectiveCost(
            algorithm=algorithm, group_size=len(groups[0]), num_steps=slowest.num_steps,
            num_messages=slowest.num_messages, sent_bytes_per_rank=max(float(o.sent_bytes.max()) for o in outcomes),
            alone_s=alone_s, latency_s=alone_s - busiest_s, fidelity=slowest.fidelity,
            handed_over=slowest.handed_over,
        )  # fmt: skip
        asked = link_bytes / busiest_s if busiest_s > 0 else np.zeros_like(link_bytes)
        return Coflow(
            latency_s=alone_s - busiest_s, work_s=busiest_s, link_bytes=link_bytes, asked_bytes_per_s=asked, cost=cost
        )  # fmt: skip


def candidates(op: str, network: Network, gpus: Ints) -> tuple[str, ...]:
    """Algorithms that 'auto' tries: those that a library would run on such a network.

    Never the naive baseline, nor halving and doubling, which no GPU library has; the torus ring only on a torus;
    'direct' where every pair of gpus of a node has a link of its own (over a switch no library reduces that way), and
    for all-to-all.
    """
    left_out = {"naive", "halving_doubling"}
    if layout_of(network, gpus).torus_shape is None:
        left_out.add("torus")
    if len(gpus) > MAX_DIRECT_RANKS or not (op == "all_to_all" or _meshed(network, gpus)):
        left_out.add("direct")
    return tuple(name for name in algorithms_of(op) if name not in left_out)


def _any_order(network: Network, gpus: Ints) -> bool:
    """Whether the GPUs of a node reach each other equally well in any order: by a switch, or each by its own link."""
    neighbours = network.graph.successors(network.gpus[gpus[0]])
    return any(network.graph.nodes[n]["role"] == "nvswitch" for n in neighbours) or _meshed(network, gpus)


def _meshed(network: Network, gpus: Ints) -> bool:
    """Whether every pair of gpus of the same node is joined by a link of its own, and there is such a pair.

    Looks at pairs inside nodes only, and stops at the first that lacks a link: a cluster has p**2 pairs.
    """
    inside: dict[int, list[str]] = {}
    for gpu, node in zip(gpus.tolist(), network.node_of_gpu[gpus].tolist(), strict=True):
        inside.setdefault(node, []).append(network.gpus[gpu])
    pairs = (pair for names in inside.values() for pair in permutations(names, 2))
    return any(len(names) > 1 for names in inside.values()) and all(network.graph.has_edge(*pair) for pair in pairs)


def layout_of(network: Network, gpus: Ints) -> Layout:
    """What an algorithm may know of a group: ranks per node, channels, torus shape. Integers only.

    A group that fills whole nodes and spans several uses one channel per rank of a node, so that every NIC of the
    node carries its share, as NCCL's channels do; but one ring where GPUs hang on PCIe, since each further order would
    cross the sockets more often.
    """
    nodes = network.node_of_gpu[gpus]
    counts = np.bincount(nodes)
    counts = counts[counts > 0]
    in_order = bool((np.diff(nodes) >= 0).all())
    even = in_order and len(counts) > 1 and len(set(counts.tolist())) == 1
    whole_torus = network.torus_shape if len(gpus) == network.num_gpus else None
    per_node = int(counts[0]) if even else None
    striped = per_node is not None and network.rails > 0 and _any_order(network, gpus)
    return Layout(
        num_ranks=len(gpus), ranks_per_node=per_node, channels=per_node if striped and per_node else 1,
        torus_shape=whole_torus,
    )  # fmt: skip
