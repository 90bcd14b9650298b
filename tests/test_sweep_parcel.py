"""A sweep's files travel with it: a parcel makes the rows that the files make, wherever it is opened."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sweep_rows import SHIPPED, STEP, plain

from simulator.cli.sweep import sweep as command
from simulator.errors import InternalError, ScenarioError
from simulator.load import load_scenario, scenario_digest
from simulator.sweeps.environment import difference, environment
from simulator.sweeps.parcel import Parcel, completed_here, make_parcel, simulate_parcel
from simulator.sweeps.points import Base, Point, Row, Sweep, make_sweep
from simulator.sweeps.rows import Batch, failed_row, simulate_points
from simulator.sweeps.runner import Flow, finished_rows
from simulator.sweeps.scheduler_address import scheduler_address

NET = "name: mine\nkind: uniform\nnodes: 4\nalpha: 5 us\nbandwidth: 50 GB/s\nsource: made up\n"
LIBRARY = "name: own\nmessage_overhead: 1 us\ncollective_launch: 1 us\nsource: made up\n"
DGX = "cluster.topology=dgx-h100"
CONFIG = '{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 99, "n_positions": 64}'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sender's working directory, with scenarios in a folder below it."""
    folder = tmp_path / "home"
    texts = {
        "in/s.yaml": STEP.replace("dgx-h100", "net.yaml"), "in/net.yaml": NET + "library: own.yaml\n",
        "in/own.yaml": LIBRARY, "net.yaml": NET, "bad.yaml": NET + "speed: 1\n", "hf/config.json": CONFIG,
        "part.json": '{"model_type": "gpt2"}', "absolute.yaml": NET.replace("50 GB", "40 GB"),
    }  # fmt: skip
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder / "hf"))
    return folder


def opened_elsewhere(parcel: Parcel, points: Sequence[Point], home: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """The batch of a worker: another working directory and home, and none of the sender's files."""
    away = home.with_name("away")
    shutil.move(home, away)
    with monkeypatch.context() as worker:
        worker.chdir("/")
        worker.setenv("HOME", "/")
        batch = simulate_parcel(pickle.loads(pickle.dumps(parcel)), points)
    shutil.move(away, home)
    return batch


@pytest.mark.parametrize(
    ("scenario", "keys"),
    [
        ("in/s.yaml", ("cluster.nodes=2,9", "parallel.tp=1,2")),
        ("./in/../in/s.yaml", ("cluster.topology=./net.yaml,in/net.yaml,./bad.yaml,./nett.yaml,dgx-h100",)),
        ("in/s.yaml", ("cluster.topology=HOME/absolute.yaml,HOME/nowhere.yaml", "cluster.library=./in/own.yaml,gloo")),
        ("in/s.yaml", ("model.hf=hf,hf/config.json,~/config.json,part.json,nothing", "train.seq_len=8", DGX)),
        ("HOME/in/s.yaml", ("cluster.nodes=2,9",)),
        (SHIPPED, ("cluster.nodes=1,0",)),
    ],
)
def test_a_worker_without_the_files_makes_the_rows_and_errors_of_the_sender(
    home: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, keys: Sequence[str]
) -> None:
    sweep = make_sweep(scenario.replace("HOME", str(home)), [key.replace("HOME", str(home)) for key in keys])
    here = simulate_points(sweep.base, sweep.points).rows
    there = opened_elsewhere(make_parcel(sweep), sweep.points, home, monkeypatch).rows
    assert [row["scenario_digest"] for row in there] == [row["scenario_digest"] for row in here], "a file was missing"
    assert plain(list(completed_here(there, sweep.base))) == plain(here)
    assert {row["error"] is None for row in here} in ({True, False}, {True})


def test_a_parcel_holds_the_files_that_points_read_and_no_others(home: Path) -> None:
    points = ("cluster.topology=./net.yaml,dgx-h100", "train.micro_batch=1,2", "parallel.bucket_cap=1 MiB,net.yaml")
    parcel = make_parcel(make_sweep("in/s.yaml", points))
    assert [name.removeprefix(f"{home}/") for name, _ in parcel.files] == [
        "in/net.yaml", "in/own.yaml", "in/s.yaml", "net.yaml",
    ]  # fmt: skip
    assert make_parcel(make_sweep(SHIPPED, ["cluster.nodes=1,2"])).files == ()


def test_a_worker_makes_a_row_from_the_parcel_though_the_files_have_changed_since(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep("in/s.yaml", ["cluster.nodes=2"])
    parcel, rows = make_parcel(sweep), simulate_points(sweep.base, sweep.points).rows
    (home / "in/net.yaml").write_text(NET.replace("5 us", "9 us"))
    assert plain(simulate_parcel(parcel, sweep.points).rows) == plain(rows)
    with pytest.raises(ScenarioError, match=r"in/s\.yaml: the scenario, or a file that it names, changed just now"):
        make_parcel(sweep)


def test_the_digest_is_of_what_a_config_says_and_not_of_where_it_is(home: Path) -> None:
    text = "cluster: {topology: dgx-h100, nodes: 1}\nmodel: {hf: config.json}\ntrain: {seq_len: 8, micro_batch: 1}\n"
    digests = []
    for folder in ("hf", "copy"):
        (home / folder).mkdir(exist_ok=True)
        (home / folder / "config.json").write_text(CONFIG)
        (home / folder / "s.yaml").write_text(text)
        digests.append(scenario_digest(load_scenario(f"{folder}/s.yaml")))
    assert digests[0] == digests[1]


def test_a_worker_with_other_versions_refuses_the_work_and_names_them(home: Path) -> None:
    sweep: Sweep = make_sweep("in/s.yaml", ["cluster.nodes=2"])
    parcel = replace(make_parcel(sweep), environment={**environment(), "numpy": "1.0", "Python": "3.8"})
    with pytest.raises(ScenarioError, match=r"has Python \S+ \(here 3\.8\), numpy \S+ \(here 1\.0\); give .* the same"):
        simulate_parcel(parcel, sweep.points)


def test_other_code_of_the_same_version_is_a_difference_but_not_beside_another_version() -> None:
    files = next(name for name in environment() if "files" in name)
    same = {**environment(), files: "0"}
    assert "other code or data of the same version (digest 0" in difference(environment(), same)
    assert difference(environment(), {**same, "simulator": "9"}).startswith("simulator 9 (here ")
    assert "digest" not in difference(environment(), {**same, "simulator": "9"})
    assert difference(environment(), environment()) == ""


# ---------------------------------------------------------------- where the cluster is


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("10.0.0.1:8786", "tcp://10.0.0.1:8786"),
        (" tcp://head-node:8786/ ", "tcp://head-node:8786"),
        ("tls://[fe80::1]:8786", "tls://[fe80::1]:8786"),
        ("wss://dask.example.org:443", "wss://dask.example.org:443"),
    ],
)
def test_addresses_as_dask_prints_them_are_taken(given: str, address: str) -> None:
    assert scheduler_address(given) == address


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "expected the address of a Dask scheduler, such as tcp://"),
        ("head-node", "expected the address of a Dask scheduler"),
        ("tcp://a b:8786", "expected the address of a Dask scheduler"),
        ("tcp://node:eight", "expected the address of a Dask scheduler"),
        ("tcp://node:99999", "99999 is no port"),
        ("http://node:8787", "unknown protocol 'http'; a dashboard's address is not the scheduler's; accepted: tcp"),
        ("tcpp://node:8786", "did you mean 'tcp'"),
        ("nowhere.json", "nowhere.json: no such file"),
        ("other.json", "other.json: has no 'address'"),
    ],
)
def test_anything_else_is_refused_with_what_is_accepted_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.json").write_text("[1]")
    result = CliRunner().invoke(command, [SHIPPED, "cluster.nodes=1", "--dask", given], standalone_mode=False)
    assert isinstance(result.exception, ScenarioError)
    assert message in str(result.exception)
    assert str(result.exception).startswith("--dask ")
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_scheduler_file_says_the_address(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"address": "tls://10.1.2.3:4567", "workers": {}}))
    assert scheduler_address(str(path)) == "tls://10.1.2.3:4567"


