"""README is true: its files exist, its scenarios load, and its commands print what it shows.

A ``yaml`` block whose first line is ``# name.yaml`` is written to a folder of its own, and the commands run there.
A ``console`` block holds commands behind ``$ `` and what they print; ``...`` stands for lines left out. Commands in
``sh`` blocks must work; what they print is not shown. The two lines that start with ``python3 -m venv`` are run by
``.ci/run``. ``UPDATE_GOLDENS=1 pytest tests/test_readme.py`` writes the output of commands without ``...`` anew.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from command_line import ROOT, Result, simulator

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
FILES = {
    text.split("\n", 1)[0].removeprefix("# "): text
    for kind, text in BLOCKS
    if kind == "yaml" and re.match(r"# \S+\.yaml\n", text)
}


def shown() -> list[tuple[str, str]]:
    """(command, output as printed in README) of all console blocks."""
    found = []
    for kind, text in BLOCKS:
        if kind == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append((command, output))
    return found


def commands() -> list[str]:
    """Commands of sh blocks that call the simulator; a trailing backslash continues a line."""
    lines = [line for kind, text in BLOCKS if kind == "sh" for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("simulator ")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader who has saved README's files and has the checkout's scenarios."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    (tmp_path / "topologies").symlink_to(ROOT / "topologies")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(command: str) -> Result:
    """Runs the command; what a shell would write to a file behind ``>`` is not looked at."""
    program, *arguments = shlex.split(command.partition(" > ")[0], comments=True)
    assert program == "simulator", command
    return simulator(*arguments)


def stripped(printed: str) -> str:
    """Without the blanks that fill the last column of a table."""
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def matches(output: str, printed: str) -> bool:
    """Whether ``output`` is ``printed`` with runs of lines replaced by ``...``; blanks at line ends do not count."""
    wanted = output.strip("\n").splitlines()
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in wanted)
    return re.fullmatch(pattern, stripped(printed)) is not None


def test_the_two_commands_install_run_and_test() -> None:
    run, test = re.findall(r"^python3 -m venv .*$", README, flags=re.MULTILINE)
    assert run.endswith(" .venv/bin/simulator run scenarios/ddp-llama-1b-16xh100.yaml")
    assert test.endswith(" .venv/bin/pytest")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in re.findall(r"\.\[(\w+)\]", run + test):
        assert extra in extras


def test_there_is_something_to_check() -> None:
    assert FILES
    assert shown()


def param(command: str, *more: str) -> object:
    """``simulator check`` simulates dozens of changes, which takes more than a few seconds."""
    marks = [pytest.mark.slow] if command.startswith("simulator check ") else []
    return pytest.param(command, *more, id=command, marks=marks)


@pytest.mark.parametrize(("command", "output"), [param(*both) for both in shown()])
@pytest.mark.usefixtures("folder")
def test_command_prints_what_readme_shows(command: str, output: str) -> None:
    result = call(command)
    assert result.code in (0, 1)
    if os.environ.get("UPDATE_GOLDENS") and "..." not in output.split():
        text, output, old = (ROOT / "README.md").read_text(encoding="utf-8"), stripped(result.out), output
        text = text.replace(f"$ {command}\n{old}", f"$ {command}\n{output}")
        (ROOT / "README.md").write_text(text, encoding="utf-8")
    assert matches(output, result.out + result.err), result.out + result.err


@pytest.mark.parametrize("command", [param(command) for command in commands()])
@pytest.mark.usefixtures("folder")
def test_command_of_readme_works(command: str) -> None:
    result = call(command)
    assert result.code in (0, 1), result.err


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", README) + re.findall(r'(?:src|href)="([^"#]+)"', README)
    assert targets
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert not missing


def test_example_scenario_is_short() -> None:
    assert all(len(text.splitlines()) <= 14 for text in FILES.values())


def test_matching_leaves_out_only_what_dots_stand_for() -> None:
    printed = "a\nb  \nc\n"
    assert matches("a\nb\nc\n", printed)
    assert matches("a\n...\n", printed)
    assert not matches("a\nc\n", printed)
    assert not matches("a\n...\nd\n", printed)
