"""The file of a sweep: no row is lost or doubled, other files are left alone, and one sweep writes at a time."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from sweep_rows import STEP, expected, lines, plain

from simulator import __version__
from simulator.errors import ScenarioError
from simulator.sweeps.points import Sweep, make_sweep
from simulator.sweeps.rows import simulate_point
from simulator.sweeps.store import append, open_store


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The small scenario, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(STEP)
    return "s.yaml"


@pytest.fixture
def three(scenario: str) -> Sweep:
    return make_sweep(scenario, ["cluster.nodes=1,2,3"])


def fill(path: Path, sweep: Sweep, count: int | None = None) -> None:
    with open_store(path, sweep) as store:
        for point in sweep.points[:count]:
            append(store, simulate_point(sweep.base, point))


def test_every_place_where_a_line_can_tear_loses_only_that_line(three: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    fill(path, three)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in (last, last + 1, last + 20, (last + len(whole)) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with open_store(path, three) as store:
            assert set(store.rows) == {("cluster.nodes=1",), ("cluster.nodes=2",)}
            assert bool(store.notes) == (end > last)
            append(store, simulate_point(three.base, three.points[2]))
        assert plain(lines(path)) == expected(three)


def test_a_file_that_is_not_a_sweeps_is_left_alone_even_by_fresh(three: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for text in (b"hello", b"hello\n", b'{"a": 1}\n', b'{"base_digest": "x", "a": 1}\nhello\n'):
        path.write_bytes(text)
        with pytest.raises(ScenarioError, match="sweep"), open_store(path, three):
            pass
        assert path.read_bytes() == text
    for text in (b"hello", b'{"a": 1}\n'):
        path.write_bytes(text)
        with pytest.raises(ScenarioError, match="left alone"), open_store(path, three, fresh=True):
            pass
        assert path.read_bytes() == text


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ("", ["parallel.overlap=none"], "a sweep over cluster.nodes, not over parallel.overlap"),
        ("nodes: 2", ["cluster.nodes=1,2,3"], "another scenario, or of s.yaml before it"),
    ],
)
def test_the_file_of_another_sweep_is_refused_and_fresh_starts_it_over(
    three: Sweep, tmp_path: Path, change: str, arguments: list[str], message: str
) -> None:
    path = tmp_path / "f.jsonl"
    fill(path, three)
    Path("s.yaml").write_text(STEP.replace(change, "nodes: 4") if change else STEP)
    other = make_sweep("s.yaml", arguments)
    before = path.read_bytes()
    with pytest.raises(ScenarioError, match=message) as raised, open_store(path, other):
        pass
    assert "--fresh" in str(raised.value)
    assert path.read_bytes() == before
    with open_store(path, other, fresh=True) as store:
        assert not store.rows
        assert "3 earlier rows dropped" in store.notes[0]
    assert path.read_bytes() == b""


def test_rows_of_another_version_are_refused(three: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    fill(path, three)
    path.write_text(path.read_text().replace(f'"version": "{__version__}"', '"version": "0.0.9"'))
    with pytest.raises(ScenarioError, match=r"rows of version 0\.0\.9"), open_store(path, three):
        pass


def test_a_file_behind_a_value_that_changed_is_noticed(scenario: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        text = "name: mine\nkind: uniform\nnodes: 4\nalpha: 5 us\nbandwidth: 50 GB/s\nsource: made up\n"
        Path(f"{name}.yaml").write_text(text)
    both = make_sweep(scenario, ["cluster.topology=./a.yaml,./b.yaml", "cluster.nodes=2,3"])
    path = tmp_path / "f.jsonl"
    fill(path, both)
    with open_store(path, both) as store:
        assert len(store.rows) == 4
    Path("b.yaml").write_text(Path("b.yaml").read_text().replace("50 GB/s", "60 GB/s"))
    with pytest.raises(ScenarioError, match=r"a file behind cluster\.topology=\./b\.yaml was changed"):
        open_store(path, both).__enter__()


def test_points_can_be_added_to_a_sweep(three: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    fill(path, three)
    with open_store(path, make_sweep("s.yaml", ["cluster.nodes=2,3,4"])) as store:
        assert ("cluster.nodes=2",) in store.rows
        assert ("cluster.nodes=4",) not in store.rows


def test_two_sweeps_on_one_file_at_once_are_refused(three: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    with (
        open_store(path, three),
        pytest.raises(ScenarioError, match="another sweep is writing it"),
        open_store(path, three),
    ):
        pass
    with open_store(path, three):
        pass


def test_a_path_that_cannot_hold_rows_is_refused_with_the_reason(three: Sweep, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, "Is a directory"),
        (tmp_path / "no" / "f", "No such file"),
        (Path("/dev/null"), "not a regular file"),
    ):
        with pytest.raises(ScenarioError, match=message), open_store(path, three):
            pass


def test_a_disk_that_is_full_stops_the_sweep_with_whole_rows_only(three: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    row = simulate_point(three.base, three.points[0])
    size = len(json.dumps(row)) + 1
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_store(path, three) as store:
        append(store, row)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size * 3 // 2, limits[1]))
        try:
            with pytest.raises(ScenarioError, match=r"f\.jsonl: File too large"):
                append(store, row)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(lines(path)) == 1


def test_a_file_that_is_removed_meanwhile_is_noticed_at_the_next_row(three: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    with open_store(path, three) as store:
        path.unlink()
        with pytest.raises(ScenarioError, match="was removed"):
            append(store, simulate_point(three.base, three.points[0]))


def test_retry_failed_drops_the_rows_with_an_error_and_keeps_the_lock(scenario: str, tmp_path: Path) -> None:
    mixed = make_sweep(scenario, ["parallel.tp=1,5"])
    path, link = tmp_path / "f.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    fill(path, mixed)
    with open_store(link, mixed, retry_failed=True) as store:
        assert set(store.rows) == {("parallel.tp=1",)}
        with pytest.raises(ScenarioError, match="another sweep is writing it"), open_store(path, mixed):
            pass
        append(store, simulate_point(mixed.base, mixed.points[1]))
    assert plain(lines(path)) == expected(mixed)
    assert link.is_symlink()
