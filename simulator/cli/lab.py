"""What ``simulator lab`` accepts."""

from __future__ import annotations

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Run a scenario for real on virtual hosts with shaped links, beside its simulation.")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--steps", type=click.IntRange(1, 100), default=5, show_default=True, help="Real steps that are timed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def lab(**given: object) -> object:
    """Train SCENARIO for real on this machine, and print what took how long beside what the simulator says.

    SCENARIO has layers of stated times, which sleep, and a topology of hosts on one switch or two, such as lab-flat.
    Each host becomes a network namespace whose link has the stated rate, with one rank of a real torch.distributed
    run on gloo. Everything is removed at the end. Needs Linux, iproute2, root or user namespaces, and torch.

    KEY=VALUE changes the scenario for this run, such as parallel.bucket_cap='1 MiB' or cluster.nodes=3.

    Example: simulator lab lab-ddp parallel.overlap=none
    """
    return implementation("lab")(**given)
