"""Whatever befalls the processes of a sweep, every point gets exactly one row.

Interrupts are real: signals sent to a process in the middle of a sweep, and to its workers.
"""

from __future__ import annotations

import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sweep_rows import SHIPPED, expected, lines, plain

from simulator.errors import InternalError, ScenarioError
from simulator.sweeps.points import Base, Point, Row, make_sweep
from simulator.sweeps.processes import local_processes
from simulator.sweeps.rows import Batch, failed_row
from simulator.sweeps.runner import CHUNK_POINTS, Flow, finished_rows

# ---------------------------------------------------------------- any executor, and what can befall it

POINTS = tuple((f"x={i}",) for i in range(40))
BASE = Base(scenario="s", digest="d", version="v", kind="step")
DEADLY = {"x=3", "x=17"}


def quick(points: Sequence[Point]) -> Batch:
    return Batch(rows=tuple({"overrides": list(point), "error": None} for point in points), seconds=1e-4)


def deadly(points: Sequence[Point]) -> Batch:
    if DEADLY & {override for point in points for override in point}:
        os._exit(9)
    return quick(points)


def unsendable(points: Sequence[Point]) -> Batch:
    if ("x=3",) in points:
        return Batch(rows=({"overrides": ["x=3"], "error": lambda: None},), seconds=0.0)
    return quick(points)


def refusing(points: Sequence[Point]) -> Batch:
    raise ScenarioError("the scenario changed")


def go_on() -> None:
    pass


def threads(workers: int) -> Callable[[], Executor]:
    return partial(ThreadPoolExecutor, workers)


def finished(work: Any, opener: Any, workers: int = 2, points: Sequence[Point] = POINTS) -> dict[str, Row]:
    flow = Flow(workers=lambda: workers)
    rows = list(finished_rows(points, work, opener, flow=flow, failed=partial(failed_row, BASE), stop=go_on))
    found = {row["overrides"][0]: row for row in rows}
    assert len(found) == len(rows), "a point has two rows"
    return found


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_any_executor_gives_each_row_once(workers: int, count: int) -> None:
    assert set(finished(quick, threads(workers), workers, POINTS[:count])) == {p[0] for p in POINTS[:count]}


@pytest.mark.slow
def test_the_point_that_kills_its_worker_is_a_row_with_an_error_and_all_others_are_fine() -> None:
    found = finished(deadly, partial(local_processes, 2))
    assert set(found) == {point[0] for point in POINTS}
    assert {key for key, row in found.items() if row["error"] is not None} == DEADLY
    assert "died twice" in found["x=3"]["error"]
    assert not multiprocessing.active_children()


def test_a_result_that_cannot_be_sent_is_a_row_with_an_error() -> None:
    found = finished(unsendable, partial(local_processes, 2))
    assert {key for key, row in found.items() if row["error"] is not None} == {"x=3"}
    assert "its task failed twice" in found["x=3"]["error"]


def test_what_concerns_all_points_ends_the_sweep() -> None:
    with pytest.raises(ScenarioError, match="the scenario changed"):
        finished(refusing, partial(local_processes, 2))


class Tired(ThreadPoolExecutor):
    """Takes the runner's question whether it is alive, three chunks, and no more."""

    def __init__(self) -> None:
        super().__init__(1)
        self.left = 4

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        self.left -= 1
        if self.left < 0:
            raise EOFError("the fork server is gone")
        return super().submit(*arguments, **named)


def test_an_executor_that_takes_no_more_tasks_is_replaced_and_no_point_is_lost() -> None:
    assert set(finished(quick, Tired)) == {point[0] for point in POINTS}


class Dying(Executor):
    """Dies of every task, which ``deaths`` counts; answers the runner's question whether it is alive, if it is."""

    def __init__(self, deaths: list[int], *, alive: bool) -> None:
        self.deaths, self.alive = deaths, alive

    def submit(self, fn: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if fn is os.getpid and self.alive:
            future.set_result(1)
        elif fn is os.getpid:
            future.set_exception(BrokenExecutor())
        else:
            self.deaths.append(0)
            future.set_exception(BrokenExecutor())
        return future


@pytest.mark.parametrize("deaths_before", [0, 2], ids=["starting", "running alone"])
def test_a_signal_that_ends_the_workers_too_is_not_blamed_on_them_or_on_a_point(deaths_before: int) -> None:
    """Here a death is seen a moment before the signal: of workers just started, or of the second try of a point."""
    deaths: list[int] = []
    asked: list[int] = []

    def stop() -> None:
        asked.extend([0] * (len(deaths) == deaths_before))
        if len(asked) == 2 + (not deaths_before):
            raise KeyboardInterrupt

    opener = partial(Dying, deaths, alive=bool(deaths_before))
    rows = finished_rows(
        POINTS[:1], quick, opener, flow=Flow(workers=lambda: 1), failed=partial(failed_row, BASE), stop=stop
    )
    with pytest.raises(KeyboardInterrupt):
        next(rows)


@contextmanager
def stillborn() -> Iterator[Executor]:
    method = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=method, initializer=os._exit, initargs=(1,)) as executor:
        yield executor


def test_workers_that_do_not_even_start_are_reported_rather_than_retried() -> None:
    with pytest.raises(InternalError, match="workers cannot do anything at all: BrokenProcessPool"):
        finished(quick, stillborn)


