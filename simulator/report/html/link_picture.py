"""The network of a small cluster with every cable as dark and as thick as it is used."""

from __future__ import annotations

from simulator.device import DeviceSpec
from simulator.network.graph import Network
from simulator.network.tiers import tiers
from simulator.report.charts.axes import nice_share
from simulator.report.topology_svg import links_svg
from simulator.timeline import Timeline
from simulator.units import format_percent

#: Of one hue, from light to dark, and ever thicker: told apart without colour too. The first is for no use at all.
_STROKES = (("#C3C8CF", 1.0), ("#F0BE73", 2.0), ("#DE8A2E", 3.2), ("#B5520F", 4.6), ("#6B2500", 6.0))


def link_picture(timeline: Timeline, network: Network, device: DeviceSpec | None) -> str | None:
    """SVG, or None for a cluster that is too large to draw its cables. A cable is as busy as its busier direction."""
    use = timeline.link_bytes / timeline.link_bytes_per_s / timeline.end_s
    by_cable: dict[frozenset[str], float] = {}
    for number, ends in enumerate(timeline.link_names):
        cable = frozenset(ends)
        by_cable[cable] = max(by_cable.get(cable, 0.0), float(use[number]))
    end = nice_share(max(by_cable.values(), default=0.0))

    def stroke(a: str, b: str) -> tuple[str, float]:
        return _STROKES[_step(by_cable.get(frozenset((a, b)), 0.0), end)]

    steps = len(_STROKES) - 1
    words = ["unused", *(f"up to {format_percent(end * number / steps)}" for number in range(1, steps + 1))]
    key = [(*look, said) for look, said in zip(_STROKES, words, strict=True)]
    return links_svg(network, tiers(network, device), f"Use of the cables of {network.name}", stroke, key)


def _step(share: float, end: float) -> int:
    """0 for no use, else 1 to 4."""
    steps = len(_STROKES) - 1
    return 0 if share <= 0 else min(steps, 1 + int(share / end * steps * (1 - 1e-9)))
