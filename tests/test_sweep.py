"""A sweep: all combinations in order, a row for each whatever becomes of it, and a table that marks the best."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sweep_rows import SHIPPED, STEP, expected, lines, plain

from simulator import __version__
from simulator.answer import Wiring, answer_step, wiring_of
from simulator.cli.sweep import sweep as command
from simulator.errors import ScenarioError
from simulator.load import load_scenario
from simulator.report.sweep_text import MOST_ROWS, best_row, sweep_text
from simulator.scenario import Scenario
from simulator.sweeps import wirings
from simulator.sweeps.points import Base, Row, check_base, check_loadable, default_file, make_sweep
from simulator.sweeps.rows import simulate_point, simulate_points

COLLECTIVE = """\
cluster: {topology: dgx-h100, nodes: 2}
collective: {op: all_reduce, size: 1 MiB, algorithm: auto}
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The small scenario, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(STEP)
    return "s.yaml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, standalone_mode=False)


# ---------------------------------------------------------------- points


def test_values_with_units_as_bash_hands_them_over_make_all_combinations_in_order(scenario: str) -> None:
    sweep = make_sweep(scenario, ["parallel.bucket_cap=1 MiB,25 MiB,64 MiB", "cluster.nodes=1,2,4"])
    assert sweep.keys == ("parallel.bucket_cap", "cluster.nodes")
    assert sweep.points == tuple(
        (f"parallel.bucket_cap={cap} MiB", f"cluster.nodes={n}") for cap in (1, 25, 64) for n in (1, 2, 4)
    )


@pytest.mark.parametrize(
    ("given", "file"),
    [("a/b.c.yaml", "b.c.sweep.jsonl"), ("x.yml", "x.sweep.jsonl"), ("llama-3.2-1b", "llama-3.2-1b.sweep.jsonl")],
)
def test_the_default_file_is_named_after_the_scenario_and_is_in_the_working_directory(given: str, file: str) -> None:
    assert default_file(given) == Path(file)


def test_a_misspelt_key_ends_the_sweep_before_it_begins(scenario: str) -> None:
    with pytest.raises(ScenarioError, match=r"unknown key 'node'.*did you mean 'nodes'"):
        check_loadable(make_sweep(scenario, ["cluster.node=1,2", "parallel.overlap=none,bucketed"]))
    check_loadable(make_sweep(scenario, ["cluster.nodes=0,-1,2"]))


def test_rows_of_a_scenario_that_changed_meanwhile_or_of_another_version_are_refused(scenario: str) -> None:
    base = make_sweep(scenario, ["cluster.nodes=1"]).base
    simulate_points(base, [("cluster.nodes=1",)])
    Path(scenario).write_text(STEP.replace("1 MiB", "2 MiB"))
    with pytest.raises(ScenarioError, match="changed while the sweep was running"):
        simulate_points(base, [("cluster.nodes=1",)])
    with pytest.raises(ScenarioError, match=rf"version 0\.0\.0 .* has {__version__}"):
        check_base(Base(scenario=scenario, digest=base.digest, version="0.0.0", kind="step"))


# ---------------------------------------------------------------- one row


def test_a_row_says_what_run_says() -> None:
    overrides = ("cluster.nodes=1", "train.micro_batch=1")
    base = make_sweep(SHIPPED, ["cluster.nodes=1", "train.micro_batch=1"]).base
    row = simulate_point(base, overrides)
    report = answer_step(load_scenario(SHIPPED, overrides)).report
    assert row["step_time_s"] == report.step_time_s
    assert row["tokens_per_s"] == 8 * row["tokens_per_s_per_gpu"] == pytest.approx(8 * 4096 / report.step_time_s)
    assert row["exposed_share"] == row["exposed_comm_s"] / row["step_time_s"] == report.exposed_share
    assert (row["cluster.nodes"], row["gpus"], row["fits"], row["feasible"]) == (1, 8, True, True)
    assert (row["error"], row["base_digest"], row["version"]) == (None, base.digest, __version__)


def test_a_point_that_cannot_be_is_a_row_with_the_same_columns_and_its_error(scenario: str) -> None:
    base = make_sweep(scenario, ["parallel.tp=1,5"]).base
    good, bad = (simulate_point(base, (f"parallel.tp={tp}",)) for tp in (1, 5))
    assert list(good) == list(bad)
    assert bad["error"] == (
        "override parallel.tp=5: tp 5 = 5 ranks of a replica do not divide the 16 ranks; possible: tp 1, 2, 4 or 8; or "
        "15 or 20 ranks"
    )
    assert bad["step_time_s"] is bad["feasible"] is None


