"""Every part of a small network: rows of spines, leaves, NICs, sockets, PCIe switches and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simulator.network.graph import Network
from simulator.report import svg

PITCH, GPU_W, BOX_H, ROW = 68.0, 58.0, 34.0, 96.0
ABOVE = ("spine", "leaf", "switch", "nic", "socket", "host", "pcie-switch", "gpu")  # rows, top first
FILL = {"spine": "#F6CDB6", "leaf": "#BFDDF0", "switch": "#BFDDF0", "nic": "#D6EDFA", "socket": "#EBC9DC",
        "host": "#EBC9DC", "pcie-switch": "#F8DFA8", "gpu": "#BFE6DB", "nvswitch": "#8FD3BF"}  # fmt: skip
At = dict[str, tuple[float, float, float]]
"""Place -> centre x, centre y, width."""
Stroke = Callable[[str, str], tuple[str, float]]
"""The two ends of a cable -> its colour and thickness."""


def parts(
    network: Network, colours: Mapping[str, str], rates: Mapping[str, str], left: float, top: float,
    stroke: Stroke | None = None,
) -> tuple[list[str], float, float]:  # fmt: skip
    """Draw the whole graph. NVSwitches, bridges and xGMI lie below the GPUs, everything else above.

    stroke: of each cable; as its tier's colour says when left out.
    """
    at = _positions(network, left, top)
    width = max(x + w / 2 for x, _, w in at.values())
    lowest = max(y for _, y, _ in at.values())
    lines, depth = _links(network, at, colours, stroke)
    bottom = lowest + max(depth, 20.0) + BOX_H / 2
    boxes = [_part(network, name, place) for name, place in at.items()]
    return [*_frames(network, at, bottom), *lines, *boxes, *_margin(network, at, colours, rates)], width, bottom + 34


def _positions(network: Network, left: float, top: float) -> At:
    role, owner = network.graph.nodes(data="role"), network.graph.nodes(data="node")
    rows = [name for name in ABOVE if any(role[place] == name for place in network.graph)]
    y_of = {
        name: top + 30 + i * ROW + sum(ROW * 0.5 for n in rows[:i] if n in ("spine", "leaf", "switch"))
        for i, name in enumerate(rows)
    }
    at: At = {}
    for i, gpu in enumerate(network.gpus):
        x = left + GPU_W / 2 + i * PITCH + 30.0 * int(network.node_of_gpu[i])
        at[gpu] = (x, y_of["gpu"], GPU_W)
    right = max(x for x, _, _ in at.values()) + GPU_W / 2
    for name in network.graph:
        if role[name] == "nvswitch":
            mates = [at[gpu][0] for gpu in network.graph[name] if role[gpu] == "gpu"]
            at[name] = ((min(mates) + max(mates)) / 2, y_of["gpu"] + 80, max(mates) - min(mates) + GPU_W)
    for row in reversed(rows[:-1]):
        names = [name for name in network.graph if role[name] == row]
        inside = [name for name in names if owner[name] is not None]
        for name in inside:
            below = [at[other][0] for other in network.graph[name] if other in at and at[other][1] > y_of[row]]
            x = sum(below) / len(below) if below else left
            at[name] = (x, y_of[row], 62.0 if row == "nic" else 88.0)
        outside = [name for name in names if owner[name] is None]
        for i, name in enumerate(outside):
            pitch = (right - left) / len(outside)
            at[name] = (left + pitch * (i + 0.5), y_of[row], max(34.0, min(130.0, pitch - 6)))
    return at


def _links(
    network: Network, at: At, colours: Mapping[str, str], stroke: Stroke | None
) -> tuple[list[str], float]:  # fmt: skip
    """Lines for all cables, the faint ones first, and how far curves hang below the GPUs."""
    role, owner = network.graph.nodes(data="role"), network.graph.nodes(data="node")
    faint, firm, depth = [], [], 0.0
    for a, b in network.link_names[::2]:
        (x1, y1, _), (x2, y2, _) = at[a], at[b]
        colour, thick = stroke(a, b) if stroke else (colours[network.graph[a][b]["tier"]], None)
        if role[a] == role[b] == "gpu":
            drop = 12 + 0.12 * abs(x1 - x2)
            depth = max(depth, drop)
            firm.append(svg.arc(x1, x2, y1 + BOX_H / 2, drop, colour=colour, thick=thick or 1.6))
        elif "nvswitch" in (role[a], role[b]):
            x = x1 if role[a] == "gpu" else x2
            firm.append(svg.line(x, y1, x, y2, colour=colour, thick=thick or 3))
        elif owner[a] is None and owner[b] is None:
            faint.append(svg.line(x1, y1, x2, y2, colour=colour, thick=thick or 1, faint=stroke is None))
        else:
            firm.append(svg.line(x1, y1, x2, y2, colour=colour, thick=thick or 1.8))
    return faint + firm, depth


def _part(network: Network, name: str, place: tuple[float, float, float]) -> str:
    x, y, width = place
    role = network.graph.nodes[name]["role"]
    return svg.label_box(x, y, width, BOX_H, _label(network, name, role), fill=FILL.get(role, "white"))


def _label(network: Network, name: str, role: str) -> str:
    if network.kind == "explicit":
        return name
    short = name.rsplit(".", 1)[-1]
    if role == "gpu":
        return f"GPU {network.gpus.index(name)}"
    digits = short.lstrip("abcdefghijklmnopqrstuvwxyz-")
    words = {"nic": "NIC", "nvswitch": "NVSwitch", "pcie": "PCIe switch"}
    stem = short.removesuffix(digits)
    return f"{words.get(stem, stem)} {digits}".strip()


def _frames(network: Network, at: At, bottom: float) -> list[str]:
    """A dashed box round the parts of each node."""
    owner = network.graph.nodes(data="node")
    frames = []
    for node in range(network.num_nodes):
        mine = [at[name] for name in at if owner[name] == node]
        if len(mine) < 2:
            continue
        x1, x2 = min(x - w / 2 for x, _, w in mine) - 9, max(x + w / 2 for x, _, w in mine) + 9
        y1 = min(y for _, y, _ in mine) - BOX_H / 2 - 14
        frames.append(svg.box(x1, y1, x2 - x1, bottom - y1 + 26, fill="#FAFAFA", stroke=svg.GREY, dashed=True))
        frames.append(svg.text((x1 + x2) / 2, bottom + 16, f"node {node}", size=14, colour=svg.GREY))
    return frames


def _margin(network: Network, at: At, colours: Mapping[str, str], rates: Mapping[str, str]) -> list[str]:
    """At the left of each tier's lines, its rate."""
    heights: dict[str, float] = {}
    for a, b in network.link_names[::2]:
        tier, same = network.graph[a][b]["tier"], at[a][1] == at[b][1]
        gpus_only = same and network.graph.nodes[a]["kind"] == network.graph.nodes[b]["kind"] == "gpu"
        heights.setdefault(tier, (at[a][1] + at[b][1]) / 2 + (36 if gpus_only else 0))
    return margin_labels(heights, colours, rates)


def margin_labels(heights: Mapping[str, float], colours: Mapping[str, str], rates: Mapping[str, str]) -> list[str]:
    """Tier names and rates at the left, at their heights, pushed apart where they would overlap."""
    elements, last = [], -1e9
    for tier, wanted in sorted(heights.items(), key=lambda item: item[1]):
        y = max(wanted, last + 38)
        last = y
        elements.append(svg.text(30, y - 3, tier, size=14, anchor="start", colour=colours[tier], bold=True))
        elements.append(svg.text(30, y + 14, rates[tier], size=14, anchor="start"))
    return elements


def shortened(count: int, room: int) -> Sequence[int | None]:
    """Which of ``count`` things to draw in ``room`` places: all, or the first ones, None for the gap, the last."""
    if count <= room:
        return range(count)
    return [*range(room - 2), None, count - 1]
