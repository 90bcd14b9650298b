"""A log file's text, printed or JSON -> Log values."""

from __future__ import annotations

from simulator.calibration.json_log import parse_json
from simulator.calibration.log import Log
from simulator.calibration.text import parse_text
from simulator.errors import ScenarioError


def parse_log(name: str, text: str) -> tuple[Log, ...]:
    """Every table of one file; ``name`` stands for it in errors. Raises ScenarioError where there is none."""
    if not text.strip():
        raise ScenarioError(f"{name}: the file is empty")
    start = text.lstrip()
    as_json = start.startswith("{") or (start.startswith("[") and start[1:].lstrip().startswith("{"))
    logs = parse_json(name, text) if as_json else parse_text(name, text)
    if not logs:
        raise ScenarioError(
            f"{name}: no table of nccl-tests: expected a header line '#  size  count  type ... time  algbw  busbw' and "
            "rows under it, or the JSON of -J"
        )
    return logs
