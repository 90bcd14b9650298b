"""A sweep on a Dask cluster: the same rows as here, each once, whatever dies meanwhile.

The cluster is real: a scheduler and three workers on loopback, each a process, killed by SIGKILL. The workers work in
folders of their own, where the paths of the command line name nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from dask_cluster import ROOT, DaskProcesses, dask_processes, start_sweep
from sweep_rows import SHIPPED, STEP, expected, lines, plain

from simulator import __version__
from simulator.errors import ScenarioError
from simulator.sweeps.points import Base, Point, make_sweep
from simulator.sweeps.rows import Batch, failed_row
from simulator.sweeps.runner import Flow, finished_rows

distributed = pytest.importorskip("distributed", reason="needs the extra 'dask': pip install 'clustersim[dask]'")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals"),
    # Dask's own, in this process, of the few tests that do not start a sweep as a process
    pytest.mark.filterwarnings("default"),
]

SWEPT = (
    "parallel.bucket_cap=1 MiB,2 MiB,4 MiB,8 MiB,16 MiB,25 MiB,32 MiB,64 MiB", "cluster.nodes=1,2,3,4",
    "train.micro_batch=1,2,4",
)  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted() -> list[str]:
    return expected(make_sweep(SHIPPED, SWEPT))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[DaskProcesses]:
    with dask_processes(tmp_path / "cluster", 3) as cluster:
        yield cluster


def start(cluster: DaskProcesses, directory: Path, *more: str) -> subprocess.Popen[str]:
    return start_sweep(directory, SHIPPED, *SWEPT, "--dask", cluster.address, *more)


def wait_for_rows(process: subprocess.Popen[str], path: Path, count: int) -> None:
    until = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


def ended(process: subprocess.Popen[str], code: int) -> str:
    """What it said on stderr."""
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    return stderr


def test_a_worker_killed_in_the_middle_costs_no_row_and_the_rows_are_those_of_local_processes(
    three: DaskProcesses, tmp_path: Path, uninterrupted: list[str]
) -> None:
    process = start(three, tmp_path)
    wait_for_rows(process, tmp_path / "f.jsonl", 5)
    three.processes[-1].kill()
    stderr = ended(process, 0)
    assert plain(lines(tmp_path / "f.jsonl")) == uninterrupted
    assert f"96 points, the Dask cluster at {three.address}" in stderr
    assert "dask: 3 workers at" in stderr or "dask: 2 workers at" in stderr or "dask: 1 worker at" in stderr


def test_a_scheduler_killed_in_the_middle_costs_no_finished_row_and_the_same_command_goes_on(
    three: DaskProcesses, tmp_path: Path, uninterrupted: list[str]
) -> None:
    path = tmp_path / "f.jsonl"
    process = start(three, tmp_path)
    wait_for_rows(process, path, 5)
    three.scheduler.kill()
    stderr = ended(process, 2)
    kept = path.read_bytes().count(b"\n")
    assert 5 <= kept < len(uninterrupted), "too late to test anything"
    assert f"stopped: {kept} of 96 rows are in f.jsonl" in stderr
    assert f"{three.address}: the Dask scheduler was lost and does not come back" in stderr
    three.start_scheduler()
    three.start_worker()
    stderr = ended(start(three, tmp_path), 0)
    assert f"{96 - kept} of 96 points left" in stderr
    assert plain(lines(path)) == uninterrupted


def test_a_scheduler_that_comes_back_at_its_address_is_found_again(
    three: DaskProcesses, tmp_path: Path, uninterrupted: list[str]
) -> None:
    process = start(three, tmp_path)
    wait_for_rows(process, tmp_path / "f.jsonl", 5)
    three.scheduler.kill()
    three.start_scheduler(port=int(three.address.rpartition(":")[2]))
    three.start_worker()
    ended(process, 0)
    assert plain(lines(tmp_path / "f.jsonl")) == uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_cancels_what_the_cluster_has_and_the_same_command_goes_on(
    three: DaskProcesses, tmp_path: Path, uninterrupted: list[str], number: signal.Signals
) -> None:
    path = tmp_path / "f.jsonl"
    process = start(three, tmp_path)
    wait_for_rows(process, path, 5)
    process.send_signal(number)
    stderr = ended(process, -9 if number == signal.SIGKILL else 128 + number)
    kept = path.read_bytes().count(b"\n")
    assert 5 <= kept < len(uninterrupted), "too late to test anything"
    if number != signal.SIGKILL:
        assert f"interrupted: {kept} of 96 rows are in f.jsonl; the same command goes on from there" in stderr
    three.wait_for_no_tasks()
    ended(start(three, tmp_path), 0)
    assert plain(lines(path)) == uninterrupted


def test_files_that_only_this_machine_has_travel_along(three: DaskProcesses, tmp_path: Path) -> None:
    """A topology beside the scenario, one of the working directory, a missing one, a model of Hugging Face."""
    net = "name: mine\nkind: uniform\nnodes: 4\nalpha: 5 us\nbandwidth: 50 GB/s\nsource: made up\n"
    sizes = '"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 99, "n_positions": 64'
    files = {
        "in/s.yaml": STEP.replace("dgx-h100", "net.yaml"), "in/net.yaml": net, "net.yaml": net.replace("50 GB", "9 GB"),
        "hf/config.json": f'{{"model_type": "gpt2", {sizes}}}',
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for keys in (
        ("cluster.topology=./net.yaml,dgx-h100,./nett.yaml", "cluster.nodes=1,2,9"),
        ("model.hf=hf,hf/config.json", "train.seq_len=8,16", "cluster.topology=dgx-h100"),
    ):
        there = start_sweep(tmp_path, "in/s.yaml", *keys, "--fresh", "--dask", str(three.folder / "scheduler.json"))
        ended(there, 0)
        rows = lines(tmp_path / "f.jsonl")
        ended(start_sweep(tmp_path, "in/s.yaml", *keys, "--fresh", "--jobs", "2"), 0)
        assert plain(rows) == plain(lines(tmp_path / "f.jsonl"))
        assert any(row["error"] is None for row in rows)


# ---------------------------------------------------------------- workers that will not do


def other_package(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the package in which one file says something else."""
    for name in ("simulator", "topologies", "scenarios"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "simulator" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return folder


def without_package(folder: Path) -> Path:
    """Where ``import simulator`` finds nothing, whatever is installed."""
    folder.mkdir()
    (folder / "simulator.py").write_text("raise ModuleNotFoundError(\"No module named 'simulator'\", name='simulator')")
    return folder


def test_workers_with_other_versions_or_without_the_package_are_refused_by_name_before_any_work(tmp_path: Path) -> None:
    with dask_processes(tmp_path / "cluster", 1) as cluster:
        cluster.start_worker(
            path=other_package(
                tmp_path / "old", "__init__.py", f'__version__ = "{__version__}"', '__version__ = "0.0.9"'
            )
        )
        cluster.start_worker(path=other_package(tmp_path / "new", "units.py", "\n", "\n\n"))
        cluster.start_worker(path=without_package(tmp_path / "none"))
        wait_for_workers(cluster, 4)
        stderr = ended(start(cluster, tmp_path), 2)
    assert "error: --dask: 3 of 4 workers" in stderr
    assert f"has simulator 0.0.9 (here {__version__})" in stderr
    assert "has other code or data of the same version" in stderr
    assert "has no simulator: pip install clustersim there" in stderr
    assert "give this process and all workers the same environment" in stderr
    assert not (tmp_path / "f.jsonl").read_bytes()


@pytest.mark.parametrize("kind", ["old", "none"])
def test_an_unfit_worker_that_joins_late_ends_the_sweep_with_the_reason_and_no_false_row(
    tmp_path: Path, uninterrupted: list[str], kind: str
) -> None:
    if kind == "old":
        path = other_package(tmp_path / "p", "__init__.py", f'__version__ = "{__version__}"', '__version__ = "0.0.9"')
        reason = rf"simulator 0.0.9 (here {__version__})"
    else:
        path, reason = without_package(tmp_path / "p"), "a worker cannot run the simulator"
    with dask_processes(tmp_path / "cluster", 1) as cluster:
        process = start(cluster, tmp_path)
        wait_for_rows(process, tmp_path / "f.jsonl", 1)
        cluster.start_worker(path=path)
        stderr = ended(process, 2)
        assert reason in stderr
        assert "give this process and all workers the same environment" in stderr
    assert set(plain(lines(tmp_path / "f.jsonl"))) < set(uninterrupted)


def wait_for_workers(cluster: DaskProcesses, count: int) -> None:
    with distributed.Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=60)


