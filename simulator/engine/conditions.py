"""When whole steps may be computed at once: the exact conditions of the vector engine. Pure functions.

*Uncontended*: on no link can the transfers that may be in flight together ask for more than its capacity. A rank
is in one step at a time, so what a link carries at once is at most the sum over senders of each one's busiest
step, and likewise over receivers. If the smaller of both fits every link when each transfer runs at its solo rate,
then every transfer always gets its solo rate, whenever ranks start: max-min sharing never binds.

*Bracketed*: a transfer never runs above its solo rate, nor below the smallest even share that a link on its route can
come to, capacity over the most transfers that may be on it at once. Times can only grow with the time of a transfer,
so where both rates give the same ends, as when the shared links are never what a rank waits for, those are the ends.

*Isolated*: no transfer of an earlier step is still in flight when a step's first one starts. Then the step's sharing
is a fluid problem of its own; a pattern that repeats has one solution for all its steps if ranks stay in step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from simulator.engine.wires import Paths, Wires
from simulator.schedule import Bools, Floats, Ints, Schedule

#: A link counts as fitting when its worst load exceeds its capacity by no more than rounding.
_ROUNDING = 1e-9
#: Links times ranks up to which what each rank asks of each link is kept in a table (256 MiB); beyond, in sorted keys.
_DENSE = 2**25


def _summed(holder: Ints, asked: Floats) -> tuple[Ints, Floats]:
    """Distinct holders and the sum of what each asks for."""
    order = np.argsort(holder, kind="stable")
    holder = holder[order]
    firsts = np.flatnonzero(np.append(True, holder[1:] != holder[:-1]))
    return holder[firsts], np.add.reduceat(asked[order], firsts)


def _asked_by(ends: Ints, each: Floats, paths: Paths, wires: Wires, num_ranks: int) -> tuple[Ints, Floats]:
    """What the ranks ask of links in one step: keys ``link * num_ranks + rank``, each once, and bytes/s.

    ends, each: (num_transfers,) the rank that a transfer is counted for, and what it asks of each link on its route.
    """
    links = paths.links.ravel()
    real = links != wires.filler
    holder = (paths.links * num_ranks + ends[:, None]).ravel()[real]
    asked = np.repeat(each, paths.links.shape[1])[real]
    once = int(np.bincount(ends).max(initial=0)) <= 1  # a route crosses a link once, so no key comes twice
    return (holder, asked) if once or not len(holder) else _summed(holder, asked)


def _worst_loads(parts: Iterator[tuple[Ints, Floats]], num_ranks: int, num_links: int) -> Floats:
    """Sum over ranks of what each one's busiest step asks of every link, (num_links,). parts: as ``_asked_by``."""
    if num_links * num_ranks <= _DENSE:
        busiest = np.zeros(num_links * num_ranks)
        for holder, asked in parts:
            busiest[holder] = np.maximum(busiest[holder], asked)
        dense: Floats = busiest.reshape(num_links, num_ranks).sum(axis=1)
        return dense
    holders, amounts = (np.concatenate(some) for some in zip(*parts, strict=True))
    order = np.argsort(holders, kind="stable")
    holders = holders[order]
    firsts = np.flatnonzero(np.append(True, holders[1:] != holders[:-1])) if len(holders) else order
    most = np.maximum.reduceat(amounts[order], firsts) if len(holders) else amounts
    worst: Floats = np.bincount(holders[firsts] // num_ranks, most, num_links).astype(np.float64)
    return worst


def _most_at_once(schedule: Schedule, wires: Wires, each: Callable[[Paths], Floats]) -> Iterator[Floats]:
    """Two upper bounds of what is asked of each link at any moment, (num_links,): by senders and by receivers.

    each: what a transfer asks, (num_transfers,). Where all steps have one pattern, both are that step's load.
    """
    patterns = list({id(p): p for p, _ in schedule.runs()}.values())
    if not patterns:
        return
    if len(patterns) == 1:
        yield step_loads(wires.paths(patterns[0]), each(wires.paths(patterns[0])), len(wires.capacity))
        return
    for sending in (True, False):
        ends = ((p.src if sending else p.dst, wires.paths(p)) for p in patterns)
        parts = (_asked_by(end, each(paths), paths, wires, schedule.num_participants) for end, paths in ends)
        yield _worst_loads(parts, schedule.num_participants, len(wires.capacity))


def step_loads(paths: Paths, each: Floats, num_links: int) -> Floats:
    """What the transfers of one step ask of each link together, (num_links,). each: (num_transfers,)."""
    loads = np.bincount(paths.links.ravel(), np.repeat(each, paths.links.shape[1]), num_links)
    return loads.astype(np.float64, copy=False)


def uncontended(schedule: Schedule, wires: Wires) -> bool:
    """True when no transfer can ever be slowed by another, for any start times of the ranks."""
    if not _each_step_fits(schedule, wires):
        return False
    misfit = np.ones(len(wires.capacity), dtype=bool)
    for load in _most_at_once(schedule, wires, lambda paths: paths.solo_bytes_per_s):
        misfit &= ~fits(load, wires.capacity)
        if not misfit.any():
            return True
    return not schedule.phases


def _each_step_fits(schedule: Schedule, wires: Wires) -> bool:
    """What must hold besides: a link that a single step overfills is no less filled by what ranks ask in any step."""
    patterns = {id(p): p for p, _ in schedule.runs()}.values()
    wires.find(patterns)
    for pattern in patterns:
        paths = wires.paths(pattern)
        if not fits(step_loads(paths, paths.solo_bytes_per_s, len(wires.capacity)), wires.capacity).all():
            return False
    return True


def least_shares(schedule: Schedule, wires: Wires) -> Floats:
    """Share of each link below which no transfer on it can fall because of it, (num_links,) in bytes/s."""
    most: Floats = np.full(len(wires.capacity), np.inf)
    for count in _most_at_once(schedule, wires, lambda paths: np.ones(len(paths.latency_s))):
        most = np.minimum(most, count)
    shares: Floats = wires.capacity / np.maximum(most, 1.0)
    return shares


def fits(load: Floats, capacity: Floats) -> Bools:
    """Which links carry what is asked of them, but for rounding. All arrays (num_links,)."""
    within: Bools = load <= capacity * (1 + _ROUNDING)
    return within
