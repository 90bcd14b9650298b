"""What ``simulator compare`` accepts."""

from __future__ import annotations

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Several scenarios, or one with changes, side by side.")
@click.argument("arguments", nargs=-1, required=True, metavar="SCENARIO... [KEY=VALUE]...")
@click.option(
    "--vs",
    "variants",
    multiple=True,
    metavar="'KEY=VALUE ...'",
    help="The first scenario with these settings, beside it. May be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def compare(**given: object) -> object:
    """Simulate each SCENARIO and show what differs between them, in the input and in what comes out.

    KEY=VALUE holds for all. Percentages are against the first.

    Example: simulator compare step.yaml --vs parallel.strategy=fsdp --vs 'parallel.strategy=fsdp cluster.nodes=4'
    """
    return implementation("compare")(**given)
