"""What a user gets with ``pip install``: a wheel that brings its topologies, devices, presets and scenarios along."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from command_line import ROOT, Result, python

import simulator

CHECK = """
import simulator, sys
from pathlib import Path
from simulator import shipped
assert Path(simulator.__file__).is_relative_to(sys.argv[1]), simulator.__file__
for kind in ("topology", "device", "preset", "scenario"):
    for name in shipped.names(kind):
        path = getattr(shipped, f"{kind}_file")(name)
        assert path.is_relative_to(sys.argv[1]), path
        print(kind, name)
"""


def test_the_tests_test_the_checkout_however_it_was_installed() -> None:
    assert Path(simulator.__file__).parent == ROOT / "simulator"
    assert python("-c", "import simulator; print(simulator.__file__)").out.strip() == simulator.__file__


def test_every_shipped_folder_is_packed() -> None:
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert packed["wheel"]["force-include"] == {
        "topologies": "simulator/topologies",
        "scenarios": "simulator/scenarios",
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (found,) = folder.glob("clustersim-*.whl")
    return found


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds nothing but the installed wheel."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--target", str(folder), str(wheel))
    return folder


def pip(*arguments: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


def installed(target: Path, cwd: Path, *arguments: str) -> Result:
    return python(*arguments, cwd=cwd, environment={"PYTHONPATH": str(target)})


@pytest.mark.slow
def test_wheel_holds_what_is_shipped_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for folder, prefix in [("simulator", ""), ("topologies", "simulator/"), ("scenarios", "simulator/")]:
        for path in (ROOT / folder).rglob("*.*"):
            if path.is_file() and path.suffix != ".pyc":
                assert prefix + path.relative_to(ROOT).as_posix() in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"simulator", "clustersim"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_wheel_finds_its_files_from_any_folder(target: Path, tmp_path: Path) -> None:
    result = installed(target, tmp_path, "-c", CHECK, str(target))
    assert (result.code, result.err) == (0, "")
    kinds = [line.split()[0] for line in result.out.splitlines()]
    folders = {
        "topology": "topologies", "device": "simulator/devices", "preset": "simulator/presets", "scenario": "scenarios",
    }  # fmt: skip
    for kind, folder in folders.items():
        assert kinds.count(kind) == len(list((ROOT / folder).glob("*.yaml"))) > 0


@pytest.mark.slow
def test_wheel_answers_as_the_checkout_does(target: Path, tmp_path: Path) -> None:
    for arguments in (
        ("demo",),
        ("run", "mlp-bucketed"),
        ("topology", "--list"),
        ("topology", "gb200-nvl72", "--json"),
    ):
        here, there = (installed(place, tmp_path, "-m", "simulator", *arguments) for place in (ROOT, target))
        assert there == here
        assert there.code == 0
