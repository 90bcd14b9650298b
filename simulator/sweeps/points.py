"""What a sweep consists of: a scenario, the keys that vary, and one point per combination of their values."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator import __version__
from simulator.errors import ScenarioError
from simulator.load import load_scenario, scenario_digest
from simulator.overrides import expand_sweep
from simulator.yaml_source import parse_value

#: The overrides of one point, ``key=value`` each, in the order of the command line.
Point = tuple[str, ...]
#: One point's settings and results as a flat mapping, ready for JSON.
Row = dict[str, Any]

#: Points that are loaded, at most, in search of one that can be loaded at all.
_TRIED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The scenario that every point changes. digest: of what it says, so that a change of its files is noticed.

    version: of the simulator that computes the rows. kind: 'step' or 'collective'.
    """

    scenario: str
    digest: str
    version: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All points of a sweep; the last key varies fastest."""

    base: Base
    keys: tuple[str, ...]
    points: tuple[Point, ...]


def make_sweep(scenario: str, arguments: Sequence[str]) -> Sweep:
    """``arguments``: ``key=value1,value2,...`` each. The scenario must load as it stands, without them.

    Raises ScenarioError for a scenario that does not load and for arguments that cannot be read.
    """
    points = tuple(expand_sweep(arguments))
    return Sweep(base=make_base(scenario), keys=tuple(map(key_of, points[0])), points=points)


def make_base(scenario: str) -> Base:
    """The scenario as it is now. Raises ScenarioError when it does not load."""
    loaded = load_scenario(scenario)
    kind = "step" if loaded.collective is None else "collective"
    return Base(scenario=scenario, digest=scenario_digest(loaded), version=__version__, kind=kind)


def check_base(base: Base) -> None:
    """Raises ScenarioError when the scenario, or the simulator, is no longer the one that the sweep began with.

    Rows are computed from the files as they are, possibly hours after the sweep began or on another machine.
    """
    if base.version != __version__:
        raise ScenarioError(
            f"the sweep was begun by version {base.version} of the simulator, but the process that simulates its "
            f"points has {__version__}; install the same version everywhere"
        )
    if make_base(base.scenario).digest != base.digest:
        raise ScenarioError(
            f"{base.scenario}: the scenario, or a file that it names, changed while the sweep was running; "
            "its new rows would not belong to the old ones"
        )


def check_loadable(sweep: Sweep) -> None:
    """Raises the first point's ScenarioError when no point at all can be loaded: nothing is then worth starting.

    Large sweeps are sampled, and get the benefit of the doubt.
    """
    tried: Sequence[Point] = sweep.points
    if len(tried) > _TRIED:
        tried = (sweep.points[0], *random.Random(0).sample(sweep.points, _TRIED))
    first: ScenarioError | None = None
    for point in tried:
        try:
            load_scenario(sweep.base.scenario, point)
        except ScenarioError as error:
            first = first or error
        else:
            return
    if first is not None and len(sweep.points) <= _TRIED:
        raise first


def key_of(override: str) -> str:
    """``"cluster.nodes=4"`` -> ``"cluster.nodes"``."""
    return override.partition("=")[0].strip()


def value_of(override: str) -> str:
    """``"cluster.nodes=4"`` -> ``"4"``, as typed."""
    return override.partition("=")[2].strip()


def point_key(overrides: Sequence[str]) -> tuple[str, ...]:
    """The same for the same settings, in whatever order their keys were given."""
    return tuple(sorted(overrides))


def settings(point: Point) -> Iterator[tuple[str, Any]]:
    """(key, value) of a point; numbers, booleans and null as such, everything else as typed."""
    for override in point:
        text = value_of(override)
        try:
            value = parse_value(text, override).value
        except ScenarioError:
            value = text
        yield key_of(override), value if value is None or isinstance(value, bool | int | float) else text


def default_file(scenario: str) -> Path:
    """``dir/name.yaml`` or the shipped ``name`` -> ``name.sweep.jsonl`` in the working directory."""
    name = Path(scenario).name
    stem = name[: name.rindex(".")] if name.endswith((".yaml", ".yml")) else name
    return Path(f"{stem}.sweep.jsonl")
