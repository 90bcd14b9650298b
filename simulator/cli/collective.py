"""What ``simulator collective`` accepts."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.cli.implementation import implementation

#: Names of ``simulator.collectives`` and of ``simulator.engine.collective``; tests/test_cli.py holds them together.
OPERATIONS = (
    "broadcast", "scatter", "gather", "reduce", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv",
)  # fmt: skip
ALGORITHMS = (
    "ring", "tree", "eager_tree", "double_tree", "hierarchical", "nvls", "nvls_tree", "pat", "halving_doubling",
    "direct", "pairwise", "rail", "bruck", "torus", "naive",
)  # fmt: skip
FIDELITIES = ("auto", "library", "vector", "message", "lockstep")

_HELP = f"""Time collective OP and print size, time, algbw and busbw, the fastest algorithm marked.

OP is one of {", ".join(OPERATIONS)}.

Example: simulator collective all_reduce -p 8,64,512 -b 1K -e 1G -f 4 --algo ring,tree
"""


@click.command(help=_HELP, short_help="Time one collective over ranks and sizes, as nccl-tests would print it.")
@click.argument("op", metavar="OP")
@click.option("-p", "--ranks", default="", help="Numbers of ranks: 8, or 2,4,8, or 2,4,...,4096. [all GPUs]")
@click.option("-b", "--min-bytes", default="32M", show_default=True, help="Smallest size, such as 8, 1K, 25 MiB.")
@click.option("-e", "--max-bytes", default="", help="Largest size. [the smallest: one size]")
@click.option("-f", "--factor", type=float, default=2.0, show_default=True, help="Ratio of one size to the next.")
@click.option(
    "--algo",
    default="auto",
    show_default=True,
    help=f"Algorithms: {', '.join(ALGORITHMS)}; 'all', or 'auto': what the library runs, else the fastest that fits.",
)
@click.option("--topology", default="uniform", show_default=True, help="A shipped topology, or a file.")
@click.option("--library", help="nccl, rccl, gloo, xla-tpu, textbook, or a profile's file. [the topology's own]")
@click.option("--alpha", help="Latency of a message on the uniform network, such as 5us.")
@click.option("--bandwidth", help="Rate of a link of the uniform network, such as '50 GB/s'.")
@click.option("--nodes", default="", help="Nodes used: how many (4), or which (0,1,32-33). [as many as -p needs]")
@click.option("--gpus-per-node", type=click.IntRange(min=1), help="GPUs used in each node, with their own NICs. [all]")
@click.option("--groups", default="", help="Groups that run at the same time: 4, 4:block, 4:rail or 4:stride. [one]")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    help="A slow or missing link: node2=50%, node2/nic=50%, node1.nic3=removed, A--B=removed. May be repeated.",
)
@click.option("--root", type=int, default=0, show_default=True, help="Root of broadcast, reduce, scatter, gather.")
@click.option(
    "--fidelity",
    type=click.Choice(FIDELITIES),
    default="auto",
    show_default=True,
    help="library (its cost model), or an engine: vector (exact, refuses some), message (exact, slow), lockstep.",
)
@click.option("--skew", default="0 us", help="Rank r starts at (r + 1) times this, such as 1us. [all at once]")
@click.option("--explain", is_flag=True, help="Say which algorithm the library runs, which is fastest, and why.")
@click.option("--show-steps", is_flag=True, help="Play the schedule on small numbers, step by step.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write time against size (.png, .svg, .pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def collective(**given: object) -> object:
    """Hands over to ``simulator.commands.collective``."""
    return implementation("collective")(**given)
