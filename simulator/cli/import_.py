"""What ``simulator import`` accepts. The underscore is there because ``import`` is a word of Python."""

from __future__ import annotations

import click

from simulator.cli.implementation import implementation

#: The keys of ``simulator.importing.kinds.KINDS``; tests/test_import.py holds the two together.
KINDS = ("hf", "deepspeed", "torchtitan", "megatron", "accelerate")
COUNT = click.IntRange(1, 1_000_000)


@click.command("import", short_help="Turn a config file that you have into a commented scenario.")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("file")
@click.option("--model", metavar="NAME", help="A shipped model, or the path of a config.json; where FILE names none.")
@click.option("--topology", metavar="NAME", help="A shipped topology, or a path.  [default: dgx-h100]")
@click.option("--nodes", type=COUNT, metavar="N", help="Number of hosts.")
@click.option("--gpus", type=COUNT, metavar="N", help="Number of GPUs, all hosts together.")
@click.option("--seq-len", type=click.IntRange(1, 1_000_000_000), metavar="N", help="Tokens in a sequence.")
@click.option("--micro-batch", type=COUNT, metavar="N", help="Sequences of one pass on one GPU.")
@click.option("--grad-accumulation", type=COUNT, metavar="N", help="Micro-batches of one optimizer step.")
@click.option("--inline", is_flag=True, help="hf: write the model's sizes, not the path of its file.")
@click.option("--drop-model-parallel", is_flag=True, help="Leave tensor, pipeline, context and expert parallelism out.")
def import_(**given: object) -> object:
    """Print FILE as a scenario: each value with the option that it came from, each guess marked.

    KIND says what FILE is: a Hugging Face config.json (hf), a DeepSpeed JSON, a torchtitan TOML, a script or list of
    Megatron-LM flags, or an accelerate YAML. Options without a place in a scenario are listed at its end, with the
    reason. What FILE does not say comes from the options below, which also win over it, or is a marked guess.

    Example: simulator import deepspeed ds_config.json --model llama-3-8b --gpus 64 > scenario.yaml
    """
    return implementation("import")(**given)
