"""What ``simulator check`` accepts."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Judge a scenario before renting, and find the cheapest change that mends it.")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="One more judgement, such as 'exposed>5%', 'memory>90%', 'step>1.5 s', 'mfu<40%', 'time>30 d' or "
    "'cost>$1M'. May be given several times.",
)
@click.option("--search/--no-search", default=True, help="Simulate changes where a judgement fails.  [default: search]")
@click.option(
    "--range/--no-range",
    "with_range",
    default=True,
    help="Simulate the slow and fast ends of what the profiles say, where they state any.  [default: range]",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report as one HTML file that needs no network: verdicts, what mends them, costs, charts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def check(**given: object) -> object:
    """Judge SCENARIO, a YAML file or the name of a shipped one: does it fit, does communication hide, what it costs.

    Verdicts come first. Where one fails, changes of the scenario are simulated, and those that mend it are listed,
    cheapest first. The scenario's own limits hold; exposed communication may take 10 % where it states none.

    Exit code 0: all hold. 1: one fails. 2: bad input.
    """
    return implementation("check")(**given)