def slow(points: Sequence[Point]) -> Batch:
    time.sleep(30)
    return quick(points)


@pytest.mark.slow
def test_stop_does_not_wait_for_the_work_in_flight_and_leaves_no_process() -> None:
    started = time.monotonic()

    def stop() -> None:
        if time.monotonic() > started + 1:
            raise KeyboardInterrupt

    rows = finished_rows(
        POINTS,
        slow,
        partial(local_processes, 2),
        flow=Flow(workers=lambda: 2),
        failed=partial(failed_row, BASE),
        stop=stop,
    )
    with pytest.raises(KeyboardInterrupt):
        next(rows)
    assert time.monotonic() < started + 10
    assert not multiprocessing.active_children()


def test_chunks_take_about_a_fifth_of_a_second_and_leave_work_for_every_worker() -> None:
    row: Row = {}
    assert Flow(workers=lambda: 2).chunk_size(Batch(rows=(row,), seconds=0.025), 1000) == 8
    assert Flow(workers=lambda: 2).chunk_size(Batch(rows=(row,) * 8, seconds=40.0), 1000) == 1
    assert Flow(workers=lambda: 2).chunk_size(Batch(rows=(row,), seconds=1e-6), 1000) == CHUNK_POINTS
    assert Flow(workers=lambda: 5).chunk_size(Batch(rows=(row,), seconds=0.001), 20) == 2
    assert Flow(workers=lambda: 5).chunk_size(Batch(rows=(row,), seconds=0.001), 0) == 1


# ---------------------------------------------------------------- real interrupts

SWEPT = ("parallel.bucket_cap=1 MiB,2 MiB,4 MiB,8 MiB,16 MiB,25 MiB,32 MiB,64 MiB", "cluster.nodes=1,2,3,4")


@pytest.fixture(scope="module")
def uninterrupted() -> list[str]:
    return expected(make_sweep(SHIPPED, SWEPT))


def start(directory: Path, *more: str) -> subprocess.Popen[str]:
    """A sweep of the shipped scenario in a session of its own, with Ctrl-C not ignored."""
    return subprocess.Popen(
        [sys.executable, "-m", "simulator", "sweep", SHIPPED, *SWEPT, "--out", "f.jsonl", "--jobs", "2", *more],
        cwd=directory,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def wait_for_rows(process: subprocess.Popen[str], path: Path, count: int) -> None:
    until = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


def processes(session: int) -> dict[int, int]:
    """pid -> parent of the processes of a session (zombies excepted)."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, _, owner = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(owner) == session and state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def blocked(pid: int) -> int:
    """The signals that a process does not hear, bit n - 1 for signal n."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["SigBlk"], 16)


def wait_until_gone(session: int) -> None:
    until = time.monotonic() + 10
    while processes(session):
        assert time.monotonic() < until, f"orphans: {processes(session)}"
        time.sleep(0.02)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(
    ("number", "whole_group"),
    [
        pytest.param(signal.SIGINT, True, id="ctrl-c"),
        pytest.param(signal.SIGTERM, True, id="sigterm-to-all", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, id="kill-9", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_sweep_goes_on_to_the_same_rows_as_an_uninterrupted_one(
    tmp_path: Path, uninterrupted: list[str], number: signal.Signals, whole_group: bool
) -> None:
    path = tmp_path / "f.jsonl"
    process = start(tmp_path)
    wait_for_rows(process, path, 2)
    (os.killpg if whole_group else os.kill)(process.pid, number)
    _, stderr = process.communicate(timeout=20)
    wait_until_gone(process.pid)
    kept = path.read_bytes().count(b"\n")
    assert 2 <= kept < len(uninterrupted), "the interrupt came too late to test anything"
    if number is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + number, stderr
        assert f"interrupted: {kept} of {len(uninterrupted)} rows are in f.jsonl" in stderr
        assert "Traceback" not in stderr
        assert len(stderr.splitlines()) == 2
    resumed = start(tmp_path, "--csv")
    stdout, stderr = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, stderr
    assert f"{len(uninterrupted) - kept} of {len(uninterrupted)} points left" in stderr
    assert plain(lines(path)) == uninterrupted
    assert len(stdout.splitlines()) == 1 + len(uninterrupted)


@needs_proc
@pytest.mark.slow
def test_a_worker_killed_from_outside_loses_no_row(tmp_path: Path, uninterrupted: list[str]) -> None:
    process = start(tmp_path)
    wait_for_rows(process, tmp_path / "f.jsonl", 2)
    tree = processes(process.pid)
    workers = [pid for pid, parent in tree.items() if tree.get(parent) == process.pid]
    assert len(workers) == 2
    for worker in workers:
        assert blocked(worker) & 1 << signal.SIGINT - 1, "a worker hears Ctrl-C"
    os.kill(workers[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert plain(lines(tmp_path / "f.jsonl")) == uninterrupted
    wait_until_gone(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_only(tmp_path: Path, terminal: bool) -> None:
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator", "sweep", SHIPPED, "cluster.nodes=1,2,3", "--csv"], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, "TERM": "xterm", "FORCE_COLOR": "1"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while piece := _read(ours):
        seen += piece
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (b"\x1b[" in seen) == (b"3/3" in seen) == terminal
    assert "\x1b[" not in stdout


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # a terminal whose other side is closed
        return b""
