"""``simulator collective``: one collective over ranks, sizes and algorithms, as nccl-tests would print it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from simulator.collective_rows import crossovers, make_field, rows_of
from simulator.collectives import ALGORITHMS, AUTO, OPERATIONS
from simulator.engine.vector import NotExactError
from simulator.errors import ScenarioError, UnitError, UnsupportedError
from simulator.load import load_topology
from simulator.network.builders import build_network
from simulator.network.graph import Network
from simulator.network.sizing import network_for
from simulator.report.console import console
from simulator.report.rows_plot import plot_rows
from simulator.report.rows_text import rows_csv, rows_json, rows_text
from simulator.report.steps_text import steps_text
from simulator.rows import Crossover, Row
from simulator.spans_of_values import rank_counts, sizes_between
from simulator.topology import TopologySpec
from simulator.units import format_bandwidth, format_time, parse_bandwidth, parse_time

_ALGORITHM_NAMES = tuple(dict.fromkeys(name for _, name in ALGORITHMS))


def collective(
    op: str, ranks: str, min_bytes: str, max_bytes: str, factor: float, algo: str, topology: str, alpha: str | None,
    bandwidth: str | None, root: int, fidelity: str, skew: str, show_steps: bool, plot: Path | None, as_json: bool,
    as_csv: bool,
) -> None:  # fmt: skip
    """Print rows of size, time, algbw and busbw; or, with ``show_steps``, how the data moves.

    Raises click.UsageError, ScenarioError and UnsupportedError.
    """
    op = _operation(op)
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    if show_steps and (as_json or as_csv or plot):
        raise click.UsageError("--show-steps prints text; it goes with none of --json, --csv and --plot")
    spec = _spec(topology, alpha, bandwidth)
    places = [(p, network_for(spec, p)) for p in rank_counts(ranks, "-p")] if ranks else [_whole(spec)]
    for p, _ in places:
        if not 0 <= root < p:
            raise ScenarioError(f"--root: {root} is not one of the {p} ranks 0 .. {p - 1}")
    sizes = sizes_between(min_bytes, max_bytes, factor)
    algorithms = [name.strip().replace("-", "_") for name in algo.split(",") if name.strip()]
    if not algorithms:
        raise ScenarioError(f"--algo: no algorithm given; accepted: {', '.join(_ALGORITHM_NAMES)}, all, auto")
    if show_steps:
        _show(op, places, sizes, algorithms, root)
        return
    try:
        rows, crossings = _timed(op, places, sizes, algorithms, root, fidelity, _quantity("--skew", skew, parse_time))
    except NotExactError as reason:
        raise UnsupportedError(f"--fidelity: 'vector' cannot do this exactly: {reason}") from None
    if plot is not None:
        plot_rows(rows, crossings, where(spec), plot)
    print_rows(rows, crossings, where(spec), as_json=as_json, as_csv=as_csv)


def _operation(op: str) -> str:
    """Accepts the spellings of nccl-tests and of torch: all-reduce, allreduce, alltoall."""
    plain = {name.replace("_", ""): name for name in OPERATIONS}
    return plain.get(op.lower().replace("-", "").replace("_", ""), op)


def _spec(topology: str, alpha: str | None, bandwidth: str | None) -> TopologySpec:
    spec = load_topology(topology)
    changes: dict[str, float] = {}
    for key, text, parse in (("alpha", alpha, parse_time), ("bandwidth", bandwidth, parse_bandwidth)):
        if text is None:
            continue
        if spec.kind != "uniform":
            raise ScenarioError(f"--{key} describes a uniform network; '{topology}' is {spec.kind}")
        changes[key] = _quantity(f"--{key}", text, parse, positive=key == "bandwidth")
    return spec.model_copy(update=changes)


def _quantity(flag: str, text: str, parse: Callable[[object], float], *, positive: bool = False) -> float:
    """A value of the command line. Raises ScenarioError naming the flag."""
    try:
        value = parse(text)
    except UnitError as error:
        raise ScenarioError(f"{flag}: '{text}': {error}") from None
    if value < 0 or (positive and value == 0):
        raise ScenarioError(f"{flag}: '{text}': must be {'above zero' if positive else 'zero or more'}")
    return value


def _whole(spec: TopologySpec) -> tuple[int, Network]:
    """All GPUs of the topology as its file has it."""
    network = build_network(spec)
    return network.num_gpus, network


def where(spec: TopologySpec) -> str:
    """The network in words: its name, and alpha and bandwidth where they say it all."""
    alpha, rate = getattr(spec, "alpha", None), getattr(spec, "bandwidth", None)
    if isinstance(alpha, float) and isinstance(rate, float):
        return f"{spec.name}: alpha {format_time(alpha, 3)}, bandwidth {format_bandwidth(rate, 3)} each way"
    return f"{spec.name}: {spec.title}" if spec.title else spec.name


def _timed(
    op: str,
    places: Sequence[tuple[int, Network]],
    sizes: Sequence[float],
    algorithms: Sequence[str],
    root: int,
    fidelity: str,
    skew_s: float,
) -> tuple[list[Row], list[Crossover]]:
    rows: list[Row] = []
    crossings: list[Crossover] = []
    for p, network in places:
        field = make_field(op, p, network, algorithms, root, fidelity, skew_s)
        mine = rows_of(field, sizes)
        crossings += crossovers(field, mine)
        rows += [row for row in mine if row.fastest] if list(algorithms) == [AUTO] else mine
    return rows, crossings


def _show(
    op: str, places: Sequence[tuple[int, Network]], sizes: Sequence[float], algorithms: Sequence[str], root: int
) -> None:
    for p, network in places:
        for name in make_field(op, p, network, algorithms, root).schedules.values():
            for line in steps_text(name.resized(sizes[0])):
                click.echo(line)


def print_rows(
    rows: Sequence[Row], crossings: Sequence[Crossover], described: str, *, as_json: bool, as_csv: bool
) -> None:
    """The rows on stdout."""
    if as_json:
        click.echo(rows_json(rows, crossings, described))
        return
    if as_csv:
        click.echo(rows_csv(rows), nl=False)
        return
    out = console()
    for piece in rows_text(rows, crossings, described):
        out.print(piece)
