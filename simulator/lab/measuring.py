"""Runs jobs of ``real_run`` on the hosts of a lab, and measures what a simulation needs: alphas and rates."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from simulator.lab.fabric import RUN
from simulator.lab.model import Way
from simulator.lab.shaped import Lab, LabError
from simulator.lab.training_job import WORKERS

#: Sizes of the ping-pong: the first gives alpha, the slope between the others the rate.
SMALL, LARGE, LARGER = 1024, 1_000_000, 4_000_000
PINGS, TINY_CALLS = 7, 15
TINY = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"]
#: Longest a run may take, s: the machine may be busy.
PATIENCE_S = 600.0
PROGRAM = "simulator.lab.real_run"
#: Ends with 1 where there is none; importing it would take two seconds.
LOOKS_FOR_TORCH = "import importlib.util; raise SystemExit(importlib.util.find_spec('torch') is None)"
ROOT = Path(__file__).resolve().parents[2]

_NUMBERS = itertools.count()

#: Answers to one job, rank by rank.
Answers = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All that a simulation is told about a lab. near, across: messages within a side and between sides.

    tiny_s: by operation, the median time of one collective of 4 bytes per rank.
    """

    near: Way
    across: Way | None
    tiny_s: Mapping[str, float]


def needs_torch() -> None:
    """Raises LabError, with what to install, where this Python has no torch."""
    if subprocess.run([sys.executable, "-c", LOOKS_FOR_TORCH], check=False).returncode:
        raise LabError("lab: needs torch for the real run: pip install 'clustersim[real]'")


def run_jobs(lab: Lab, jobs: Sequence[Mapping[str, Any]]) -> list[Answers]:
    """Run the jobs one after the other on all hosts, a rank on each. Raises LabError when one fails."""
    world, number = lab.fabric.num_hosts, next(_NUMBERS)
    asked, meeting = f"jobs-{number}.json", f"meeting-{number}"
    programs = [
        [sys.executable, "-W", "ignore", "-m", PROGRAM, str(rank), str(world), str(RUN / meeting), str(RUN / asked)]
        for rank in range(world)
    ]
    environment = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment["TMPDIR"] = str(RUN)  # torch makes a folder there and leaves it
    files = {asked: json.dumps(list(jobs))}
    ended = lab.run(programs, environment=environment, files=files, timeout_s=PATIENCE_S)
    ranks = [json.loads(one.out.splitlines()[-1]) for one in ended]
    answers = [[rank[number] for rank in ranks] for number in range(len(jobs))]
    for error in (rank["error"] for answer in answers for rank in answer if "error" in rank):
        raise LabError(f"lab: the real run refused a job: {error}")
    return answers


def measuring_jobs(lab: Lab) -> list[dict[str, Any]]:
    """Jobs whose answers ``numbers_of`` reads: ping-pongs to a neighbour and to the last host, tiny collectives."""
    last = lab.fabric.num_hosts - 1
    pings = [
        {"kind": "ping", "ranks": [0, other], "sizes_bytes": [SMALL, LARGE, LARGER], "repeats": PINGS,
         "workers": WORKERS}
        for other in (1, last)
    ]  # fmt: skip
    return [*pings, {"kind": "tiny", "repeats": TINY_CALLS, "workers": WORKERS, "operations": TINY}]


def numbers_of(lab: Lab, answers: Sequence[Answers]) -> Numbers:
    """Medians of what the ``measuring_jobs`` found."""
    near, far, tiny = answers
    across = _way(far[0]) if lab.fabric.uplink_bit_per_s is not None else None
    times = {op: slowest([rank["times_s"][op] for rank in tiny]) for op in tiny[0]["times_s"]}
    return Numbers(near=_way(near[0]), across=across, tiny_s={op: median(found) for op, found in times.items()})


def _way(ping: Mapping[str, Any]) -> Way:
    small, large, larger = (median(ping["times_s"][str(size)]) for size in (SMALL, LARGE, LARGER))
    return Way(alpha_s=small, bytes_per_s=(LARGER - LARGE) / (larger - large))


def slowest(by_rank: Sequence[Mapping[str, Sequence[float]]]) -> list[float]:
    """Repeat by repeat, the time of the last rank; of the one size that was asked for."""
    sizes = [next(iter(found.values())) for found in by_rank]
    return [max(times) for times in zip(*sizes, strict=True)]
