"""What ``simulator validate`` accepts."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Hold predictions against published measurements.")
@click.argument("what", type=click.Choice(["collectives"]))
@click.option("--table", "tables", multiple=True, metavar="ID", help="Only this table; may be given again.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the result to this .md file as well.")
@click.option("--fail-if-missed", is_flag=True, help="End with 1 when a target over all rows is missed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every row included.")
def validate(**given: object) -> object:
    """Predict every published measurement that comes with the simulator and print how far off each prediction is.

    Errors are by system, operation and size, against the targets; what is left out is listed with its reason.
    """
    return implementation("validate")(**given)
