"""A large network as blocks: spines, pods of leaves, and a few nodes of each pod with the number of the others."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.network.graph import Network
from simulator.report import svg
from simulator.report.topology_svg_parts import FILL, margin_labels, shortened

SQUARE, GAP, PER_ROW, ROWS = 18.0, 5.0, 4, 4
Pod = tuple[tuple[str, ...], list[int]]
"""The switches that a pod's nodes are plugged into, and those nodes."""


def blocks(
    network: Network, colours: Mapping[str, str], rates: Mapping[str, str], left: float, top: float
) -> tuple[list[str], float, float]:
    """Draw at most four pods and three nodes of each; text says how many more there are."""
    pods, spines = _pods(network), [n for n, role in network.graph.nodes(data="role") if role == "spine"]
    node_w = max(96.0, min(PER_ROW, network.gpus_per_node) * (SQUARE + GAP) + 15)
    pod_room = 6 if len(pods) == 1 else 4 if len(pods) == 2 else 3
    widest = max(len(shortened(len(nodes), pod_room)) for _, nodes in pods)
    pod_w = widest * (node_w + 14) + 22
    drawn = shortened(len(pods), 4)
    y_spine, y_pod = top + 24, top + (150 if spines else 20)
    elements: list[str] = []
    x, centres = left, []
    for which in drawn:
        if which is None:
            elements.append(_more(x + 60, y_pod + 90, len(pods) - len(drawn) + 1, "pods"))
            x += 130
            continue
        elements += _pod(
            network, pods[which], which if len(pods) > 1 else None, (x, y_pod, pod_w, node_w), pod_room, colours
        )
        centres.append((x + pod_w / 2, len(pods[which][0])))
        x += pod_w + 24
    right = x - 24
    if spines:
        elements = _spine_lines(centres, len(spines), (y_spine, y_pod + 12), colours) + elements
        words = f"{len(spines):,} spine switch{'es' if len(spines) > 1 else ''}"
        elements.append(
            svg.label_box((left + right) / 2, y_spine, right - left, 40, words, fill=FILL["spine"], size=16)
        )
    heights = _heights(network, y_spine, y_pod)
    bottom = y_pod + 172 + _node_height(network)
    return elements + margin_labels(heights, colours, rates), right, bottom


def _pods(network: Network) -> list[Pod]:
    """Nodes grouped by the switches outside them that they are plugged into, in order of first node."""
    owner = network.graph.nodes(data="node")
    ports: dict[int, dict[str, None]] = {}
    for a, b in network.link_names[::2]:
        if owner[a] is not None and owner[b] is None:
            ports.setdefault(owner[a], {})[b] = None
    pods: dict[tuple[str, ...], list[int]] = {}
    for node in range(network.num_nodes):
        pods.setdefault(tuple(ports.get(node, ())), []).append(node)
    return list(pods.items())


def _pod(
    network: Network, pod: Pod, number: int | None, frame: tuple[float, float, float, float], room: int,
    colours: Mapping[str, str],
) -> list[str]:  # fmt: skip
    x, y, width, node_w = frame
    switches, nodes = pod
    height = _node_height(network) + 142
    elements = [svg.box(x, y, width, height, fill="#FAFAFA", stroke=svg.GREY, dashed=True)]
    if switches:
        words = f"{len(switches):,} leaf switches" if len(switches) > 1 else "1 switch"
        elements.append(svg.label_box(x + width / 2, y + 32, width - 30, 36, words, fill=FILL["leaf"], size=15))
    name = f"pod {number}: " if number is not None else ""
    count = f"{name}{len(nodes):,} node{'s' if len(nodes) > 1 else ''}"
    elements.append(svg.text(x + width / 2, y + height - 12, count, size=15, colour=svg.GREY))
    at = x + 18
    for which in shortened(len(nodes), room):
        if which is None:
            elements.append(_more(at + node_w / 2, y + 130, len(nodes) - room + 1, "nodes"))
        else:
            if switches:
                elements += _port(at + node_w / 2, y + 50, y + 100, colours)
            elements += _node(network, nodes[which], at, y + 100, node_w, colours)
        at += node_w + 14
    return elements


def _port(x: float, y1: float, y2: float, colours: Mapping[str, str]) -> list[str]:
    """The way from a leaf into a node: the NIC's cable, then its PCIe."""
    outer = colours.get("nic") or next(iter(colours.values()))
    inner = colours.get("pcie-nic", outer)
    middle = (y1 + y2) / 2
    return [svg.line(x, y1, x, middle, colour=outer, thick=4), svg.line(x, middle, x, y2, colour=inner, thick=4)]


def _node(network: Network, node: int, x: float, y: float, width: float, colours: Mapping[str, str]) -> list[str]:
    """A node: a square for each of its first 16 GPUs, and what joins them."""
    gpus = [int(i) for i in (network.node_of_gpu == node).nonzero()[0]]
    elements = [svg.box(x, y, width, _node_height(network) - 4)]
    left = (width - min(PER_ROW, len(gpus)) * (SQUARE + GAP) + GAP) / 2
    inner = next((tier for tier in ("nvlink", "xgmi", "nvlink-bridge", "pcie") if tier in colours), None)
    for i in range(min(len(gpus), ROWS * PER_ROW)):
        elements.append(
            svg.box(x + left + (i % PER_ROW) * (SQUARE + GAP), y + 44 + (i // PER_ROW) * (SQUARE + GAP), SQUARE, SQUARE,
                    fill=FILL["gpu"])
        )  # fmt: skip
    words = f"GPU {gpus[0]:,}" if len(gpus) == 1 else f"GPU {gpus[0]:,}-{gpus[-1]:,}"
    elements.append(svg.text(x + width / 2, y + 18, f"node {node:,}", size=14))
    elements.append(svg.text(x + width / 2, y + 35, words, size=min(13, width / (0.6 * len(words))), colour=svg.GREY))
    if inner is not None and len(gpus) > 1:
        bar = y + _node_height(network) - 24
        elements.append(svg.line(x + 10, bar, x + width - 10, bar, colour=colours[inner], thick=6))
    return elements


def _node_height(network: Network) -> float:
    rows = min(ROWS, -(-network.gpus_per_node // PER_ROW))
    return 80.0 + rows * (SQUARE + GAP)


def _spine_lines(
    centres: list[tuple[float, int]], spines: int, frame: tuple[float, float], colours: Mapping[str, str]
) -> list[str]:
    y1, y2 = frame
    elements = []
    for x, leaves in centres:
        for shift in (-36, -12, 12, 36):
            elements.append(svg.line(x + shift, y1, x + shift, y2, colour=colours["leaf-spine"], thick=3))
        words = f"{leaves:,} x {spines:,} cables" if leaves > 1 else f"{spines:,} cables"
        elements.append(svg.text(x + 50, (y1 + y2) / 2 + 6, words, size=14, anchor="start"))
    return elements


def _more(x: float, y: float, count: int, what: str) -> str:
    return svg.text(x, y, f"... {count:,}", size=16, bold=True) + svg.text(x, y + 19, f"more {what}", size=14)


def _heights(network: Network, y_spine: float, y_pod: float) -> dict[str, float]:
    tiers = {data for _, _, data in network.graph.edges(data="tier")}
    fixed = {"leaf-spine": (y_spine + y_pod) / 2, "nic": y_pod + 62, "uniform": y_pod + 70, "pcie-nic": y_pod + 102}
    known = {tier: y for tier, y in fixed.items() if tier in tiers}
    below = y_pod + 72 + _node_height(network)
    return known | {tier: below + 38 * i for i, tier in enumerate(sorted(tiers - set(known)))}
