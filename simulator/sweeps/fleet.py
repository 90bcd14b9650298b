"""Whether the workers of a Dask cluster would make the rows that this process makes, asked before any work is sent."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any

from simulator.errors import ScenarioError
from simulator.sweeps.environment import SAME_EVERYWHERE, difference, environment

#: Workers that are named one by one.
_NAMED = 3


def check_workers(client: Any, address: str) -> None:
    """Raises ScenarioError naming the workers that lack the simulator, or have other versions, and what to do.

    Workers that die meanwhile are left out, and those that join later are checked by their first task.
    """
    versions = client.run(pkgutil.resolve_name, "simulator:__version__", on_error="return")
    wrong = {worker: _missing(found) for worker, found in versions.items() if isinstance(found, Exception)}
    wanted = environment()
    able = [worker for worker in versions if worker not in wrong]
    for worker in able:
        if versions[worker] != wanted["simulator"]:
            wrong[worker] = difference({"simulator": wanted["simulator"]}, {"simulator": str(versions[worker])})
    able = [worker for worker in able if worker not in wrong]
    if able:
        for worker, found in client.run(environment, workers=able, on_error="return").items():
            wrong[worker] = _missing(found) if isinstance(found, Exception) else difference(wanted, found)
    if any(wrong.values()):
        raise ScenarioError(_refusal({worker: why for worker, why in wrong.items() if why}, len(versions), address))


def _missing(error: Exception) -> str:
    """Why a worker could not answer; empty when it is merely gone."""
    if isinstance(error, OSError):
        return ""
    if isinstance(error, ModuleNotFoundError) and error.name == "simulator":
        return "no simulator: pip install clustersim there"
    return f"no usable simulator ({type(error).__name__}: {error})"


def _refusal(wrong: Mapping[str, str], count: int, address: str) -> str:
    named = [f"{worker} has {why}" for worker, why in sorted(wrong.items())[:_NAMED]]
    more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    which = f"{len(wrong)} of {count} workers at {address} would not make the rows that this process makes"
    return f"--dask: {which}: {'; '.join(named)}{more}; {SAME_EVERYWHERE}"
