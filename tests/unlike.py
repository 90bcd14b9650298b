"""Where real ranks of a model over several ranks and their plans run, send or receive something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulator.answer import StepAnswer
from simulator.lab.measuring import Answers
from simulator.lab_compare import named_passes, order_of_passes, stages_of_layers, whole_pass
from simulator.plan import BATCH_WORK, Communicate, Plan


def unlike(simulated: StepAnswer, job: Mapping[str, Any], real: Answers) -> list[str]:
    """Where a rank's real step and its part of the plan differ in what it runs, sends or receives, or in the order.

    Collectives with their bytes and the size of their group; sends with their bytes, in the order of the passes that
    they follow; receives with theirs, of which a plan lists none, so in any order; passes by name.
    """
    plan, stages = simulated.timeline.plan, stages_of_layers(job)
    found = []
    for rank, answer in enumerate(real):
        own = next(ranks.name for ranks in plan.classes if rank in ranks.ranks)
        planned = list(_launched(plan, rank, own))
        saw = [(op, size, 0 if op in ("send", "recv") else group) for op, size, group in answer["steady"]]
        pairs = [
            (kind, [one for one in saw if _apart(one[0]) == kind], [one for one in planned if _apart(one[0]) == kind])
            for kind in ("send", "collectives")
        ]
        pairs.append(("recv", *(sorted(one for one in many if one[0] == "recv") for many in (saw, planned))))
        runs = [s.task.name for s in simulated.timeline.spans if s.ranks == own and s.task.kind in BATCH_WORK]
        pairs.append(("passes", _passes(answer["spans"][-1], stages, plan), list(dict.fromkeys(map(whole_pass, runs)))))
        found += [f"rank {rank}, {kind}: real {a}, simulated {b}" for kind, a, b in pairs if a != b]
    return found


def _launched(plan: Plan, rank: int, own: str) -> Iterator[tuple[str, float, int]]:
    passes = (task for task in plan.tasks if own in task.classes and task.kind in BATCH_WORK)
    number = {name: n for n, name in enumerate(dict.fromkeys(whole_pass(task.name) for task in passes))}
    sends: list[tuple[int, float]] = []
    for task in plan.tasks:
        if isinstance(task, Communicate) and own in task.classes:
            group = next(group for group in plan.axes[task.axis] if rank in group)
            if task.op == "send" and group[0] == rank:
                sends.append((number[_pass_before(task.name)], task.message_bytes))
            elif task.op == "send":
                yield "recv", task.message_bytes, 0
            else:
                yield from [(task.op, task.message_bytes, len(group))] * task.repeat
    yield from (("send", size, 0) for _, size in sorted(sends, key=lambda one: one[0]))


def _pass_before(send: str) -> str:
    """Of ``send activations 3: stage 1 to 2`` the forward, of ``send gradients of activations`` the backward."""
    what, _, stages = send.partition(": ")
    return f"{'backward' if 'gradients' in what else 'forward'} {what.split()[-1]}: {stages.split(' to ')[0]}"


def _apart(op: str) -> str:
    return op if op in ("send", "recv") else "collectives"


def _passes(step: Sequence[Sequence[Any]], stages: Mapping[str, int], plan: Plan) -> list[str]:
    """Names of the passes of a real step in the order of their begins."""
    order = order_of_passes(plan)
    named = ((start, name) for name, (start, _) in named_passes(step, stages, order))
    return list(dict.fromkeys(name for _, name in sorted(named)))
