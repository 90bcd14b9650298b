"""Several groups of one collective at once on the same links: their schedules laid side by side, played as one.

Step s of the whole is step s of every group; a rank waits for its own transfers only, so nothing joins the groups but
the links that they share, and the engines play the whole exactly where they play a schedule exactly. Groups without a
link in common cannot slow each other: where the vector engine cannot take all at once, every set of groups that links
join is played by itself, which is just as exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.collectives import bounds
from simulator.engine.collective import MAX_AUTO_WORK, Times, finish_by_size
from simulator.engine.vector import NotExactError
from simulator.engine.wires import Wires, make_wires
from simulator.errors import InternalError
from simulator.schedule import ALL_BUFFERS, Floats, Ints, Pattern, Phase, Schedule

#: Rounding allowed when a time is held against its lower bounds.
_SLACK = 1e-9
#: Engines from exact and fast to estimate: the last one used by any group names the whole.
_LEAST_EXACT = ("vector", "message", "lockstep")


class GroupTimes(NamedTuple):
    """Seconds of the slowest and of the fastest group at each size, (num_sizes,); the rest as ``Times``."""

    slowest_s: Floats
    fastest_s: Floats
    fidelity: str
    handed_over: str


def side_by_side(schedules: Sequence[Schedule]) -> Schedule:
    """One schedule in which group g's rank r is rank ``g * N + r``; N ranks each. For the engines: it moves no data.

    Its ``size_bytes`` is 0, since the bounds that hold for one collective over all those ranks do not for groups of
    them; ``chunk_bytes`` is that of the groups' size. Groups may differ in steps and in chunks, not in operation, size
    and number of ranks.
    """
    first = schedules[0]
    assert all(s.num_ranks == first.num_ranks and s.size_bytes == first.size_bytes for s in schedules)
    unit = math.lcm(*(_chunks_of_a_buffer(s) for s in schedules))
    shifts = _shifts(schedules)
    merged: dict[tuple[int, ...], Pattern] = {}
    phases: list[Phase] = []
    for parts, steps in _aligned(schedules):
        key = tuple(id(part) for part in parts)
        if key not in merged:
            merged[key] = _merge(parts, [unit // _chunks_of_a_buffer(s) for s in schedules], shifts, first.num_ranks)
        phases.append(Phase(pattern=merged[key], steps=steps, moves=_no_data, reduce=False))
    return replace(
        first, size_bytes=0.0, num_ranks=first.num_ranks * len(schedules),
        num_switches=sum(s.num_switches for s in schedules), num_chunks=unit,
        chunk_bytes=_chunk_bytes(first, unit, first.size_bytes), phases=tuple(phases),
    )  # fmt: skip


def _chunks_of_a_buffer(schedule: Schedule) -> int:
    return schedule.num_chunks // (schedule.num_ranks if schedule.op in ALL_BUFFERS else 1)


def _chunk_bytes(schedule: Schedule, unit: int, size_bytes: float) -> float:
    """Bytes of a chunk when a buffer of ``schedule`` is cut into ``unit`` chunks."""
    return schedule.resized(size_bytes).chunk_bytes * _chunks_of_a_buffer(schedule) / unit


def _no_data(_step: int) -> Ints:
    raise InternalError("groups side by side have no chunk numbers: check each group's own schedule")


def _shifts(schedules: Sequence[Schedule]) -> list[tuple[int, int]]:
    """What to add to a group's ranks, and to its switches: these come after all ranks of all groups."""
    ranks = sum(s.num_ranks for s in schedules)
    switches = np.cumsum([0] + [s.num_switches for s in schedules]).tolist()
    return [
        (g * s.num_ranks, ranks + switches[g] - s.num_ranks) for g, s in enumerate(schedules)
    ]  # fmt: skip


def _aligned(schedules: Sequence[Schedule]) -> Iterator[tuple[tuple[Pattern | None, ...], int]]:
    """Each group's pattern, None once it is through, and for how many steps all of them stay the same."""
    runs = [list(s.runs()) for s in schedules]
    place = [0] * len(runs)
    left = [run[0][1] if run else 0 for run in runs]
    while any(left):
        steps = min(n for n in left if n)
        yield tuple(run[at][0] if n else None for run, at, n in zip(runs, place, left, strict=True)), steps
        for g, run in enumerate(runs):
            left[g] = max(left[g] - steps, 0)
            if not left[g] and place[g] + 1 < len(run):
                place[g] += 1
                left[g] = run[place[g]][1]


def _merge(
    parts: Sequence[Pattern | None], scale: Sequence[int], shifts: Sequence[tuple[int, int]], num_ranks: int
) -> Pattern:
    def numbered(ends: Ints, g: int) -> Ints:
        return ends + np.where(ends < num_ranks, *shifts[g])

    there = [(g, part) for g, part in enumerate(parts) if part is not None]
    return Pattern(
        src=np.concatenate([numbered(part.src, g) for g, part in there]),
        dst=np.concatenate([numbered(part.dst, g) for g, part in there]),
        chunks=np.concatenate([part.chunks * scale[g] for g, part in there]),
    )


