"""One look for each thing that charts show: a colour, a pattern and a word, so that no chart relies on colour alone.

Colours are of Okabe and Ito's set (jfly.uni-koeln.de/color), which colour-blind readers can tell apart.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.plan import HOST_COPY, MEMORY_KINDS
from simulator.report.svg import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

YELLOW, GREY, DARK = "#F0E442", "#999999", "#555555"
#: Stands for the colour of the text, which a page that knows a dark scheme chooses.
INK = "@ink"


class Look(NamedTuple):
    """colour: a hex triplet, or ``INK``. pattern: what hatches it ('' for nothing), as plotly names it."""

    colour: str
    words: str
    pattern: str = ""


#: Bars of lanes, by kind of compute or operation of a collective, in the order of a legend.
LANES = {
    "forward": Look(SKY, "forward"), "backward": Look(BLUE, "backward"), "copy": Look(GREY, "copy"),
    "optimizer": Look(PURPLE, "optimizer"), "all_reduce": Look(ORANGE, "all-reduce"),
    "reduce_scatter": Look(VERMILION, "reduce-scatter"), "all_gather": Look(GREEN, "all-gather"),
    "broadcast": Look(YELLOW, "broadcast"), "reduce": Look(YELLOW, "reduce", "x"),
    "send": Look("#882255", "send"), "all_to_all": Look("#44AA99", "all-to-all"),
    HOST_COPY: Look("#DDCC77", "copy to or from the host"), "host": Look(DARK, "issued by the host"),
    "exposed": Look(INK, "exposed: a collective runs, no compute does"),
}  # fmt: skip
#: Passes of a pipeline; those of a rank's later stages are lighter.
STAGES = {
    "forward": Look(SKY, "forward"), "backward": Look(BLUE, "backward"),
    "input": Look(ORANGE, "backward: gradients of inputs"), "weights": Look(GREEN, "backward: gradients of weights"),
    "optimizer": Look(PURPLE, "optimizer"), "exposed": Look(VERMILION, "communication, and nothing else"),
    "passes": Look("#6C8EBF", "several passes"),
}  # fmt: skip
OTHER = Look("#BBBBBB", "other")
#: Where a step goes.
PARTS = {
    "passes": Look(BLUE, "forward and backward"), "copies": Look(GREY, "copies beside them", "-"),
    "optimizer": Look(PURPLE, "optimizer", "\\"), "exposed": Look(VERMILION, "exposed communication", "/"),
    "bubble": Look(YELLOW, "pipeline bubble", "x"), "host": Look(DARK, "waiting for the host thread", "."),
    "exposed_copies": Look("#BBBBBB", "exposed copies", "|"), "idle": Look(ORANGE, "idle", "+"),
}  # fmt: skip
#: What memory is held for.
MEMORY = {
    "params": Look(BLUE, "weights"), "grads": Look(SKY, "gradients", "/"),
    "optimizer": Look(PURPLE, "optimizer states", "\\"), "activations": Look(ORANGE, "activations", "."),
    "gathered": Look(GREEN, "gathered weights", "x"), "buffers": Look(GREY, "buffers", "-"),
    "workspace": Look(YELLOW, "context and communicators", "|"),
}  # fmt: skip
assert tuple(MEMORY) == MEMORY_KINDS
HIDDEN, EXPOSED = Look(SKY, "hidden behind compute"), Look(VERMILION, "exposed", "/")
#: Operations of a roofline, by what they are.
OPERATIONS = {
    "gemm": Look(BLUE, "matrix product", "circle"), "attention": Look(VERMILION, "attention", "diamond"),
    "loss": Look(GREEN, "loss", "square"),
}  # fmt: skip


def op_words(op: str) -> str:
    """``all_gather`` -> ``all-gather``."""
    return op.replace("_", "-")


def lane_look(style: str) -> Look:
    """The look of a bar on a lane; of a style that has none its name in grey."""
    return LANES.get(style, Look(OTHER.colour, op_words(style)))


def stage_look(style: str, later: bool = False) -> Look:
    """The look of a pass in a pipeline; half way to white for a later stage of its rank."""
    look = STAGES[style]
    if not later:
        return look
    light = "".join(f"{(int(look.colour[at : at + 2], 16) + 255) // 2:02X}" for at in (1, 3, 5))
    return Look(f"#{light}", f"{look.words}, later stage of the rank")
