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
from simulator.engine.layouts import candidates
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
        return (library.algorithms[op],)
    return candidates(op, network, gpus)


def operation_run(op: str, network: Network) -> str:
    """The operation that the library really performs for ``op``: gloo's reduce-scatter is an all-reduce."""
    library = network.library
    return library.runs_as.get(op, op) if isinstance(library, AlphaBetaLibrary) else op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pricer:
    """Prices one collective on one group, or on several groups of p ranks at once.

    algorithms: what the library has. schedules: makes those of an algorithm, one for each group, when it is first
    priced; wires: of all ranks, group after group.
    """

    op: str
    shape: Shape
    library: NcclLibrary
    algorithms: tuple[str, ...]
    schedules: Callable[[str], Sequence[Schedule]]
    wires: Wires
    _known: dict[str, tuple[Schedule, float, float]] = field(default_factory=dict)

    @property
    def chosen_by(self) -> str:
        """What decides which algorithm runs, in words."""
        return chosen_by(self.shape, self.library)

    def link_s(self, algorithm: str, size_bytes: float, group: int = 0) -> float:
        """What the busiest link needs for the bytes of all groups: of the links of the group that waits longest
        (group 0) or least (1).
        """
        if algorithm not in self._known:
            groups = self.schedules(algorithm)
            self._known[algorithm] = (groups[0], *_needs(groups, self.wires))
        schedule, *needs = self._known[algorithm]
        return needs[group] * schedule.resized(size_bytes).chunk_bytes

    def options(self, size_bytes: float) -> tuple[Option, ...]:
        """Every algorithm with every protocol."""
        link_s = {name: self.link_s(name, size_bytes) for name in self.algorithms}
        return options(self.op, size_bytes, link_s, self.shape, self.library)

    def picked(self, size_bytes: float) -> Option:
        """What the library runs."""
        if self.chosen_by != MODEL or self.op in POINT_TO_POINT:
            return fastest(self.options(size_bytes))
        name, protocol = expected(self.op, self.algorithms, size_bytes, self.shape, self.library)
        need = self.link_s(name, size_bytes)
        return option(self.op, name, protocol, size_bytes, need, self.shape, self.library)

    def best(self, algorithm: str, size_bytes: float, *, group: int = 0) -> Option:
        """The algorithm with the protocol that the library would give it."""
        link_s = {algorithm: self.link_s(algorithm, size_bytes, group)}
        return picked(options(self.op, size_bytes, link_s, self.shape, self.library), self.shape, self.library)


def make_pricer(op: str, schedules: Callable[[str], Sequence[Schedule]], wires: Wires, ranks: int) -> Pricer | None:
    """Pricer of what the network's library has for ``op`` on groups of ``ranks``; None where it has no cost model for
    such a group. ``schedules`` and ``wires`` as in Pricer.
    """
    shape, library = shape_of(wires.network, wires.gpus[:ranks]), wires.network.library
    if shape is None or not isinstance(library, NcclLibrary):
        return None
    return Pricer(
        op=op, shape=shape, library=library, algorithms=native(op, shape, library), schedules=schedules, wires=wires
    )  # fmt: skip


def _needs(groups: Sequence[Schedule], wires: Wires) -> tuple[float, float]:
    """Seconds of the busiest link per byte of a chunk, for the slowest and the fastest of the groups."""
    if len(groups) == 1:
        busiest = full_rate_s(groups[0].resized(1.0), wires) / groups[0].resized(1.0).chunk_bytes
        return busiest, busiest
    together = side_by_side([one.resized(1.0) for one in groups])
    total_s = wires.link_chunks(together) / wires.capacity
    per_chunk = together.chunk_bytes / groups[0].resized(1.0).chunk_bytes
    own = [float(total_s[used].max(initial=0.0)) * per_chunk for used in _links_of_groups(together, wires, len(groups))]
    return max(own), min(own)


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
