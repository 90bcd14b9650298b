"""The workers of an existing Dask cluster as an executor, and what becomes of that cluster meanwhile.

Dask runs a task again whose worker died, up to its setting ``allowed-failures``; a task has one result however often
it ran. What it cannot mend is told apart here for ``runner``: a task that killed all its workers (WorkersDiedError), a
cancelled one, as by a restart of the scheduler (CancelledError), a scheduler that is gone (BrokenExecutor), workers
that cannot do this work at all (ScenarioError).

Dask's own ``Client.get_executor`` is not used: a future of it never ends when the connection breaks while its result
is on the way.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from simulator.errors import ScenarioError, SimulatorError
from simulator.sweeps.environment import SAME_EVERYWHERE
from simulator.sweeps.fleet import check_workers
from simulator.sweeps.runner import POLL_S, WorkersDiedError

#: Time that a scheduler may take to answer; after one was lost, time for it to come back.
CONNECT_S = 10.0
#: Time that the cluster may be without any worker: machines of a queue or a cloud take minutes to come.
WORKERS_S = 600.0
#: Silence after which a scheduler that is connected still is said not to answer.
SILENT_S = 30.0
#: Between two questions how many workers there are, and between two lines about that.
_ASK_S, _TELL_S = 1.0, 5.0
_AGAIN = "finished rows are kept: start a scheduler and give the same command again"
Result = TypeVar("Result")


class Cluster:
    """A Dask cluster at ``address``. ``stop`` ends any wait by raising; ``say`` shows one line about the cluster."""

    def __init__(
        self, address: str, *, stop: Callable[[], None], say: Callable[[str], None], workers_s: float = WORKERS_S
    ) -> None:  # fmt: skip
        self._address, self._interrupted, self._say, self._workers_s = address, stop, say, workers_s
        self._threads: dict[str, int] = {}
        self._heard_at = self._able_at = self._told_at = 0.0
        self._told = ""
        self._was_able: bool | None = None
        self._lost = False

    def threads(self) -> int:
        """Tasks that the workers can do at once, as last heard."""
        return sum(self._threads.values())

    def stop(self) -> None:
        """To be called often: tells what became of the workers. Raises ScenarioError when there are none for long."""
        self._interrupted()
        if not self._heard_at:
            return
        now = time.monotonic()
        able = bool(self._threads) and now - self._heard_at < SILENT_S
        if able:
            self._able_at = now
        elif now - self._able_at > self._workers_s:
            raise ScenarioError(
                f"{self._in_words(now)} for {self._workers_s:.0f} s; finished rows are kept: mend the cluster and give "
                "the same command again"
            )
        words = self._in_words(now) + ("" if able else f"; waiting up to {self._workers_s:.0f} s")
        if words != self._told and (able != self._was_able or now - self._told_at > _TELL_S):
            self._told, self._told_at, self._was_able = words, now, able
            self._say(words)

    def _in_words(self, now: float) -> str:
        count, threads = len(self._threads), self.threads()
        if now - self._heard_at >= SILENT_S:
            return f"dask: the scheduler at {self._address} does not answer"
        if not count:
            return f"dask: no worker at {self._address}"
        more = f" of {threads} threads; a process simulates one point at a time, so --nthreads 1 is best"
        return f"dask: {count} worker{'' if count == 1 else 's'}{more if threads > count else ''} at {self._address}"

    @contextmanager
    def open(self) -> Iterator[Executor]:
        """Connect, wait for a worker, see that all workers are fit, and take tasks. Left at once, whatever runs still.

        Raises ScenarioError: nobody there, no workers, workers with other versions than this process.
        """
        client = self._connect()
        self._threads, self._heard_at, self._able_at = {}, 0.0, time.monotonic()
        done = threading.Event()
        executor = _ClientExecutor(client)
        try:
            threading.Thread(target=self._listen, args=(client, done), daemon=True).start()
            self._make_ready(client, executor)
            yield executor
        finally:
            done.set()
            self._lost = True
            executor.shutdown(wait=False)

    def _connect(self) -> Any:
        need_dask()
        try:
            return _in_background(lambda: _client(self._address), self._interrupted, "dask: connect")
        except ScenarioError:
            raise
        except Exception as error:
            raise ScenarioError(f"--dask {self._address}: {self._unreached(error)}") from None

    def _unreached(self, error: Exception) -> str:
        why = "; ".join(str(error).splitlines())
        if self._lost:
            return f"the Dask scheduler was lost and does not come back within {CONNECT_S:.0f} s; {_AGAIN}"
        if not isinstance(error, OSError):
            return f"cannot connect: {why or type(error).__name__}"
        more = f" ({why})" if why else ""
        return f"no Dask scheduler answers within {CONNECT_S:.0f} s{more}; is 'dask scheduler' running there?"

    def _listen(self, client: Any, done: threading.Event) -> None:
        """In a thread of its own, since a scheduler may take long to answer."""
        while not done.is_set():
            with suppress(Exception):  # lost: the futures tell
                self._threads = dict(client.nthreads())
                self._heard_at = time.monotonic()
            done.wait(_ASK_S)

    def _make_ready(self, client: Any, executor: Executor) -> None:
        """A task without work, for clusters that start workers when there is work, then the check of the workers."""
        try:
            task = executor.submit(os.getpid)
            while not (wait([task], timeout=POLL_S).done and self._threads):
                self.stop()
            self.stop()
            _in_background(lambda: check_workers(client, self._address), self.stop, "dask: versions")
        except SimulatorError:
            raise
        except Exception as error:
            why = f"lost while its workers were looked at ({type(error).__name__}: {error})"
            raise ScenarioError(f"--dask {self._address}: the Dask scheduler was {why}; {_AGAIN}") from None


class _Call:
    """What unpickles as the result of a call."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return self.function, ()


