"""One collective on a network: picks the engine, hands over where it must, and holds the result against physics."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.collectives import bounds
from simulator.engine import lockstep, message, vector
from simulator.engine.fabric import TooMuchWorkError
from simulator.engine.outcome import Outcome, outcome
from simulator.engine.wires import Wires
from simulator.errors import InternalError
from simulator.schedule import Floats, Schedule

#: Rounding allowed when a time is held against its lower bounds.
_SLACK = 1e-9
#: What 'auto' spends on playing messages one by one, in ``Fabric.work``: flows that shared links anew, all sizes
#: together. Some seconds; when it is used up the time is estimated in lockstep, and said to be.
MAX_AUTO_WORK = 2_000_000

#: auto: vector where it is exact, else message, else lockstep. The others insist.
FIDELITIES = ("auto", "vector", "message", "lockstep")


class Times(NamedTuple):
    """When each rank ends, shape (num_sizes, num_ranks); which engine found it; why it was not the vector engine.

    bracket: where that is an estimate, the earliest and the latest that the last rank can end, (num_sizes,) each.
    """

    finish_s: Floats
    fidelity: str
    handed_over: str
    bracket: tuple[Floats, Floats] | None = None


def simulate_collective(
    schedule: Schedule,
    wires: Wires,
    *,
    starts_s: Floats | None = None,
    fidelity: str = "auto",
    max_work: int = MAX_AUTO_WORK,
) -> Outcome:
    """Play ``schedule`` on the network; rank r calls it at ``starts_s[r]`` (all at 0 by default).

    fidelity: one of FIDELITIES; ``Outcome.handed_over`` says why 'auto' did not take the vector engine.
    max_work: how much 'auto' plays messages one by one (see MAX_AUTO_WORK). Every rank first pays the network's
    ``launch_s`` of the operation. Raises vector.NotExactError for an insisted vector engine, UnsupportedError for
    an insisted message engine with too many messages, InternalError for a result below a physical lower bound.
    """
    starts = np.zeros(schedule.num_ranks) if starts_s is None else np.asarray(starts_s, dtype=np.float64)
    launch_s = wires.network.launch_s(schedule.op)
    entered = starts + launch_s
    times = finish_by_size((schedule,), wires, entered, fidelity, max_work)
    result = outcome(schedule, wires, entered, times.finish_s[0], times.fidelity, times.handed_over)
    hold_to_bounds(schedule, wires, result.time_s)
    low, high = times.bracket or (times.finish_s.max(axis=1), times.finish_s.max(axis=1))
    return replace(
        result, time_s=result.time_s + launch_s, lower_s=float(low[0] - starts.min()),
        upper_s=float(high[0] - starts.min()),
    )  # fmt: skip


def times_by_size(
    schedule: Schedule, wires: Wires, sizes_bytes: Floats, *, fidelity: str = "auto", starts_s: Floats | None = None
) -> tuple[Floats, str, str]:
    """One schedule at several sizes in one pass: (times in s, the fidelity used, why not the vector engine).

    Times are from the first rank's start to the last rank's end. Other arguments and errors: simulate_collective.
    """
    starts = np.zeros(schedule.num_ranks) if starts_s is None else starts_s
    sized = tuple(schedule.resized(float(size)) for size in sizes_bytes)
    times = finish_by_size(sized, wires, starts, fidelity, MAX_AUTO_WORK)
    ends = times.finish_s.max(axis=1) - starts.min()
    for one, time_s in zip(sized, ends, strict=True):
        hold_to_bounds(one, wires, float(time_s))
    return ends + wires.network.launch_s(schedule.op), times.fidelity, times.handed_over


def finish_by_size(sized: tuple[Schedule, ...], wires: Wires, starts_s: Floats, fidelity: str, max_work: int) -> Times:
    """Ends of the same schedule at several sizes; arguments and errors as simulate_collective, launch not added."""
    chunks = np.array([s.chunk_bytes for s in sized])
    if fidelity == "message":
        return Times(np.stack([message.finish_times(s, wires, starts_s) for s in sized]), "message", "")
    found = vector.attempt(sized[0], wires, starts_s, chunks, bounds_only=fidelity == "lockstep")
    if fidelity == "lockstep":
        return _estimated(sized, wires, starts_s, found, "")
    if not found.refused:
        return Times(found.earliest_s, "vector", "")
    if fidelity == "vector":
        raise vector.NotExactError(found.refused)
    played = None if found.crowded else _played(sized, wires, starts_s, max_work)
    if played is not None:
        return Times(played, "message", found.refused)
    return _estimated(sized, wires, starts_s, found, found.refused)


def _played(sized: tuple[Schedule, ...], wires: Wires, starts_s: Floats, max_work: int) -> Floats | None:
    """Ends message by message, (num_sizes, num_ranks); None when that takes more than ``max_work``."""
    if 2 * sized[0].num_messages * len(sized) > max_work:  # each starts and ends, and more where links are shared
        return None
    try:
        return np.stack([message.finish_times(s, wires, starts_s, max_work / len(sized)) for s in sized])
    except TooMuchWorkError:
        return None


def _estimated(sized: tuple[Schedule, ...], wires: Wires, starts_s: Floats, found: vector.Attempt, why: str) -> Times:
    """Lockstep, kept between what is certain."""
    schedule = sized[0]
    first_s = float(starts_s.min())
    floors = np.array([floor_s(s, wires) for s in sized])
    earliest = np.maximum(found.earliest_s.max(axis=1), first_s + floors)
    latest = np.maximum(found.latest_s.max(axis=1), earliest)  # where they coincide, but for rounding
    finish = lockstep.finish_times(schedule, wires, starts_s, np.array([s.chunk_bytes for s in sized]))
    finish = np.clip(finish, found.earliest_s, found.latest_s)
    last = np.clip(finish.max(axis=1), earliest, latest)
    finish = np.where(finish == finish.max(axis=1)[:, None], last[:, None], finish)
    if why:
        taken = np.maximum(last - first_s, np.finfo(np.float64).tiny)
        certainty = _certainty((earliest - first_s) / taken, (latest - first_s) / taken)
        messages = f"{schedule.num_messages:,} messages are too many to play one by one"
        why += f"; {messages}, so links are shared as if all ranks took each step together; {certainty}"
    return Times(finish, "lockstep", why, (earliest, latest))


def _certainty(least: Floats, most: Floats) -> str:
    """Where the truth lies. Both as shares of the estimate, (num_sizes,)."""
    if (most - least <= _SLACK).all():
        return "the last rank's end is certain all the same, since its earliest and latest coincide"
    return f"the true time is between {least.min():.4f} and {most.max():.4f} times this one"


def floor_s(schedule: Schedule, wires: Wires) -> float:
    """What latency, the ranks' links or the busiest link allow at best, from the first rank's start to the last's end.

    The bounds on the ranks' bytes hold where nothing is added inside a switch.
    """
    if schedule.num_ranks == 1 or not schedule.phases:
        return 0.0
    floor = max(wires.latency_floor_s(schedule), wires.busiest_link_s(schedule))
    return floor if schedule.num_switches else max(floor, bounds.bandwidth_s(schedule, *wires.rank_capacity()))


def hold_to_bounds(schedule: Schedule, wires: Wires, time_s: float) -> None:
    """Raise InternalError when ``time_s`` is below ``floor_s``.

    Such a result is a bug in the simulator, caught when it happens instead of printed as good news.
    """
    floor = floor_s(schedule, wires)
    if not time_s >= floor * (1 - _SLACK):  # so that NaN is caught too
        raise InternalError(
            f"{schedule.op}/{schedule.algorithm} on {schedule.num_ranks} ranks, {schedule.size_bytes:.0f} B: "
            f"{time_s:.9g} s is below the physical bound of {floor:.9g} s"
        )
