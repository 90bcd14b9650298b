"""The stages of a pipeline side by side: what each computes, waits for and holds. Pure functions of a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.job import Job
from simulator.plan import Compute, Plan, RankClass
from simulator.report.memory import Memory
from simulator.report.rank_time import Breakdown, RankTime
from simulator.report.words import layer_words
from simulator.strategies.pipelined import schedule_of
from simulator.strategies.stages import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """Equal ranks of one role. layers: blocks that they hold. parts: of the model that they run forward, in order."""

    ranks: RankClass
    layers: int
    parts: tuple[str, ...]
    breakdown: Breakdown
    peak_bytes: float

    @property
    def parts_words(self) -> str:
        """``stage 3``, ``stage 3, stage 11``, ``layer 4 .. layer 7``."""
        words = [layer_words(part) for part in self.parts]
        return ", ".join(words) if len(words) <= 2 else f"{words[0]} .. {words[-1]}"


def layers_of_roles(plan: Plan, job: Job) -> dict[str, int]:
    """Blocks of the model that ranks of each role hold. Roles stand in the order of the pipeline's ranks."""
    schedule = schedule_of(job.inputs)
    stages = cut(job.inputs, schedule.stages_per_chain)
    held = (
        (stages[schedule.part_of_model(s)].layers for s in schedule.stages_of(r)) for r in range(schedule.num_ranks)
    )
    return dict(zip(plan.roles, map(sum, held), strict=True))


def stage_uses(
    times: Sequence[RankTime], memories: Mapping[str, Memory], layers: Mapping[str, int]
) -> tuple[StageUse, ...]:
    """One entry per class of ranks, in the order of ``times``. layers: by role."""
    return tuple(
        StageUse(
            ranks=time.ranks, layers=layers[time.ranks.role], parts=_parts(time), breakdown=time.breakdown,
            peak_bytes=memories[time.ranks.name].peak_bytes,
        )
        for time in times
    )  # fmt: skip


def _parts(time: RankTime) -> tuple[str, ...]:
    tasks = (span.task for span in time.compute if span.task.kind == "forward")
    return tuple(dict.fromkeys(task.part for task in tasks if isinstance(task, Compute) and task.part))
