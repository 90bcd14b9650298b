"""Jobs for real_schedule.py, which plays schedules for real, and how to start its ranks on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simulator.collectives import ALGORITHMS, make_schedule
from simulator.collectives.layout import Layout
from simulator.schedule import ALL_BUFFERS, Schedule

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = Path(__file__).with_name("real_schedule.py")
ELEMENT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Played:
    """A collective to play: at least ``least_bytes``, rounded up so that every chunk holds whole elements.

    ranks: which ranks of the world take part; by default the first ones.
    """

    op: str
    algorithm: str
    layout: Layout
    least_bytes: float
    ranks: tuple[int, ...] = field(default=())

    @property
    def places(self) -> tuple[int, ...]:
        """The rank of the world that each rank of the collective is."""
        return self.ranks or tuple(range(self.layout.num_ranks))

    @property
    def schedule(self) -> Schedule:
        """The schedule that simulator and real ranks play."""
        first = make_schedule(self.op, self.algorithm, self.layout, float(self.least_bytes))
        chunks = first.num_chunks // (first.num_ranks if first.op in ALL_BUFFERS else 1)
        whole = chunks * ELEMENT_BYTES
        return first.resized(-(-self.least_bytes // whole) * float(whole))

    @property
    def part(self) -> dict[str, Any]:
        """This collective as a part of a job."""
        return {"op": self.op, "algorithm": self.algorithm, "layout": asdict(self.layout), "ranks": list(self.places),
                "size_bytes": self.schedule.size_bytes}  # fmt: skip

    def __str__(self) -> str:
        return f"{self.op}-{self.algorithm}-{self.layout.num_ranks}-{self.least_bytes / 1e6:g}MB"


def job(*parts: Played, warm_up: int, repeats: int) -> dict[str, Any]:
    """Play the parts at the same instant, again and again."""
    return {"kind": "play", "parts": [part.part for part in parts], "warm_up": warm_up, "repeats": repeats}


def has_no_switch(op: str, algorithm: str, layout: Layout) -> bool:
    """Whether processes can play it: a switch that adds is no process."""
    return not make_schedule(op, algorithm, layout, 1e6).num_switches


def playable(layout: Layout, least_bytes: float) -> list[Played]:
    """Every algorithm of the table that processes can play."""
    return [
        Played(op=op, algorithm=algorithm, layout=layout, least_bytes=least_bytes)
        for op, algorithm in sorted(ALGORITHMS) if has_no_switch(op, algorithm, layout)
    ]  # fmt: skip


def programs(world: int, folder: Path, jobs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The command of each rank. They meet in ``folder``, which they share."""
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    common = [str(world), str(folder / "meet"), str(folder / "jobs.json")]
    return [[sys.executable, "-W", "ignore", str(SCRIPT), str(rank), *common] for rank in range(world)]


def environment(interface: str) -> dict[str, str]:
    """Gloo talks over this interface, and ranks find this checkout."""
    return {"GLOO_SOCKET_IFNAME": interface, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def on_loopback(
    world: int, folder: Path, jobs: Sequence[Mapping[str, Any]], inherited: Mapping[str, str]
) -> list[list[dict[str, Any]]]:
    """Run the jobs on this machine; what each rank found, job by job. Generous time: the machine may be busy."""
    ranks = [
        subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            env={**inherited, **environment("lo")},
        )
        for program in programs(world, folder, jobs)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks), [errors[-2000:] for _, errors in said]
    return [found(out) for out, _ in said]


def found(out: str) -> list[dict[str, Any]]:
    """What a rank found, job by job, from what it printed."""
    answer: list[dict[str, Any]] = json.loads(out.splitlines()[-1])
    return answer
