"""A real step beside the simulated one, span by span: layers or passes of stages, collectives, sends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from simulator.answer import StepAnswer
from simulator.lab.measuring import Answers
from simulator.plan import Communicate, Plan
from simulator.timeline import Span

#: What a task of a pass says behind its name when it is one of several.
_PART = re.compile(r" \((?:pieces|input|beside|\d+)\)(?: \d+)?$")
#: Start and end, s from the step's begin.
Times = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One span of the step: seconds from the step's begin. None: not seen in the real run."""

    name: str
    kind: str
    real_start_s: float | None
    real_end_s: float | None
    simulated_start_s: float
    simulated_end_s: float


def compare(
    simulated: StepAnswer, real: Answers, stages: Mapping[str, int] | None = None
) -> tuple[tuple[Compared, ...], str]:
    """Span by span, in the order in which they start when simulated; and what could not be matched, '' where all was.

    A span's real start is that of the first rank and its end that of the last. Layers, or passes through the stages of
    a pipeline: medians over the timed steps. Collectives and sends: of one more step, run under torch's profiler.
    stages: of each layer, see ``stages_of_layers``.
    """
    plan = simulated.timeline.plan
    passes, (sent, unmatched) = _pass_times(plan, real, stages or {}), _sent_times(plan, real)
    found = {**passes, **sent}
    shown = (
        span for span in _joined(simulated.timeline.spans)
        if isinstance(span.task, Communicate) or span.task.kind in {"forward", "backward"}
    )  # fmt: skip
    return tuple(_compared(span, found.get(span.task.name)) for span in shown), unmatched


def whole_pass(name: str) -> str:
    """Name of the pass that a task is a part of."""
    return _PART.sub("", name)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """A span per task, from the first rank that begins it to the last that ends it, in the order of these begins. The
    parts of a pass are one.
    """
    joined: dict[str, Span] = {}
    for span in spans:
        name = span.task.name if isinstance(span.task, Communicate) else whole_pass(span.task.name)
        known = joined.get(name, replace(span, task=replace(span.task, name=name)))
        start_s, end_s = min(known.start_s, span.start_s), max(known.end_s, span.end_s)
        joined[name] = replace(known, start_s=start_s, end_s=end_s)
    return sorted(joined.values(), key=lambda span: span.start_s)


def _compared(span: Span, real: Times | None) -> Compared:
    start, end = real or (None, None)
    return Compared(
        name=span.task.name, kind=span.task.kind, real_start_s=start, real_end_s=end, simulated_start_s=span.start_s,
        simulated_end_s=span.end_s,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- passes


def stages_of_layers(job: Mapping[str, Any]) -> Mapping[str, int]:
    """Of a real run's job, the stage that each layer is in; {} where the model is in one piece."""
    names = [layer["name"] for layer in job["model"]["layers"]]
    stages = job.get("pipeline", {}).get("stages", ())
    return {names[layer]: number for number, held in enumerate(stages) for layer in held}


def order_of_passes(plan: Plan) -> Mapping[tuple[str, str], list[str]]:
    """By 'forward' or 'backward' and the layer or stage, the names of its passes in the order in which they come."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(whole_pass(task.name) for task in plan.tasks if task.kind in {"forward", "backward"}):
        way, _, who = name.partition(": ")
        found.setdefault((way.split()[0], who), []).append(name)
    return found


def _pass_times(plan: Plan, real: Answers, stages: Mapping[str, int]) -> Mapping[str, Times]:
    """By the names of the plan's tasks, 'forward 0: layer' or 'forward 0: stage 1'."""
    order = order_of_passes(plan)
    by_step: list[dict[str, Times]] = []
    for ranks in zip(*(rank["spans"] for rank in real), strict=True):
        found: dict[str, Times] = {}
        for rank in ranks:
            for name, (start, end) in named_passes(rank, stages, order):
                known = found.get(name, (start, end))
                found[name] = (min(known[0], start), max(known[1], end))
        by_step.append(found)
    return {
        name: (median(step[name][0] for step in by_step), median(step[name][1] for step in by_step))
        for name in by_step[0]
    }


def named_passes(
    step: Sequence[Sequence[Any]], stages: Mapping[str, int], order: Mapping[tuple[str, str], Sequence[str]]
) -> Iterator[tuple[str, Times]]:
    """The plan's name of each pass of a layer that a rank ran. order: see ``order_of_passes``."""
    done: Counter[tuple[str, str]] = Counter()
    for layer, way, start, end in step:
        names = order.get((way, f"stage {stages[layer]}" if stages else layer), ())
        if done[layer, way] < len(names):
            yield names[done[layer, way]], (start, end)
        done[layer, way] += 1


# ----------------------------------------------------------------------------------------------------- what was sent


def _sent_times(plan: Plan, real: Answers) -> tuple[dict[str, Times], str]:
    """Times of the plan's collectives and sends, and how the real ones differ from them; then there are no times."""
    found: dict[str, Times] = {}
    for rank, answer in enumerate(real):
        planned, launched = _planned(plan, rank), answer["collectives"]
        for kind in ("send", "recv", ""):
            asked = [(name, op) for name, op in planned if _kind(op) == kind]
            saw = [one for one in launched if _kind(one[0]) == kind]
            if [op for _, op in asked] != [one[0] for one in saw]:
                return {}, _difference(rank, [one[0] for one in saw], [op for _, op in asked])
            for (name, _), (*_, start, end) in zip(asked, saw, strict=True):
                if start is not None:
                    known = found.get(name, (start, end))
                    found[name] = (min(known[0], start), max(known[1], end))
    return found, ""


def _kind(op: str) -> str:
    """Sends and receives are launched in an order of their own."""
    return op if op in ("send", "recv") else ""


def _planned(plan: Plan, rank: int) -> list[tuple[str, str]]:
    """Task and operation of all that a rank launches, in the plan's order."""
    own = next(ranks.name for ranks in plan.classes if rank in ranks.ranks)
    found: list[tuple[str, str]] = []
    for task in plan.tasks:
        if isinstance(task, Communicate) and own in task.classes:
            group = next((group for group in plan.axes[task.axis] if rank in group), ())
            if task.op == "send":
                found += [(task.name, "send" if group[0] == rank else "recv")]
            elif group:
                found += [(task.name, task.op)] * task.repeat
    return found


def _difference(rank: int, real: Sequence[str], planned: Sequence[str]) -> str:
    told = [f"{who}: {_counted(ops)}" for who, ops in (("real", real), ("simulated", planned))]
    return "; ".join(told) + (f" (rank {rank})" if rank else "") + (
        ", in another order" if sorted(real) == sorted(planned) else ""
    )  # fmt: skip


def _counted(operations: Sequence[str]) -> str:
    return ", ".join(f"{operations.count(op)} {op}" for op in dict.fromkeys(operations)) or "no collective"
