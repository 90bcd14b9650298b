"""One collective over ranks, sizes and algorithms: rows in nccl-tests' terms, who wins, and where that changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from simulator.collectives import AUTO, algorithms_of, make_schedule
from simulator.collectives.busbw import bus_factor
from simulator.collectives.layout import Layout
from simulator.engine.collective import times_by_size
from simulator.engine.composite import Composite, make_composite
from simulator.engine.groups import GroupTimes, times_of_groups
from simulator.engine.layouts import layout_of
from simulator.engine.pricer import LIBRARY, Pricer, algorithms_for, make_pricer, operation_run
from simulator.engine.switches import on_nvswitches
from simulator.engine.wires import Wires, make_wires
from simulator.errors import ScenarioError, UnsupportedError
from simulator.library import NcclLibrary
from simulator.network.graph import Network
from simulator.rows import Crossover, Row, Way
from simulator.schedule import ROOTED, Floats, Ints, Schedule
from simulator.tuning.choice import KERNELS, Option, fastest
from simulator.tuning.place import shape_of

#: 'all' leaves 'direct' out above this many ranks; by name it is played whatever it costs.
MAX_DIRECT_IN_ALL = 128
#: Algorithms that add and multicast in NVSwitches.
IN_SWITCHES = frozenset({"nvls", "nvls_tree"})
#: Sizes looked at in one pass when a crossover is narrowed down.
_POINTS = 33
#: A crossover is found once its interval is this narrow, relative to its size.
_NARROW = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """The algorithms of one collective on groups of p ranks of a network, ready to be timed at any size.

    schedules: by algorithm, of the first group; others: of the groups that run at the same time, in their order.
    wires: of all ranks, group after group. pricer: knows the algorithms that the library has a cost model for; they
    are priced, not played, unless ``fidelity`` names an engine. composite: the hierarchical algorithm in library calls.
    """

    op: str
    p: int
    schedules: dict[str, Schedule]
    others: dict[str, tuple[Schedule, ...]]
    wires: Wires
    pricer: Pricer | None
    composite: Composite | None
    fidelity: str
    starts_s: Floats

    @property
    def num_groups(self) -> int:
        return len(self.wires.gpus) // self.p

    def priced(self, algorithm: str) -> bool:
        """Whether the library's cost model gives the times of an algorithm."""
        if self.pricer is None or self.fidelity not in {"auto", LIBRARY}:
            return False
        return self.composite is not None if algorithm == "hierarchical" else algorithm in self.pricer.algorithms

    def option(self, algorithm: str, size: float, *, group: int = 0) -> Option | None:
        """How the library runs an algorithm; None where it has no cost model for it, or an engine is asked for."""
        if not self.priced(algorithm) or self.pricer is None:
            return None
        if algorithm == "hierarchical" and self.composite:
            return self.composite.option(size)
        return self.pricer.best(algorithm, size, group=group)

    def times(self, algorithm: str, sizes: Sequence[float]) -> GroupTimes:
        """Times in s of one algorithm at several sizes, by which engine, and why not by the vector engine."""
        if self.priced(algorithm):
            waited = float(np.ptp(self.starts_s))
            options = [[self.option(algorithm, size, group=group) for size in sizes] for group in (0, 1)]
            slow, fast = (np.array([one.cost.time_s + waited for one in some if one]) for some in options)
            return GroupTimes(slow, fast, LIBRARY, "")
        schedule, values = self.schedules[algorithm], np.array(sizes, dtype=np.float64)
        if self.num_groups == 1:
            alone = times_by_size(schedule, self.wires, values, fidelity=self.fidelity, starts_s=self.starts_s)
            return GroupTimes(alone[0], *alone)
        groups = (schedule, *self.others[algorithm])
        return times_of_groups(groups, self.wires, values, fidelity=self.fidelity, starts_s=self.starts_s)


