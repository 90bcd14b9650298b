"""``simulator validate collectives``: what it compares, prints, writes and refuses. How good the predictions are is
the business of docs/accuracy.md, which the command writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import ROOT, simulator

from simulator.commands.validate import COMMAND
from simulator.measurements.reasons import reason_of
from simulator.measurements.tables import published
from simulator.network.builders import build_network
from simulator.validation import compare, predict, setting_of

TABLE = "azure-a100-1n-allreduce"
PAIR = "vtrain-a100-1n-2gpu-allreduce"


def test_each_row_is_compared_with_the_prediction_of_its_own_setting_and_size() -> None:
    rows = [row for row in published().rows if row.table in {TABLE, PAIR}]
    found = compare(rows)
    assert [item.measured for item in found] == rows
    for item in (found[0], found[-1]):
        ((time_s, algorithm, protocol),) = predict(setting_of(item.measured), [item.measured.size_bytes])
        assert (item.time_s, item.algorithm, item.protocol) == (pytest.approx(time_s), algorithm, protocol)
        assert item.error == pytest.approx(time_s / item.measured.time_s - 1)


def test_a_setting_is_predicted_on_the_gpus_that_the_run_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the eight GPUs of a node, and one of each of two nodes: not whole nodes."""
    built: list[tuple[int | None, int | None]] = []

    def spy(spec: object, *, nodes: int, gpus_per_node: int) -> object:
        built.append((nodes, gpus_per_node))
        return build_network(spec, nodes=nodes, gpus_per_node=gpus_per_node)  # type: ignore[arg-type]

    monkeypatch.setattr("simulator.validation.build_network", spy)
    for table in (PAIR, "aws-g4dnmetal-2n-allreduce-efa"):
        row = next(row for row in published().rows if row.table == table)
        predict(setting_of(row), [row.size_bytes])
    assert built == [(1, 2), (2, 1)]


def test_the_command_prints_every_section_and_ends_with_0() -> None:
    result = simulator("validate", "collectives", "--table", TABLE, "--table", "nvidia-gtc25-s72583-allreduce")
    assert (result.code, result.err) == (0, "")
    titles = ("Overall", "By system, operation and size", "Plateaus on vendors' slides", "Left out")
    for words in (*titles, "constants were read off these", "Where constants came from"):
        assert words in result.out
    assert "share of NVLink 5" in result.out
    assert "dgx-a100 1x8" in result.out
    assert all(len(line) <= 120 for line in result.out.splitlines())


def test_json_holds_every_row_with_its_source_and_error() -> None:
    value = json.loads(simulator("validate", "collectives", "--table", TABLE, "--json").out)
    assert (value["schema_version"], value["kind"]) == (1, "validation")
    assert [(t["size"], t["median"], t["p90"]) for t in value["targets"]] == [
        ("< 1 MiB", 0.35, 0.7), ("1-64 MiB", 0.2, 0.4), (">= 64 MiB", 0.1, 0.2),
    ]  # fmt: skip
    assert len(value["rows"]) == 31
    for row in value["rows"]:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["time_s"] - 1)
        assert row["source"]
    assert {a["rows_of"] for a in value["overall"]} == {"all", "constants were read off these"}


def test_a_missed_target_ends_with_1_only_where_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(setting: object, sizes: list[float]) -> list[tuple[float, str, str]]:
        return [(3600.0, "ring", "simple")] * len(sizes)

    monkeypatch.setattr("simulator.validation.predict", slow)
    arguments = ("validate", "collectives", "--table", TABLE)
    assert simulator(*arguments).code == 0
    result = simulator(*arguments, "--fail-if-missed")
    assert result.code == 1
    assert "MISSED" in result.out


def test_met_targets_end_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {row.size_bytes: row.time_s for row in published().rows if row.table == TABLE}

    def right(setting: object, sizes: list[float]) -> list[tuple[float, str, str]]:
        return [(times[size], "ring", "simple") for size in sizes]

    monkeypatch.setattr("simulator.validation.predict", right)
    result = simulator("validate", "collectives", "--table", TABLE, "--fail-if-missed")
    assert result.code == 0
    assert "MISSED" not in result.out


def test_an_unknown_table_is_refused_with_the_nearest_name() -> None:
    result = simulator("validate", "collectives", "--table", "azure-a100-1n-allreduc")
    assert (result.code, result.out) == (2, "")
    assert f"did you mean '{TABLE}'" in result.err
    assert simulator("validate", "training").code == 2
    refused = simulator("validate", "collectives", "--table", TABLE, "--markdown", "x.txt")
    assert (refused.code, refused.out) == (2, "")
    assert ".md" in refused.err


def test_markdown_says_the_same_as_the_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    result = simulator("validate", "collectives", "--table", TABLE, "--markdown", str(page))
    text = page.read_text(encoding="utf-8")
    assert COMMAND in text
    row = next(line for line in result.out.splitlines() if line.startswith("dgx-a100 1x8") and ">= 64" in line)
    cells = next(line for line in text.splitlines() if line.startswith("| dgx-a100 1x8") and ">= 64" in line)
    assert row.split() == cells.replace("|", " ").split()


@pytest.mark.slow
def test_the_accuracy_page_is_what_the_command_writes(tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    assert simulator("validate", "collectives", "--markdown", str(page)).code == 0
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_missed_target_has_a_reason() -> None:
    """The command names the systems that miss, and says why; a new miss needs a new reason."""
    value = json.loads(simulator("validate", "collectives", "--json").out)
    missed = {(row["topology"], row["op"]) for row in value["rows"]} & {
        (a["system"].split()[0], a["op"]) for a in value["systems"] if not a["met"]
    }
    assert missed
    assert [pair for pair in sorted(missed) if not reason_of(*pair)] == []
