"""The vector engine: recurrences over whole steps, exact wherever its conditions hold.

Cost: one numpy pass per step until the steps become periodic, none after. A step of an uncontended schedule maps
ready times by ``end = max(ready[src], ready[dst]) + latency + bytes / rate``, ``ready' = max`` over a rank's own
transfers: linear in the (max, +) algebra. So once two successive steps of one pattern differ by the same amount on
every rank, all later ones do, and the rest of the run is one multiplication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.engine.conditions import least_shares, uncontended
from simulator.engine.fairshare import solo
from simulator.engine.fluid import TooManyChangesError, step_ends
from simulator.engine.outcome import Outcome, outcome
from simulator.engine.ports import port_floors
from simulator.engine.wires import Wires
from simulator.schedule import Floats, Ints, Pattern, Schedule

#: Gains of two steps count as equal when they differ by no more than this, relative to the clock.
_ROUNDING = 4e-15
#: Ranks count as in step when their clocks differ by no more than this, relative to the clock.
_IN_STEP = 4e-12
#: Sizes times transfers that are played at once: 64 MiB an array.
_MOST_AT_ONCE = 2**23
#: Earliest and latest possible ends count as the same when they differ by no more than this, relatively.
_BRACKET = 1e-11


class NotExactError(Exception):
    """The vector engine's conditions do not hold; the message says which. Internal: callers hand over."""


class CrowdedError(NotExactError):
    """A single step has too many transfers that share links."""


class Attempt(NamedTuple):
    """What the vector engine knows of every rank's end: (num_sizes, num_ranks) each, and why it is not sure.

    earliest_s, latest_s: certified. Earliest: every transfer at its solo rate, and no rank before the links at its own
    end have carried their bytes. Latest: every transfer at the least even share of its links (see ``conditions``).
    refused: '' where both are the exact ends. crowded: refused because a single step has too many transfers that share
    links, so that playing messages one by one would take longer still.
    """

    earliest_s: Floats
    latest_s: Floats
    refused: str = ""
    crowded: bool = False


def attempt(
    schedule: Schedule, wires: Wires, starts_s: Floats, chunk_bytes: Floats, *, bounds_only: bool = False
) -> Attempt:
    """When each rank ends, for several chunk sizes at once, exactly or within bounds.

    bounds_only: not to try where bounds leave room; ``refused`` then says nothing.
    starts_s: (num_ranks,) when each rank calls the collective. chunk_bytes: (num_sizes,) bytes of a chunk.
    Growth: one numpy pass over a step's transfers for each step until steps are periodic. A ring of p ranks that start
    together so grows with p, a tree with p, recursive doubling with p log p, a pairwise or direct all-to-all with p**2.
    """
    first_s = float(starts_s.min())
    earliest, latest = _bracket(schedule, wires, starts_s, chunk_bytes)
    refused, crowded = "", False
    if latest is not earliest and not bounds_only:
        sure = (latest - earliest <= _BRACKET * latest).all(axis=1)
        starts = _from_zero(schedule, starts_s)
        try:
            rest = [_isolated(schedule, wires, starts, float(size)) for size in chunk_bytes[~sure]]
            isolated = np.array(rest).reshape(-1, schedule.num_participants)[:, : schedule.num_ranks]
            earliest[~sure] = latest[~sure] = isolated
        except NotExactError as reason:
            refused, crowded = str(reason), isinstance(reason, CrowdedError)
    return Attempt(first_s + earliest, first_s + latest, refused, crowded)


def finish_times(schedule: Schedule, wires: Wires, starts_s: Floats, chunk_bytes: Floats) -> Floats:
    """The exact ends of ``attempt``, (num_sizes, num_ranks); NotExactError where it is not sure of them."""
    found = attempt(schedule, wires, starts_s, chunk_bytes)
    if found.refused:
        raise NotExactError(found.refused)
    return found.earliest_s


def _from_zero(schedule: Schedule, starts_s: Floats) -> Floats:
    """Starts of all participants. Tolerances are relative to the clock, so it starts with the first rank.

    Switches are ready from then on.
    """
    return np.append(starts_s - starts_s.min(), np.zeros(schedule.num_switches))


def _bracket(schedule: Schedule, wires: Wires, starts_s: Floats, chunk_bytes: Floats) -> tuple[Floats, Floats]:
    """Earliest and latest ends, counted from the first start; one array where transfers are never slowed."""
    starts, ranks = _from_zero(schedule, starts_s), schedule.num_ranks
    never_slowed = wires.keep("uncontended", schedule, lambda: uncontended(schedule, wires))
    earliest = at_rates(schedule, wires, starts, chunk_bytes)[:, :ranks]
    if never_slowed:
        return earliest, earliest
    shares = wires.keep("least shares", schedule, lambda: least_shares(schedule, wires))
    return earliest, at_rates(schedule, wires, starts, chunk_bytes, shares)[:, :ranks]


def play(schedule: Schedule, wires: Wires, starts_s: Floats) -> Outcome:
    """``finish_times`` of the schedule's own size, with the traffic. Raises as it does."""
    finish = finish_times(schedule, wires, starts_s, np.array([schedule.chunk_bytes]))[0]
    return outcome(schedule, wires, starts_s, finish, "vector")


