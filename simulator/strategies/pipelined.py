"""A step in which ranks hold stages of the model: every rank's order of passes, what stages send each other, and around
them what a strategy of data parallelism does.

Sources: Narayanan et al., arXiv:2104.04473 (1F1B, interleaved; send after each pass); torch.distributed.pipelining 2.13
(schedules.py: ``Schedule1F1B`` waits for its sends before it goes on, the runtime of several stages does not);
DualPipe, arXiv:2412.19437, section 3.2.1 (a forward and a backward side by side, each hiding what the other sends).

Data flow: a pipeline's schedule (``simulator.pipelines``), its stages (``stages``), the hooks of the strategy in each
(``hooks``) -> passes as tasks (``stretches``) in the order in which they would start without communication -> Draft.
With one stage this is plain accumulation of gradients over micro-batches; experts that are shared come this way too,
since their gradients are reduced apart from all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from simulator.errors import ScenarioError
from simulator.pipelines import pipeline_schedule
from simulator.pipelines.messages import message_after
from simulator.pipelines.order import Action, Pair, PipelineSchedule, actions
from simulator.pipelines.playing import StageTimes, play
from simulator.plan import Communicate, Task
from simulator.strategies.clipping import replica_axis, with_norm_of_replica
from simulator.strategies.hooks import Hooks
from simulator.strategies.parts import Step, hooks_of_stage, resident_of_role
from simulator.strategies.passes import Passes, placed
from simulator.strategies.stages import Stage, cut
from simulator.strategies.step import Draft, Groups, StepInputs

#: Play needs times above zero to tell what comes first.
_LEAST_S = 1e-12
#: Schedules whose sends keep their sender waiting, unless told otherwise: those of one stage on each rank.
_WAITS_FOR_SENDS = frozenset({"1f1b", "gpipe"})

#: Axis of the first and the last stage of a pipeline.
EMBEDDING = "embedding"


def boundary_axis(source: int, target: int) -> str:
    """Axis of what one rank of a pipeline sends another."""
    return f"pp {source}>{target}"


def pipelined(inputs: StepInputs, step: Step) -> Draft:
    """One steady step of stages that each do what ``step`` plans. Raises ScenarioError for what does not fit."""
    schedule = schedule_of(inputs)
    stages = cut(_with_copies(inputs, schedule), schedule.stages_per_chain)
    parts = [hooks_of_stage(stage, step) for stage in stages]
    line = _Line(inputs, schedule, stages, parts)
    axes: dict[str, Groups] = {name: groups for part in parts for name, groups in part.axes.items()}
    axes |= model_axes(inputs) | replica_axis(inputs) | line.boundaries()
    tasks = tuple(line.tasks())
    return Draft(
        tasks=tasks, axes={name: axes[name] for name in axes if _used(name, tasks)}, roles=line.roles,
        resident_of={
            line.role(rank): resident_of_role(
                inputs, [parts[schedule.part_of_model(s)] for s in schedule.stages_of(rank)], schedule.stages_of(rank)
            )
            for rank in range(schedule.num_ranks)
        },
    )  # fmt: skip


def startup(inputs: StepInputs, begin: Step) -> Draft:
    """What each stage sends once, before the first step."""
    schedule = schedule_of(inputs)
    stages = cut(_with_copies(inputs, schedule), schedule.stages_per_chain)
    line = _Line(inputs, schedule, stages, ())
    tasks: list[Task] = []
    axes: dict[str, Groups] = {}
    for part, stage in enumerate(stages):
        draft = begin(stage.inputs)
        axes |= draft.axes
        homes = {schedule.ranks_of_stages[n] for n in range(part, schedule.num_stages, len(stages))}
        roles = tuple(line.role(home) for home in sorted(homes))
        tasks += (replace(task, classes=roles) for task in placed(draft.tasks, part, roles[0]))
    return Draft(tasks=tuple(tasks), axes=axes, roles=line.roles)


def schedule_of(inputs: StepInputs) -> PipelineSchedule:
    """The schedule that the scenario asks for. Raises ScenarioError for numbers that it cannot take."""
    parallel = inputs.parallel
    name = parallel.schedule or ("interleaved-1f1b" if (parallel.chunks or 1) > 1 else "1f1b")
    try:
        return pipeline_schedule(name, parallel.pp, inputs.micro_batches, parallel.chunks)
    except ScenarioError as error:
        key = "schedule" if parallel.schedule else "chunks" if parallel.chunks else "pp"
        raise ScenarioError(f"parallel.{key}: {error} (micro-batches are train.grad_accumulation)") from None


def _with_copies(inputs: StepInputs, schedule: PipelineSchedule) -> StepInputs:
    """Where two chains hold the model, ranks of both copies reduce gradients together."""
    chains = schedule.num_stages // schedule.stages_per_chain
    return inputs if chains == 1 else replace(inputs, mirrored=True, num_ranks=inputs.num_ranks * chains)


def model_axes(inputs: StepInputs) -> dict[str, Groups]:
    """Groups of the ranks that share one replica's operations."""
    mesh = inputs.mesh
    return {} if mesh is None else {a: mesh.groups(a) for a in ("tp", "cp", "ep", "etp") if mesh.size(a) > 1}


