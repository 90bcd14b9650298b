"""Pipelines as text and as JSON: the finding, the ranks of one schedule, and all schedules side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from simulator.pipelines import PIPELINES
from simulator.pipelines.claims import Shape
from simulator.pipelines.holding import peak_held
from simulator.pipelines.order import Action, Pair
from simulator.pipelines.playing import Played, StageTimes
from simulator.units import format_percent

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineAnswer:
    """A played schedule with what was asked. times: of a rank's layers, or of each stage. hidden: share of a pair."""

    played: Played
    times: tuple[StageTimes, ...]
    hidden: float

    @property
    def shape(self) -> Shape:
        """Ranks, micro-batches and chunks."""
        schedule = self.played.schedule
        return Shape(schedule.num_ranks, schedule.num_micro_batches, schedule.chunks)

    @property
    def published_idle(self) -> float | None:
        """Idle time of a rank by the papers' formula; None where it does not hold for these numbers."""
        if len(self.times) > 1 or self.hidden:
            return None
        return PIPELINES[self.played.schedule.name].claim.idle(self.shape, self.times[0])

    @property
    def published_share(self) -> float | None:
        """The same as a share of the step."""
        idle = self.published_idle
        if idle is None:
            return None
        work = self.shape.m * sum(self.times[0].of(kind) for kind in ("F", "B"))
        return idle / (work + idle)

    def held(self) -> list[float]:
        """The most micro-batches that each rank holds."""
        return [peak_held(self.played.schedule, rank) for rank in range(self.shape.p)]


def pipeline_finding(answer: PipelineAnswer) -> str:
    """``1f1b, 4 ranks, 8 micro-batches, 1 chunk: idle for 27.3 % of 33 units of time; by the formula ... 27.3 %``."""
    schedule, claim = answer.played.schedule, PIPELINES[answer.played.schedule.name].claim
    share = answer.published_share
    by = f"by the formula {claim.formula} {format_percent(share)}" if share is not None else (
        f"the formula {claim.formula} does not hold for these times and numbers"
    )  # fmt: skip
    idle = format_percent(answer.played.bubble_share)
    return f"{schedule.name}, {answer.shape}: idle for {idle} of {answer.played.makespan:.4g} units of time; {by}"


def ranks_table(answer: PipelineAnswer, most: int = 16) -> Table:
    """What each rank has to do and to hold; of more ranks than ``most`` the first and the last."""
    table = Table("rank", "stages", "works", "idle", "holds at most", box=None, pad_edge=False, header_style="bold")
    for column in table.columns[2:]:
        column.justify = "right"
    played, held, count = answer.played, answer.held(), answer.shape.p
    for rank in range(count):
        if count > most and most // 2 <= rank < count - most // 2:
            if rank == most // 2:
                table.add_row("...")
            continue
        idle, stages = played.idle(rank), played.schedule.stages_of(rank)
        table.add_row(
            str(rank), " ".join(map(str, stages)), f"{played.busy(rank):.4g}",
            f"{idle:.4g} ({format_percent(idle / played.makespan)})", micro_batches(held[rank]),
        )  # fmt: skip
    return table


def micro_batches(count: float) -> str:
    """``4.5 micro-batches``."""
    return f"{count:.4g} micro-batch{'' if count == 1 else 'es'}"


def comparison_table(answers: Sequence[PipelineAnswer]) -> Table:
    """All schedules, the one that idles least first."""
    table = Table("schedule", "chunks", "time", "idle", "by formula", "holds at most", "what it is",
                  box=None, pad_edge=False, header_style="bold")  # fmt: skip
    for column in table.columns[1:6]:
        column.justify = "right"
    for answer in sorted(answers, key=lambda answer: round(answer.played.bubble_share, 9)):
        schedule, share = answer.played.schedule, answer.published_share
        table.add_row(
            schedule.name, str(schedule.chunks), f"{answer.played.makespan:.4g}",
            format_percent(answer.played.bubble_share), "" if share is None else format_percent(share),
            _span_of(answer.held()), PIPELINES[schedule.name].title,
        )  # fmt: skip
    return table


def _span_of(held: Sequence[float]) -> str:
    low, high = min(held), max(held)
    return f"{high:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def pipeline_json(answer: PipelineAnswer) -> dict[str, object]:
    """One schedule with every step of every rank."""
    played, held = answer.played, answer.held()
    return {
        "schema_version": SCHEMA_VERSION, "kind": "pipeline",
        **_row(answer), "num_ranks": answer.shape.p, "num_micro_batches": answer.shape.m, "times": _times(answer),
        "formula": PIPELINES[played.schedule.name].claim.formula,
        "source": PIPELINES[played.schedule.name].claim.source,
        "ranks": [
            {
                "rank": rank, "stages": list(played.schedule.stages_of(rank)), "busy": played.busy(rank),
                "idle": played.idle(rank), "peak_held": held[rank],
                "steps": [
                    {"start": span.start, "end": span.end, "actions": _actions(span.step)}
                    for span in played.spans[rank]
                ],
            }
            for rank in range(answer.shape.p)
        ],
    }  # fmt: skip


def comparison_json(answers: Sequence[PipelineAnswer], refused: Sequence[tuple[str, str]]) -> dict[str, object]:
    """All schedules that take these numbers, and why the others do not."""
    first = answers[0]
    return {
        "schema_version": SCHEMA_VERSION, "kind": "pipelines",
        "num_ranks": first.shape.p, "num_micro_batches": first.shape.m, "times": _times(first),
        "rows": [_row(answer) for answer in answers],
        "refused": [{"schedule": name, "why": why} for name, why in refused],
    }  # fmt: skip


def _row(answer: PipelineAnswer) -> dict[str, object]:
    schedule = answer.played.schedule
    return {
        "schedule": schedule.name, "title": PIPELINES[schedule.name].title, "chunks": schedule.chunks,
        "makespan": answer.played.makespan, "bubble_share": answer.played.bubble_share,
        "published_bubble_share": answer.published_share, "peak_held": max(answer.held()),
    }  # fmt: skip


def _times(answer: PipelineAnswer) -> dict[str, object]:
    return {
        "forward": [time.forward for time in answer.times],
        "input_grad": [time.input_grad for time in answer.times],
        "weight_grad": [time.weight_grad for time in answer.times],
        "hidden": answer.hidden,
    }  # fmt: skip


def _actions(step: Action | Pair) -> list[dict[str, object]]:
    return [
        {"stage": action.stage, "kind": action.kind, "micro_batch": action.micro_batch}
        for action in (step if isinstance(step, Pair) else (step,))
    ]
