"""The JSON that nccl-tests writes with ``-J FILE`` -> Log values.

Format of NVIDIA/nccl-tests src/util.cu, version 1: ``args`` is the command line, ``config.devices`` has one entry for
each process whatever the number of its GPUs (``nthreads`` x ``ngpus``), ``results`` one for each size with
``out_of_place`` and ``in_place``, either of which may be null; truth values are the texts "true" and "false".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.calibration.log import Log, LogRow, program_in
from simulator.errors import ScenarioError

_HALVES = (("out_of_place", False), ("in_place", True))


def parse_json(name: str, text: str) -> tuple[Log, ...]:
    """The runs of a JSON file: one, or a list of them. Raises ScenarioError where it is not what nccl-tests writes."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ScenarioError(
            f"{name}:{error.lineno}: not valid JSON: {error.msg}; nccl-tests leaves it unfinished when a run dies"
        ) from None
    runs = value if isinstance(value, list) else [value]
    return tuple(_log(name, run) for run in runs)


def _log(name: str, run: Any) -> Log:
    if not isinstance(run, dict) or not isinstance(run.get("results"), list):
        raise ScenarioError(f"{name}: no 'results' list; expected the JSON that nccl-tests writes with -J")
    results = run["results"]
    rows = tuple(row for number, result in enumerate(results) for row in _rows(name, number, result))
    config, bounds = _mapping(run.get("config")), _mapping(run.get("out_of_bounds"))
    listed = config.get("devices")
    devices = [_mapping(device) for device in listed] if isinstance(listed, list) else []
    arguments = run.get("args")
    each = _count(config, "nthreads") * _count(config, "ngpus")
    hosts = Counter(str(device.get("hostname")) for device in devices)
    return Log(
        name=name, program=program_in(str(arguments[0])) if isinstance(arguments, list) and arguments else None,
        ranks=len(devices) * each or None, nodes=len(hosts) or None,
        per_node=max(hosts.values(), default=0) * each or None,
        device=str(devices[0]["device_info"]) if devices and "device_info" in devices[0] else None,
        lone=len(devices) > 1 and {str(device.get("rank")) for device in devices} == {"0"},
        cpu_time=any("cpu_time" in _mapping(result.get(half)) for result in results for half, _ in _HALVES),
        out_of_bounds=_count(bounds, "count") if "count" in bounds else None, rows=rows,
    )  # fmt: skip


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(held: Mapping[str, Any], key: str) -> int:
    """A whole number of the mapping, 1 where it has none."""
    value = held.get(key, 1)
    return value if isinstance(value, int) else 1


def _rows(name: str, number: int, result: Any) -> Iterator[LogRow]:
    where = f"{name}: results[{number}]"
    if not isinstance(result, dict) or not isinstance(result.get("size"), int):
        raise ScenarioError(f"{where}: no whole number 'size'")
    for key, in_place in _HALVES:
        half = result.get(key)
        if half is None:
            continue
        if not isinstance(half, dict):
            raise ScenarioError(f"{where}.{key}: expected a mapping with time, alg_bw and bus_bw")
        wrong = half.get("nwrong")
        yield LogRow(
            line=number + 1, size_bytes=result["size"], dtype=str(result.get("type", "?")), in_place=in_place,
            time_s=_number(where, key, half, "time", "cpu_time") * 1e-6,
            algbw_bytes_per_s=_number(where, key, half, "alg_bw") * 1e9,
            busbw_bytes_per_s=_number(where, key, half, "bus_bw") * 1e9,
            wrong=float(wrong) if isinstance(wrong, int | float) else None,
        )  # fmt: skip


def _number(where: str, half: str, held: Mapping[str, Any], *names: str) -> float:
    value = next((held[name] for name in names if name in held), None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ScenarioError(f"{where}.{half}.{names[0]}: {value!r}: expected a number of zero or more")
    return float(value)