def test_without_the_extra_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    given = [SHIPPED, "cluster.nodes=1", "--dask", "a:1", "--out", str(tmp_path / "f")]
    result = CliRunner().invoke(command, given, standalone_mode=False)
    assert isinstance(result.exception, ScenarioError)
    assert "pip install 'clustersim[dask]'" in str(result.exception)
    assert not (tmp_path / "f").exists()


def test_processes_and_a_cluster_at_once_are_a_usage_error(tmp_path: Path) -> None:
    given = [SHIPPED, "cluster.nodes=1", "--dask", "a:1", "--jobs", "2", "--out", str(tmp_path / "f")]
    result = CliRunner().invoke(command, given)
    assert result.exit_code == 2
    assert "--dask and --jobs exclude each other" in result.output


# ---------------------------------------------------------------- executors that cancel, as a restarted scheduler does

POINTS = tuple((f"x={i}",) for i in range(40))
BASE = Base(scenario="s", digest="d", version="v", kind="step")


def quick(points: Sequence[Point]) -> Batch:
    return Batch(rows=tuple({"overrides": list(point), "error": None} for point in points), seconds=1e-4)


class Cancelling(ThreadPoolExecutor):
    """Does ``lives`` tasks and cancels all later ones."""

    def __init__(self, lives: int) -> None:
        super().__init__(1)
        self.lives = lives

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.lives -= 1
        if self.lives >= 0:
            return super().submit(fn, *arguments, **named)
        future: Future[Any] = Future()
        future.set_exception(CancelledError("the scheduler was restarted"))
        return future


def rows_from(opener: Callable[[], Any], work: Callable[[Sequence[Point]], Batch] = quick) -> list[Row]:
    flow = Flow(workers=lambda: 3)
    return list(
        finished_rows(POINTS, work, opener, flow=flow, failed=partial(failed_row, BASE), stop=lambda: None)
    )  # fmt: skip


def test_points_of_cancelled_tasks_are_done_by_the_next_executor_in_chunks_like_all_others() -> None:
    lives, sizes = [3, 1000], list[int]()

    def counted(points: Sequence[Point]) -> Batch:
        sizes.append(len(points))
        return quick(points)

    rows = rows_from(lambda: Cancelling(lives.pop(0)), counted)  # a third one, for points under suspicion, would fail
    assert max(sizes) > 1
    assert Counter(row["overrides"][0] for row in rows) == Counter(point[0] for point in POINTS)
    assert not any(row["error"] for row in rows)


def test_executors_that_only_cancel_are_given_up() -> None:
    opened: list[int] = []

    @contextmanager
    def useless() -> Iterator[Executor]:
        opened.append(1)
        with Cancelling(1) as executor:
            yield executor

    with pytest.raises(InternalError, match="workers were lost 6 times in a row"):
        rows_from(useless)
    assert len(opened) == 6


def test_the_number_of_workers_is_asked_again_and_again() -> None:
    flow = Flow(workers=iter([0, 1, 4, 100, 10_000]).__next__, ahead=7, most_ahead=10_000)
    assert [flow.tasks() for _ in range(5)] == [8, 8, 32, 800, 20_000]
