"""NVL72 racks: trays of GPUs stacked beside their NVLink switch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.network.graph import Network
from simulator.report import svg
from simulator.report.topology_svg_parts import FILL, margin_labels, shortened

TRAY_H, GPU_W = 26.0, 44.0


def racks(
    network: Network, colours: Mapping[str, str], rates: Mapping[str, str], left: float, top: float
) -> tuple[list[str], float, float]:
    """Draw at most four racks, each with all its trays; leaves and spines as one block each."""
    role = network.graph.nodes(data="role")
    leaves, spines = ([n for n in network.graph if role[n] == wanted] for wanted in ("leaf", "spine"))
    count = int(network.domain_of_gpu.max()) + 1
    drawn = shortened(count, 4)
    width = network.gpus_per_node * (GPU_W + 6) + 144
    y = top + 20
    y_spine, y_leaf = y + 10, y + (110 if spines else 10)
    y_rack = y_leaf + 70 if leaves else y
    elements: list[str] = []
    x, bottom, centres = left, 0.0, []
    for which in drawn:
        if which is None:
            elements.append(svg.text(x + 50, y_rack + 120, f"... {count - len(drawn) + 1:,}", size=16, bold=True))
            elements.append(svg.text(x + 50, y_rack + 140, "more racks", size=14))
            x += 120
            continue
        body, low = _rack(network, which, x, y_rack, width, colours)
        elements += body
        bottom = max(bottom, low)
        centres.append(x + width / 2)
        x += width + 24
    right = max(x - 24, left + 420)
    elements = _switches(len(leaves), len(spines), centres, (left, right, y_spine, y_leaf, y_rack), colours) + elements
    heights = {
        "leaf-spine": (y_spine + y_leaf) / 2,
        "nic": y_leaf + 40,
        "pcie-nic": y_leaf + 82,
        "nvlink": y_rack + 100 if leaves else y_rack + 40,
    }
    used = {tier: height for tier, height in heights.items() if tier in colours}
    return elements + margin_labels(used, colours, rates), right, bottom + 10


def _rack(
    network: Network, rack: int, x: float, y: float, width: float, colours: Mapping[str, str]
) -> tuple[list[str], float]:
    gpus = np.flatnonzero(network.domain_of_gpu == rack)
    trays = sorted(set(network.node_of_gpu[gpus].tolist()))
    height = len(trays) * (TRAY_H + 4) + 52
    bar = x + width - 62
    elements = [svg.box(x, y, width, height, fill="#FAFAFA", stroke=svg.GREY)]
    for i, tray in enumerate(trays):
        middle = y + 12 + i * (TRAY_H + 4) + TRAY_H / 2
        mine = gpus[network.node_of_gpu[gpus] == tray].tolist()
        elements.append(svg.line(x + 70, middle, bar, middle, colour=colours["nvlink"], thick=3))
        elements.append(svg.text(x + 8, middle + 4, f"tray {tray}", size=12, anchor="start", colour=svg.GREY))
        for j, gpu in enumerate(mine):
            centre = x + 72 + GPU_W / 2 + j * (GPU_W + 6)
            elements.append(svg.label_box(centre, middle, GPU_W, TRAY_H - 4, f"{gpu:,}", fill=FILL["gpu"], size=12))
    stack = height - 64
    elements.append(svg.box(bar, y + 12, 50, stack + 8, fill=FILL["nvswitch"]))
    elements.append(svg.text(bar + 25, y + 12 + stack / 2, "NVLink", size=13))
    elements.append(svg.text(bar + 25, y + 29 + stack / 2, "switch", size=13))
    words = f"rack {rack}: {gpus.size} GPUs, one NVLink domain"
    elements.append(svg.text(x + width / 2, y + height - 14, words, size=14))
    return elements, y + height


def _switches(
    leaves: int, spines: int, centres: list[float], frame: tuple[float, float, float, float, float],
    colours: Mapping[str, str],
) -> list[str]:  # fmt: skip
    left, right, y_spine, y_leaf, y_rack = frame
    if not leaves:
        return []
    middle = (left + right) / 2
    half = (y_leaf + 19 + y_rack) / 2
    elements = [svg.line(x, y_leaf, x, half, colour=colours["nic"], thick=4) for x in centres]
    elements += [svg.line(x, half, x, y_rack, colour=colours["pcie-nic"], thick=4) for x in centres]
    if spines:
        for shift in range(-3, 4):
            x = middle + shift * (right - left) / 8
            elements.append(svg.line(x, y_spine, x, y_leaf, colour=colours["leaf-spine"], thick=3))
        words = f"{spines:,} spine switches"
        elements.append(svg.label_box(middle, y_spine, right - left, 38, words, fill=FILL["spine"], size=16))
    words = f"{leaves:,} leaf switch{'es' if leaves > 1 else ''}"
    elements.append(svg.label_box(middle, y_leaf, right - left, 38, words, fill=FILL["leaf"], size=16))
    return elements
