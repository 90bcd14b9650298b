"""README is true: its files exist, its scenarios load, and its commands print what it shows.

How a page is read and its commands are run: ``tests/pages.py``. The two lines that start with ``python3 -m venv`` are
run by ``.ci/run``. ``UPDATE_GOLDENS=1 pytest tests/test_readme.py`` writes outputs anew.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from command_line import ROOT
from pages import Page, call, matches, renewed

README = Page(ROOT / "README.md")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    README.put_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_two_commands_install_run_and_test() -> None:
    run, test = re.findall(r"^python3 -m venv .*$", README.text, flags=re.MULTILINE)
    assert run.endswith(" .venv/bin/simulator run scenarios/ddp-llama-1b-16xh100.yaml")
    assert test.endswith(" .venv/bin/pytest")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in re.findall(r"\.\[(\w+)\]", run + test):
        assert extra in extras


def test_there_is_something_to_check() -> None:
    assert README.files
    assert README.shown


def param(command: str, *more: str) -> object:
    """``simulator check`` simulates dozens of changes, which takes more than a few seconds."""
    marks = [pytest.mark.slow] if command.startswith("simulator check ") else []
    return pytest.param(command, *more, id=command, marks=marks)


@pytest.mark.parametrize(("command", "output"), [param(*both) for both in README.shown])
@pytest.mark.usefixtures("folder")
def test_command_prints_what_readme_shows(command: str, output: str) -> None:
    README.checks(command, output)


@pytest.mark.slow
@pytest.mark.parametrize("command", [param(command) for command in README.commands])
@pytest.mark.usefixtures("folder")
def test_command_of_readme_works(command: str) -> None:
    result = call(command)
    assert result.code in (0, 1), result.err


def test_links_lead_somewhere() -> None:
    assert README.links
    assert not [target for target in README.links if not (ROOT / target).exists()]


def test_example_scenario_is_short() -> None:
    assert all(len(text.splitlines()) <= 14 for text in README.files.values())


def test_matching_leaves_out_only_what_dots_stand_for() -> None:
    printed = "a\nb  \nc\n"
    assert matches("a\nb\nc\n", printed)
    assert matches("a\n...\n", printed)
    assert not matches("a\nc\n", printed)
    assert not matches("a\n...\nd\n", printed)


def test_writing_anew_changes_numbers_and_nothing_else() -> None:
    printed = "a 1.5 s\nb 7 GiB ok  \nc\n"
    assert renewed("...\nb 12 GiB ok\n...\n", printed) == "...\nb 7 GiB ok\n...\n"
    assert renewed("...\nb 12 GiB FAIL\n", printed) == "...\nb 12 GiB FAIL\n", "other words are for a person to see"
    assert renewed("c\n...\na 1 s\n", printed) == "c\n...\na 1 s\n", "nor does it change the order"
