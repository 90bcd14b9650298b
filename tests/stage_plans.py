"""Plans of pipelines made by hand from the schedules of ``simulator.pipelines``: one rank a stage, or several."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.pipelines.messages import message_after
from simulator.pipelines.order import Action, PipelineSchedule, actions
from simulator.pipelines.playing import StageTimes, play
from simulator.plan import Communicate, Compute, Plan, RankClass, Task


def send(name: str, a: int, b: int, size_bytes: float, *after: str) -> Communicate:
    return Communicate(
        name=name, op="send", axis=f"pp {a}>{b}", algorithm="auto", message_bytes=size_bytes,
        classes=(f"stage {a}", f"stage {b}"), after=after,
    )  # fmt: skip


def stages(count: int, width: int = 1) -> tuple[RankClass, ...]:
    """Ranks of each stage: ``width`` neighbours."""
    return tuple(
        RankClass(name=f"stage {s}", role=f"stage {s}", ranks=tuple(range(s * width, (s + 1) * width)))
        for s in range(count)
    )  # fmt: skip


def boundary(a: int, b: int, width: int = 1) -> tuple[tuple[int, ...], ...]:
    return tuple((a * width + lane, b * width + lane) for lane in range(width))


def axes(count: int, width: int = 1) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Both ways over every boundary, and the ranks of each stage as 'tp'."""
    ways = [(a, b) for a in range(count) for b in range(count) if a != b]
    found = {f"pp {a}>{b}": boundary(a, b, width) for a, b in ways}
    return found | {"tp": tuple(ranks.ranks for ranks in stages(count, width))}


def pipeline_plan(
    schedule: PipelineSchedule, times: Sequence[StageTimes], *, size_bytes: float = 0.0, width: int = 1, tp: float = 0.0
) -> Plan:
    """One compute task for each action, after what the order and the dependencies ask for. tp: bytes of an all-reduce
    of the stage's ranks after each forward, three in a row.
    """
    spans = [(s.start, r, s.step) for r, row in enumerate(play(schedule, times).spans) for s in row]
    tasks: list[Task] = []
    arrives: dict[Action, str] = {}
    for _, rank, step in sorted(spans, key=lambda span: span[:2]):
        for action in actions((step,)):
            role, waits = f"stage {rank}", arrives.get(action._replace(kind="I" if action.kind == "B" else action.kind))
            tasks.append(
                Compute(
                    name=str(action),
                    kind="forward" if action.kind == "F" else "backward",
                    classes=(role,),
                    seconds=times[schedule.part_of_model(action.stage)].of(action.kind),
                    part=f"stage {action.stage}",
                    after=(waits,) if waits else (),
                )
            )
            done = str(action)
            if tp and action.kind == "F":
                tasks.append(reduced := Communicate(
                    name=f"tp {action}", op="all_reduce", axis="tp", algorithm="ring", message_bytes=tp, repeat=3,
                    classes=(role,), after=(done,),
                ))  # fmt: skip
                done = reduced.name
            message = message_after(schedule, action)
            if message is not None:
                tasks.append(send(f"send {action}", message.source, message.target, size_bytes, done))
                kind = "F" if action.kind == "F" else "I"
                arrives[Action(message.to_stage, kind, action.micro_batch)] = f"send {action}"
    count = schedule.num_ranks
    return Plan(title=schedule.name, classes=stages(count, width), axes=axes(count, width), tasks=tuple(tasks))