# ---------------------------------------------------------------- nobody there


def error_at(address: str, directory: Path) -> str:
    """The one error of a sweep that is sent there."""
    stderr = ended(start_sweep(directory, SHIPPED, "cluster.nodes=1,2", "--dask", address), 2)
    (error,) = (line for line in stderr.splitlines() if line.startswith("error: "))
    assert stderr.endswith(f"{error}\n"), "something fails afterwards"
    return error


def test_an_address_where_nobody_answers_gives_one_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in ("tcp://127.0.0.1:9", f"tcp://127.0.0.1:{silent.getsockname()[1]}"):
            error = error_at(address, tmp_path)
            assert error.startswith(f"error: --dask {address}: no Dask scheduler answers within 10 s")


def test_an_address_of_something_else_gives_one_error_with_the_reason(tmp_path: Path) -> None:
    with dask_processes(tmp_path / "cluster", 1) as cluster:
        with distributed.Client(cluster.address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
            (worker,) = client.nthreads()
        assert "this is the address of a Dask Worker; give that of the scheduler" in error_at(worker, tmp_path)
        port = cluster.address.rpartition(":")[2]
        assert "cannot connect: TLS expects" in error_at(f"tls://127.0.0.1:{port}", tmp_path)


def test_a_cluster_without_workers_is_waited_for_and_says_so(tmp_path: Path) -> None:
    with dask_processes(tmp_path / "cluster", 0) as cluster:
        process = start_sweep(tmp_path, SHIPPED, "cluster.nodes=1,2", "--dask", cluster.address)
        assert process.stderr
        process.stderr.readline()
        assert process.stderr.readline() == f"dask: no worker at {cluster.address}; waiting up to 600 s\n"
        cluster.start_worker()
        assert f"dask: 1 worker at {cluster.address}" in ended(process, 0)
        assert len(lines(tmp_path / "f.jsonl")) == 2


def test_the_wait_for_workers_can_be_interrupted_and_has_an_end(tmp_path: Path) -> None:
    from simulator.sweeps.cluster import Cluster

    with dask_processes(tmp_path / "cluster", 0) as cluster:
        process = start_sweep(tmp_path, SHIPPED, "cluster.nodes=1,2", "--dask", cluster.address)
        assert process.stderr
        process.stderr.readline()
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert "interrupted: 0 of 2 rows" in ended(process, 130)
        waiting = Cluster(cluster.address, stop=lambda: None, say=lambda line: None, workers_s=1)
        with pytest.raises(ScenarioError, match=r"no worker at .* for 1 s; finished rows are kept"), waiting.open():
            pass


# ---------------------------------------------------------------- points that kill

POINTS = tuple((f"x={i}",) for i in range(40))
BASE = Base(scenario="s", digest="d", version="v", kind="step")


def deadly(points: Sequence[Point]) -> Batch:
    if ("x=3",) in points:
        os._exit(9)
    return Batch(rows=tuple({"overrides": list(point), "error": None} for point in points), seconds=1e-4)


def test_the_point_that_kills_its_workers_is_a_row_with_an_error_and_all_others_are_fine(tmp_path: Path) -> None:
    """Dask is told here to give up a task at the first death, so that three workers are enough."""
    from simulator.sweeps.cluster import Cluster

    with dask_processes(tmp_path / "c", 3, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as processes:
        cluster = Cluster(processes.address, stop=lambda: None, say=lambda line: None)
        rows = list(
            finished_rows(
                POINTS, deadly, cluster.open, flow=Flow(workers=cluster.threads), failed=partial(failed_row, BASE),
                stop=cluster.stop,
            )
        )  # fmt: skip
    assert sorted(row["overrides"][0] for row in rows) == sorted(point[0] for point in POINTS)
    assert {row["overrides"][0]: row["error"] for row in rows if row["error"]} == {
        "x=3": "the processes that simulated this point died twice without a word: out of memory, killed from outside, "
        "or a crash"
    }
