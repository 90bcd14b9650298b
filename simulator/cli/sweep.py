"""What ``simulator sweep`` accepts."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Run a scenario for every combination of some settings.")
@click.argument("scenario")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE,VALUE...")
@click.option("--out", type=click.Path(path_type=Path), help="File of rows. [SCENARIO.sweep.jsonl here]")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes at once. [the cores]")
@click.option("--dask", metavar="ADDRESS", help="Run on a Dask cluster: tcp://HOST:8786, or its scheduler file.")
@click.option("--fresh", is_flag=True, help="Drop the rows that the file has, and start over.")
@click.option("--retry-failed", is_flag=True, help="Drop the rows with an error, and try them again.")
@click.option("--columns", default="", help="Columns of the output, such as step_time_s,mfu.")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all rows as CSV.")
def sweep(**given: object) -> object:
    """Simulate SCENARIO for every combination of the settings given, and compare.

    Example: simulator sweep s.yaml parallel.bucket_cap='1 MiB','25 MiB' cluster.nodes=1,2,4

    Rows are appended to a file as they finish. After an interrupt the same command goes on where it stopped. A
    combination that cannot be simulated becomes a row with its error.

    Exit code 2 says that every combination failed, 130 that it was interrupted.
    """
    return implementation("sweep")(**given)
