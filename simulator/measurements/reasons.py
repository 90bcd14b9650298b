"""Why predictions miss: what is known or suspected of a system, to be printed beside the miss."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from simulator.yaml_source import read


@cache
def _reasons() -> tuple[dict[str, Any], ...]:
    source = read(Path(__file__).resolve().parent / "reasons.yaml")
    if source.problems:
        raise source.error(*source.problems)
    assert isinstance(source.value, dict)
    return tuple(source.value["reasons"])


def reason_of(topology: str, op: str) -> str:
    """Why predictions on a topology miss: what is said of the operation, else of the topology; '' for nothing."""
    fitting = [one for one in _reasons() if one["topology"] == topology and one.get("op", op) == op]
    named = [one for one in fitting if "op" in one]
    return str((named or fitting)[0]["why"]) if fitting else ""
