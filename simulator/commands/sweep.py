"""``simulator sweep``: a scenario for every combination of some settings, over local processes, resumable."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from simulator.errors import ScenarioError
from simulator.problems import nearest
from simulator.report.console import console
from simulator.report.sweep_text import COLLECTIVE_COLUMNS, STEP_COLUMNS, sweep_csv, sweep_json, sweep_text
from simulator.sweeps.interrupts import noted_interrupts
from simulator.sweeps.points import Point, Row, Sweep, check_loadable, default_file, make_sweep, point_key
from simulator.sweeps.processes import local_processes, usable_cores
from simulator.sweeps.rows import RESULTS, failed_row, simulate_points
from simulator.sweeps.runner import finished_rows
from simulator.sweeps.store import Store, append, open_store

_PROVENANCE = ("error", "base_digest", "version", "scenario_digest", "seconds")


def sweep(
    scenario: str, settings: tuple[str, ...], out: Path | None, jobs: int | None, fresh: bool, retry_failed: bool,
    columns: str, as_json: bool, as_csv: bool,
) -> int:  # fmt: skip
    """Simulate what ``out`` lacks, print all rows, and return 2 when all failed, 128 + signal when interrupted.

    Raises click.UsageError and ScenarioError.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    asked = make_sweep(scenario, settings)
    chosen = _columns(columns, asked)
    check_loadable(asked)
    path = out or default_file(scenario)
    with noted_interrupts() as interrupt, open_store(path, asked, fresh=fresh, retry_failed=retry_failed) as store:
        try:
            rows = _complete(asked, store, jobs or usable_cores(), interrupt)
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


def _complete(asked: Sweep, store: Store, jobs: int, interrupt: Callable[[], int | None]) -> list[Row]:
    """All rows in the order of the points, after simulating those that the file lacks.

    Raises KeyboardInterrupt, with all finished rows kept, when ``interrupt`` says so.
    """

    def stop() -> None:
        if interrupt() is not None:
            raise KeyboardInterrupt

    started = time.perf_counter()
    rows = dict(store.rows)
    left = [point for point in asked.points if point_key(point) not in rows]
    _say_start(asked, store, len(left), min(jobs, len(left)))
    try:
        _simulate(asked, left, store, rows, jobs, stop)
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
    asked: Sweep, left: Sequence[Point], store: Store, rows: dict[Point, Row], jobs: int, stop: Callable[[], None]
) -> None:  # fmt: skip
    workers = min(jobs, len(left))
    iterator = finished_rows(
        left, partial(simulate_points, asked.base), partial(local_processes, workers), workers=workers,
        failed=partial(failed_row, asked.base), stop=stop,
    )  # fmt: skip
    with _progress(len(left)) as advance, closing(iterator):
        for row in iterator:
            append(store, row)
            rows[point_key(row["overrides"])] = row
            advance(row)


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


def _say_start(asked: Sweep, store: Store, left: int, workers: int) -> None:
    for note in store.notes:
        click.echo(f"{store.path}: {note}", err=True)
    known = len(asked.points) - left
    what = f"{len(asked.points):,} points" if not known else f"{left:,} of {len(asked.points):,} points left"
    how = f", {workers} process{'' if workers == 1 else 'es'}" if left else ""
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
