"""What ``simulator tornado`` accepts."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Which input moves the result most, each changed by 20 % alone.")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--by", default="20%", show_default=True, metavar="SHARE", help="How far each input is moved.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the diagram (.png, .svg, .pdf).")
def tornado(**given: object) -> object:
    """Simulate SCENARIO with each of its inputs a little less and a little more, and rank them by what that does.

    The result is the step time; where the scenario states a price, what a token costs. Inputs are rates, bandwidths,
    latencies, overheads and the price: what is uncertain about a cluster, not what you choose.

    Example: simulator tornado step.yaml cluster.nodes=8 --by 10% --plot tornado.png
    """
    return implementation("tornado")(**given)
