"""Real processes play our schedules with torch.distributed, and end with exactly what each collective promises.

3, 4 and 5 processes on gloo over loopback, torch 2.13.0 (extra ``real``; .ci/run installs it in an environment of its
own). A fourth reader of the same Schedule: it shares ``moves`` with ``check``, and nothing of how ``check`` plays.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path

import pytest
from playing import Played, job, on_loopback, playable

from simulator.collectives.layout import Layout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'clustersim[real]'"),
]

#: By number of processes: a root that is not 0, nodes of two, several channels and pieces, a torus.
LAYOUTS = {
    3: (Layout(num_ranks=3, root=1),),
    4: (
        Layout(num_ranks=4, root=3, ranks_per_node=2, torus_shape=(2, 2), pieces=3),
        Layout(num_ranks=4, root=1, ranks_per_node=2, channels=2, pieces=2),
    ),
    5: (Layout(num_ranks=5, root=4, pieces=4),),
}
#: Chunks of some kilobytes, so that a message is more than one packet.
SIZE_BYTES = 100_000.0


@cache
def cases(world: int) -> list[Played]:
    return [case for layout in LAYOUTS[world] for case in playable(layout, SIZE_BYTES)]


@pytest.fixture(scope="module", params=sorted(LAYOUTS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[bool]]:
    """Number of processes and, case by case, whether every rank had exactly the promised data."""
    world: int = request.param
    folder: Path = tmp_path_factory.mktemp("ranks")
    jobs = [job(case, warm_up=0, repeats=2) for case in cases(world)]
    ranks = on_loopback(world, folder, jobs, os.environ)
    return world, [all(rank[number]["right"] for rank in ranks) for number in range(len(jobs))]


def test_every_schedule_delivers_exactly_what_its_collective_promises(run: tuple[int, list[bool]]) -> None:
    world, right = run
    assert len(right) == len(cases(world)) > 30
    wrong = [f"{case} {case.layout}" for case, fine in zip(cases(world), right, strict=True) if not fine]
    assert not wrong


def test_the_schedules_of_the_lectures_are_among_them() -> None:
    played = {(case.op, case.algorithm) for case in cases(4)}
    assert played >= {
        ("all_reduce", "ring"), ("all_reduce", "tree"), ("all_reduce", "halving_doubling"),
        ("all_reduce", "hierarchical"), ("all_to_all", "direct"), ("all_to_all", "pairwise"),
    }  # fmt: skip
