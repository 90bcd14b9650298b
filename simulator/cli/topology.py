"""What ``simulator topology`` accepts."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Describe a cluster's network in numbers and as a picture.")
@click.argument("name", required=False)
@click.option("--nodes", type=int, help="How many nodes (trays of an NVL72).")
@click.option("--gpus-per-node", type=int, help="How many GPUs of each node.")
@click.option("--shape", help="Shape of a torus, such as 4x4x4.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write a picture to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--list", "list_all", is_flag=True, help="List the topologies that come with the simulator.")
def topology(**given: object) -> object:
    """Print the tiers, link counts and bisection bandwidth of topology NAME (a shipped one, or a file).

    Without NAME, list the topologies that come with the simulator.
    """
    return implementation("topology")(**given)
