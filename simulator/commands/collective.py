"""``simulator collective``: one collective over ranks, sizes and algorithms, as nccl-tests would print it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from simulator.collective_rows import Field, crossovers, make_field, rows_of, ways_of
from simulator.collectives import ALGORITHMS, AUTO, OPERATIONS
from simulator.engine.vector import NotExactError
from simulator.errors import NetworkError, ScenarioError, UnitError, UnsupportedError
from simulator.library import NcclLibrary
from simulator.load import is_path, load_library, load_topology, with_library
from simulator.placing import Asked, Placed, places, words
from simulator.report.console import console
from simulator.report.rows_plot import plot_rows
from simulator.report.rows_text import rows_csv, rows_json, rows_text
from simulator.report.steps_text import steps_text
from simulator.report.ways_text import slower_than_fastest, ways_text
from simulator.rows import Crossover, Row, Way
from simulator.spans_of_values import sizes_between
from simulator.topology import TopologySpec
from simulator.units import format_bandwidth, format_time, parse_bandwidth, parse_time

_ALGORITHM_NAMES = tuple(dict.fromkeys(name for _, name in ALGORITHMS))


def collective(
    op: str, ranks: str, min_bytes: str, max_bytes: str, factor: float, algo: str, topology: str, library: str | None,
    alpha: str | None, bandwidth: str | None, nodes: str, gpus_per_node: int | None, groups: str,
    faults: Sequence[str], root: int, fidelity: str, skew: str, explain: bool, show_steps: bool, plot: Path | None,
    as_json: bool, as_csv: bool,
) -> None:  # fmt: skip
    """Print rows of size, time, algbw and busbw; or, with ``show_steps``, how the data moves.

    Raises click.UsageError, ScenarioError and UnsupportedError.
    """
    op = _operation(op)
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    if show_steps and (as_json or as_csv or plot or explain):
        raise click.UsageError("--show-steps prints text; it goes with none of --json, --csv, --plot and --explain")
    if explain and as_csv:
        raise click.UsageError("--explain adds tables; it goes with text and --json, not with --csv")
    spec = _spec(topology, library, alpha, bandwidth)
    asked = Asked(ranks, nodes, gpus_per_node, groups, faults)
    placed, described = _placed(topology, spec, asked), where(spec) + words(nodes, gpus_per_node, faults)
    for p, _, _ in placed:
        if not 0 <= root < p:
            raise ScenarioError(f"--root: {root} is not one of the {p} ranks 0 .. {p - 1}")
    sizes = sizes_between(min_bytes, max_bytes, factor)
    algorithms = [name.strip().replace("-", "_") for name in algo.split(",") if name.strip()]
    if not algorithms:
        raise ScenarioError(f"--algo: no algorithm given; accepted: {', '.join(_ALGORITHM_NAMES)}, all, auto")
    if show_steps:
        _show(op, placed, sizes, algorithms, root)
        return
    try:
        fields = _fields(op, placed, algorithms, root, fidelity, _quantity("--skew", skew, parse_time))
        rows, crossings, remarks = _timed(fields, sizes, only_picked=algorithms == [AUTO])
        ways = [way for field in fields for way in ways_of(field, sizes)] if explain else []
    except NotExactError as reason:
        raise UnsupportedError(f"--fidelity: 'vector' cannot do this exactly: {reason}") from None
    if plot is not None:
        plot_rows(rows, crossings, described, plot)
    print_rows(rows, crossings, described, ways, remarks, as_json=as_json, as_csv=as_csv)


def _operation(op: str) -> str:
    """Accepts the spellings of nccl-tests and of torch: all-reduce, allreduce, alltoall."""
    plain = {name.replace("_", ""): name for name in OPERATIONS}
    return plain.get(op.lower().replace("-", "").replace("_", ""), op)


def _spec(topology: str, library: str | None, alpha: str | None, bandwidth: str | None) -> TopologySpec:
    spec = load_topology(topology)
    if library is not None:
        try:
            spec = with_library(spec, load_library(library))
        except ScenarioError as error:
            raise ScenarioError(f"--library: {error}") from None
    changes: dict[str, object] = {}
    for key, text, parse in (("alpha", alpha, parse_time), ("bandwidth", bandwidth, parse_bandwidth)):
        if text is None:
            continue
        if spec.kind != "uniform":
            raise ScenarioError(f"--{key} describes a uniform network; '{topology}' is {spec.kind}")
        changes[key] = _quantity(f"--{key}", text, parse, positive=key == "bandwidth")
    return spec.model_copy(update=changes)


def _placed(topology: str, spec: TopologySpec, asked: Asked) -> list[Placed]:
    try:
        return places(spec, asked)
    except NetworkError as error:
        of_file = is_path(topology) and not str(error).startswith("--")
        raise NetworkError(f"{topology}: {error}" if of_file else str(error)) from None


def _quantity(flag: str, text: str, parse: Callable[[object], float], *, positive: bool = False) -> float:
    """A value of the command line. Raises ScenarioError naming the flag."""
    try:
        value = parse(text)
    except UnitError as error:
        raise ScenarioError(f"{flag}: '{text}': {error}") from None
    if value < 0 or (positive and value == 0):
        raise ScenarioError(f"{flag}: '{text}': must be {'above zero' if positive else 'zero or more'}")
    return value


def where(spec: TopologySpec) -> str:
    """The network in words: its name, and alpha and bandwidth where they say it all."""
    alpha, rate = getattr(spec, "alpha", None), getattr(spec, "bandwidth", None)
    library = getattr(spec.library, "name", "textbook")
    run_by = "" if library == "textbook" else f"; library {library}"
    if isinstance(alpha, float) and isinstance(rate, float):
        return f"{spec.name}: alpha {format_time(alpha, 3)}, bandwidth {format_bandwidth(rate, 3)} each way{run_by}"
    return (f"{spec.name}: {spec.title}" if spec.title else spec.name) + run_by


def _fields(
    op: str, placed: Sequence[Placed], algorithms: Sequence[str], root: int, fidelity: str, skew_s: float
) -> list[Field]:
    return [make_field(op, p, network, algorithms, root, fidelity, skew_s, groups) for p, network, groups in placed]


def _timed(
    fields: Sequence[Field], sizes: Sequence[float], *, only_picked: bool
) -> tuple[list[Row], list[Crossover], list[str]]:
    """Rows, crossovers and remarks. ``only_picked``: of each size what the library runs; crossovers are then of what it
    does not run, so none are told.
    """
    rows: list[Row] = []
    crossings: list[Crossover] = []
    remarks: list[str] = []
    for field in fields:
        mine = rows_of(field, sizes)
        picked = [row for row in mine if row.picked]
        played = field.pricer is None and field.p > 1 and field.fidelity == "auto"
        if played and isinstance(field.wires.network.library, NcclLibrary):
            library = field.wires.network.library.name
            remarks.append(f"{library} has no cost model for these {field.p} GPUs: schedules are played on bare links")
        if only_picked and field.pricer is not None:
            remarks += slower_than_fastest(mine)
        else:
            crossings += crossovers(field, mine)
        rows += picked if only_picked else mine
    return rows, crossings, list(dict.fromkeys(remarks))


def _show(op: str, placed: Sequence[Placed], sizes: Sequence[float], algorithms: Sequence[str], root: int) -> None:
    for p, network, groups in placed:
        for name in make_field(op, p, network, algorithms, root, groups=groups).schedules.values():
            for line in steps_text(name.resized(sizes[0])):
                click.echo(line)


def print_rows(
    rows: Sequence[Row], crossings: Sequence[Crossover], described: str, ways: Sequence[Way] = (),
    remarks: Sequence[str] = (), *, as_json: bool, as_csv: bool,
) -> None:  # fmt: skip
    """The rows on stdout."""
    if as_json:
        click.echo(rows_json(rows, crossings, described, ways))
        return
    if as_csv:
        click.echo(rows_csv(rows), nl=False)
        return
    out = console()
    for piece in rows_text(rows, crossings, described):
        out.print(piece)
    for remark in remarks:
        out.print(f"# {remark}", markup=False, highlight=False)
    for piece in ways_text(ways):
        out.print(piece)
