"""Predictions for published measurements. ``predict`` is the one place where a measured row meets the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.collective_rows import make_field, rows_of
from simulator.collectives import AUTO
from simulator.load import load_topology
from simulator.measurements.accuracy import Compared
from simulator.measurements.tables import Measured
from simulator.network.builders import build_network


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the rows of one run share: where it ran, what it ran, and the algorithm it forced (None: none)."""

    topology: str
    nodes: int
    gpus_per_node: int
    op: str
    algorithm: str | None


def setting_of(row: Measured) -> Setting:
    """The setting of a measured row."""
    return Setting(
        topology=row.topology, nodes=row.nodes, gpus_per_node=row.gpus_per_node, op=row.op, algorithm=row.algorithm
    )


def predict(setting: Setting, sizes: Sequence[float]) -> list[tuple[float, str, str]]:
    """(time in s, algorithm, protocol) of one call at each size in bytes: of the algorithm that the run forced, else of
    what the topology's library runs.
    """
    network = build_network(load_topology(setting.topology), nodes=setting.nodes, gpus_per_node=setting.gpus_per_node)
    ranks = setting.nodes * setting.gpus_per_node
    rows = rows_of(make_field(setting.op, ranks, network, [setting.algorithm or AUTO]), sizes)
    shown = rows if setting.algorithm else [row for row in rows if row.picked]
    return [(row.time_s, row.algorithm, row.protocol) for row in shown]


def compare(rows: Iterable[Measured]) -> tuple[Compared, ...]:
    """Every row with its prediction, in the order given; each setting is predicted once, over all its sizes."""
    held = tuple(rows)
    settings: dict[Setting, dict[float, tuple[float, str, str]]] = {}
    for row in held:
        settings.setdefault(setting_of(row), {})[row.size_bytes] = (0.0, "", "")
    for setting, answers in settings.items():
        sizes = sorted(answers)
        answers.update(zip(sizes, predict(setting, sizes), strict=True))
    found = []
    for row in held:
        time_s, algorithm, protocol = settings[setting_of(row)][row.size_bytes]
        found.append(Compared(measured=row, time_s=time_s, algorithm=algorithm, protocol=protocol))
    return tuple(found)