def at_rates(
    schedule: Schedule, wires: Wires, starts_s: Floats, chunk_bytes: Floats, shares: Floats | None = None
) -> Floats:
    """Ends when every transfer runs at the smallest of the ``shares``, (num_links,) in bytes/s, on its route.

    Without ``shares``: at its solo rate.
    """
    ready = np.repeat(starts_s[None, :].astype(np.float64), len(chunk_bytes), axis=0)
    for pattern, steps in schedule.runs():
        paths = wires.paths(pattern)
        rate = paths.solo_bytes_per_s if shares is None else solo(paths.links, shares)
        for some in _batches(len(chunk_bytes), len(pattern)):
            cost = paths.latency_s + chunk_bytes[some, None] * (pattern.chunks / rate)
            ports = port_floors(pattern, paths, wires, chunk_bytes[some]) if shares is None else None
            part = ready[some]
            advance(part, pattern, cost, steps, ports)
            ready[some] = part
    return ready


def _batches(num_sizes: int, num_transfers: int) -> list[slice]:
    """Sizes that are played together: few when each takes much memory."""
    count = max(1, _MOST_AT_ONCE // max(1, num_transfers))
    return [slice(first, first + count) for first in range(0, num_sizes, count)]


def advance(
    ready: Floats, pattern: Pattern, cost: Floats, steps: int, floors: Callable[[Floats, Floats], None] | None = None
) -> None:
    """Play ``steps`` steps of one pattern on ``ready``, in place; skips ahead once they are periodic.

    ready: (num_sizes, num_participants) when each could start. cost: (num_sizes, num_transfers) seconds of a transfer.
    floors: raises what ``ready`` of the pattern's ranks becomes, given when transfers begin.
    """
    src, dst, ranks = pattern.src, pattern.dst, pattern.ranks
    latest = _latest_of(pattern)
    look_at = 1
    for done in range(1, steps + 1):
        looking = done == look_at and done < steps
        before = ready[:, ranks] if looking else None
        ends = np.maximum(ready[:, src], ready[:, dst])
        begins = ends.copy() if floors is not None else None
        ends += cost
        now = latest(ends)
        if floors is not None and begins is not None:
            floors(begins, now)
        ready[:, ranks] = now
        if before is not None:
            look_at *= 2
            gain = now - before
            most, least = gain.max(axis=1), gain.min(axis=1)
            if (most - least <= _ROUNDING * now.max(axis=1)).all():
                ready[:, ranks] += (steps - done) * most[:, None]
                return


def _latest_of(pattern: Pattern) -> Callable[[Floats], Floats]:
    """Function from ends of transfers, shape (sizes, transfers), to the latest end of each of ``pattern.ranks``."""
    count = len(pattern)
    if len(pattern.ranks) == count and _distinct(pattern.src) and _distinct(pattern.dst):
        # Every rank sends one message and receives one, as in a ring: two gathers do it.
        sent, received = np.argsort(pattern.src), np.argsort(pattern.dst)
        return lambda ends: np.maximum(ends[:, sent], ends[:, received])
    ends_of = np.concatenate([pattern.src, pattern.dst])
    order = np.argsort(ends_of, kind="stable")
    firsts = np.flatnonzero(np.append(True, np.diff(ends_of[order]) != 0))
    transfer = order % count
    return lambda ends: np.maximum.reduceat(ends[:, transfer], firsts, axis=1)


def _distinct(ranks: Ints) -> bool:
    return int(np.bincount(ranks).max()) == 1


def _isolated(schedule: Schedule, wires: Wires, starts_s: Floats, chunk_bytes: float) -> Floats:
    ready = starts_s.astype(np.float64).copy()
    in_flight_until = -np.inf
    for number, (pattern, steps) in enumerate(schedule.runs()):
        begins = np.maximum(ready[pattern.src], ready[pattern.dst])
        begin = float(begins.min())
        slack = _IN_STEP * max(abs(float(begins.max())), abs(in_flight_until) if number else 0.0)
        if in_flight_until > begin + slack:
            raise NotExactError(_refusal(schedule, number, "shared by transfers of different steps"))
        late = np.where(begins - begin > slack, begins - begin, 0.0).astype(np.float64)
        paths = wires.paths(pattern)
        try:
            ends = step_ends(paths, (pattern.chunks * chunk_bytes).astype(np.float64), wires.capacity, late)
        except TooManyChangesError:
            raise CrowdedError(_refusal(schedule, number, "shared by too many transfers at once")) from None
        gain = _latest_of(pattern)(ends[None, :])[0]
        longest = float(gain.max())
        if steps > 1 and (late.any() or longest - gain.min() > slack + _IN_STEP * longest):
            raise NotExactError(_refusal(schedule, number, "shared while ranks drift apart"))
        ready[pattern.ranks] = begin + (steps - 1) * longest + gain
        in_flight_until = max(in_flight_until, float(ready[pattern.ranks].max()))
    return ready


def _refusal(schedule: Schedule, number: int, why: str) -> str:
    return f"links are {why} (phase {number + 1} of {schedule.op}/{schedule.algorithm})"
