"""A step in which ranks hold stages of the model: every rank's order of passes, what stages send each other, and around
them what a strategy of data parallelism does.

Sources: Narayanan et al., arXiv:2104.04473 (1F1B, interleaved; send after each pass); who waits for what is sent, see
``sends``; DualPipe, arXiv:2412.19437, section 3.2.1 (a forward and a backward side by side, each hiding what the other
sends).

Data flow: a pipeline's schedule (``simulator.pipelines``), its stages (``stages``), the hooks of the strategy in each
(``hooks``) -> passes as tasks (``stretches``) and sends in an order in which nothing waits for what comes later ->
Draft.
With one stage this is plain accumulation of gradients over micro-batches; experts that are shared come this way too,
since their gradients are reduced apart from all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from simulator.errors import ScenarioError
from simulator.parallel_spec import Parallel
from simulator.pipelines import pipeline_schedule
from simulator.pipelines.messages import Message, message_after
from simulator.pipelines.order import Action, Pair, PipelineSchedule, actions
from simulator.pipelines.playing import StageTimes, play
from simulator.plan import Communicate, Task
from simulator.strategies.clipping import replica_axis, with_norm_of_replica
from simulator.strategies.hooks import Hooks
from simulator.strategies.meetings import Passed, Sent, in_order
from simulator.strategies.parts import Step, hooks_of_stage, resident_of_role
from simulator.strategies.passes import Passes, placed
from simulator.strategies.replicated import sums_of_roles
from simulator.strategies.sends import each, receivers_of, sends_of
from simulator.strategies.stages import Stage, cut
from simulator.strategies.step import Draft, Groups, StepInputs, names
from simulator.strategies.stretches import Run

#: Play needs times above zero to tell what comes first.
_LEAST_S = 1e-12
#: Implementations of data parallelism that come with pipelines of their own; beside the others it is PyTorch's.
_SCHEDULES_OF_THEIR_OWN = frozenset({"megatron", "deepspeed"})
#: Schedules whose own runtime frees what it has sent, whatever is beside them (deepseek-ai/DualPipe, dualpipe.py,
#: ``_free_tensors``).
_FREEING = frozenset({"dualpipe", "dualpipe-v"})
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
    used = {task.axis for task in tasks if isinstance(task, Communicate)}
    return Draft(
        tasks=tasks, axes={name: axes[name] for name in axes if name in used}, roles=line.roles,
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
    return schedule_for(inputs.parallel, inputs.micro_batches)


def schedule_for(parallel: Parallel, micro_batches: int) -> PipelineSchedule:
    """The same before there are operations to plan."""
    try:
        return pipeline_schedule(parallel.schedule_name, parallel.pp, micro_batches, parallel.chunks)
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
        by_torch = inputs.parallel.implemented_by not in _SCHEDULES_OF_THEIR_OWN
        ways = sends_of(schedule, overlap=inputs.parallel.overlap_p2p, by_torch=by_torch)
        self._sends = replace(ways, both_ways=inputs.both_ways)

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
        """All passes and sends, as early as they would come without communication, then the updates."""
        passes = {
            stage: Passes(
                self._inputs, self._stages[self._schedule.part_of_model(stage)],
                self._parts[self._schedule.part_of_model(stage)], self._schedule, stage, self.role(home),
                self._kept_output_bytes(stage),
            )
            for stage, home in enumerate(self._schedule.ranks_of_stages)
        }  # fmt: skip
        for one, roles in self._copies(passes):
            yield from one.together(one.hooks.forward, roles, ())
        times = [[(span.start, span.end) for span in row] for row in play(self._schedule, self._times()).spans]
        sent: dict[Action, str] = {}
        ends: list[list[tuple[str, ...]]] = [[()] for _ in range(self._schedule.num_ranks)]
        last: list[dict[str, str]] = [{} for _ in ends]
        after: dict[Action, tuple[str, ...]] = {}
        for event in in_order(self._schedule, times, receivers_of(self._schedule), self._sends):
            if isinstance(event, Sent):
                message = event.message
                waits = (*ends[message.target][event.asked], *(sent[action] for action in event.behind))
                yield (task := self._send(message, (*after.pop(message.after), *waits)))
                sent[message.after] = last[message.source][task.axis] = task.name
                continue
            done = self._passed(event, passes, (*ends[event.rank][-1], *(sent[action] for action in event.needs)))
            yield from done.tasks
            ends[event.rank].append(done.ends)
            after |= dict.fromkeys(each(event.step), done.ends)
        # a step is over when what its ranks send is
        over = {rank: (*names[-1], *last[rank].values()) for rank, names in enumerate(ends)}
        yield from self._updates(over, passes)

    def _kept_output_bytes(self, stage: int) -> float:
        """What a stage has sent to another rank stays until its backward, unless it is freed.

        PyTorch keeps it in ``fwd_cache`` (torch/distributed/pipelining/stage.py), DeepSpeed in ``pipe_buffers``
        (runtime/pipe/engine.py); Megatron-LM empties it (``deallocate_output_tensor``, pipeline_parallel/schedules.py).
        """
        parallel, homes = self._inputs.parallel, self._schedule.ranks_of_stages
        freed = parallel.deallocate_outputs
        if freed is None:
            freed = parallel.implemented_by == "megatron" or self._schedule.name in _FREEING
        if freed or self._schedule.is_last(stage) or homes[stage] == homes[stage + 1]:
            return 0.0
        return self._stages[self._schedule.part_of_model(stage)].sent_bytes

    def _passed(self, event: Passed, passes: Mapping[int, Passes], waits: tuple[str, ...]) -> Run:
        step = event.step
        if isinstance(step, Pair):
            return passes[step.forward.stage].beside(step, passes[step.backward.stage], waits)
        return passes[step.stage].run(step, waits)

    def _send(self, message: Message, after: tuple[str, ...]) -> Communicate:
        """What a pass sends to another rank."""
        action, forward = message.after, message.after.kind == "F"
        boundary = self._stages[self._schedule.part_of_model(action.stage if forward else message.to_stage)]
        what = "activations" if forward else "gradients of activations"
        return Communicate(
            name=f"send {what} {action.micro_batch}: stage {action.stage} to {message.to_stage}", op="send",
            axis=boundary_axis(message.source, message.target), algorithm="auto", message_bytes=boundary.sent_bytes,
            classes=(self.role(message.source), self.role(message.target)), purpose=f"{what} between stages",
            after=after, host_s=self._inputs.host.collective_s,
        )  # fmt: skip

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
        together: list[Task] = []
        for one, roles in self._copies(passes):
            together += one.together(one.hooks.backward, roles, everywhere)
        yield from together
        sums = self._sums(owed, passes, names(together))
        yield from sums.values()
        summed = {role: (task.name,) for role, task in sums.items()}
        updates: list[tuple[Task, ...]] = []
        for one, roles in self._copies(passes):
            own = (name for role in roles for name in summed.get(role, ()))
            updates.append(tuple(one.update((*everywhere, *own), roles)))
        for number, one in passes.items() if not self._mirrored else ():
            home = self._schedule.ranks_of_stages[number]
            waits = (*owed.get(home, ()), *after.get(number, ()), *summed.get(self.role(home), ()))
            updates.append(tuple(one.update(waits)))
        yield from with_norm_of_replica(self._inputs, updates, tuple(dict.fromkeys(self.roles)))

    def _sums(
        self, owed: Mapping[int, tuple[str, ...]], passes: Mapping[int, Passes], together: tuple[str, ...]
    ) -> dict[str, Communicate]:
        """By role, the sum over tp of what its ranks hold whole, when all else is reduced."""
        held = {self.role(rank): self._schedule.stages_of(rank) for rank in range(self._schedule.num_ranks)}
        parts = {
            role: [self._stages[self._schedule.part_of_model(n)].inputs for n in own] for role, own in held.items()
        }  # fmt: skip
        after = {
            self.role(rank): (*ends, *(name for n in held[self.role(rank)] for name in passes[n].reduced()), *together)
            for rank, ends in owed.items()
        }  # fmt: skip
        return sums_of_roles(self._inputs, parts, after)

    @property
    def _mirrored(self) -> bool:
        return self._schedule.num_stages > self._schedule.stages_per_chain

    def _copies(self, passes: Mapping[int, Passes]) -> Iterator[tuple[Passes, tuple[str, ...]]]:
        """Of each part of the model that two ranks hold, one stage's passes and the roles of both."""
        for part in range(self._schedule.stages_per_chain) if self._mirrored else ():
            stages = (part, part + self._schedule.stages_per_chain)
            homes = [self._schedule.ranks_of_stages[stage] for stage in stages]
            yield passes[part], tuple(self.role(home) for home in sorted(homes))
