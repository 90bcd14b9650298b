"""Points -> rows over any ``concurrent.futures.Executor``: local processes, threads, a Dask client's executor.

Points travel in chunks of about ``CHUNK_S``, so that a task costs little beside its work, yet a row waits little for
its chunk. When a worker dies, the points in flight are set aside; at the end each runs alone, and the one that takes
its worker with it again becomes a row with an error. No row is lost by that, and none appears twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import AbstractContextManager
from typing import TypeVar

from simulator.errors import InternalError, SimulatorError
from simulator.sweeps.points import Point, Row
from simulator.sweeps.rows import Batch

#: Wall time that a chunk should take.
CHUNK_S = 0.2
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

#: What ``submit`` raises when there is no worker to send to, or none can be started.
_UNUSABLE = (BrokenExecutor, OSError, EOFError)
_DIED = (
    "the process that simulated this point died twice without a word: out of memory, killed from outside, or a crash"
)


def finished_rows(
    points: Sequence[Point], work: Work, open_executor: OpenExecutor, *, workers: int, failed: Failed,
    stop: Callable[[], None],
) -> Generator[Row, None, None]:  # fmt: skip
    """The rows of ``points`` as they finish, each once.

    ``stop`` is called about every 0.1 s and ends the iteration by raising. Close the iterator to end it early.
    Raises what ``work`` raises as SimulatorError, and InternalError when workers fail without any work.
    """
    waiting, aside = deque(points), deque[Point]()
    while waiting or aside:
        with open_executor() as executor:
            _check_alive(executor, stop)
            if waiting:
                yield from _in_chunks(executor, work, waiting, aside, workers, stop)
            else:
                yield from _one_by_one(executor, work, aside, failed, stop)


def _check_alive(executor: Executor, stop: Callable[[], None]) -> None:
    """A task without work, so that what is wrong with the workers is not blamed on a point."""
    stop()
    try:
        _wait([executor.submit(os.getpid)], stop).pop().result()
    except (Exception, CancelledError) as error:
        stop()  # a signal to the whole group ends the workers too: an interrupt, no fault of theirs
        raise InternalError(f"workers cannot do anything at all: {type(error).__name__}: {error}") from error


def _in_chunks(
    executor: Executor, work: Work, waiting: deque[Point], aside: deque[Point], workers: int,
    stop: Callable[[], None],
) -> Iterator[Row]:  # fmt: skip
    """Rows until nothing waits or the executor breaks; points whose task failed are put ``aside``."""
    running: dict[Future[Batch], list[Point]] = {}
    size, broken = 1, False
    while running or (waiting and not broken):
        while waiting and not broken and len(running) < workers + min(workers, 8):
            chunk = [waiting.popleft() for _ in range(min(size, len(waiting)))]
            try:
                running[executor.submit(work, chunk)] = chunk
            except _UNUSABLE:
                waiting.extendleft(reversed(chunk))
                broken = True
        for future in _wait(running, stop):
            chunk = running.pop(future)
            outcome = _outcome(future)
            if isinstance(outcome, BaseException):
                aside.extend(chunk)
                broken = broken or isinstance(outcome, BrokenExecutor)
                continue
            size = _chunk_size(outcome, len(waiting), workers)
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
        point, outcome = aside.popleft(), _outcome(future)
        if not isinstance(outcome, BaseException):
            yield from outcome.rows
        elif isinstance(outcome, BrokenExecutor):
            stop()  # as above: then it is no fault of the point
            yield failed(point, _DIED)
            return
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


def _chunk_size(batch: Batch, left: int, workers: int) -> int:
    """As many points as take ``CHUNK_S`` at the pace of ``batch``, but every worker gets some of the last ones."""
    pace_s = batch.seconds / len(batch.rows)
    wanted = int(CHUNK_S / pace_s) if pace_s > 0 else CHUNK_POINTS
    return max(1, min(wanted, CHUNK_POINTS, left // (2 * workers)))
