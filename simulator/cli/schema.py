"""What ``simulator schema`` accepts."""

from __future__ import annotations

import click

from simulator.cli.implementation import implementation

#: The keys of ``simulator.schema.SCHEMAS``; tests/test_cli.py holds the two together.
KINDS = ("device", "library", "preset", "scenario", "topology")


@click.command(short_help="Print the JSON Schema of the YAML files, for editors.")
@click.argument("kind", type=click.Choice(KINDS), default="scenario")
def schema(**given: object) -> object:
    """Print the JSON Schema (draft-07) of a scenario, topology, device, library or preset file."""
    return implementation("schema")(**given)
