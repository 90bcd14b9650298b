"""A picture of a network: every part of a small one, blocks with counts of a large one, never a hairball."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator import units
from simulator.network.graph import Network
from simulator.network.tiers import Tier
from simulator.report import svg
from simulator.report.topology_svg_blocks import blocks
from simulator.report.topology_svg_parts import Stroke, parts
from simulator.report.topology_svg_racks import racks
from simulator.report.topology_svg_torus import torus

DETAIL_GPUS = 32  # up to here each GPU, NIC and switch is drawn
LEFT, TOP = 190.0, 96.0

Drawing = tuple[list[str], float, float]
"""Elements, and the width and height that they take."""
Key = tuple[str, float, str]
"""An entry of a legend: colour, thickness, words."""

COLOURS = {
    "uniform": svg.BLUE, "nvlink": svg.GREEN, "nvlink-bridge": svg.GREEN, "xgmi": svg.GREEN, "ici": svg.GREEN,
    "pcie": svg.ORANGE, "pcie-up": svg.BLACK, "socket": svg.PURPLE, "pcie-nic": svg.SKY, "nic": svg.BLUE,
    "leaf-spine": svg.VERMILION,
}  # fmt: skip
SPARE = (svg.GREEN, svg.BLUE, svg.VERMILION, svg.ORANGE, svg.PURPLE, svg.SKY, svg.BLACK)


def topology_svg(network: Network, tiers: Sequence[Tier], title: str = "") -> str:
    """The picture as SVG text: labelled parts, colour by tier, a legend with rates. Deterministic."""
    links = [tier for tier in tiers if tier.name != "hbm"]
    colours = {tier.name: COLOURS.get(tier.name, SPARE[i % len(SPARE)]) for i, tier in enumerate(links)}
    rates = {tier.name: units.format_bandwidth(tier.nominal_bytes_per_s, 3) for tier in links}
    elements, width, bottom = _drawing(network)(network, colours, rates, LEFT, TOP)
    width = max(width + 30, 900.0)
    key, height = _legend(links, colours, bottom + 44)
    heading = title or network.name
    count = (
        f"{plural(network.num_gpus, 'chip' if network.torus_shape else 'GPU')} in {plural(network.num_nodes, 'node')}"
    )
    elements = [
        svg.text(30, 40, heading, size=22, anchor="start", bold=True),
        svg.text(30, 66, f"{network.name}: {count}; rates are per direction", size=15, anchor="start", colour=svg.GREY),
        *elements,
        *key,
    ]
    return svg.document(width, height, f"{heading}: {count}", elements)


def links_svg(network: Network, tiers: Sequence[Tier], title: str, stroke: Stroke, key: Sequence[Key]) -> str | None:
    """Every cable in a stroke of its own, such as by its use, with a key; None where a picture has no single cables."""
    if _drawing(network) is not parts:
        return None
    links = [tier for tier in tiers if tier.name != "hbm"]
    rates = {tier.name: units.format_bandwidth(tier.nominal_bytes_per_s, 3) for tier in links}
    elements, width, bottom = parts(network, dict.fromkeys(rates, svg.GREY), rates, LEFT, 16.0, stroke)
    y, step = bottom + 24, 150
    for number, (colour, thick, words) in enumerate(key):
        x = 30.0 + number * step
        elements += [
            svg.line(x, y, x + 40, y, colour=colour, thick=thick),
            svg.text(x + 50, y + 5, words, anchor="start"),
        ]
    return svg.document(max(width + 30, 30.0 + step * len(key)), y + 24, title, elements)


def plural(count: int, what: str) -> str:
    """``(1, "cable")`` -> ``"1 cable"``."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _drawing(network: Network) -> Callable[..., Drawing]:
    if network.num_gpus == 1:
        return parts
    if network.torus_shape is not None:
        return torus
    if network.kind == "nvl72":
        return racks
    if network.num_gpus <= DETAIL_GPUS:
        return parts
    return blocks


def _legend(tiers: Sequence[Tier], colours: dict[str, str], y: float) -> tuple[list[str], float]:
    elements = [svg.text(30, y, "Links", size=15, anchor="start", bold=True)]
    for tier in tiers:
        y += 26
        usable = units.format_bandwidth(tier.usable_bytes_per_s, 3)
        words = (
            f"{tier.title}: {units.format_bandwidth(tier.nominal_bytes_per_s, 3)} a link ({usable} usable), "
            f"{units.format_time(tier.latency_s, 2)}, {plural(tier.links // 2, 'cable')}"
        )
        elements.append(svg.line(30, y - 5, 70, y - 5, colour=colours[tier.name], thick=4))
        elements.append(svg.text(82, y, words, size=15, anchor="start"))
    return elements, y + 30
