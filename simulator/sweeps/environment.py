"""What rows depend on besides the scenario: the simulator's code and data, Python and the libraries that compute."""

from __future__ import annotations

import hashlib
import pkgutil
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import get_args

import simulator
from simulator import __version__, shipped
from simulator.errors import ScenarioError

#: A name -> what it is here: versions, and a digest of the simulator's files.
Environment = Mapping[str, str]

#: Modules whose version can show in a row: in its numbers, or in the text of an error.
_LIBRARIES = ("numpy", "networkx", "simpy", "pydantic", "yaml")
_CODE = "the simulator's files"
_SHIPPED = {
    "topology": shipped.topology_file, "device": shipped.device_file, "library": shipped.library_file,
    "preset": shipped.preset_file, "scenario": shipped.scenario_file,
}  # fmt: skip
SAME_EVERYWHERE = (
    "give this process and all workers the same environment (one image, one lock file, one shared installation), "
    "and restart the workers after a change"
)


@cache
def environment() -> Environment:
    """Of this process, as it was when first asked: code that is loaded does not follow its files."""
    python = ".".join(platform.python_version_tuple()[:2])
    libraries = {name: str(pkgutil.resolve_name(f"{name}:__version__")) for name in _LIBRARIES}
    return {"simulator": __version__, _CODE: _files_digest()[:12], "Python": python, **libraries}


def _files_digest() -> str:
    """SHA-256 (hex) of the package's code and of all that it ships, wherever that is installed."""
    package = Path(simulator.__file__).parent
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for kind in get_args(shipped.Kind):
        files |= {f"{kind} {name}": _SHIPPED[kind](name) for name in shipped.names(kind)}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def check_environment(wanted: Environment) -> None:
    """Raises ScenarioError, in a worker, when this process would not make the rows that the sender makes."""
    found = difference(wanted, environment())
    if found:
        raise ScenarioError(f"a worker on {platform.node()} has {found}; {SAME_EVERYWHERE}")


def difference(wanted: Environment, found: Environment) -> str:
    """What ``found`` has otherwise than ``wanted``, in words; empty when nothing."""
    names = [name for name in wanted if found.get(name) != wanted[name]]
    if names == [_CODE]:
        return f"other code or data of the same version (digest {found.get(_CODE)}, here {wanted[_CODE]})"
    told = [name for name in names if name != _CODE]
    return ", ".join(f"{name} {found.get(name, 'unknown')} (here {wanted[name]})" for name in told)
