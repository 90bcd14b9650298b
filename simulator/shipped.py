"""Where the shipped YAML files are: devices, libraries and presets in the package, topologies and scenarios beside it.

In a checkout ``topologies/`` and ``scenarios/`` stand at the top of the repository, for people to read;
a wheel carries them inside the package (``force-include`` in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from simulator.errors import ScenarioError
from simulator.problems import nearest

Kind = Literal["topology", "device", "library", "preset", "scenario"]
_PACKAGE = Path(__file__).resolve().parent
_FOLDERS: dict[Kind, str] = {
    "topology": "topologies",
    "device": "devices",
    "library": "libraries",
    "preset": "presets",
    "scenario": "scenarios",
}
_SUFFIXES = (".yaml", ".json")


def _folder(kind: Kind) -> Path:
    inside = _PACKAGE / _FOLDERS[kind]
    return inside if inside.is_dir() else _PACKAGE.parent / _FOLDERS[kind]


def _files(kind: Kind) -> Mapping[str, Path]:
    folder = _folder(kind)
    return _listed(folder, folder.stat().st_mtime_ns) if folder.is_dir() else {}


@lru_cache(maxsize=16)
def _listed(folder: Path, _changed_ns: int) -> Mapping[str, Path]:
    """A sweep looks names up several times for every point."""
    found = sorted(folder.iterdir())
    return MappingProxyType({path.stem: path for path in found if path.suffix in _SUFFIXES})


def names(kind: Kind) -> tuple[str, ...]:
    """Names of the shipped files of one kind, sorted."""
    return tuple(sorted(_files(kind)))


def topology_file(name: str) -> Path:
    """The file of a shipped topology. Raises ScenarioError with the nearest name and all names."""
    return _file("topology", name)


def device_file(name: str) -> Path:
    """The file of a shipped device profile. Raises ScenarioError with the nearest name and all names."""
    return _file("device", name)


def library_file(name: str) -> Path:
    """The file of a shipped communication library. Raises ScenarioError with the nearest name and all names."""
    return _file("library", name)


def preset_file(name: str) -> Path:
    """The file of a shipped model. Raises ScenarioError with the nearest name and all names."""
    return _file("preset", name)


def scenario_file(name: str) -> Path:
    """The file of a shipped scenario. Raises ScenarioError with the nearest name and all names."""
    return _file("scenario", name)


def _file(kind: Kind, name: str) -> Path:
    files = _files(kind)
    if name not in files:
        raise ScenarioError(f"no {kind} {name!r} is shipped; shipped: {', '.join(files)}{nearest(name, files)}")
    return files[name]
