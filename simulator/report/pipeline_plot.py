"""A played pipeline as a picture: a lane for each rank, a block for each step, the micro-batch inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.pipelines.order import Kind, Pair, actions
from simulator.pipelines.playing import Span
from simulator.report.picture_file import save_figure
from simulator.report.pictures.sheet import sheet
from simulator.report.pipeline_text import PipelineAnswer, micro_batches, pipeline_finding
from simulator.units import format_percent

#: Okabe and Ito's colours, told apart by every kind of colour vision; light ones for the later of a rank's stages.
_COLOURS = {
    "F": ("#0072B2", "#7FB8D8"), "B": ("#D55E00", "#F0B088"), "I": ("#E69F00", "#F5D48A"), "W": ("#009E73", "#8CD4BC"),
}  # fmt: skip
_WORDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_LANE_IN, _MOST_LANES_IN = 0.32, 9.0
_HEIGHT = 0.86
#: Blocks that are narrower than this share of the picture hold no number.
_ROOM_FOR_A_DIGIT = 0.007
#: Lanes with more blocks have no white edges, which would hide them.
_MOST_EDGED = 400


def plot_pipeline(answer: PipelineAnswer, path: Path) -> None:
    """Write a PNG, SVG or PDF by the ending of ``path``. Raises ScenarioError for a path that cannot be written."""
    played, shape = answer.played, answer.shape
    lanes = min(_MOST_LANES_IN, max(1.2, _LANE_IN * shape.p))
    figure, axis = sheet(lanes + 0.9, _title(answer), f"{pipeline_finding(answer)}. Without communication.")
    for rank, spans in enumerate(played.spans):
        blocks = [block for span in spans for block in _blocks(answer, rank, span)]
        edge = 0.4 if len(blocks) < _MOST_EDGED else 0.0
        for look in sorted({block.look for block in blocks}):
            bars = [(block.start, block.width) for block in blocks if block.look == look]
            kind, later, top, height = look
            colour = _COLOURS[kind][later]
            axis.broken_barh(bars, (top, height), facecolor=colour, edgecolor="white", linewidth=edge)
        _numbers(axis, blocks, played.makespan)
    axis.set_xlim(0, played.makespan)
    axis.set_ylim(shape.p - 0.4, -0.6)
    step = -(-shape.p // 32)
    axis.set_yticks(range(0, shape.p, step), [f"rank {rank}" for rank in range(0, shape.p, step)])
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("time, in the unit of the times given", fontsize=8)
    axis.spines[["left"]].set_visible(False)
    _legend(figure, answer)
    save_figure(figure, path)


@dataclass(frozen=True, slots=True)
class _Block:
    """A rectangle. look: kind, 1 for a later stage of the rank, upper edge and height."""

    start: float
    width: float
    micro_batch: int
    look: tuple[Kind, int, float, float]


def _blocks(answer: PipelineAnswer, rank: int, span: Span) -> list[_Block]:
    """A step fills its lane; of a pair, which runs at once, the forward the upper half and the backward the lower."""
    parts = span.step if isinstance(span.step, Pair) else (span.step,)
    first = answer.played.schedule.stages_of(rank)[0]
    height = _HEIGHT / len(parts)
    return [
        _Block(
            span.start, span.end - span.start, action.micro_batch,
            (action.kind, int(action.stage != first), rank - _HEIGHT / 2 + number * height, height),
        )
        for number, action in enumerate(parts)
    ]  # fmt: skip


def _title(answer: PipelineAnswer) -> str:
    idle, held = format_percent(answer.played.bubble_share), micro_batches(max(answer.held()))
    return f"{answer.played.schedule.name}: ranks are idle for {idle} of the step and hold {held} at most"


def _numbers(axis: Any, blocks: list[_Block], makespan: float) -> None:
    for block in blocks:
        kind, later, top, height = block.look
        text = str(block.micro_batch)
        if block.width / makespan >= _ROOM_FOR_A_DIGIT * len(text):
            axis.text(
                block.start + block.width / 2, top + height / 2, text, ha="center", va="center_baseline",
                fontsize=6.5 if height == _HEIGHT else 5, color="black" if later or kind == "I" else "white",
            )  # fmt: skip


def _legend(figure: Any, answer: PipelineAnswer) -> None:
    from matplotlib.patches import Patch

    kinds = {action.kind for order in answer.played.schedule.orders for action in actions(order)}
    handles = [Patch(facecolor=_COLOURS[kind][0], label=words) for kind, words in _WORDS.items() if kind in kinds]
    if len(answer.played.schedule.stages_of(0)) > 1:
        handles.append(Patch(facecolor="#bbbbbb", label="lighter: other stages of the rank"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=7.5, frameon=False)
