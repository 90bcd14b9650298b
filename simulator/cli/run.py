"""What ``simulator run`` accepts."""

from __future__ import annotations

from pathlib import Path

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
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report as one HTML file that needs no network: verdict, charts to zoom into, the scenario.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the lanes of one rank, two layers closely, and its memory (.png, .svg, .pdf), or another --picture.",
)
@click.option(
    "--picture",
    metavar="NAME",
    help="What --plot draws: lanes, breakdown, memory, exposed, links or roofline.  [default: lanes]",
)
@click.option(
    "--zoom",
    metavar="LAYERS",
    help="Layers that --plot and --html show closely: layers.10,layers.11.  [default: two in the middle]",
)
@click.option(
    "--range",
    "with_range",
    is_flag=True,
    help="Simulate the slow and fast ends of what the profiles say too: step time, exposed communication and cost as a "
    "range, and verdicts that flip inside it.",
)
def run(**given: object) -> object:
    """Simulate SCENARIO: a YAML file, or the name of a shipped one.

    KEY=VALUE changes the scenario for this run, such as train.micro_batch=4 or cluster.nodes=8.

    Exit code 1 says that the answer is "infeasible": it does not fit in memory, or a limit is broken.
    """
    return implementation("run")(**given)
