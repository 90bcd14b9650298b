"""Points -> rows over any ``concurrent.futures.Executor``: local processes, threads, the workers of a Dask cluster.

Points travel in chunks of about ``Flow.chunk_s``, so that a task costs little beside its work, yet a row waits little
for its chunk. When a worker dies, the points in flight are set aside; at the end each runs alone, and the one that
takes its worker with it again becomes a row with an error. Points of a task that was cancelled, by no fault of theirs,
go back into the queue. No row is lost by that, and none appears twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from simulator.errors import InternalError, SimulatorError
from simulator.sweeps.points import Point, Row
from simulator.sweeps.rows import Batch

#: Most points in a chunk: what a dying worker takes back to the start.
CHUNK_POINTS = 32
#: How often ``stop`` is asked while nothing finishes.
POLL_S = 0.1

#: Points -> their rows; picklable. Raises SimulatorError only for what concerns all points, and ends the sweep.
Work = Callable[[Sequence[Point]], Batch]
#: Opens an executor; called again after a worker has died. Leaving it early must not wait for what it still does.
OpenExecutor = Callable[[], AbstractContextManager[Executor]]
#: The row of a point that its worker did not survive.
Failed = Callable[[Point, str], Row]
Result = TypeVar("Result")


class WorkersDiedError(Exception):
    """What a task ends with that took its workers with it, where the executor itself lives on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How many tasks are under way at once, and how long each should take.

    workers: how many tasks can be done at once, now; it may change. ahead: tasks for each that wait for it to be free,
    at most ``most_ahead`` in all. chunk_s: wall time of a chunk.
    """

    workers: Callable[[], int]
    ahead: int = 1
    most_ahead: int = 8
    chunk_s: float = 0.2

    def tasks(self) -> int:
        """Tasks to have under way."""
        workers = max(1, self.workers())
        return workers + min(workers * self.ahead, self.most_ahead)

    def chunk_size(self, batch: Batch, left: int) -> int:
        """As many points as take ``chunk_s`` at the pace of ``batch``, but every worker gets some of the last ones."""
        pace_s = batch.seconds / len(batch.rows)
        wanted = int(self.chunk_s / pace_s) if pace_s > 0 else CHUNK_POINTS
        return max(1, min(wanted, CHUNK_POINTS, left // (2 * max(1, self.workers()))))


#: What ``submit`` raises when there is no worker to send to, or none can be started.
_UNUSABLE = (BrokenExecutor, OSError, EOFError)
#: Executors that may be opened in a row without a single row from them.
_MOST_FRUITLESS = 5
_DIED = (
    "the processes that simulated this point died twice without a word: out of memory, killed from outside, or a crash"
)


def finished_rows(
    points: Sequence[Point], work: Work, open_executor: OpenExecutor, *, flow: Flow, failed: Failed,
    stop: Callable[[], None],
) -> Generator[Row, None, None]:  # fmt: skip
    """The rows of ``points`` as they finish, each once.

    ``stop`` is called about every 0.1 s and ends the iteration by raising. Close the iterator to end it early.
    Raises what ``work``, ``stop`` and ``open_executor`` raise as SimulatorError, and InternalError when workers fail
    without any work, or again and again.
    """
    waiting, aside = deque(points), deque[Point]()
    fruitless = 0
    while waiting or aside:
        before = len(waiting) + len(aside)
        with open_executor() as executor:
            _check_alive(executor, stop)
            if waiting:
                yield from _in_chunks(executor, work, waiting, aside, flow, stop)
            else:
                yield from _one_by_one(executor, work, aside, failed, stop)
        fruitless = fruitless + 1 if len(waiting) + len(aside) == before else 0
        if fruitless > _MOST_FRUITLESS:
            raise InternalError(f"workers were lost {fruitless} times in a row before any of them finished anything")


def _check_alive(executor: Executor, stop: Callable[[], None]) -> None:
    """A task without work, so that what is wrong with the workers is not blamed on a point."""
    stop()
    try:
        _wait([executor.submit(os.getpid)], stop).pop().result()
    except SimulatorError:
        raise
    except (Exception, CancelledError) as error:
        stop()  # a signal to the whole group ends the workers too: an interrupt, no fault of theirs
        raise InternalError(f"workers cannot do anything at all: {type(error).__name__}: {error}") from error


def _in_chunks(
    executor: Executor, work: Work, waiting: deque[Point], aside: deque[Point], flow: Flow, stop: Callable[[], None]
) -> Iterator[Row]:  # fmt: skip
    """Rows until nothing waits or the executor breaks; points whose task failed are put ``aside``."""
    running: dict[Future[Batch], list[Point]] = {}
    size, broken = 1, False
    while running or (waiting and not broken):
        while waiting and not broken and len(running) < flow.tasks():
            chunk = [waiting.popleft() for _ in range(min(size, len(waiting)))]
            try:
                running[executor.submit(work, chunk)] = chunk
            except _UNUSABLE:
                waiting.extendleft(reversed(chunk))
                broken = True
        for future in _wait(running, stop):
            chunk = running.pop(future)
            outcome = _outcome(future)
            if isinstance(outcome, CancelledError):
                waiting.extendleft(reversed(chunk))
                broken = True
            elif isinstance(outcome, BaseException):
                aside.extend(chunk)
                broken = broken or isinstance(outcome, BrokenExecutor)
            else:
                size = flow.chunk_size(outcome, len(waiting))
                yield from outcome.rows


def _one_by_one(
    executor: Executor, work: Work, aside: deque[Point], failed: Failed, stop: Callable[[], None]
) -> Iterator[Row]:  # fmt: skip
    """Rows of the points set aside, each alone in the executor, until none is left or the executor breaks."""
    while aside:
        try:
            future = executor.submit(work, [aside[0]])
        except _UNUSABLE:
            return
        _wait([future], stop)
        outcome = _outcome(future)
        if isinstance(outcome, CancelledError):
            return
        point = aside.popleft()
        if not isinstance(outcome, BaseException):
            yield from outcome.rows
        elif isinstance(outcome, BrokenExecutor):
            stop()  # as above: then it is no fault of the point
            yield failed(point, _DIED)
            return
        elif isinstance(outcome, WorkersDiedError):
            yield failed(point, _DIED)
        else:
            _check_alive(executor, stop)
            yield failed(point, f"its task failed twice: {type(outcome).__name__}: {outcome}")


def _wait(futures: Collection[Future[Result]], stop: Callable[[], None]) -> set[Future[Result]]:
    """The futures that are done, once there is one."""
    while True:
        stop()
        done, _ = wait(futures, timeout=POLL_S, return_when=FIRST_COMPLETED)
        if done or not futures:
            return done


def _outcome(future: Future[Batch]) -> Batch | BaseException:
    """The batch, or why there is none: its worker died, or the task could not be carried out."""
    try:
        error = future.exception()
    except CancelledError as cancelled:
        return cancelled
    if isinstance(error, SimulatorError):
        raise error
    return future.result() if error is None else error
