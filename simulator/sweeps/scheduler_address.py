"""The address of a Dask scheduler as a user gives it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from simulator.errors import ScenarioError
from simulator.problems import nearest
from simulator.text_file import read_text

#: Ways to reach a scheduler that Dask has; what ``tls`` needs is in Dask's own configuration.
_PROTOCOLS = ("tcp", "tls", "ws", "wss", "ucx", "ucxx")
_EXAMPLE = "such as tcp://10.0.0.1:8786, which 'dask scheduler' prints"
_FORM = re.compile(r"(?:(?P<protocol>[a-zA-Z0-9+.-]+)://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(?P<port>\d+)/?")


def scheduler_address(text: str) -> str:
    """``host:port``, ``protocol://host:port``, or the file that ``dask scheduler --scheduler-file`` writes.

    Raises ScenarioError for anything else, and for such a file that cannot be read.
    """
    given = text.strip()
    if given.endswith(".json"):
        given = _of_file(Path(given))
    found = _FORM.fullmatch(given)
    if found is None:
        raise ScenarioError(f"--dask {text!r}: expected the address of a Dask scheduler, {_EXAMPLE}")
    protocol, port = (found["protocol"] or "tcp").lower(), int(found["port"])
    if protocol not in _PROTOCOLS:
        hint = "; a dashboard's address is not the scheduler's" if protocol.startswith("http") else ""
        accepted = f"accepted: {', '.join(_PROTOCOLS)}{nearest(protocol, _PROTOCOLS)}"
        raise ScenarioError(f"--dask {text!r}: unknown protocol {protocol!r}{hint}; {accepted}")
    if not 0 < port < 65536:
        raise ScenarioError(f"--dask {text!r}: {port} is no port; expected 1 to 65535")
    return f"{protocol}://{found['host']}:{port}"


def _of_file(path: Path) -> str:
    try:
        held = json.loads(read_text(path))
        return str(held["address"])
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ScenarioError):
            raise ScenarioError(f"--dask {error}") from None
        raise ScenarioError(
            f"--dask {path}: has no 'address'; expected the file that 'dask scheduler --scheduler-file' writes"
        ) from None
