"""``simulator import``: a config file of another program as a commented scenario on stdout."""

from __future__ import annotations

import click

from simulator.importing.draft import Extras
from simulator.importing.kinds import checked_text, import_file
from simulator.importing.writer import counted


def import_(
    kind: str, file: str, model: str | None, topology: str | None, nodes: int | None, gpus: int | None,
    seq_len: int | None, micro_batch: int | None, grad_accumulation: int | None, inline: bool,
    drop_model_parallel: bool,
) -> None:  # fmt: skip
    """Print the scenario; warnings, and how many options are ignored, go to stderr."""
    extras = Extras(
        model=model, topology=topology, nodes=nodes, gpus=gpus, seq_len=seq_len, micro_batch=micro_batch,
        grad_accumulation=grad_accumulation, inline=inline, drop_model_parallel=drop_model_parallel,
    )  # fmt: skip
    draft = import_file(kind, file, extras)
    text = checked_text(draft, file)
    click.echo(text, nl=False)
    for warning in draft.warnings:
        click.echo(f"warning: {warning}", err=True)
    guesses = sum(entry.comment.startswith("guess") for entry in draft.entries)
    ignored = f"{counted(len(draft.ignored), 'option')} of {file} {'is' if len(draft.ignored) == 1 else 'are'} ignored"
    listed = " (listed at the end)" if draft.ignored else ""
    guessed = "1 value is a guess" if guesses == 1 else f"{guesses} values are guesses"
    click.echo(f"{ignored}{listed}, {guessed}", err=True)