def make_field(
    op: str,
    p: int,
    network: Network,
    algorithms: Sequence[str],
    root: int = 0,
    fidelity: str = "auto",
    skew_s: float = 0.0,
    groups: Ints | None = None,
) -> Field:
    """'all' stands for the whole table, 'auto' for what fits. Rank r calls the collective at ``(r + 1) * skew_s``.

    groups: (num_groups, p) the gpus of the ranks of each group, see ``network.placement``; all run at the same time.
    By default one group, on the network's first p gpus. Raises ScenarioError for an unknown operation or algorithm.
    """
    placed = np.arange(p, dtype=np.int64)[None, :] if groups is None else groups
    assert placed.shape[1] == p, "every group has p ranks"
    gpus = placed[0]
    layout = replace(layout_of(network, gpus), root=root)
    names: list[str] = []
    for name in algorithms:
        every = _all(op, layout, network, gpus) if name == "all" else (name,)
        wanted = algorithms_for(op, network, gpus) if name == AUTO else every
        names += [n for n in wanted if n not in names]
    names = _without_kernels_it_lacks(op, names, network, gpus)
    if "torus" in names and layout.torus_shape is None:
        raise ScenarioError(f"algorithm 'torus' needs all the chips of a torus; '{network.name}' is {network.kind}")
    if "hierarchical" in names and layout.node_sizes is not None:
        if set(names) == {"hierarchical"}:
            raise ScenarioError("algorithm 'hierarchical' needs equally many ranks on every node")
        names.remove("hierarchical")
    in_switches = [name for name in names if name in IN_SWITCHES]
    if in_switches and not on_nvswitches(network, gpus):
        raise ScenarioError(f"algorithm '{in_switches[0]}' needs GPUs on NVSwitches; '{network.name}' has none")
    layouts = [layout, *(replace(layout_of(network, other), root=root) for other in placed[1:])]
    run = operation_run(op, network)

    @cache
    def groups_of(name: str) -> tuple[Schedule, ...]:  # groups that sit alike share a schedule, and its patterns
        made = {one: make_schedule(run, name, one, 0.0) for one in dict.fromkeys(layouts)}
        return tuple(made[one] for one in layouts)

    wires = make_wires(network, placed.ravel())
    pricer = make_pricer(op, groups_of, wires, p) if fidelity in {"auto", LIBRARY} else None
    composite = make_composite(op, network, placed) if pricer and "hierarchical" in names else None
    priced = {*(pricer.algorithms if pricer else ()), *(("hierarchical",) if composite else ())}
    if fidelity == LIBRARY and not set(names) <= priced:
        raise UnsupportedError(_no_model(op, names, pricer, network))
    return Field(
        op=op,
        p=p,
        schedules={name: groups_of(name)[0] for name in names},
        others={name: groups_of(name)[1:] for name in names},
        wires=wires,
        pricer=pricer,
        composite=composite,
        fidelity=fidelity,
        starts_s=(np.arange(1, p + 1) * skew_s).astype(np.float64),
    )


def _without_kernels_it_lacks(op: str, names: Sequence[str], network: Network, gpus: Ints) -> list[str]:
    """Names without the library's own kernels where it does not run them; a schedule of messages says nothing of those.

    Raises UnsupportedError when nothing else was asked for.
    """
    if not isinstance(network.library, NcclLibrary) or shape_of(network, gpus) is None:
        return list(names)
    has = algorithms_for(op, network, gpus)
    kept = [name for name in names if name not in KERNELS or name in has]
    if not kept:
        raise UnsupportedError(
            f"{network.library.name} does not run {', '.join(names)} for {op} on these {len(gpus)} ranks; it has "
            f"{', '.join(has)}. '--library textbook' plays the schedule on bare links"
        )
    return kept


def _no_model(op: str, names: Sequence[str], pricer: Pricer | None, network: Network) -> str:
    if pricer is None:
        return f"--fidelity: 'library': {network.library.name} has no cost model for this group on '{network.name}'"
    lacks = ", ".join(name for name in names if name not in pricer.algorithms)
    has = ", ".join(pricer.algorithms)
    return f"--fidelity: 'library': {network.library.name} has no {lacks} for {op}; it has {has}"


def _all(op: str, layout: Layout, network: Network, gpus: Ints) -> tuple[str, ...]:
    """The whole table, but the torus ring off a torus, NVLS off NVSwitches, and direct where its p**2 messages at once
    would take minutes.
    """
    left_out = {"torus"} if layout.torus_shape is None else set()
    if not on_nvswitches(network, gpus):
        left_out |= IN_SWITCHES
    if layout.num_ranks > MAX_DIRECT_IN_ALL:
        left_out.add("direct")
    every = algorithms_of(operation_run(op, network))
    return tuple(name for name in every if name not in left_out) or every


