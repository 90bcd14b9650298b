"""What ``simulator explain`` accepts."""

from __future__ import annotations

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Say what a key or column means: of a JSON output, or of a scenario.")
@click.argument("column", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def explain(**given: object) -> object:
    """Explain COLUMN: a key of a command's JSON output (exposed_s, memory.by_kind_bytes.grads), of a scenario
    (train.micro_batch), or what the text output calls it (busbw, MFU): unit, meaning, and how it is computed.

    The name of a command, or 'scenario', lists all its keys. Without COLUMN, list everything.
    """
    return implementation("explain")(**given)