def _used(axis: str, tasks: tuple[Task, ...]) -> bool:
    return any(isinstance(task, Communicate) and task.axis == axis for task in tasks)


class _Line:
    """The pipeline's ranks and what they do, in the order of their passes."""

    def __init__(
        self, inputs: StepInputs, schedule: PipelineSchedule, stages: tuple[Stage, ...], parts: list[Hooks] | tuple[()]
    ) -> None:
        self._inputs, self._schedule, self._stages, self._parts = inputs, schedule, stages, parts
        mesh = inputs.mesh
        assert mesh is not None, "stages stand on a mesh"
        self._mesh = mesh
        self.roles = tuple(self.role(place) for place in mesh.along("pp"))
        #: a backward may be whole or in halves: which of them takes what the stage after sends
        self._kinds = {
            (a.stage, a.micro_batch): a.kind
            for order in schedule.orders for a in actions(order) if a.kind in ("B", "I")
        }  # fmt: skip
        wanted = inputs.parallel.overlap_p2p
        self._overlaps = schedule.name not in _WAITS_FOR_SENDS if wanted is None else wanted

    def role(self, rank: int) -> str:
        """Name of the ranks at one place of the pipeline."""
        return f"pp {rank}"

    def boundaries(self) -> dict[str, Groups]:
        """An axis for each direction between two ranks of the pipeline."""
        lines = self._mesh.groups("pp")
        ends = {
            (message.source, message.target)
            for order in self._schedule.orders for action in actions(order)
            if (message := message_after(self._schedule, action))
        }  # fmt: skip
        found: dict[str, Groups] = {
            boundary_axis(a, b): tuple((line[a], line[b]) for line in lines) for a, b in sorted(ends)
        }  # fmt: skip
        tables = [n for n, stage in enumerate(self._stages) if stage.tied]
        if len(tables) > 1:
            a, b = (self._schedule.ranks_of_stages[n] for n in tables[:2])
            found[EMBEDDING] = tuple((line[a], line[b]) for line in lines)
        return found

    def _times(self) -> list[StageTimes]:
        found = []
        for stage in self._stages:
            forward, backward = sum(stage.inputs.forward_s), sum(stage.inputs.backward_s)
            weights = min(sum(stage.inputs.weight_grad_s), backward)
            parts = (forward, backward - weights, weights)
            found.append(StageTimes(*(max(seconds, _LEAST_S) for seconds in parts)))
        return found

    def tasks(self) -> Iterator[Task]:
        """All passes in the order in which they would start without communication, then the updates."""
        spans = [
            (span.start, span.end, rank, span.step)
            for rank, row in enumerate(play(self._schedule, self._times()).spans) for span in row
        ]  # fmt: skip
        passes = {
            stage: Passes(
                self._inputs, self._stages[self._schedule.part_of_model(stage)],
                self._parts[self._schedule.part_of_model(stage)], self._schedule, stage, self.role(home),
            )
            for stage, home in enumerate(self._schedule.ranks_of_stages)
        }  # fmt: skip
        arriving: dict[Action, str] = {}
        owed: dict[int, tuple[str, ...]] = {}
        for one, roles in self._copies(passes):
            yield from one.together(one.hooks.forward, roles, ())
        for _, _, rank, step in sorted(spans, key=lambda span: span[:3]):
            both = step if isinstance(step, Pair) else (step,)
            waits = (*owed.get(rank, ()), *(arriving.pop(a) for a in both if a in arriving))
            if isinstance(step, Pair):
                done = passes[step.forward.stage].beside(step, passes[step.backward.stage], waits)
            else:
                done = passes[step.stage].run(step, waits)
            yield from done.tasks
            owed[rank] = done.ends
            for action in both:
                send = self._send(action, done.ends)
                if send is None:
                    continue
                yield send[0]
                arriving[send[1]] = send[0].name
                if not self._overlaps:
                    owed[rank] = (*owed[rank], send[0].name)
        yield from self._updates(owed, passes)

    def _send(self, action: Action, after: tuple[str, ...]) -> tuple[Communicate, Action] | None:
        """What a pass sends to another rank, and the pass that waits for it."""
        message = message_after(self._schedule, action)
        if message is None:
            return None
        forward = action.kind == "F"
        boundary = self._stages[self._schedule.part_of_model(action.stage if forward else message.to_stage)]
        what = "activations" if forward else "gradients of activations"
        task = Communicate(
            name=f"send {what} {action.micro_batch}: stage {action.stage} to {message.to_stage}", op="send",
            axis=boundary_axis(message.source, message.target), algorithm="auto", message_bytes=boundary.sent_bytes,
            classes=(self.role(message.source), self.role(message.target)), purpose=f"{what} between stages",
            after=after, host_s=self._inputs.host.collective_s,
        )  # fmt: skip
        return task, Action(
            message.to_stage, "F" if forward else self._kinds[message.to_stage, action.micro_batch], action.micro_batch
        )

    def _shared_table(self, first: int, last: int, passes: Mapping[int, Passes]) -> Communicate | None:
        """The sum of the gradients of a table that two stages hold; None where both are on one rank."""
        tied = self._stages[self._schedule.part_of_model(first)].tied
        assert tied is not None, "both share it"
        ends = (self._schedule.ranks_of_stages[first], self._schedule.ranks_of_stages[last])
        if ends[0] == ends[1]:
            return None
        return Communicate(
            name="all-reduce shared embedding", op="all_reduce", axis=EMBEDDING, algorithm="auto",
            message_bytes=float(tied.numel * self._inputs.precision.reduce_bytes),
            classes=tuple(self.role(end) for end in ends), purpose="gradients of the shared embedding",
            host_s=self._inputs.host.collective_s,
            after=tuple(name for n in (first, last) for name in passes[n].reduced()),
        )  # fmt: skip

    def _updates(self, owed: Mapping[int, tuple[str, ...]], passes: Mapping[int, Passes]) -> Iterator[Task]:
        """Gradients of a table that two stages share are added up; then every rank's optimizer."""
        after: dict[int, tuple[str, ...]] = {}
        shared = [n for n in passes if self._stages[self._schedule.part_of_model(n)].tied]
        if len(shared) > 1 and (task := self._shared_table(shared[0], shared[1], passes)):
            yield task
            after = dict.fromkeys(shared[:2], (task.name,))
        everywhere = tuple(dict.fromkeys(name for names in owed.values() for name in names))
        updates: list[tuple[Task, ...]] = []
        for one, roles in self._copies(passes):
            yield from one.together(one.hooks.backward, roles, everywhere)
            updates.append(tuple(one.update(everywhere, roles)))
        for number, one in passes.items() if not self._mirrored else ():
            home = self._schedule.ranks_of_stages[number]
            updates.append(tuple(one.update((*owed.get(home, ()), *after.get(number, ())))))
        yield from with_norm_of_replica(self._inputs, updates, tuple(dict.fromkeys(self.roles)))

    @property
    def _mirrored(self) -> bool:
        return self._schedule.num_stages > self._schedule.stages_per_chain

    def _copies(self, passes: Mapping[int, Passes]) -> Iterator[tuple[Passes, tuple[str, ...]]]:
        """Of each part of the model that two ranks hold, one stage's passes and the roles of both."""
        for part in range(self._schedule.stages_per_chain) if self._mirrored else ():
            stages = (part, part + self._schedule.stages_per_chain)
            homes = [self._schedule.ranks_of_stages[stage] for stage in stages]
            yield passes[part], tuple(self.role(home) for home in sorted(homes))
