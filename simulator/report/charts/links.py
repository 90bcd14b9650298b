"""How busy the links are: a row per kind of link and direction, cells along the cluster, each as busy as its busiest.

Use is the share of the step that a link needs to carry its bytes at its full rate. A cell stands for the links at one
or several GPUs (or switches), in the order in which the network counts them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.network.graph import Network
from simulator.network.tiers import TITLES
from simulator.report.metrics import StepReport
from simulator.schedule import Floats
from simulator.timeline import Timeline
from simulator.units import format_bytes, format_percent

MOST_CELLS = 64
#: Places in words, by their role in the network.
_ROLES = {"gpu": "GPU", "nic": "NIC", "leaf": "leaf", "spine": "spine", "nvswitch": "NVSwitch", "switch": "switch",
          "pcie-switch": "PCIe switch", "socket": "socket", "host": "host"}  # fmt: skip
_MEDIA = {"pcie": "PCIe", "pcie-up": "PCIe", "xgmi": "xGMI", "ici": "ICI", "nvlink-bridge": "NVLink"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCell:
    """Neighbouring links: the use of the busiest, the mean of all, and which is the busiest."""

    use: float
    mean: float
    num_links: int
    busiest: str
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """Links of one kind in one direction. bytes_per_s: of each, the highest where they differ."""

    name: str
    cells: tuple[LinkCell, ...]
    num_links: int
    use: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksChart:
    """Rows from the GPU outwards. note: how many links a cell stands for."""

    finding: str
    rows: tuple[LinkRow, ...]
    note: str


def links_chart(timeline: Timeline, network: Network, report: StepReport) -> LinksChart:
    """Rows are empty where nothing is carried."""
    if not report.collectives or not timeline.link_names:
        return LinksChart(finding="Nothing is sent: no link is used", rows=(), note="")
    use = timeline.link_bytes / timeline.link_bytes_per_s / timeline.end_s
    rows = tuple(_row(name, links, timeline, use) for name, links in _kinds(timeline, network).items())
    widest = max(cell.num_links for row in rows for cell in row.cells)
    note = f"A cell stands for up to {widest:,} links and has the colour of the busiest." if widest > 1 else ""
    return LinksChart(finding=_finding(rows), rows=rows, note=note)


def _kinds(timeline: Timeline, network: Network) -> dict[str, list[int]]:
    """Links of each kind and direction, in the order of the network, from the GPU outwards."""
    nodes, found = network.graph.nodes, {}
    order: dict[tuple[int, int, str, str, str, str], list[int]] = {}
    shape = network.torus_shape or (network.num_gpus,)
    places = {gpu: tuple(map(int, np.unravel_index(number, shape))) for number, gpu in enumerate(network.gpus)}
    for number, (a, b) in enumerate(timeline.link_names):
        tier = network.graph[a][b]["tier"]
        low, high = sorted((nodes[a]["level"], nodes[b]["level"]))
        way = _along(a, b, network, places)
        order.setdefault((low, high, tier, nodes[a]["role"], nodes[b]["role"], way), []).append(number)
    for (_, _, tier, a, b, way), links in sorted(order.items(), key=lambda item: item[1][0]):
        ends = f"{_ROLES.get(a, a)} to {_ROLES.get(b, b)}{_medium(tier)}"
        found[f"{_MEDIA.get(tier, tier)} {way}" if way else ends] = links
    return found


def _along(a: str, b: str, network: Network, places: dict[str, tuple[int, ...]]) -> str:
    """``axis 1 +``: which way a link of a torus goes; '' elsewhere. Wrap-around counts on the way it goes on."""
    if network.torus_shape is None:
        return ""
    for axis, (here, there, length) in enumerate(zip(places[a], places[b], network.torus_shape, strict=True)):
        if here != there:
            return f"axis {axis} {'+' if (there - here) % length == 1 else '-'}"
    return ""


def _medium(tier: str) -> str:
    """What the wire is, where the ends do not say it."""
    name = _MEDIA.get(tier, "" if tier in TITLES else tier)
    return f" ({name})" if name else ""


def _row(name: str, links: list[int], timeline: Timeline, use: Floats) -> LinkRow:
    parts = np.array_split(np.array(links), min(len(links), MOST_CELLS))
    return LinkRow(
        name=name, cells=tuple(_cell(part.tolist(), timeline, use) for part in parts), num_links=len(links),
        use=float(use[links].max()), bytes_per_s=float(timeline.link_bytes_per_s[links].max()),
    )  # fmt: skip


def _cell(links: list[int], timeline: Timeline, use: Floats) -> LinkCell:
    top = max(links, key=lambda link: (round(float(use[link]), 12), -link))
    return LinkCell(
        use=float(use[top]), mean=float(use[links].mean()), num_links=len(links),
        busiest=" to ".join(timeline.link_names[top]), num_bytes=float(timeline.link_bytes[top]),
    )  # fmt: skip


def _finding(rows: tuple[LinkRow, ...]) -> str:
    top = max(rows, key=lambda row: round(row.use, 9))
    cell = max(top.cells, key=lambda cell: round(cell.use, 9))
    said = f"The busiest links, {top.name}, are in use {format_percent(top.use)} of the step"
    quiet = [row for row in rows if not row.use]
    rest = f"; {quiet[0].name} and its way back carry nothing" if quiet else ""
    return f"{said} ({format_bytes(cell.num_bytes, 3)} over the busiest){rest}"
