"""Runs real_schedule.py's jobs on the hosts of a lab, and says what the simulator makes of the same collectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from playing import Played, environment, found, job, programs

from simulator.engine.collective import simulate_collective
from simulator.engine.run import simulate
from simulator.engine.wires import make_wires
from simulator.lab.fabric import ShapedFabric
from simulator.lab.model import Way, network_of
from simulator.lab.shaped import Lab, open_lab
from simulator.network.graph import Network
from simulator.plan import Communicate, Plan, RankClass

#: Sizes of the ping-pong: the first gives alpha, the slope between the others the rate.
SMALL, LARGE, LARGER = 1024, 1_000_000, 4_000_000
REPEATS = 3
TOLERANCE = 0.05
ROUNDS = 2

#: Collectives at the same time; mostly it is one.
Parts = tuple[Played, ...]


class Crossed(NamedTuple):
    """Seconds that two messages at once, one each way between the same two hosts, took by what was posted first."""

    irecv_first: float
    isend_first: float


class Found(NamedTuple):
    """What was measured on a fabric.

    network: with the measured numbers. times_s: medians, collective by collective of each job. right: whether all data
    was. real_time: whether the programs ran before all others.
    """

    near: Way
    across: Way | None
    network: Network
    times_s: dict[Parts, tuple[float, ...]]
    right: bool
    crossed: Crossed
    real_time: bool


def measured(fabric: ShapedFabric, jobs: Sequence[Parts], folder: Path) -> Found:
    """Measure alpha and rate by ping-pong, then play every job REPEATS times after one time to warm up.

    Jobs that took longer than simulated by more than TOLERANCE are played again, ROUNDS times at most, and the least of
    the medians counts: what else the machine does can only add time.
    """
    with open_lab(fabric) as lab:
        near, across, crossed = _links(lab, folder)
        network = network_of(fabric, near, across)
        times_s, right = _played(lab, jobs, folder)
        for _ in range(ROUNDS):
            slow = [parts for parts in jobs if _slow(times_s[parts], simulated(network, parts))]
            if not slow:
                break
            again, fine = _played(lab, slow, folder)
            right = right and fine
            times_s |= {parts: tuple(map(min, times_s[parts], again[parts])) for parts in slow}
        return Found(
            near=near, across=across, network=network, times_s=times_s, right=right, crossed=crossed,
            real_time=lab.real_time,
        )  # fmt: skip


def _slow(real_s: tuple[float, ...], simulated_s: tuple[float, ...]) -> bool:
    return any(real > (1 + TOLERANCE) * told for real, told in zip(real_s, simulated_s, strict=True))


def _run(lab: Lab, asked: Sequence[dict[str, Any]], folder: Path) -> list[list[dict[str, Any]]]:
    """Answers to each job, rank by rank."""
    with TemporaryDirectory(dir=folder) as meeting:
        started = programs(lab.fabric.num_hosts, Path(meeting), asked)
        ranks = [found(ended.out) for ended in lab.run(started, environment=environment("eth0"), timeout_s=400)]
    return [[rank[number] for rank in ranks] for number in range(len(asked))]


def _links(lab: Lab, folder: Path) -> tuple[Way, Way | None, Crossed]:
    sizes, last = [SMALL, LARGE, LARGER], lab.fabric.num_hosts - 1
    pings = [
        {"kind": "ping", "ranks": [0, other], "sizes_bytes": sizes, "repeats": 9} for other in dict.fromkeys([1, last])
    ]
    crosses = [
        {"kind": "cross", "ranks": [0, 1], "size_bytes": LARGER, "first": first, "between_s": 0.002, "repeats": 5}
        for first in ("irecv", "isend")
    ]
    near, far, *both = _run(lab, pings + crosses, folder)
    crossed = Crossed(*(max(median(answer[host]["ends_s"]) for host in (0, 1)) for answer in both))
    return _way(near[0]), _way(far[0]) if lab.fabric.uplink_bit_per_s else None, crossed


def _played(lab: Lab, jobs: Sequence[Parts], folder: Path) -> tuple[dict[Parts, tuple[float, ...]], bool]:
    answers = _run(lab, [job(*parts, warm_up=1, repeats=REPEATS) for parts in jobs], folder)
    times_s = {parts: _times(parts, answer) for parts, answer in zip(jobs, answers, strict=True)}
    return times_s, all(rank["right"] for answer in answers for rank in answer)


def _way(ping: dict[str, Any]) -> Way:
    small, large, larger = (median(ping["times_s"][str(size)]) for size in (SMALL, LARGE, LARGER))
    return Way(alpha_s=small, bytes_per_s=(LARGER - LARGE) / (larger - large))


def _times(parts: Parts, answer: list[dict[str, Any]]) -> tuple[float, ...]:
    """Of each collective, the median over repeats of the time from its last rank's call to its last rank's end."""
    return tuple(
        median(
            end - start
            for start, end in zip(
                _last("starts_s", answer, part.places), _last("ends_s", answer, part.places), strict=True
            )
        )
        for part in parts
    )


def _last(what: str, answer: list[dict[str, Any]], ranks: Sequence[int]) -> list[float]:
    """Repeat by repeat, the latest of these ranks."""
    return [max(times) for times in zip(*(answer[rank][what] for rank in ranks), strict=True)]


def simulated(network: Network, parts: Parts) -> tuple[float, ...]:
    """Seconds that our engines give for the same schedules on the same hosts, each from its call to its end."""
    if len(parts) == 1:
        return (simulate_collective(parts[0].schedule, make_wires(network, np.array(parts[0].places))).time_s,)
    return _together(network, parts)


def _together(network: Network, parts: Parts) -> tuple[float, ...]:
    """Collectives at the same time, message by message: links shared max-min."""
    classes = tuple(RankClass(name=f"rank {rank}", ranks=(rank,)) for rank in range(network.num_gpus))
    tasks = tuple(
        Communicate(
            name=f"part {number}", op=part.op, axis=f"axis {number}", algorithm=part.algorithm,
            message_bytes=part.schedule.size_bytes, classes=tuple(f"rank {rank}" for rank in part.places),
        )
        for number, part in enumerate(parts)
    )  # fmt: skip
    axes = {f"axis {number}": (part.places,) for number, part in enumerate(parts)}
    timeline = simulate(Plan(title="lab", classes=classes, axes=axes, tasks=tasks), network, fidelity="message")
    return tuple(max(span.end_s for span in timeline.spans if span.task.name == task.name) for task in tasks)
