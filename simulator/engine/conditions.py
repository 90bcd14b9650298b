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

from simulator.engine.wires import Paths, Wires, joined
from simulator.schedule import Floats, Ints, Schedule

#: A link counts as fitting when its worst load exceeds its capacity by no more than rounding.
_ROUNDING = 1e-9


def _worst_loads(step: Ints, ends: Ints, each: Floats, paths: Paths, num_ranks: int, wires: Wires) -> Floats:
    """Sum over ranks of what each one's busiest step asks of every link, shape (num_links,).

    step, ends, each: (num_transfers,) the pattern of each transfer, the rank that it is counted for, what it asks.
    """
    links = paths.links.ravel()
    real = links != wires.filler
    hops = paths.links.shape[1]
    holder = (paths.links * num_ranks + ends[:, None]).ravel()[real]  # one key per (link, rank)
    in_step = np.repeat(step, hops)[real]
    asked = np.repeat(each, hops)[real]
    order = np.lexsort((in_step, holder))
    holder, in_step, asked = holder[order], in_step[order], asked[order]
    if not len(holder):
        return np.zeros(len(wires.capacity))
    new_step = np.append(True, (holder[1:] != holder[:-1]) | (in_step[1:] != in_step[:-1]))
    per_step = np.add.reduceat(asked, np.flatnonzero(new_step))
    owner = holder[new_step]
    new_owner = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    busiest = np.maximum.reduceat(per_step, new_owner)
    worst: Floats = np.bincount(owner[new_owner] // num_ranks, busiest, len(wires.capacity)).astype(np.float64)
    return worst


def _most_at_once(schedule: Schedule, wires: Wires, each: Callable[[Paths], Floats]) -> Iterator[Floats]:
    """Two upper bounds of what is asked of each link at any moment, (num_links,): by senders and by receivers.

    each: what a transfer asks, (num_transfers,).
    """
    patterns = list({id(p): p for p, _ in schedule.runs()}.values())
    if not patterns:
        return
    wires.find(patterns)
    paths = joined([wires.paths(p) for p in patterns], wires.filler)
    step = np.repeat(np.arange(len(patterns)), [len(p) for p in patterns])
    for ends in ([p.src for p in patterns], [p.dst for p in patterns]):
        yield _worst_loads(step, np.concatenate(ends), each(paths), paths, schedule.num_ranks, wires)


def uncontended(schedule: Schedule, wires: Wires) -> bool:
    """True when no transfer can ever be slowed by another, for any start times of the ranks."""
    misfit = np.ones(len(wires.capacity), dtype=bool)
    for load in _most_at_once(schedule, wires, lambda paths: paths.solo_bytes_per_s):
        misfit &= load > wires.capacity * (1 + _ROUNDING)
        if not misfit.any():
            return True
    return not schedule.phases


def least_shares(schedule: Schedule, wires: Wires) -> Floats:
    """Share of each link below which no transfer on it can fall because of it, (num_links,) in bytes/s."""
    most: Floats = np.full(len(wires.capacity), np.inf)
    for count in _most_at_once(schedule, wires, lambda paths: np.ones(len(paths.latency_s))):
        most = np.minimum(most, count)
    shares: Floats = wires.capacity / np.maximum(most, 1.0)
    return shares


def step_fits(paths: Paths, capacity: Floats) -> bool:
    """True when all transfers of one step can run at their solo rates at once."""
    asked = np.bincount(
        paths.links.ravel(), np.repeat(paths.solo_bytes_per_s, paths.links.shape[1]), len(capacity)
    )  # fmt: skip
    return bool((asked <= capacity * (1 + _ROUNDING)).all())
