"""What ``simulator run`` accepts."""

from __future__ import annotations

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Simulate a scenario: how long a step takes and why, what is exposed, whether it fits.")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "--trace",
    metavar="FILE",
    help="Write a Chrome/Perfetto trace: .json, .json.gz, or a directory (ending in '/'): a file per class of ranks.",
)
def run(**given: object) -> object:
    """Simulate SCENARIO: a YAML file, or the name of a shipped one.

    KEY=VALUE changes the scenario for this run, such as train.micro_batch=4 or cluster.nodes=8.

    Exit code 1 says that the answer is "infeasible": it does not fit in memory, or a limit is broken.
    """
    return implementation("run")(**given)
