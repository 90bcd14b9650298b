"""What ``simulator pipeline`` accepts."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.cli.implementation import implementation


@click.command(short_help="Draw a pipeline schedule: who runs what when, who is idle, who holds how much.")
@click.argument("schedule")
@click.option("-p", "ranks", type=int, required=True, help="Ranks of the pipeline.")
@click.option("-m", "micro_batches", type=int, required=True, help="Micro-batches of a step.")
@click.option("--chunks", type=int, help="Stages on each rank; as the schedule has it when left out.")
@click.option("--forward", default="1", show_default=True, metavar="TIME", help="Forward of a rank's layers.")
@click.option("--input-grad", default="1", show_default=True, metavar="TIME", help="Gradient of the input.")
@click.option("--weight-grad", default="1", show_default=True, metavar="TIME", help="Gradient of the weights.")
@click.option(
    "--hidden", default="0%", show_default=True, metavar="SHARE",
    help="Share of the shorter one of an overlapped forward and backward that hides behind the other (DualPipe).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the schedule (.png, .svg, .pdf).")
def pipeline(**given: object) -> object:
    """Play SCHEDULE without communication and draw it; 'all' compares all schedules that take these numbers.

    Schedules: gpipe, 1f1b, looped-bfs, interleaved-1f1b, zb-h1, zb1p, zbv, dualpipe, dualpipe-v; names of
    torch.distributed.pipelining (Interleaved1F1B) will do. Times are those of one micro-batch, in any unit, all in the
    same; TIME is that of all layers of a rank, or, as 1,1,2,1, of each stage from the input on.

    Example: simulator pipeline zbv -p 4 -m 8 --weight-grad 0.8 --plot zbv.png
    """
    return implementation("pipeline")(**given)
