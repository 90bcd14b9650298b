"""A network in words and numbers: the table that ``simulator topology`` prints, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator import units
from simulator.network.graph import Network
from simulator.network.tiers import Tier

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the topology file says and the network does not carry."""

    title: str
    device: str | None
    library_source: str


def topology_table(
    network: Network, tiers: Sequence[Tier], bisection_bytes_per_s: float, about: About
) -> RenderableType:
    """What the network is, its tiers, its bisection bandwidth and where the numbers come from."""
    head = Text.assemble((network.name, "bold"), f"  {about.title}\n", _summary(network, about.device))
    table = Table(title_justify="left", pad_edge=False)
    for name in ("tier", "links", "per link", "usable", "latency", "per GPU", "FLOP/byte"):
        table.add_column(name, justify="left" if name == "tier" else "right", no_wrap=name != "tier")
    for tier in tiers:
        table.add_row(
            f"{tier.name}: {tier.title}" if tier.title != tier.name else tier.name,
            f"{tier.links:,}",
            units.format_bandwidth(tier.nominal_bytes_per_s),
            units.format_bandwidth(tier.usable_bytes_per_s),
            units.format_time(tier.latency_s, 3) if tier.name != "hbm" else "-",
            units.format_bandwidth(tier.gpu_bytes_per_s),
            "-" if tier.flop_per_byte is None else f"{tier.flop_per_byte:,.0f}",
        )
    half = network.num_gpus // 2
    rate = units.format_bandwidth(bisection_bytes_per_s)
    notes = Text("bisection bandwidth  ")
    notes.append(f"{rate} usable, first half of the GPUs ({half:,}) to the rest\n" if half else "none (one GPU)\n")
    notes.append(
        f"library  {network.library.name}: {units.format_time(network.message_overhead_s, 3)} a message, "
        f"{units.format_time(network.collective_launch_s, 3)} a collective\n"
        "links count directions; rates are per direction and per link, GB = 1e9; usable = what payload reaches;\n"
        "per GPU = the nominal rate when all GPUs send at once; FLOP/byte = dense bf16 peak / that rate\n"
    )
    sources = Table.grid(padding=(0, 2))
    for name, source in (*((tier.name, tier.source) for tier in tiers), ("library", about.library_source)):
        sources.add_row(f"  {name}", source)
    return Group(head, table, notes, Text("sources", style="bold"), sources)


def _summary(network: Network, device: str | None) -> str:
    shape = f", shape {'x'.join(map(str, network.torus_shape))}" if network.torus_shape else ""
    wrap = f", wrap {'/'.join('yes' if w else 'no' for w in network.torus_wrap)}" if network.torus_wrap else ""
    rails = f", {_plural(network.rails, 'NIC')} a node" if network.rails else ""
    size = f"{_plural(network.num_nodes, 'node')}, {_plural(network.num_gpus, 'GPU')}"
    return f"kind {network.kind}, device {device or '-'}: {size}{rails}{shape}{wrap}"


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def topology_json(
    network: Network, tiers: Sequence[Tier], bisection_bytes_per_s: float, about: About
) -> dict[str, Any]:
    """The same as plain values; keys carry their units."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": network.name,
        "title": about.title,
        "kind": network.kind,
        "device": about.device,
        "nodes": network.num_nodes,
        "gpus": network.num_gpus,
        "gpus_per_node": network.gpus_per_node,
        "nics_per_node": network.rails,
        "torus_shape": list(network.torus_shape) if network.torus_shape else None,
        "torus_wrap": list(network.torus_wrap) if network.torus_wrap else None,
        "links": len(network.link_names),
        "bisection_bytes_per_s": bisection_bytes_per_s,
        "library": {
            "name": network.library.name,
            "message_overhead_s": network.message_overhead_s,
            "collective_launch_s": network.collective_launch_s,
            "source": about.library_source,
        },
        "tiers": [
            {
                "name": tier.name,
                "title": tier.title,
                "links": tier.links,
                "nominal_bytes_per_s": tier.nominal_bytes_per_s,
                "usable_bytes_per_s": tier.usable_bytes_per_s,
                "gpu_bytes_per_s": tier.gpu_bytes_per_s,
                "latency_s": tier.latency_s,
                "flop_per_byte": tier.flop_per_byte,
                "source": tier.source,
            }
            for tier in tiers
        ],
    }
