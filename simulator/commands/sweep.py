"""``simulator sweep``: a scenario for every combination of some settings, on processes or a cluster, resumable."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from simulator.errors import ScenarioError
from simulator.problems import nearest
from simulator.report.console import console
from simulator.report.sweep_text import COLLECTIVE_COLUMNS, STEP_COLUMNS, sweep_csv, sweep_json, sweep_text
from simulator.sweeps.cluster import Cluster, need_dask
from simulator.sweeps.interrupts import noted_interrupts
from simulator.sweeps.parcel import completed_here, make_parcel, simulate_parcel
from simulator.sweeps.points import Point, Row, Sweep, check_loadable, default_file, make_sweep, point_key
from simulator.sweeps.processes import local_processes, usable_cores
from simulator.sweeps.rows import RESULTS, failed_row, simulate_points
from simulator.sweeps.runner import Flow, finished_rows
from simulator.sweeps.scheduler_address import scheduler_address
from simulator.sweeps.store import Store, append, open_store

RowStream = Generator[Row, None, None]
_PROVENANCE = ("error", "base_digest", "version", "scenario_digest", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The machines that simulate: ``jobs`` processes here, or the Dask cluster whose scheduler is at ``dask``."""

    jobs: int
    dask: str | None

    def in_words(self, points: int) -> str:
        """For so many points."""
        jobs = min(self.jobs, points)
        return f"the Dask cluster at {self.dask}" if self.dask else f"{jobs} process{'' if jobs == 1 else 'es'}"