def times_of_groups(
    schedules: Sequence[Schedule], wires: Wires, sizes_bytes: Floats, *, fidelity: str = "auto",
    starts_s: Floats | None = None,
) -> GroupTimes:  # fmt: skip
    """All groups at several sizes; each group's time is from its first rank's start to its last rank's end.

    wires: of all ranks, group after group. starts_s: (num_ranks,) when the ranks of each group call it, the same for
    every group. Raises as ``times_by_size``.
    """
    starts = np.zeros(schedules[0].num_ranks) if starts_s is None else starts_s
    found = _finish(schedules, wires, sizes_bytes, starts, fidelity)
    ends = found.finish_s[:, : len(schedules) * len(starts)].reshape(len(sizes_bytes), len(schedules), -1)
    times = ends.max(axis=2) - starts.min()
    _hold_to_bounds(schedules, wires, sizes_bytes, times)
    times = times + wires.network.launch_s(schedules[0].op)
    return GroupTimes(times.max(axis=1), times.min(axis=1), found.fidelity, found.handed_over)


def _finish(schedules: Sequence[Schedule], wires: Wires, sizes_bytes: Floats, starts_s: Floats, fidelity: str) -> Times:
    """When each rank of each group ends: all groups at once if that is exact, else each set that links join."""
    whole = whole_schedule(schedules, wires)
    sized = _sized(whole, schedules[0], sizes_bytes)
    starts = np.tile(starts_s, len(schedules))
    if fidelity not in {"auto", "vector"}:
        return finish_by_size(sized, wires, starts, fidelity, MAX_AUTO_WORK)
    try:
        return finish_by_size(sized, wires, starts, "vector", MAX_AUTO_WORK)
    except NotExactError:
        labels = _joined_by_links(whole, wires, len(schedules))
        if len(np.unique(labels)) == 1:
            return finish_by_size(sized, wires, starts, fidelity, MAX_AUTO_WORK)
    return _apart(schedules, wires, sizes_bytes, starts_s, fidelity, labels)


def whole_schedule(schedules: Sequence[Schedule], wires: Wires) -> Schedule:
    """The groups side by side, with the latency floor that holds for them instead of one over all ranks."""
    whole = side_by_side(schedules)

    def floor_s() -> float:
        shortest = min((float(wires.paths(p).latency_s.min()) for p, _ in whole.runs()), default=0.0)
        return shortest * max(bounds.latency_steps(s) for s in {id(s): s for s in schedules}.values())

    wires.keep("latency floor", whole, floor_s)
    return whole


def _sized(whole: Schedule, one: Schedule, sizes_bytes: Floats) -> tuple[Schedule, ...]:
    return tuple(replace(whole, chunk_bytes=_chunk_bytes(one, whole.num_chunks, float(size))) for size in sizes_bytes)


def _apart(
    schedules: Sequence[Schedule], wires: Wires, sizes_bytes: Floats, starts_s: Floats, fidelity: str, labels: Ints
) -> Times:
    """Each set of groups that links join, by itself; their ends put back in the groups' order."""
    ranks = len(starts_s)
    finish = np.zeros((len(sizes_bytes), len(schedules), ranks))
    fidelities, reasons = set(), []
    sets = np.unique(labels).tolist()
    for label in sets:
        members = np.flatnonzero(labels == label)
        some = [schedules[g] for g in members.tolist()]
        gpus = wires.gpus.reshape(-1, ranks)[members].ravel()
        own = make_wires(wires.network, gpus, wires.routes)
        sized = _sized(whole_schedule(some, own), some[0], sizes_bytes)
        found = finish_by_size(sized, own, np.tile(starts_s, len(some)), fidelity, MAX_AUTO_WORK // len(sets))
        finish[:, members] = found.finish_s[:, : gpus.size].reshape(len(sizes_bytes), -1, ranks)
        fidelities.add(found.fidelity)
        reasons.append(found.handed_over)
    return Times(
        finish.reshape(len(sizes_bytes), -1), max(fidelities, key=_LEAST_EXACT.index),
        next((why for why in reasons if why), ""),
    )  # fmt: skip


def _joined_by_links(whole: Schedule, wires: Wires, num_groups: int) -> Ints:
    """The lowest group that each group is joined to by links in use, directly or by others, (num_groups,)."""
    group: list[Ints] = []
    link: list[Ints] = []
    for pattern in {id(p): p for p, _ in whole.runs()}.values():
        links = wires.paths(pattern).links
        owner = np.where(pattern.src < whole.num_ranks, pattern.src, pattern.dst) * num_groups // whole.num_ranks
        group.append(np.repeat(owner, links.shape[1]))
        link.append(links.ravel())
    groups, links = np.concatenate(group), np.concatenate(link)
    groups, links = groups[links != wires.filler], links[links != wires.filler]
    label = np.arange(num_groups, dtype=np.int64)
    while True:
        lowest = np.full(len(wires.capacity), num_groups, dtype=np.int64)
        np.minimum.at(lowest, links, label[groups])
        spread = label.copy()
        np.minimum.at(spread, groups, lowest[links])
        if np.array_equal(spread, label):
            return label
        label = spread


def _hold_to_bounds(schedules: Sequence[Schedule], wires: Wires, sizes_bytes: Floats, times_s: Floats) -> None:
    """Raise InternalError when a group, (num_sizes, num_groups), beats what its ranks' own links allow."""
    if schedules[0].num_ranks == 1 or any(s.num_switches for s in schedules):
        return
    out, into = (rate.reshape(len(schedules), -1) for rate in wires.rank_capacity())
    for size, times in zip(sizes_bytes.tolist(), times_s, strict=True):
        floors = [bounds.bandwidth_s(s.resized(size), out[g], into[g]) for g, s in enumerate(schedules)]
        early = np.flatnonzero(times < np.array(floors) * (1 - _SLACK))
        if early.size or np.isnan(times).any():
            raise InternalError(
                f"{schedules[0].op}/{schedules[0].algorithm} in {len(schedules)} groups, {size:.0f} B: a group ends "
                "below its physical bound"
            )