def rows_of(field: Field, sizes: Sequence[float]) -> list[Row]:
    """One row per size and algorithm, sizes first; of each size the fastest is marked, and what the library runs.

    Where a library's cost model gives some of the times, the fastest is one of these: schedules that are played on
    bare links pay for no kernel, no flags and no ramp, so theirs are not to be compared with measured ones.
    """
    timed = {name: field.times(name, sizes) for name in field.schedules}
    rows: list[Row] = []
    for number, size in enumerate(sizes):
        comparable = [name for name in timed if field.priced(name)] or list(timed)
        best = min(comparable, key=lambda name: float(timed[name].slowest_s[number]))
        for name, times in timed.items():
            rows.append(_row(field, name, size, number, times, name == best))
    return rows


def _row(field: Field, name: str, size: float, number: int, times: GroupTimes, fastest: bool) -> Row:
    option = field.option(name, size)
    run = field.pricer.picked(size) if option and field.pricer else None
    schedule = field.schedules[name].resized(size)
    time_s = float(times.slowest_s[number])
    algbw = size / time_s if time_s > 0 else 0.0
    return Row(
        op=field.op, p=field.p, root=schedule.root if field.op in ROOTED else -1, size_bytes=size,
        padding_bytes=schedule.padding_bytes,
        algorithm=name, time_s=time_s, algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * bus_factor(field.op, field.p), steps=schedule.num_steps,
        messages=schedule.num_messages, wire_bytes_per_rank=float(schedule.sent_bytes().max()),
        fidelity=times.fidelity, handed_over=times.handed_over, fastest=fastest, groups=field.num_groups,
        fastest_group_s=float(times.fastest_s[number]), library=field.wires.network.library.name,
        protocol=option.protocol if option else "Simple",
        picked=name == run.algorithm if run else fastest, believed_s=option.believed_s if option else None,
    )  # fmt: skip


def ways_of(field: Field, sizes: Sequence[float]) -> list[Way]:
    """Every algorithm and protocol that the library could run, at each size, what it runs and what would be fastest.

    Raises UnsupportedError where the library has no cost model for the group.
    """
    if field.pricer is None:
        network = field.wires.network
        raise UnsupportedError(
            f"--explain: {network.library.name} has no cost model for this group on '{network.name}': its schedules "
            "are played, and the fastest is what 'auto' shows"
        )
    found: list[Way] = []
    for size in sizes:
        options = field.pricer.options(size)
        run, best = field.pricer.picked(size), fastest(options)
        found += [
            Way(
                op=field.op, p=field.p, size_bytes=size, algorithm=one.algorithm, protocol=one.protocol,
                believed_s=one.believed_s, time_s=one.cost.time_s, latency_s=one.cost.latency_s,
                transfer_s=one.cost.transfer_s, picked=one == run, fastest=one == best,
                chosen_by=field.pricer.chosen_by,
            )
            for one in sorted(options, key=lambda one: one.cost.time_s)
        ]  # fmt: skip
    return found


def crossovers(field: Field, rows: Sequence[Row]) -> Iterator[Crossover]:
    """Where the winner changes between two neighbouring sizes of ``rows``, narrowed down by more simulation."""
    best = [row for row in rows if row.fastest]
    for low, high in pairwise(best):
        if low.algorithm != high.algorithm:
            size = _meeting(field, low.algorithm, high.algorithm, low.size_bytes, high.size_bytes)
            yield Crossover(op=field.op, p=field.p, size_bytes=size, below=low.algorithm, above=high.algorithm)


def _meeting(field: Field, below: str, above: str, low: float, high: float) -> float:
    """Size at which ``above`` becomes as fast as ``below``, by repeated division of the interval."""
    while high - low > max(_NARROW * high, 0.5):
        sizes = np.linspace(low, high, _POINTS)
        ahead = field.times(above, list(sizes)).slowest_s <= field.times(below, list(sizes)).slowest_s
        first = int(np.argmax(ahead)) if ahead.any() else len(sizes) - 1
        low, high = float(sizes[max(first - 1, 0)]), float(sizes[max(first, 1)])
    return (low + high) / 2