def sweep(
    scenario: str, settings: tuple[str, ...], out: Path | None, jobs: int | None, dask: str | None, fresh: bool,
    retry_failed: bool, columns: str, as_json: bool, as_csv: bool,
) -> int:  # fmt: skip
    """Simulate what ``out`` lacks, print all rows, and return 2 when all failed, 128 + signal when interrupted.

    Raises click.UsageError and ScenarioError.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    if dask is not None and jobs is not None:
        raise click.UsageError("--dask and --jobs exclude each other: all threads of the cluster's workers are used")
    where = Where(jobs=jobs or usable_cores(), dask=None if dask is None else scheduler_address(dask))
    if where.dask:
        need_dask()
    asked = make_sweep(scenario, settings)
    chosen = _columns(columns, asked)
    check_loadable(asked)
    path = out or default_file(scenario)
    with noted_interrupts() as interrupt, open_store(path, asked, fresh=fresh, retry_failed=retry_failed) as store:
        try:
            rows = _complete(asked, store, where, interrupt)
        except KeyboardInterrupt:
            return 128 + (interrupt() or 2)
    print_rows(asked, rows, chosen, as_json=as_json, as_csv=as_csv)
    return 2 if all(row["error"] is not None for row in rows) else 0


def _columns(text: str, asked: Sweep) -> tuple[str, ...]:
    known = (*RESULTS[asked.base.kind], *_PROVENANCE)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in (*known, *asked.keys):
            raise ScenarioError(f"--columns: no column {name!r}; accepted: {', '.join(known)}{nearest(name, known)}")
    return tuple(name for name in names if name not in asked.keys)


def _complete(asked: Sweep, store: Store, where: Where, interrupt: Callable[[], int | None]) -> list[Row]:
    """All rows in the order of the points, after simulating those that the file lacks.

    Raises KeyboardInterrupt, with all finished rows kept, when ``interrupt`` says so.
    """

    def stop() -> None:
        if interrupt() is not None:
            raise KeyboardInterrupt

    started = time.perf_counter()
    rows = dict(store.rows)
    left = [point for point in asked.points if point_key(point) not in rows]
    _say_start(asked, store, len(left), where)
    try:
        _simulate(asked, left, store, rows, where, stop)
    except BaseException as error:
        kept = sum(point_key(point) in rows for point in asked.points)
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        again = "; the same command goes on from there" if why == "interrupted" else ""
        click.echo(f"{why}: {kept} of {len(asked.points)} rows are in {store.path}{again}", err=True)
        raise
    found = [rows[point_key(point)] for point in asked.points]
    _say_end(found, store, time.perf_counter() - started)
    return found


def _simulate(
    asked: Sweep, left: Sequence[Point], store: Store, rows: dict[Point, Row], where: Where, stop: Callable[[], None]
) -> None:  # fmt: skip
    simulated = _on_cluster if where.dask and left else _on_processes
    iterator = simulated(asked, left, where, stop)
    with _progress(len(left)) as advance, closing(iterator):
        for row in iterator:
            append(store, row)
            rows[point_key(row["overrides"])] = row
            advance(row)


def _on_processes(asked: Sweep, left: Sequence[Point], where: Where, stop: Callable[[], None]) -> RowStream:
    workers = min(where.jobs, len(left))
    return finished_rows(
        left, partial(simulate_points, asked.base), partial(local_processes, workers),
        flow=Flow(workers=lambda: workers), failed=partial(failed_row, asked.base), stop=stop,
    )  # fmt: skip


def _on_cluster(asked: Sweep, left: Sequence[Point], where: Where, stop: Callable[[], None]) -> RowStream:
    """Longer chunks than on processes, since each crosses the network twice; and many tasks ahead, since that is what
    an adaptive cluster grows by.
    """
    assert where.dask is not None
    cluster = Cluster(where.dask, stop=stop, say=partial(click.echo, err=True))
    flow = Flow(workers=cluster.threads, ahead=7, most_ahead=10_000, chunk_s=1.0)
    rows = finished_rows(
        left, partial(simulate_parcel, make_parcel(asked)), cluster.open, flow=flow,
        failed=partial(failed_row, asked.base), stop=cluster.stop,
    )  # fmt: skip
    with closing(rows):
        yield from completed_here(rows, asked.base)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Row], None]]:
    """A bar on stderr while it is a terminal; nothing otherwise."""
    terminal = total > 0 and sys.stderr.isatty()
    shape = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
             TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    with Progress(*shape, console=console(stderr=True), disable=not terminal, transient=True) as bar:
        task = bar.add_task("sweep", total=total)
        failed = [0]

        def advance(row: Row) -> None:
            failed[0] += row["error"] is not None
            bar.update(task, advance=1, description=f"sweep, {failed[0]} failed" if failed[0] else "sweep")

        yield advance


def _say_start(asked: Sweep, store: Store, left: int, where: Where) -> None:
    for note in store.notes:
        click.echo(f"{store.path}: {note}", err=True)
    known = len(asked.points) - left
    what = f"{len(asked.points):,} points" if not known else f"{left:,} of {len(asked.points):,} points left"
    how = f", {where.in_words(left)}" if left else ""
    click.echo(f"sweep: {what}{how}; rows go to {store.path}", err=True)


def _say_end(rows: Sequence[Row], store: Store, wall_s: float) -> None:
    failed = sum(row["error"] is not None for row in rows)
    able = sum(bool(row["feasible"]) for row in rows)
    bad = f", {failed:,} failed (--retry-failed tries again)" if failed else ""
    click.echo(f"sweep: {len(rows):,} rows in {store.path}: {able:,} feasible{bad}; {wall_s:.1f} s", err=True)


def print_rows(asked: Sweep, rows: Sequence[Row], columns: Sequence[str], *, as_json: bool, as_csv: bool) -> None:
    """The rows on stdout, in the order of the points."""
    if as_json:
        click.echo(sweep_json(rows, asked.keys, columns, asked.base.scenario))
        return
    if as_csv:
        click.echo(sweep_csv(rows, asked.keys, columns), nl=False)
        return
    out = console()
    usual = COLLECTIVE_COLUMNS if asked.base.kind == "collective" else STEP_COLUMNS
    for piece in sweep_text(rows, asked.keys, columns or usual, f"{asked.base.scenario}, {len(rows):,} points"):
        out.print(piece)
