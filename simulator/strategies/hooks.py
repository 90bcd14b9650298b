"""What a strategy of data parallelism does around the passes of one stage: before and in its first forward, in its last
backward, and after it.

Taken from the plan that the strategy makes for a step of one micro-batch: what it sends in that forward (gathered
weights) belongs to the first forward of the pipeline, what it sends in that backward (gradients) to the last backward,
as frameworks do it: ``no_sync`` until the last backward (torch.distributed.pipelining, ``_PipelineStageBase.
backward_maybe_with_nosync``; Megatron-LM, megatron/core/pipeline_parallel/schedules.py, ``enable_grad_sync``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from simulator.plan import BATCH_WORK, COMPUTE_LANE, Buffer, Communicate, Compute, Task
from simulator.strategies.step import Draft, Groups, StepInputs
from simulator.strategies.stretches import bare_pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """Operations of a pass in a row, by number. allocates, frees, after: what the strategy adds to that of the pass."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]
    after: tuple[str, ...] = ()
    allocates: tuple[Buffer, ...] = ()
    frees: tuple[str, ...] = ()


Segment = tuple[Passing | Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """forward, backward: the first forward and the last backward with what is sent between their operations. gradients:
    buffers that the backwards fill, from the first one on. update: what follows when all is reduced.
    """

    forward: Segment
    backward: Segment
    gradients: tuple[Buffer, ...]
    update: tuple[Task, ...]
    axes: dict[str, Groups]
    resident: tuple[Buffer, ...]


def as_computed(inputs: StepInputs) -> StepInputs:
    """The inputs as passes see them under a strategy: without autocast's copies of weights where the strategy has the
    weights in the type of the products anyway (Megatron-LM's buffers, FSDP's gathered units).
    """
    parallel, precision = inputs.parallel, inputs.precision
    kept_wide = parallel.param_dtype == "fp32"
    if parallel.implemented_by == "megatron" or (parallel.strategy in ("fsdp", "hsdp") and not kept_wide):
        return replace(inputs, precision=replace(precision, cached_weight_bytes=0))
    return inputs


def hooks_of(draft: Draft, inputs: StepInputs) -> Hooks:
    """Of a strategy's plan of one micro-batch."""
    tasks = list(draft.tasks)
    passes = [n for n, task in enumerate(tasks) if is_pass(task)]
    backwards = [n for n in passes if tasks[n].kind == "backward"]
    first, last = backwards[0], backwards[-1]
    forwards_end = max(n for n in passes if n < first) + 1
    end = _end_of_backward(tasks, last + 1)
    gradients = _gradients(tasks[forwards_end:end])
    held = {buffer.name for buffer in gradients}
    return Hooks(
        forward=tuple(_segment(tasks[:forwards_end], inputs, held)),
        backward=tuple(_segment(tasks[forwards_end:end], inputs, held)),
        gradients=gradients, update=tuple(tasks[end:]), axes=dict(draft.axes), resident=draft.resident,
    )  # fmt: skip


def is_pass(task: Task) -> bool:
    """Whether it is a forward or a backward of an operation."""
    return isinstance(task, Compute) and task.kind in BATCH_WORK and ": " in task.name


def _end_of_backward(tasks: Sequence[Task], start: int) -> int:
    """The first task after the backward that keeps the compute stream waiting for what is sent."""
    sent = {task.name for task in tasks if isinstance(task, Communicate)}
    for number in range(start, len(tasks)):
        task = tasks[number]
        if task.kind == "optimizer" or (task.lane == COMPUTE_LANE and not sent.isdisjoint(task.after)):
            return number
    return len(tasks)


def _gradients(tasks: Sequence[Task]) -> tuple[Buffer, ...]:
    """Gradients that a backward brings to life and some later task uses up."""
    own = [task for task in tasks if is_pass(task)]
    gone = {name for task in own for name in task.frees}
    return tuple(b for task in own for b in task.allocates if b.kind == "grads" and b.name not in gone)


def _segment(tasks: Sequence[Task], inputs: StepInputs, held: set[str]) -> Iterator[Passing | Task]:
    """Passes in a row joined; one that waits for something begins a new row."""
    numbers = {operation.name: number for number, operation in enumerate(inputs.model.operations)}
    for passing, some in groupby(tasks, is_pass):
        if not passing:
            yield from some
            continue
        row: list[Task] = []
        for task in some:
            if row and task.after:
                yield _passing(row, inputs, numbers, held)
                row = []
            row.append(task)
        yield _passing(row, inputs, numbers, held)


def _passing(row: Sequence[Task], inputs: StepInputs, numbers: dict[str, int], held: set[str]) -> Passing:
    own = {task.name for task in row}
    made: list[Buffer] = []
    gone: list[str] = []
    for task in row:
        bare = bare_pass(inputs, numbers[task.name.split(": ", 1)[1]], task.kind)
        known = {buffer.name for buffer in bare.allocates} | set(bare.frees)
        made += [b for b in task.allocates if b.name not in known and b.name not in held and b.kind != "activations"]
        gone += [name for name in task.frees if name not in known]
    born = {buffer.name for buffer in made}
    brief = born.intersection(gone)
    return Passing(
        numbers=tuple(sorted(numbers[task.name.split(": ", 1)[1]] for task in row)),
        names=tuple(task.name for task in row),
        after=tuple(dict.fromkeys(name for task in row for name in task.after if name not in own)),
        allocates=tuple(b for b in made if b.name not in brief), frees=tuple(n for n in gone if n not in brief),
    )  # fmt: skip


def renamed(task: Task, word: Callable[[str], str], waits: Callable[[Sequence[str]], tuple[str, ...]]) -> Task:
    """The task and its buffers under other names, after what ``waits`` makes of the names that it waits for."""
    return replace(
        task, name=word(task.name), after=waits(task.after), host_after=waits(task.host_after),
        allocates=tuple(replace(b, name=word(b.name)) for b in task.allocates), frees=tuple(map(word, task.frees)),
    )  # fmt: skip


def merge(dense: Hooks, experts: Hooks) -> Hooks:
    """Both strategies' hooks around the same operations: of parameters that all ranks share, and of experts."""
    return Hooks(
        forward=tuple(_merged(dense.forward, experts.forward)),
        backward=tuple(_merged(dense.backward, experts.backward)),
        gradients=(*dense.gradients, *experts.gradients), update=(*dense.update, *experts.update),
        axes=dense.axes | experts.axes, resident=(*dense.resident, *experts.resident),
    )  # fmt: skip


def _merged(one: Segment, other: Segment) -> Iterator[Passing | Task]:
    """Rows cut where either has a cut; what stands between rows stands there still."""
    cuts = {n for segment in (one, other) for n in _cuts(segment)}
    left, right = list(_recut(one, cuts)), list(_recut(other, cuts))
    while left or right:
        while left and not isinstance(left[0], Passing):
            yield left.pop(0)
        while right and not isinstance(right[0], Passing):
            yield right.pop(0)
        if left and right:
            a, b = left.pop(0), right.pop(0)
            assert isinstance(a, Passing), "tasks between rows were taken already"
            assert isinstance(b, Passing), "tasks between rows were taken already"
            assert a.numbers == b.numbers, "both pass the same operations"
            yield replace(
                a, after=(*a.after, *b.after), allocates=(*a.allocates, *b.allocates), frees=(*a.frees, *b.frees)
            )  # fmt: skip


def _cuts(segment: Segment) -> Iterator[int]:
    """How many operations have been passed at each end of a row."""
    done = 0
    for entry in segment:
        if isinstance(entry, Passing):
            done += len(entry.numbers)
            yield done


def _recut(segment: Segment, cuts: set[int]) -> Iterator[Passing | Task]:
    done = 0
    for entry in segment:
        if not isinstance(entry, Passing):
            yield entry
            continue
        backward = entry.names[0].startswith("backward")
        order = entry.numbers[::-1] if backward else entry.numbers
        places = [0, *(c - done for c in sorted(cuts) if done < c < done + len(order)), len(order)]
        for first, end in pairwise(places):
            yield replace(
                entry, numbers=tuple(sorted(order[first:end])), names=entry.names[first:end],
                after=entry.after if first == 0 else (), allocates=entry.allocates if first == 0 else (),
                frees=entry.frees if end == len(order) else (),
            )  # fmt: skip
        done += len(order)