def test_a_row_is_the_same_whatever_was_simulated_before_it(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks and what collectives cost on them are kept between points."""
    keys = ["parallel.overlap=none,bucketed", "cluster.topology=dgx-h100,dgx-a100", "cluster.nodes=1,2"]
    sweep = make_sweep(scenario, keys)
    alone = []
    for point in sweep.points:
        monkeypatch.setattr(wirings._shelf, "held", [])
        alone.append(simulate_point(sweep.base, point))
    monkeypatch.setattr(wirings._shelf, "held", [])
    forth = [simulate_point(sweep.base, point) for point in sweep.points]
    assert len(wirings._shelf.held) == 4
    back = [simulate_point(sweep.base, point) for point in reversed(sweep.points)]
    assert len({row["step_time_s"] for row in alone}) > 4
    assert plain(alone) == plain(forth) == plain(back)


def test_networks_are_kept_for_points_that_share_them_but_not_without_end(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int | None] = []

    def counted(scenario: Scenario) -> Wiring:
        made.append(scenario.cluster.nodes)
        return wiring_of(scenario)

    monkeypatch.setattr(wirings, "wiring_of", counted)
    monkeypatch.setattr(wirings._shelf, "held", [])

    def simulate(*numbers: int) -> list[int | None]:
        made.clear()
        for nodes in numbers:
            wirings.wiring_for(load_scenario(scenario, [f"cluster.nodes={nodes}"]))
        return list(made)

    assert simulate(1, 2, 1, 2, 2, 1) == [1, 2]
    monkeypatch.setattr(wirings, "_MOST_NETWORKS", 2)
    assert simulate(3, 3, 1, 3, 2) == [3, 2]  # 2 had to make room for 3, then 1 for 2
    links = len(wirings._shelf.held[-1].wiring.network.link_names)
    monkeypatch.setattr(wirings, "_MOST_USE", 3 * links)
    assert simulate(2, 2, 2, 2) == [2]  # after three points, of which one was above
    monkeypatch.setattr(wirings, "_MOST_LINKS", 0)
    assert simulate(4, 4, 5, 4) == [4, 5, 4]  # the last one is kept whatever its size


# ---------------------------------------------------------------- the command


def test_rows_are_the_same_whatever_the_number_of_processes_and_the_table_is_in_the_order_of_points(
    scenario: str,
) -> None:
    settings = ("parallel.bucket_cap=1 MiB,64 MiB", "cluster.nodes=4,1,2", "parallel.overlap=none,bucketed")
    results = [run(scenario, *settings, "--jobs", str(jobs), "--out", f"{jobs}.jsonl") for jobs in (1, 2)]
    assert [r.return_value for r in results] == [0, 0]
    assert results[0].stdout == results[1].stdout
    sweep = make_sweep(scenario, settings)
    assert plain(lines("1.jsonl")) == plain(lines("2.jsonl")) == expected(sweep)
    cells = [line.split() for line in results[0].stdout.splitlines()[2:14]]
    assert [(f"{c[0]} {c[1]}", c[2], c[3]) for c in cells] == [
        tuple(text.partition("=")[2] for text in point) for point in sweep.points
    ]


def test_nothing_is_simulated_twice_and_stderr_has_one_line_at_the_start_and_one_at_the_end(scenario: str) -> None:
    first = run(scenario, "cluster.nodes=1,2")
    assert len(first.stderr.splitlines()) == 2
    assert "s.sweep.jsonl" in first.stderr.splitlines()[0]
    before = Path("s.sweep.jsonl").read_bytes()
    again = run(scenario, "cluster.nodes=1,2")
    assert Path("s.sweep.jsonl").read_bytes() == before
    assert again.stdout == first.stdout
    assert "0 of 2 points left" in again.stderr
    run(scenario, "cluster.nodes=1", "parallel.overlap=none", "--out", "two.jsonl")
    turned = run(scenario, "parallel.overlap=none", "cluster.nodes=1", "--out", "two.jsonl")
    assert "0 of 1 points left" in turned.stderr
    more = run(scenario, "cluster.nodes=1,2,3")
    assert "1 of 3 points left" in more.stderr
    assert Path("s.sweep.jsonl").read_bytes().startswith(before)


def test_one_bad_point_does_not_stop_the_others_and_all_bad_is_exit_code_2(scenario: str) -> None:
    some = run(scenario, "parallel.tp=1,5,7", "--out", "some.jsonl")
    assert some.return_value == 0
    assert "(1) 1 row: override parallel.tp=5: tp 5 = 5 ranks of a replica do not divide" in some.stdout
    assert "1 feasible, 2 failed" in some.stderr
    # Each of these loads, and fails when the network is built.
    all_bad = run(scenario, "cluster.gpus_per_node=16,32", "--out", "all.jsonl")
    assert all_bad.return_value == 2
    assert all(row["error"] for row in lines("all.jsonl"))


def test_a_bad_base_scenario_or_a_bad_argument_is_the_usual_error_and_makes_no_file(scenario: str) -> None:
    Path("bad.yaml").write_text(STEP.replace("nodes: 2", "nodes: -2"))
    for arguments, message in (
        (("bad.yaml", "parallel.overlap=none,bucketed"), "cluster.nodes: must be at least 1"),
        ((scenario, "cluster.nodes"), "expected key=value1,value2"),
        ((scenario, "cluster.nodes=1,1"), "given twice"),
        ((scenario, "cluster.node=1,2"), "unknown key 'node'"),
        ((scenario, "cluster.nodes=1", "--columns", "mfuu"), "no column 'mfuu'.*did you mean 'mfu'"),
    ):
        with pytest.raises(ScenarioError, match=message):
            raise run(*arguments).exception or AssertionError("no error")
    assert not list(Path().glob("*.jsonl"))


def test_json_and_csv_hold_all_rows_in_the_order_of_points(scenario: str) -> None:
    out = json.loads(run(scenario, "parallel.tp=5,1", "cluster.nodes=1,2", "--json").stdout)
    assert (out["kind"], out["keys"]) == ("sweep", ["parallel.tp", "cluster.nodes"])
    assert [(row["parallel.tp"], row["cluster.nodes"]) for row in out["rows"]] == [(5, 1), (5, 2), (1, 1), (1, 2)]
    assert [row["error"] is None for row in out["rows"]] == [False, False, True, True]
    text = run(scenario, "parallel.tp=5,1", "cluster.nodes=1,2", "--csv", "--columns", "step_time_s,error").stdout
    table = list(csv.DictReader(io.StringIO(text)))
    assert list(table[0]) == ["parallel.tp", "cluster.nodes", "step_time_s", "error"]
    assert [float(row["step_time_s"] or "nan") for row in table[2:]] == [row["step_time_s"] for row in out["rows"][2:]]
    assert table[0]["step_time_s"] == ""


def test_a_sweep_over_a_collective_finds_ring_slower_than_halving_doubling_for_small_messages(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(COLLECTIVE)
    result = run(
        str(path), "collective.size=1 KiB,1 GiB", "collective.algorithm=ring,halving_doubling", "--json",
        "--out", str(tmp_path / "f"),
    )  # fmt: skip
    rows = json.loads(result.stdout)["rows"]
    assert [(row["size_bytes"], row["algorithm"]) for row in rows] == [
        (size, name) for size in (1024, 2**30) for name in ("ring", "halving_doubling")
    ]
    assert rows[0]["time_s"] > 1.5 * rows[1]["time_s"]


# ---------------------------------------------------------------- the table


def row(tokens_per_s: float, *, feasible: bool = True, fits: bool = True, error: str | None = None) -> Row:
    numbers = {"feasible": feasible, "tokens_per_s": tokens_per_s, "fits": fits}
    return {
        "overrides": [f"x={tokens_per_s}"],
        **(numbers if error is None else dict.fromkeys(numbers)),
        "error": error,
    }


def test_the_best_row_is_the_first_feasible_one_with_most_tokens() -> None:
    assert best_row([row(1), row(3), row(9, feasible=False), row(3), row(0, error="bad")]) == 1
    assert best_row([row(1, feasible=False), row(0, error="bad")]) is None


def test_a_long_sweep_prints_its_best_rows_only_and_says_so() -> None:
    rows = [row(float(i % 100)) for i in range(MOST_ROWS + 1)]
    table, *notes = sweep_text(rows, ["x"], ["tokens_per_s"], "t")
    assert getattr(table, "row_count") == 20  # noqa: B009 - a RenderableType
    assert "the best 20 of 201 rows" in "".join(map(str, notes))
