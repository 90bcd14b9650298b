"""The plan: a whole training step as a graph of tasks on lanes. Knows no network and no clock.

A lane does one thing at a time, in the order in which the plan lists its tasks, as a CUDA stream does. On a rank
class, a task starts when the task before it on its lane and all tasks in ``after`` have ended there; a task in
``after`` that the class has no part in must have ended everywhere, or, before a collective, on the classes that share
groups with it: so the receiver of a send waits for its sender. The plan's order is also that in which the rank's host
thread issues the tasks, when issuing takes time (``host_s``) or has to wait (``host_after``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from simulator.errors import SimulatorError

#: Lane of a rank's compute stream. Each axis has a communicator lane of its own, named by ``comm_lane``.
COMPUTE_LANE = "compute"


#: Kinds of compute whose time grows with the samples that a rank works on.
BATCH_WORK = frozenset({"forward", "backward"})
#: Kind of copies between device and host memory, by engines of their own: neither the speed of a rank's cores nor what
#: it sends slows them.
HOST_COPY = "host copy"
#: What device memory is held for. The peak of a rank is told by these.
MEMORY_KINDS = ("params", "grads", "optimizer", "activations", "gathered", "buffers", "workspace")
#: Kind of buffers that are in the memory of the host.
HOST_MEMORY = "host"


@cache
def comm_lane(axis: str, communicator: str = "") -> str:
    """Lane of a communicator of an axis: it runs one collective at a time."""
    return f"comm {axis} {communicator}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClass:
    """Ranks that are equal in role, speed and place, simulated once. ``ranks`` ascending, not empty.

    speed: their compute speed over the nominal one, that of the host thread too. work: samples of their micro-batch
    over the nominal number, which stretches forward and backward. role: what they do in the step, where not all ranks
    do the same, such as the stage of a pipeline; '' where they do.
    """

    name: str
    ranks: tuple[int, ...]
    speed: float = 1.0
    work: float = 1.0
    role: str = ""

    @property
    def representative(self) -> int:
        return self.ranks[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Device memory of one rank. name: unique in the plan. kind: one of ``MEMORY_KINDS``, or ``HOST_MEMORY``."""

    name: str
    kind: str
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Work of ``seconds`` on a lane of every rank of ``classes``, when nothing disturbs it.

    kind: forward, backward, optimizer, copy, ``HOST_COPY``. part: the operation of the model that it belongs to.
    host_s: what the host thread takes to issue it, as ``launches`` kernels: work starts after the first and does not
    end before the last. host_after: tasks that the host waits for before it issues this one and all later ones.
    allocates: taken when the task starts. frees: names of buffers that are given back when it ends.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    seconds: float
    part: str = ""
    after: tuple[str, ...] = ()
    lane: str = COMPUTE_LANE
    host_s: float = 0.0
    launches: int = 1
    host_after: tuple[str, ...] = ()
    allocates: tuple[Buffer, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicate:
    """One collective on every group of an axis. In each group it starts when the last rank class has reached it.

    message_bytes: the size as nccl-tests counts it. purpose: what the bytes are, in words for reports.
    communicator: where an axis has several, which one. root: where in each group the rank is from which a broadcast or
    scatter starts, or at which a reduce or gather ends. repeat: how many equal ones follow each other as this task.
    Other fields as for ``Compute``.
    """

    name: str
    op: str
    axis: str
    algorithm: str
    message_bytes: float
    classes: tuple[str, ...]
    purpose: str = ""
    after: tuple[str, ...] = ()
    communicator: str = ""
    root: int = 0
    repeat: int = 1
    kind: str = "communication"
    host_s: float = 0.0
    host_after: tuple[str, ...] = ()
    allocates: tuple[Buffer, ...] = ()
    frees: tuple[str, ...] = ()

    @property
    def lane(self) -> str:
        return comm_lane(self.axis, self.communicator)

    @property
    def launches(self) -> int:
        return 1


Task = Compute | Communicate


def seconds_on(task: Compute, ranks: RankClass) -> float:
    """What the task takes on ranks of a class when nothing disturbs it."""
    if task.kind == HOST_COPY:
        return task.seconds * ranks.work
    return task.seconds * (ranks.work if task.kind in BATCH_WORK else 1.0) / ranks.speed


class PlanError(SimulatorError):
    """A plan that names unknown or duplicate tasks: a bug in a strategy. Exit code 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Tasks in issue order. ``axes``: the groups of each axis, each a tuple of ranks in group order.

    resident: memory that every rank holds before the first task. resident_of: by class name, what ranks of that class
    hold beside it; the names of its buffers are unique in a class.
    Raises PlanError when a name is used twice, a task waits for one that is not listed before it (so a plan cannot have
    a cycle), or frees what nobody holds.
    """

    title: str
    classes: tuple[RankClass, ...]
    axes: Mapping[str, tuple[tuple[int, ...], ...]]
    tasks: tuple[Task, ...]
    resident: tuple[Buffer, ...] = ()
    resident_of: Mapping[str, tuple[Buffer, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known: set[str] = set()
        names = {c.name for c in self.classes}
        for ranks in self.resident_of:
            if ranks not in names:
                raise PlanError(f"plan '{self.title}': memory is resident on the unknown class '{ranks}'")
        self._check_buffers()
        for task in self.tasks:
            if task.name in known:
                raise PlanError(f"plan '{self.title}': task '{task.name}' is listed twice")
            for before in (*task.after, *task.host_after):
                if before not in known:
                    raise PlanError(f"plan '{self.title}': '{task.name}' waits for '{before}', not listed before it")
            if isinstance(task, Communicate) and task.axis not in self.axes:
                raise PlanError(f"plan '{self.title}': '{task.name}' runs on the unknown axis '{task.axis}'")
            for ranks in task.classes:
                if ranks not in names:
                    raise PlanError(f"plan '{self.title}': '{task.name}' runs on the unknown class '{ranks}'")
            known.add(task.name)

    def _check_buffers(self) -> None:
        """Class by class, as ranks of unlike roles may use one name for buffers of their own."""
        held: dict[str, set[str]] = {c.name: set() for c in self.classes}
        for name, names in held.items():
            self._hold(names, self.resident_by(name), "before the first task")
        for task in self.tasks:
            if not task.allocates and not task.frees:
                continue
            for names in (held[name] for name in task.classes if name in held):
                self._hold(names, task.allocates, task.name)
                if not names.issuperset(task.frees):
                    lost = ", ".join(sorted(set(task.frees) - names))
                    raise PlanError(f"plan '{self.title}': '{task.name}' frees what nobody holds: {lost}")
                names.difference_update(task.frees)

    def _hold(self, held: set[str], buffers: tuple[Buffer, ...], by: str) -> None:
        for buffer in buffers:
            if buffer.name in held:
                raise PlanError(f"plan '{self.title}': {by}: buffer '{buffer.name}' is held already")
            if buffer.kind not in (*MEMORY_KINDS, HOST_MEMORY):
                raise PlanError(f"plan '{self.title}': {by}: buffer '{buffer.name}' is of no kind: '{buffer.kind}'")
            held.add(buffer.name)

    def resident_by(self, ranks: str) -> tuple[Buffer, ...]:
        """Memory that a rank of a class holds before the first task."""
        return (*self.resident, *self.resident_of.get(ranks, ()))

    @property
    def num_ranks(self) -> int:
        return sum(len(c.ranks) for c in self.classes)

    @property
    def roles(self) -> tuple[str, ...]:
        """What ranks do in the step, in the order of their first ranks; empty where all do the same."""
        return tuple(dict.fromkeys(c.role for c in self.classes if c.role))

    @property
    def has_host(self) -> bool:
        """Whether issuing the tasks takes any time or has to wait."""
        return any(task.host_s or task.host_after for task in self.tasks)


def from_root(groups: tuple[tuple[int, ...], ...], root: int) -> tuple[tuple[int, ...], ...]:
    """The same groups, each in the order that begins with its rank number ``root``: schedules are made for root 0."""
    return tuple(group[root % len(group) :] + group[: root % len(group)] for group in groups) if root else groups


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
    classes = tuple(replace(c, name=f"rank {r}", ranks=(r,)) for c in plan.classes for r in c.ranks)
    resident_of = {rank: buffers for name, buffers in plan.resident_of.items() for rank in own[name]}
    return replace(plan, classes=classes, tasks=tasks, resident_of=resident_of)


def with_classes(tasks: Iterable[Task], classes_of_role: Mapping[str, tuple[str, ...]]) -> tuple[Task, ...]:
    """The same tasks with the classes of a role (``rank_classes.classes_of_roles``) in the place of its name."""
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    placed = []
    for task in tasks:
        if task.classes not in found:
            named = (name for role in task.classes for name in classes_of_role[role])
            found[task.classes] = tuple(dict.fromkeys(named))
        names = found[task.classes]
        placed.append(task if names == task.classes else replace(task, classes=names))
    return tuple(placed)


def one_at_a_time(tasks: Iterable[Task]) -> Iterator[Task]:
    """The same tasks where each waits for all before it: a rank whose calls return only when they are done."""
    before: tuple[str, ...] = ()
    for task in tasks:
        yield replace(task, after=(*task.after, *before))
        before = (task.name,)
