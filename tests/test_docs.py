"""The documentation is true: its commands print what it shows, the tutorial's conclusions hold, and the reference
made from the code has every key, command and shipped file.

``UPDATE_GOLDENS=1 pytest tests/test_docs.py`` writes outputs anew. That the site builds without a warning is checked by
``sphinx-build -W --keep-going -b html docs docs/_build``, which needs the extra ``docs``.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import ROOT
from pages import Page, call

from simulator import shipped
from simulator.cli import COMMANDS, READER_LEFT
from simulator.explanations.outputs import outputs
from simulator.explanations.scenario_keys import scenario_keys
from simulator.parallel_spec import KEYS

DOCS = ROOT / "docs"
#: Pages with tests of their own, which take longer or need more.
ELSEWHERE = {DOCS / name for name in ("accuracy.md", "crossovers.md", "lab.md", "strategies.md")}
PAGES = [
    Page(path)
    for path in sorted([*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md"), *DOCS.glob("reference/*.md")])
    if path not in ELSEWHERE
]
WITH_COMMANDS = [page for page in PAGES if page.shown or page.commands]
NOTEBOOK = DOCS / "tutorial.ipynb"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def generated() -> Iterator[dict[str, str]]:
    """What the reference pages are filled with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        import _generate

        yield {name: make() for name, make in _generate.GENERATED.items()}
    sys.modules.pop("_generate")


# ---- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_of_a_page_print_what_it_shows(page: Page, folder: Path) -> None:
    """In their order and in one folder, as a reader types them: a command may need what one before it has written."""
    page.put_files(folder)
    for command, output in page.steps:
        if output is None:
            result = call(command)
            assert result.code in (0, 1), f"{command}: {result.err}"
        else:
            page.checks(command, output)


def test_pages_have_commands_to_check() -> None:
    names = {page.path.name for page in WITH_COMMANDS}
    assert {"index.md", "how-the-model-works.md", "my-cluster.md", "my-model.md", "my-measurements.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Page) -> None:
    assert not [target for target in page.links if not (page.path.parent / target).exists()]


def test_ci_files_of_the_page_about_ci_are_yaml_and_call_check() -> None:
    files = Page(DOCS / "how-to/ci-gate.md").files
    github, gitlab = files[".github/workflows/plan.yml"], files[".gitlab-ci.yml"]
    (job,) = yaml.safe_load(github)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step] + yaml.safe_load(gitlab)["plan"]["script"]
    checks = {command for command in commands if command.startswith("simulator ")}
    assert len(checks) == 1
    assert checks.pop().startswith("simulator check train/step.yaml ")
    assert "train/step.yaml" in files


def test_exit_codes_are_those_of_the_command_line() -> None:
    codes = re.findall(r"^\| (\d+) \|", Page(DOCS / "reference/exit-codes.md").text, flags=re.MULTILINE)
    assert list(map(int, codes)) == [0, 1, 2, 3, 130, READER_LEFT]


# ---- the tutorial ----------------------------------------------------------------------------------------------------


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def test_tutorial_is_stored_without_outputs() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_tutorial_runs_and_what_it_concludes_holds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells in their order, and the shell commands between them; the site runs the same cells in Jupyter."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    space: dict[str, Any] = {}
    printed = io.StringIO()
    for cell in cells():
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(printed):
                exec(compile(source, str(NOTEBOOK), "exec"), space)
        for block in re.findall(r"```sh\n(.*?)```", source, flags=re.DOTALL):
            for command in block.splitlines():
                assert call(command).code in (0, 1), command
    told = printed.getvalue()
    fitting = {line[:34].strip() for line in told.splitlines() if line.endswith("fits")}
    assert "fsdp, recompute selective-op" in fitting
    assert "fsdp, recompute none" not in fitting
    assert not [name for name in fitting if name.startswith(("ddp", "zero1"))]
    assert {"50% of the network", "25% of the network"} <= fitting
    assert "10% of the network" not in fitting
    assert "Step time hangs on the matrix rate" in told, "the text says that compute matters most"
    assert "edge " not in told, "the text says that no verdict flips"
    assert 3500 < space["hours"]["2 x 8 H100"] < 4400, "the text says 'some 4,000 GPU-hours'"
    assert hasattr(space["h100"], "_repr_html_"), "a cell shows an answer by its value alone"
    assert 0.36 < space["worth"] < 0.44, "the text says 'less than two fifths'"
    assert space["h100"].report.exposed_share < 0.03, "the text says that a faster network buys almost nothing"
    assert 10 <= space["h100"].report.step_time_s * 100e9 / 131072 / 86400 < 11.5, "the text says ten to eleven days"


# ---- the reference ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_generated_part_stands_on_one_page_and_pages_ask_for_nothing_else(generated: dict[str, str]) -> None:
    asked = [name for page in PAGES for name in re.findall(r"^<!-- generated: (.*) -->$", page.text, re.MULTILINE)]
    assert sorted(asked) == sorted(generated)


@pytest.mark.slow
def test_reference_has_every_key_command_strategy_and_shipped_file(generated: dict[str, str]) -> None:
    wanted = {
        "scenario": [key.key for key in scenario_keys() if "." in key.key],
        "outputs": [one.key for output in outputs() for one in output.keys],
        "commands": list(COMMANDS),
        "strategies": [name for key in KEYS for name in key],
        "topologies": shipped.names("topology"), "devices": shipped.names("device"),
        "models": shipped.names("preset"), "libraries": shipped.names("library"),
        "scenarios": shipped.names("scenario"),
    }  # fmt: skip
    for page, names in wanted.items():
        text = generated[page]
        assert not [name for name in names if f"`{name}`" not in text and f"## {name}\n" not in text], page


@pytest.mark.slow
def test_every_number_of_a_shipped_topology_stands_with_its_source(generated: dict[str, str]) -> None:
    rows = [line for line in generated["topologies"].splitlines() if line.startswith("| ") and "/s |" in line]
    assert len(rows) > 100
    assert not [row for row in rows if not row.rstrip(" |").rsplit("|", 1)[1].strip()]


@pytest.mark.slow
def test_tables_of_the_reference_keep_their_columns(generated: dict[str, str]) -> None:
    """A bar in a cell would make a column of its own."""
    for name, text in generated.items():
        widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
        heads = [len(re.findall(r"\|", line)) for line in text.splitlines() if re.match(r"\|( --- \|)+$", line)]
        assert set(widths) == set(heads), name
