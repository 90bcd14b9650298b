"""A network as the engine reads it: link capacities and padded routes, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from simulator.collectives.bounds import latency_steps
from simulator.engine import switches
from simulator.engine.fairshare import solo
from simulator.network.graph import Network
from simulator.network.routes import Routes
from simulator.schedule import Floats, Ints, Pattern, Schedule

T = TypeVar("T")

#: Transfers whose routes are looked up at once: enough for numpy, little enough for memory.
_BATCH = 2**18


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
    _wholes: dict[tuple[int, int], tuple[Ints, Ints, Paths]] = field(default_factory=dict)
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
        """Look the paths of many patterns up, few at a time; each pattern is held, so that its id stays its own.

        Ends from num_ranks on are switches. Raises UnsupportedError for a switch that the network does not have.
        """
        new = {id(p): p for p in patterns if id(p) not in self._paths}
        for whole, parts in _slices(new.values()):
            paths = self._whole(*whole)
            for p, part in parts:
                self._paths[id(p)] = (p, _part(paths, part))
                del new[id(p)]
        batch: list[Pattern] = []
        for p in new.values():
            batch.append(p)
            if sum(map(len, batch)) >= _BATCH:
                self._find(batch)
                batch = []
        if batch:
            self._find(batch)

    def _whole(self, src: Ints, dst: Ints) -> Paths:
        """Paths of longer arrays, of which patterns are slices; held like patterns."""
        key = id(src), id(dst)
        if key not in self._wholes:
            self._wholes[key] = (src, dst, self._lookup(src, dst))
        return self._wholes[key][2]

    def _find(self, new: list[Pattern]) -> None:
        paths = self._lookup(np.concatenate([p.src for p in new]), np.concatenate([p.dst for p in new]))
        first = 0
        for p in new:
            self._paths[id(p)] = (p, _part(paths, slice(first, first + len(p))))
            first += len(p)

    def _lookup(self, src: Ints, dst: Ints) -> Paths:
        """Paths between participants, ``_BATCH`` at a time."""
        parts = [self.between(src[i : i + _BATCH], dst[i : i + _BATCH]) for i in range(0, max(1, len(src)), _BATCH)]
        wide = max(links.shape[1] for links, _ in parts)
        links = np.full((len(src), wide), self.filler, dtype=np.int64)
        first = 0
        for some, _ in parts:
            links[first : first + len(some), : some.shape[1]] = some
            first += len(some)
        latency_s = np.concatenate([latency for _, latency in parts])
        return Paths(links=links, latency_s=latency_s, solo_bytes_per_s=solo(links, self.capacity))

    def between(self, src: Ints, dst: Ints) -> tuple[Ints, Floats]:
        """Padded links and latencies between participants, (m, hops) and (m,)."""
        p = len(self.gpus)
        to_switch, from_switch = dst >= p, src >= p
        between_gpus = ~(to_switch | from_switch)
        if between_gpus.all():
            return self._over(self.gpus[src], self.gpus[dst])
        links, latency_s = np.full((len(src), 1), self.filler, dtype=np.int64), np.zeros(len(src))
        if between_gpus.any():
            found, latency_s[between_gpus] = self._over(self.gpus[src[between_gpus]], self.gpus[dst[between_gpus]])
            links = np.full((len(src), found.shape[1]), self.filler, dtype=np.int64)
            links[between_gpus] = found
        up = switches.ports_up(self.routes, self.gpus, np.where(to_switch, src, dst)[~between_gpus],
                               np.where(to_switch, dst, src)[~between_gpus])  # fmt: skip
        port = np.where(to_switch[~between_gpus], up, up ^ 1)
        links[~between_gpus, 0] = port
        software_s = np.where(to_switch[~between_gpus], self.network.message_overhead_s, 0.0)
        latency_s[~between_gpus] = self.network.latency_s[port] + software_s
        return links, latency_s

    def _over(self, src_gpu: Ints, dst_gpu: Ints) -> tuple[Ints, Floats]:
        """Padded links and latencies between gpus."""
        table = self.routes.table(src_gpu, dst_gpu)
        hops = np.diff(table.offsets)
        links = np.full((len(src_gpu), int(hops.max(initial=1))), self.filler, dtype=np.int64)
        row = np.repeat(np.arange(len(src_gpu)), hops)
        links[row, np.arange(len(table.links)) - np.repeat(table.offsets[:-1], hops)] = table.links
        return links, table.latency_s

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
            moved: dict[int, tuple[Pattern, Floats]] = {}
            for pattern, steps in schedule.runs():
                before = moved.get(id(pattern), (pattern, np.zeros(len(pattern))))[1]
                moved[id(pattern)] = (pattern, before + pattern.chunks * float(steps))
            total = np.zeros(len(self.capacity))
            for (src, dst), parts in _slices([pattern for pattern, _ in moved.values()]):
                chunks = np.zeros(len(src))
                for pattern, part in parts:
                    chunks[part] += moved.pop(id(pattern))[1]
                total += _carried(self._whole(src, dst), chunks, len(total))
            self.find([pattern for pattern, _ in moved.values()])
            for pattern, chunks in moved.values():
                total += _carried(self.paths(pattern), chunks, len(total))
            return total

        return self.keep("link chunks", schedule, find)

    def busiest_link_s(self, schedule: Schedule) -> float:
        """The least latency, then what the busiest link needs for its bytes at full rate: no time is below it."""

        def find() -> float:
            return min((float(self.paths(p).latency_s.min()) for p, _ in schedule.runs()), default=0.0)

        carried = float((self.link_chunks(schedule) / self.capacity).max(initial=0.0) * schedule.chunk_bytes)
        return self.keep("least latency", schedule, find) + carried


def make_wires(network: Network, gpus: Ints, routes: Routes | None = None) -> Wires:
    """Wires for the ranks that sit on ``gpus``; share ``routes`` between calls to keep its cache."""
    capacity = np.append(network.capacity_bytes_per_s, np.inf)
    return Wires(network=network, routes=routes or Routes(network), gpus=gpus, capacity=capacity)


def _carried(paths: Paths, chunks: Floats, num_links: int) -> Floats:
    """What each link carries, (num_links,), of transfers that move ``chunks``, (num_transfers,)."""
    carried = np.bincount(paths.links.ravel(), np.repeat(chunks, paths.links.shape[1]), num_links)
    return carried.astype(np.float64, copy=False)


def _part(paths: Paths, part: slice) -> Paths:
    return Paths(
        links=paths.links[part], latency_s=paths.latency_s[part], solo_bytes_per_s=paths.solo_bytes_per_s[part]
    )


def _slices(patterns: Iterable[Pattern]) -> list[tuple[tuple[Ints, Ints], list[tuple[Pattern, slice]]]]:
    """Patterns that are slices of the same longer arrays, as those of a pipeline are, with the arrays.

    Their routes are found once, and take no memory for each.
    """
    found: dict[tuple[int, int], tuple[tuple[Ints, Ints], list[tuple[Pattern, slice]]]] = {}
    begin: dict[int, int] = {}  # of the longer arrays, by id: many patterns share them
    for p in patterns:
        src, dst = p.src.base, p.dst.base
        if src is None or dst is None or src.shape != dst.shape or src.ndim != 1 or src.dtype != dst.dtype:
            continue
        for whole in (src, dst):
            if id(whole) not in begin:
                begin[id(whole)] = _address(whole)
        ahead = _address(p.src) - begin[id(src)]
        if ahead == _address(p.dst) - begin[id(dst)] and p.src.strides == p.dst.strides == src.strides:
            first = ahead // src.itemsize
            part = (p, slice(first, first + len(p)))
            found.setdefault((id(src), id(dst)), ((src, dst), []))[1].append(part)
    return [
        (whole, parts) for whole, parts in found.values()
        if sum(len(p) for p, _ in parts) > len(whole[0]) and bool((whole[0] != whole[1]).all())
    ]  # fmt: skip


def _address(array: Ints) -> int:
    return int(array.__array_interface__["data"][0])
