"""Collectives that the network's library runs itself: what it can choose from, and the time that measurements give.

The pipelined kernels of such a library are not played message by message. Their latency is a formula
(``simulator.tuning``); their bytes are those of the schedule on the links of this network, so contention, slow links
and missing NICs count as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.engine.groups import side_by_side
from simulator.engine.layouts import candidates, layout_of
from simulator.engine.wires import Wires
from simulator.library import AlphaBetaLibrary, NcclLibrary
from simulator.network.graph import Network
from simulator.schedule import Ints, Schedule
from simulator.tuning.choice import MODEL, Option, chosen_by, expected, fastest, native, option, options, picked
from simulator.tuning.measured import POINT_TO_POINT
from simulator.tuning.place import shape_of
from simulator.tuning.shape import Shape

#: Name of the fidelity: the library's cost model, on the bytes of the schedule.
LIBRARY = "library"


def algorithms_for(op: str, network: Network, gpus: Ints) -> tuple[str, ...]:
    """What 'auto' chooses from: the library's own algorithms, the one that it is known to run, or all that fit."""
    shape, library = shape_of(network, gpus), network.library
    if shape is not None and isinstance(library, NcclLibrary):
        return native(op, shape, library)
    if isinstance(library, AlphaBetaLibrary) and op in library.algorithms:
        named = library.algorithms[op]
        if named != "torus" or layout_of(network, gpus).torus_shape is not None:  # a part of a torus has no such rings
            return (named,)
    return candidates(op, network, gpus)


def operation_run(op: str, network: Network) -> str:
    """The operation that the library really performs for ``op``: gloo's reduce-scatter is an all-reduce."""
    library = network.library
    return library.runs_as.get(op, op) if isinstance(library, AlphaBetaLibrary) else op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pricer:
    """Prices one collective on one group, or on several groups of p ranks at once.

    shapes: of every group. algorithms: what the library has for all of them. schedules: makes those of an algorithm,
    one for each group, when it is first priced; wires: of all ranks, group after group.
    """

    op: str
    shapes: tuple[Shape, ...]
    library: NcclLibrary
    algorithms: tuple[str, ...]
    schedules: Callable[[str], Sequence[Schedule]]
    wires: Wires
    _known: dict[str, tuple[Schedule, tuple[tuple[Shape, float], ...]]] = field(default_factory=dict)

    @property
    def chosen_by(self) -> str:
        """What decides which algorithm runs, in words."""
        return chosen_by(self.shapes[0], self.library)

    def kinds(self, algorithm: str, size_bytes: float) -> tuple[tuple[Shape, float], ...]:
        """The distinct groups: shape, and seconds that the busiest of its links needs for the bytes of all groups."""
        if algorithm not in self._known:
            groups = self.schedules(algorithm)
            kinds = dict.fromkeys(zip(self.shapes, _needs(groups, self.wires), strict=True))
            self._known[algorithm] = (groups[0], tuple(kinds))
        schedule, found = self._known[algorithm]
        chunk_bytes = schedule.resized(size_bytes).chunk_bytes
        return tuple((shape, need * chunk_bytes) for shape, need in found)

    def link_s(self, algorithm: str, size_bytes: float) -> float:
        """What the busiest link needs for the bytes of all groups at full rate: no time of it can be below."""
        return max(need for _, need in self.kinds(algorithm, size_bytes))

    def options(self, size_bytes: float) -> tuple[Option, ...]:
        """Every algorithm with every protocol, on the group that takes longest."""
        found: list[Option] = []
        for name in self.algorithms:
            ways: dict[tuple[str, str], list[Option]] = {}
            kinds = self.kinds(name, size_bytes)
            for shape, need in kinds:
                for one in options(self.op, size_bytes, {name: need}, shape, self.library):
                    ways.setdefault((one.algorithm, one.protocol), []).append(one)
            found += [_slowest(same) for same in ways.values() if len(same) == len(kinds)]
        return tuple(found)

    def picked(self, size_bytes: float) -> Option:
        """What the library runs, on the group that takes longest."""
        if self.chosen_by != MODEL or self.op in POINT_TO_POINT:
            return fastest(self.options(size_bytes))
        found = []
        for shape in dict.fromkeys(self.shapes):
            name, protocol = expected(self.op, self.algorithms, size_bytes, shape, self.library)
            need = max(need for kind, need in self.kinds(name, size_bytes) if kind == shape)
            found.append(option(self.op, name, protocol, size_bytes, need, shape, self.library))
        return _slowest(found)

    def best(self, algorithm: str, size_bytes: float, *, group: int = 0) -> Option:
        """The algorithm with the protocol that the library would give it. group: 0 the slowest, 1 the fastest."""
        found = [
            picked(options(self.op, size_bytes, {algorithm: need}, shape, self.library), shape, self.library)
            for shape, need in self.kinds(algorithm, size_bytes)
        ]
        return _slowest(found) if group == 0 else fastest(tuple(found))


def _slowest(found: Sequence[Option]) -> Option:
    return max(found, key=lambda one: one.cost.time_s)


def make_pricer(op: str, schedules: Callable[[str], Sequence[Schedule]], wires: Wires, ranks: int) -> Pricer | None:
    """Pricer of what the network's library has for ``op`` on groups of ``ranks``; None where it has no cost model for
    one of the groups. ``schedules`` and ``wires`` as in Pricer.
    """
    library, groups = wires.network.library, wires.gpus.reshape(-1, ranks)
    if not isinstance(library, NcclLibrary):
        return None
    shapes = [shape_of(wires.network, group) for group in groups]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    kinds = list(dict.fromkeys(known))
    common = [name for name in native(op, kinds[0], library) if all(name in native(op, k, library) for k in kinds)]
    return Pricer(
        op=op, shapes=tuple(known), library=library, algorithms=tuple(common), schedules=schedules, wires=wires
    )  # fmt: skip


def _needs(groups: Sequence[Schedule], wires: Wires) -> list[float]:
    """Seconds of the busiest link of each group per byte of a chunk of the first, the bytes of all groups counted."""
    if len(groups) == 1:
        return [full_rate_s(groups[0].resized(1.0), wires) / groups[0].resized(1.0).chunk_bytes]
    together = side_by_side([one.resized(1.0) for one in groups])
    total_s = wires.link_chunks(together) / wires.capacity
    per_chunk = together.chunk_bytes / groups[0].resized(1.0).chunk_bytes
    return [
        float(total_s[used].max(initial=0.0)) * per_chunk for used in _links_of_groups(together, wires, len(groups))
    ]  # fmt: skip


def _links_of_groups(together: Schedule, wires: Wires, groups: int) -> list[Ints]:
    """Which links each of the groups uses."""
    each = len(wires.gpus) // groups
    used = np.zeros((groups, len(wires.capacity)), dtype=bool)
    for pattern, _ in together.runs():
        ends = np.where(pattern.src < len(wires.gpus), pattern.src, pattern.dst)
        for column in wires.paths(pattern).links.T:
            used[ends // each, column] = True
    used[:, wires.filler] = False
    return [np.flatnonzero(row) for row in used]


def full_rate_s(schedule: Schedule, wires: Wires) -> float:
    """What the busiest link needs for the schedule's bytes at its full rate, without any latency."""
    return float((wires.link_chunks(schedule) / wires.capacity).max(initial=0.0) * schedule.chunk_bytes)
