"""A network as the engine reads it: link capacities and padded routes, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from simulator.collectives.bounds import latency_steps
from simulator.engine.fairshare import solo
from simulator.network.graph import Network
from simulator.network.routes import Routes
from simulator.schedule import Floats, Ints, Pattern, Schedule

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paths:
    """Routes of the transfers of one pattern.

    links: (num_transfers, hops) link ids, filled up with the id of a link of infinite capacity.
    latency_s: (num_transfers,) sum of link latencies plus the software's time per message.
    solo_bytes_per_s: (num_transfers,) rate when alone on the network.
    """

    links: Ints
    latency_s: Floats
    solo_bytes_per_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wires:
    """Capacities (one infinite link appended, to fill routes up) and the paths of patterns, kept once found.

    gpus: (num_ranks,) the network's gpu that each rank of the collective sits on.
    """

    network: Network
    routes: Routes
    gpus: Ints
    capacity: Floats
    _paths: dict[int, tuple[Pattern, Paths]] = field(default_factory=dict)
    _capacities: list[tuple[Floats, Floats]] = field(default_factory=list)
    _kept: dict[tuple[str, int], tuple[Schedule, Any]] = field(default_factory=dict)

    @property
    def filler(self) -> int:
        """Id of the link of infinite capacity."""
        return len(self.capacity) - 1

    def paths(self, pattern: Pattern) -> Paths:
        """Paths of the pattern's transfers."""
        self.find((pattern,))
        return self._paths[id(pattern)][1]

    def find(self, patterns: Iterable[Pattern]) -> None:
        """Look the paths of many patterns up in one pass; each pattern is held, so that its id stays its own."""
        new = [p for p in {id(p): p for p in patterns}.values() if id(p) not in self._paths]
        if not new:
            return
        src = np.concatenate([p.src for p in new])
        dst = np.concatenate([p.dst for p in new])
        table = self.routes.table(self.gpus[src], self.gpus[dst])
        hops = np.diff(table.offsets)
        links = np.full((len(src), int(hops.max(initial=1))), self.filler, dtype=np.int64)
        row = np.repeat(np.arange(len(src)), hops)
        links[row, np.arange(len(table.links)) - np.repeat(table.offsets[:-1], hops)] = table.links
        alone = solo(links, self.capacity)
        first = 0
        for p in new:
            part = slice(first, first + len(p))
            first += len(p)
            paths = Paths(links=links[part], latency_s=table.latency_s[part], solo_bytes_per_s=alone[part])
            self._paths[id(p)] = (p, paths)

    def rank_capacity(self) -> tuple[Floats, Floats]:
        """What all links of each rank's gpu carry out and in, bytes/s, two arrays of shape (num_ranks,)."""
        if not self._capacities:
            network = self.network
            number = {name: i for i, name in enumerate(network.gpus)}
            out, into = np.zeros(len(network.gpus)), np.zeros(len(network.gpus))
            for link, (a, b) in enumerate(network.link_names):
                if a in number:
                    out[number[a]] += network.capacity_bytes_per_s[link]
                if b in number:
                    into[number[b]] += network.capacity_bytes_per_s[link]
            self._capacities.append((out[self.gpus], into[self.gpus]))
        return self._capacities[0]

    def keep(self, what: str, schedule: Schedule, find: Callable[[], T]) -> T:
        """What ``find`` gives, found once for all sizes of a schedule; it is held, so that its id stays its own."""
        key = (what, id(schedule.phases))
        if key not in self._kept:
            self._kept[key] = (schedule, find())
        kept: T = self._kept[key][1]
        return kept

    def latency_floor_s(self, schedule: Schedule) -> float:
        """Least time of the schedule's dependent steps, whatever its size."""

        def find() -> float:
            shortest = min(float(self.paths(p).latency_s.min()) for p, _ in schedule.runs())
            return latency_steps(schedule) * shortest

        return self.keep("latency floor", schedule, find)

    def link_chunks(self, schedule: Schedule) -> Floats:
        """Chunks that each link carries in the whole schedule, (num_links + 1,) with the filler last."""

        def find() -> Floats:
            total = np.zeros(len(self.capacity))
            for pattern, steps in schedule.runs():
                links = self.paths(pattern).links
                carried = np.repeat(pattern.chunks * float(steps), links.shape[1])
                total += np.bincount(links.ravel(), carried, len(total))
            return total

        return self.keep("link chunks", schedule, find)

    def busiest_link_s(self, schedule: Schedule) -> float:
        """What the busiest link needs for its bytes at full rate: no time of the schedule is below it."""
        return float((self.link_chunks(schedule) / self.capacity).max(initial=0.0) * schedule.chunk_bytes)


def make_wires(network: Network, gpus: Ints, routes: Routes | None = None) -> Wires:
    """Wires for the ranks that sit on ``gpus``; share ``routes`` between calls to keep its cache."""
    capacity = np.append(network.capacity_bytes_per_s, np.inf)
    return Wires(network=network, routes=routes or Routes(network), gpus=gpus, capacity=capacity)


def joined(parts: list[Paths], filler: int) -> Paths:
    """Paths of several patterns as one, routes filled up to the longest."""
    wide = max(p.links.shape[1] for p in parts)
    links = [np.pad(p.links, ((0, 0), (0, wide - p.links.shape[1])), constant_values=filler) for p in parts]
    return Paths(
        links=np.concatenate(links),
        latency_s=np.concatenate([p.latency_s for p in parts]),
        solo_bytes_per_s=np.concatenate([p.solo_bytes_per_s for p in parts]),
    )
