"""``simulator schema``: the JSON Schema of the YAML files, for editors."""

from __future__ import annotations

import json

import click

from simulator.schema import SCHEMAS


@click.command()
@click.argument("kind", type=click.Choice(sorted(SCHEMAS)), default="scenario")
def schema(kind: str) -> None:
    """Print the JSON Schema (draft-07) of a scenario, topology, device or preset file."""
    click.echo(json.dumps(SCHEMAS[kind](), indent=2))
