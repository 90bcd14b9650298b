"""Local worker processes, as an executor that can be left at any moment without orphans.

Processes come from a fork server: it imports the simulator once and then forks in about 10 ms. A plain fork of this
process would save that import (about half a second), but it copies locks of running threads (numpy's, the progress
bar's), descriptors (the locked file of rows) and signal handlers, and it is unsafe on macOS; a spawn would import the
simulator once per worker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, context, forkserver, process, resource_tracker

#: What workers need; imported once, by the fork server.
_PRELOADED = ["simulator.sweeps.rows"]
#: One thread per worker: the workers are the parallelism.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def usable_cores() -> int:
    """Cores that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def local_processes(workers: int) -> Iterator[Executor]:
    """An executor of up to ``workers`` processes. Left by an exception, it kills them rather than waits for them.

    The processes do not hear Ctrl-C, which a terminal sends to them too, and end with this process however it ends.
    """
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(workers, mp_context=_start_method(), initializer=_end_with_parent)
    try:
        yield executor
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_method() -> context.BaseContext:
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    method = multiprocessing.get_context("forkserver")
    method.set_forkserver_preload(_PRELOADED)
    resource_tracker.ensure_running()  # would unblock the interrupts while it starts, so it starts before
    with _single_threaded(), _interrupts_blocked():
        forkserver.ensure_running()
    return method


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started inside compute in one thread, unless the user has said otherwise."""
    added = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started inside, and those they fork, never see SIGINT; this process sees it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """In a worker: a thread that ends the process once its parent is gone, even by kill -9.

    Without it the worker would wait for ever: it holds both ends of the queue that its tasks come from.
    """
    parent = process.parent_process()
    assert parent is not None, "runs in worker processes only"
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
