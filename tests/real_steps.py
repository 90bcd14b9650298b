"""Real training steps on this machine: keeps processes that wait for jobs of ``simulator.lab.real_run``, on loopback.

One set of processes per number of ranks serves the whole test session, so that a property test may send it many models.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Longest wait for one job, s. Generous: the machine may be busy.
PATIENCE_S = 240.0
#: operation, bytes as nccl-tests counts them, group size
Launched = tuple[str, int, int]

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'clustersim[real]'"
)


def program(rank: int, world: int, rendezvous: Path, jobs: str = "-") -> list[str]:
    """The command of one rank; ``jobs`` is a file, or '-' for jobs on standard input."""
    return [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "simulator.lab.real_run",
        str(rank),
        str(world),
        str(rendezvous),
        jobs,
    ]


def environment(interface: str) -> dict[str, str]:
    """Gloo talks over this interface, and ranks find this checkout."""
    return {"GLOO_SOCKET_IFNAME": interface, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


class Ranks:
    """``world`` processes that run jobs together, one after the other, until ``close``."""

    def __init__(self, world: int) -> None:
        self.world, self._numbers, self._folder = world, itertools.count(), TemporaryDirectory()
        self._running: list[subprocess.Popen[str]] = []

    def run(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each rank found. Raises AssertionError, with what a rank said last, when one ends instead."""
        if not self._running:
            self._start()
        line = json.dumps(job) + "\n"
        timer = Timer(PATIENCE_S, self._kill)
        timer.start()
        try:
            for process in self._running:
                assert process.stdin
                with contextlib.suppress(BrokenPipeError):  # it says why on its standard error
                    process.stdin.write(line)
                    process.stdin.flush()
            answers = [process.stdout.readline() for process in self._running if process.stdout]
        finally:
            timer.cancel()
        if not all(answers):
            self._kill()
            said = [path.read_text(errors="replace")[-2000:] for path in sorted(self._place.glob("err*"))]
            self._forget()
            raise AssertionError(f"a rank ended at {job}: {said}")
        return [json.loads(answer) for answer in answers]

    def _start(self) -> None:
        self._place = Path(self._folder.name) / str(next(self._numbers))
        self._place.mkdir()
        for rank in range(self.world):
            with (self._place / f"err{rank}").open("w") as errors:
                self._running.append(
                    subprocess.Popen(
                        program(rank, self.world, self._place / "meet"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                        stderr=errors, encoding="utf-8", env={**os.environ, **environment("lo")},
                    )
                )  # fmt: skip

    def _kill(self) -> None:
        for process in self._running:
            process.kill()

    def _forget(self) -> None:
        for process in self._running:
            for pipe in (process.stdin, process.stdout):
                assert pipe
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def close(self) -> None:
        """End the processes: their input ends."""
        for process in self._running:
            assert process.stdin
            process.stdin.close()
        self._forget()
        self._folder.cleanup()


@cache
def ranks(world: int) -> Ranks:
    """The processes of this session; started by the first job."""
    made = Ranks(world)
    atexit.register(made.close)
    return made


def train(world: int, model: Mapping[str, Any], strategy: str, **job: Any) -> list[dict[str, Any]]:
    """What each rank of a 'train' job found; see ``simulator.lab.real_train`` for what a job may say."""
    found = ranks(world).run({"model": model, "strategy": strategy, **job})
    errors = [answer["error"] for answer in found if "error" in answer]
    assert not errors, errors
    return found


def steady(world: int, model: Mapping[str, Any], strategy: str, **job: Any) -> list[Launched]:
    """What one steady step communicates, in launch order. All ranks must agree."""
    return same([answer["steady"] for answer in train(world, model, strategy, trace=True, **job)])


def same(lists: Sequence[Sequence[Sequence[Any]]]) -> list[Launched]:
    """The launched operations that every rank reports."""
    first, *others = [[(str(op), int(size), int(group)) for op, size, group in launched] for launched in lists]
    assert all(other == first for other in others), (first, others)
    return first


def layers(*params: Sequence[int | Sequence[int]], **more: Any) -> dict[str, Any]:
    """A model that does not sleep, from the shapes of each layer's tensors."""
    return {"layers": [{"name": f"layer{i}", "params": list(shapes), **more} for i, shapes in enumerate(params)]}