class _ClientExecutor(Executor):
    """A Dask client's ``submit`` whose futures end whatever happens.

    Dask is given ``pickle.loads`` and bytes, so that schedulers and workers can take the task apart without our
    package: a worker that lacks it then fails the task, where a task that names it would end the worker.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._loop = client.loop.asyncio_loop
        self._numbers = itertools.count()

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Raises BrokenExecutor once the scheduler is gone. Two equal calls are two tasks."""
        if self._client.status != "running":
            raise BrokenExecutor("the Dask scheduler is gone")
        call = pickle.dumps(_Call(partial(fn, *args, **kwargs)))
        task = self._client.submit(pickle.loads, call, key=f"simulator-sweep-{self._client.id}-{next(self._numbers)}")
        return asyncio.run_coroutine_threadsafe(_result(self._client, task), self._loop)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The scheduler drops the client's tasks when it leaves; one that runs ends by itself, unheard."""
        closing = threading.Thread(target=_close, args=(self._client,), daemon=True)
        closing.start()
        closing.join(3)


async def _result(client: Any, task: Any) -> Any:
    from distributed import KilledWorker

    try:
        return await client.gather(task, asynchronous=True)
    except KilledWorker:
        raise WorkersDiedError from None
    except (CancelledError, asyncio.CancelledError) as error:
        raise CancelledError(str(error)) from None
    except (ImportError, AttributeError) as error:  # our work raises none: it could not even be unpacked
        raise ScenarioError(f"a worker cannot run the simulator ({error}); {SAME_EVERYWHERE}") from None
    except OSError as error:
        raise CancelledError(str(error)) from None


def _client(address: str) -> Any:
    """A client of the scheduler. Raises OSError (TimeoutError too) for nobody there, and others for somebody else."""
    from distributed import Client

    asyncio.run(asyncio.wait_for(_knock(address), CONNECT_S))
    return Client(address, timeout=CONNECT_S, set_as_default=False, name="simulator-sweep")


async def _knock(address: str) -> None:
    """See who is there: a client that fails to connect waits long, and leaves a thread that fails when all is over."""
    from distributed import Security
    from distributed.comm import connect

    comm = await connect(address, timeout=CONNECT_S, **Security().get_connection_args("client"))
    try:
        await comm.write({"op": "identity", "reply": True})
        kind = (await comm.read())["type"]
    finally:
        comm.abort()
    if kind != "Scheduler":
        raise ValueError(f"this is the address of a Dask {kind}; give that of the scheduler")


def _close(client: Any) -> None:
    with suppress(Exception):
        client.close(timeout=2)


def need_dask() -> None:
    """Have Dask, and have it quiet: what it logs and warns of is told by us. Raises ScenarioError without the extra."""
    try:
        import distributed
    except ImportError:
        told = "--dask needs distributed: install the extra with  pip install 'clustersim[dask]'"
        raise ScenarioError(told) from None
    if os.environ.get("SIMULATOR_DEBUG"):
        return
    warnings.filterwarnings("ignore", category=distributed.versions.VersionMismatchWarning)
    for name in ("distributed", *(key for key in logging.root.manager.loggerDict if key.startswith("distributed."))):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in ("tornado.application", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _in_background(function: Callable[[], Result], stop: Callable[[], None], name: str) -> Result:
    """``function()`` in a thread, so that ``stop`` is asked meanwhile; what it still does then is nobody's business."""
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    while not wait([future], timeout=POLL_S).done:
        stop()
    return future.result()
