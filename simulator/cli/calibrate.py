"""What ``simulator calibrate`` accepts."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.cli.implementation import implementation

_HELP = """Read logs of nccl-tests or rccl-tests (text, or the JSON of -J), fit what they show, and correct the shipped
profile of the communication library by it.

Half of the sizes are fitted, the other half tell how good the fit is; both are set against what the uncorrected
profile gives for the same ranks on --topology. A log that cannot mean what it prints, or that is faster than the
links, is refused with the reason. A profile holds factors for ranks in one node and for ranks on several apart: logs of
both go into one profile.

nccl-tests before 2025 and rccl-tests do not print which operation they ran: --op is normal for their logs.

\b
Example:
  all_reduce_perf -b 8 -e 4G -f 2 -g 8 > mine.log
  simulator calibrate mine.log --topology dgx-h100 -o mine.yaml
  simulator collective all_reduce --topology dgx-h100 --library mine.yaml -p 8,16
  simulator run scenario.yaml cluster.library=mine.yaml
"""


@click.command(help=_HELP, short_help="Correct a library's profile by your own nccl-tests logs.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the profile to this .yaml file.")
@click.option("--topology", help="Shipped topology, or file, of the log's machine. [by the GPUs that the log lists]")
@click.option("--op", help="Operation, such as all_reduce: nccl-tests before 2025 and rccl-tests do not print it.")
@click.option("--ranks", type=int, help="Number of ranks, for a log that lists no devices.")
@click.option("--force", is_flag=True, help="Overwrite an output file that this command did not write.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def calibrate(**given: object) -> object:
    """Hands over to ``simulator.commands.calibrate``."""
    return implementation("calibrate")(**given)
