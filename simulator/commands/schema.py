"""``simulator schema``: the JSON Schema of the YAML files, for editors."""

from __future__ import annotations

import json

import click

from simulator.schema import SCHEMAS


def schema(kind: str) -> None:
    """Print the schema of one of SCHEMAS."""
    click.echo(json.dumps(SCHEMAS[kind](), indent=2))
