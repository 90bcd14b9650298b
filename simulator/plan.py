"""The plan: a whole training step as a graph of tasks on lanes. Knows no network and no clock.

A lane does one thing at a time, in the order in which the plan lists its tasks, as a CUDA stream does. On a rank
class, a task starts when the task before it on its lane and all tasks in ``after`` have ended there; a task in
``after`` that the class has no part in must have ended everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simulator.errors import SimulatorError

#: Lane of a rank's compute stream. Each axis has a communicator lane of its own, named by ``comm_lane``.
COMPUTE_LANE = "compute"


def comm_lane(axis: str) -> str:
    """Lane of the communicator of an axis: it runs one collective at a time."""
    return f"comm {axis}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClass:
    """Ranks that are equal in role, speed and place, simulated once. ``ranks`` ascending, not empty."""

    name: str
    ranks: tuple[int, ...]

    @property
    def representative(self) -> int:
        return self.ranks[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Work of ``seconds`` on the compute lane of every rank of ``classes``, when nothing disturbs it.

    kind: forward, backward, optimizer, copy. part: the operation of the model that it belongs to.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    seconds: float
    part: str = ""
    after: tuple[str, ...] = ()

    @property
    def lane(self) -> str:
        return COMPUTE_LANE


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicate:
    """One collective on every group of an axis. It starts when the last rank class has reached it.

    message_bytes: the size as nccl-tests counts it. purpose: what the bytes are, in words for reports.
    """

    name: str
    op: str
    axis: str
    algorithm: str
    message_bytes: float
    classes: tuple[str, ...]
    purpose: str = ""
    after: tuple[str, ...] = ()
    kind: str = "communication"

    @property
    def lane(self) -> str:
        return comm_lane(self.axis)


Task = Compute | Communicate


class PlanError(SimulatorError):
    """A plan that names unknown or duplicate tasks: a bug in a strategy. Exit code 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Tasks in issue order. ``axes``: the groups of each axis, each a tuple of ranks in group order.

    Raises PlanError when a name is used twice, or a task waits for one that is not listed before it (so a plan
    cannot have a cycle).
    """

    title: str
    classes: tuple[RankClass, ...]
    axes: Mapping[str, tuple[tuple[int, ...], ...]]
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        known: set[str] = set()
        names = {c.name for c in self.classes}
        for task in self.tasks:
            if task.name in known:
                raise PlanError(f"plan '{self.title}': task '{task.name}' is listed twice")
            for before in task.after:
                if before not in known:
                    raise PlanError(f"plan '{self.title}': '{task.name}' waits for '{before}', not listed before it")
            if isinstance(task, Communicate) and task.axis not in self.axes:
                raise PlanError(f"plan '{self.title}': '{task.name}' runs on the unknown axis '{task.axis}'")
            for ranks in task.classes:
                if ranks not in names:
                    raise PlanError(f"plan '{self.title}': '{task.name}' runs on the unknown class '{ranks}'")
            known.add(task.name)

    @property
    def num_ranks(self) -> int:
        return sum(len(c.ranks) for c in self.classes)


def callers(plan: Plan, task: Communicate) -> frozenset[int]:
    """Ranks that call a collective."""
    return frozenset(rank for c in plan.classes if c.name in task.classes for rank in c.ranks)


def groups_called(plan: Plan, task: Communicate) -> tuple[tuple[int, ...], ...]:
    """The groups of the task's axis in which some rank calls it: it may be the business of a few of them only."""
    if len(task.classes) == len(plan.classes):  # everyone calls it, as in most plans
        return plan.axes[task.axis]
    calling = callers(plan, task)
    return tuple(group for group in plan.axes[task.axis] if not calling.isdisjoint(group))


def absences(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Collectives that some ranks of a group call and others never do, and these others; the first wait for ever."""
    missing: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}
    found: dict[str, tuple[int, ...]] = {}
    for task in plan.tasks:
        if not isinstance(task, Communicate):
            continue
        key = (task.axis, task.classes)
        if key not in missing:
            calling = callers(plan, task)
            away = (r for group in groups_called(plan, task) for r in group if r not in calling)
            missing[key] = tuple(sorted(away))
        if missing[key]:
            found[task.name] = missing[key]
    return found


def unfolded(plan: Plan) -> Plan:
    """The same plan with every rank a class of its own: what ``fidelity: message`` runs."""
    own = {c.name: tuple(f"rank {r}" for r in c.ranks) for c in plan.classes}
    tasks = tuple(replace(task, classes=tuple(r for c in task.classes for r in own[c])) for task in plan.tasks)
    classes = tuple(RankClass(name=f"rank {r}", ranks=(r,)) for c in plan.classes for r in c.ranks)
    return replace(plan, classes=classes, tasks=tasks)
