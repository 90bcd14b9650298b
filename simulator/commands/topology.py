"""``simulator topology``: what a cluster's network is made of, in numbers and as a picture."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
from rich.console import RenderableType
from rich.table import Table

from simulator import shipped
from simulator.device import DeviceSpec
from simulator.errors import NetworkError, ScenarioError
from simulator.load import is_path, load_topology
from simulator.network.builders import build_network
from simulator.network.tiers import bisection_bytes_per_s, tiers
from simulator.report.console import console
from simulator.report.topology_svg import plural, topology_svg
from simulator.report.topology_text import About, topology_json, topology_table


def topology(
    name: str | None, nodes: int | None, gpus_per_node: int | None, shape: str | None, svg: Path | None,
    as_json: bool, list_all: bool,
) -> None:  # fmt: skip
    """Print the tiers of the topology called so, or the list of all that are shipped."""
    if name is None or list_all:
        _list(as_json)
        return
    spec = load_topology(name)
    try:
        network = build_network(spec, nodes=nodes, gpus_per_node=gpus_per_node, shape=parse_shape(shape))
    except NetworkError as error:
        raise NetworkError(f"{name}: {error}" if is_path(name) else str(error)) from None
    device = spec.device if isinstance(spec.device, DeviceSpec) else None
    found, half = tiers(network, device), bisection_bytes_per_s(network)
    if svg is not None:
        _write(svg, topology_svg(network, found, spec.title))
    source = network.library.source
    about = About(title=spec.title, device=device.name if device else None, library_source=source)
    if as_json:
        click.echo(json.dumps(topology_json(network, found, half, about), indent=2))
    else:
        _print(topology_table(network, found, half, about))


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """``"4x4x4"`` -> ``(4, 4, 4)``. Raises ScenarioError."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,6}([x,]\d{1,6}){0,2}", text):
        raise ScenarioError(f"--shape: {text!r}: expected one to three lengths such as 4x4x4 or 16x16")
    return tuple(int(length) for length in re.split("[x,]", text))


def _list(as_json: bool) -> None:
    specs = [load_topology(name) for name in shipped.names("topology")]
    networks = [build_network(spec) for spec in specs]
    if as_json:
        rows = [
            {"name": spec.name, "kind": spec.kind, "title": spec.title, "nodes": net.num_nodes, "gpus": net.num_gpus}
            for spec, net in zip(specs, networks, strict=True)
        ]
        click.echo(json.dumps({"schema_version": 1, "topologies": rows}, indent=2))
        return
    table = Table("name", "kind", "as shipped", "what it is", pad_edge=False)
    for spec, net in zip(specs, networks, strict=True):
        size = f"{plural(net.num_nodes, 'node')}, {plural(net.num_gpus, 'GPU')}"
        table.add_row(spec.name, spec.kind, size, spec.title)
    _print(table)


def _print(what: RenderableType) -> None:
    console().print(what)


def _write(path: Path, text: str) -> None:
    if path.suffix != ".svg":
        raise ScenarioError(f"--svg: {str(path)!r}: the picture is SVG; give a name that ends in .svg")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"--svg: {str(path)!r}: {error.strerror or error}") from None
