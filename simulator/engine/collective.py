"""One collective on a network: picks the engine, hands over where it must, and holds the result against physics."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.collectives import bounds
from simulator.engine import lockstep, message, vector
from simulator.engine.outcome import Outcome, outcome
from simulator.engine.wires import Wires
from simulator.errors import InternalError
from simulator.schedule import Floats, Schedule

#: Rounding allowed when a time is held against its lower bounds.
_SLACK = 1e-9
#: What 'auto' plays message by message: messages times those that may be in flight together, each of which a shared
#: link makes the engine look at. Some seconds; above it the time is estimated in lockstep, and said to be.
MAX_AUTO_WORK = 10_000_000

#: auto: vector where it is exact, else message, else lockstep. The others insist.
FIDELITIES = ("auto", "vector", "message", "lockstep")


class Times(NamedTuple):
    """When each rank ends, shape (num_sizes, num_ranks); which engine found it; why it was not the vector engine."""

    finish_s: Floats
    fidelity: str
    handed_over: str


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
    max_work: above this 'auto' does not play messages one by one (see MAX_AUTO_WORK). Every rank first pays the
    network's ``collective_launch_s``. Raises vector.NotExactError for an insisted vector engine, UnsupportedError for
    an insisted message engine with too many messages, InternalError for a result below a physical lower bound.
    """
    starts = np.zeros(schedule.num_ranks) if starts_s is None else np.asarray(starts_s, dtype=np.float64)
    launch_s = wires.network.collective_launch_s
    entered = starts + launch_s
    times = _times((schedule,), wires, entered, fidelity, max_work)
    result = outcome(schedule, wires, entered, times.finish_s[0], times.fidelity, times.handed_over)
    hold_to_bounds(schedule, wires, result.time_s)
    return replace(result, time_s=result.time_s + launch_s)


def times_by_size(
    schedule: Schedule, wires: Wires, sizes_bytes: Floats, *, fidelity: str = "auto", starts_s: Floats | None = None
) -> tuple[Floats, str, str]:
    """One schedule at several sizes in one pass: (times in s, the fidelity used, why not the vector engine).

    Times are from the first rank's start to the last rank's end. Other arguments and errors: simulate_collective.
    """
    starts = np.zeros(schedule.num_ranks) if starts_s is None else starts_s
    sized = tuple(schedule.resized(float(size)) for size in sizes_bytes)
    times = _times(sized, wires, starts, fidelity, MAX_AUTO_WORK)
    ends = times.finish_s.max(axis=1) - starts.min()
    for one, time_s in zip(sized, ends, strict=True):
        hold_to_bounds(one, wires, float(time_s))
    return ends + wires.network.collective_launch_s, times.fidelity, times.handed_over


def _times(sized: tuple[Schedule, ...], wires: Wires, starts_s: Floats, fidelity: str, max_work: int) -> Times:
    """Ends of the same schedule at several sizes."""
    schedule = sized[0]
    chunks = np.array([s.chunk_bytes for s in sized])
    why = ""
    if fidelity in {"auto", "vector"}:
        try:
            return Times(vector.finish_times(schedule, wires, starts_s, chunks), "vector", "")
        except vector.NotExactError as reason:
            if fidelity == "vector":
                raise
            why = str(reason)
    if fidelity == "message" or (fidelity == "auto" and _work(schedule) * len(sized) <= max_work):
        played = np.stack([message.finish_times(s, wires, starts_s) for s in sized])
        return Times(played, "message", why)
    if why:
        why += (
            f"; {schedule.num_messages:,} messages are too many to play one by one, so all ranks wait after each step"
        )
    return Times(lockstep.finish_times(schedule, wires, starts_s, chunks), "lockstep", why)


def _work(schedule: Schedule) -> int:
    return schedule.num_messages * max((len(pattern) for pattern, _ in schedule.runs()), default=0)


def hold_to_bounds(schedule: Schedule, wires: Wires, time_s: float) -> None:
    """Raise InternalError when ``time_s`` is below what latency, the ranks' links or the busiest link allow.

    Such a result is a bug in the simulator, caught when it happens instead of printed as good news.
    """
    if schedule.num_ranks == 1 or not schedule.phases:
        return
    floor = max(
        wires.latency_floor_s(schedule), bounds.bandwidth_s(schedule, *wires.rank_capacity()),
        wires.busiest_link_s(schedule),
    )  # fmt: skip
    if not time_s >= floor * (1 - _SLACK):  # so that NaN is caught too
        raise InternalError(
            f"{schedule.op}/{schedule.algorithm} on {schedule.num_ranks} ranks, {schedule.size_bytes:.0f} B: "
            f"{time_s:.9g} s is below the physical bound of {floor:.9g} s"
        )
