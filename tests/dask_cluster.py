"""A real Dask cluster on loopback for tests: a scheduler and workers, each a process of its own that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60


class DaskProcesses:
    """Processes that keep their files in ``folder``; workers work in folders of their own in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.address = ""
        self.scheduler: subprocess.Popen[bytes] | None = None

    def start_scheduler(self, *arguments: str, port: int = 0, **settings: str) -> None:
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", str(port), "--scheduler-file", str(file), "--no-dashboard",
            *arguments, settings=settings,
        )  # fmt: skip
        until = time.monotonic() + PATIENCE_S
        while not self.address or not file.exists():
            assert self.scheduler.poll() is None, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.02)
            try:
                self.address = json.loads(file.read_text())["address"]
            except (OSError, ValueError):
                continue

    def start_worker(self, *, path: Path = ROOT) -> subprocess.Popen[bytes]:
        """path: what the worker imports the simulator from."""
        return self._start(
            "worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard",
            settings={"PYTHONPATH": f"{path}{os.pathsep}{ROOT / 'tests'}"},
        )  # fmt: skip

    def _start(self, role: str, *arguments: str, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        place = self.folder / f"{role}-{number}"
        place.mkdir()
        with (self.folder / f"{role}-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{role}", *arguments],
                cwd=place, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def wait_for_no_tasks(self, patience_s: float = 30.0) -> None:
        """Until the scheduler knows of none. Raises AssertionError when it still does after that time."""
        code = (
            "import sys, time; from distributed import Client\n"
            "until = time.monotonic() + float(sys.argv[2])\n"
            "with Client(sys.argv[1]) as client:\n"
            "    while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):\n"
            "        assert time.monotonic() < until\n"
            "        time.sleep(0.1)"
        )
        asked = [sys.executable, "-c", code, self.address, str(patience_s)]
        assert subprocess.run(asked, capture_output=True).returncode == 0, "the cluster still has tasks"

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def dask_processes(folder: Path, workers: int, **settings: str) -> Iterator[DaskProcesses]:
    folder.mkdir()
    cluster = DaskProcesses(folder)
    try:
        cluster.start_scheduler(**settings)
        for _ in range(workers):
            cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


def start_sweep(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """``simulator sweep`` in a session of its own, with Ctrl-C not ignored, writing to f.jsonl."""
    return subprocess.Popen(
        [sys.executable, "-m", "simulator", "sweep", *arguments, "--out", "f.jsonl"], cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
