"""docs/crossovers.md is true: its commands print what it shows, and its tables are what the formulas give."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path

import pytest
from command_line import ROOT, simulator
from pages import call, matches

PAGE = (ROOT / "docs" / "crossovers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n\$ (.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
SHOWN = [block.partition("\n")[::2] for block in BLOCKS]
SWEEP, EXPLAINED = SHOWN[0], SHOWN[1:]


def rows_of_table(header: str) -> list[list[str]]:
    """Cells of the page's table with this header."""
    lines = PAGE.split(header, 1)[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs" / "img").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_sweep_prints_these_crossovers_and_draws_the_picture(folder: Path) -> None:
    command, output = SWEEP
    result = call(command)
    assert matches(output, result.out + result.err), result.out[-4000:]
    picture = Path("docs/img/all-reduce-dgx-h100.png")
    assert picture.name in command
    head = slice(16, 24)  # width and height in a PNG
    assert (folder / picture).read_bytes()[head] == (ROOT / picture).read_bytes()[head]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), EXPLAINED, ids=[command[45:] for command, _ in EXPLAINED])
def test_command_prints_what_the_page_shows(command: str, output: str) -> None:
    result = call(command)
    assert matches(output, result.out + result.err), result.out + result.err


@pytest.mark.slow
def test_latencies_are_those_of_the_formulas() -> None:
    table = rows_of_table("| ranks | ring | double_tree | nvls, nvls_tree |")
    asked = ",".join(row[0] for row in table)
    result = simulator(
        "collective", "all_reduce", "--topology", "dgx-h100", "-p", asked, "-b", "1K", "--explain", "--json"
    )
    ways = json.loads(result.out)["ways"]
    assert len(table) == 6
    for (p, *cells), (asked_p, some) in zip(table, groupby(ways, key=lambda way: way["p"]), strict=True):
        assert int(p) == asked_p
        least: dict[str, float] = {}
        for way in some:
            name = way["algorithm"].replace("nvls_tree", "nvls")
            least[name] = min(way["latency_s"], least.get(name, 1.0))
        assert cells == [f"{least[name] * 1e6:.1f}" for name in ("ring", "double_tree", "nvls")]


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", PAGE)
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
