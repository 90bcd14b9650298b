"""What ``simulator demo`` accepts."""

from __future__ import annotations

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Show the main job on a shipped scenario; needs no file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def demo(**given: object) -> object:
    """Simulate one training step of Llama 3.2 1B on two DGX H100, and show what to try next."""
    return implementation("demo")(**given)
