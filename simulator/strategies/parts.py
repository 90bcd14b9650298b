"""What a strategy does with the parameters of one stage: those that all ranks of data parallelism share, and experts,
whose gradients are reduced only among the ranks that hold the same ones (Megatron-LM: expert data parallel groups).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from simulator.plan import Buffer, Communicate, Task
from simulator.strategies.hooks import Hooks, Passing, hooks_of, merge, renamed
from simulator.strategies.resident import FURTHER_COMMUNICATOR_BYTES
from simulator.strategies.stages import Stage
from simulator.strategies.step import Draft, StepInputs
from simulator.training.experts import is_expert
from simulator.training.operations import Operation, ParameterTensor, num_elements

Step = Callable[[StepInputs], Draft]
#: Buffers of a rank that its stages have in common.
_ONCE = ("context", "communicator", "buffers of the model")


def hooks_of_stage(stage: Stage, step: Step) -> Hooks:
    """The strategy around the stage's passes."""
    inputs = stage.inputs
    mesh = inputs.mesh
    if mesh is None or not has_experts_apart(inputs):
        return hooks_of(step(inputs), inputs)
    dense = _only(inputs, lambda tensor: not is_expert(tensor))
    copies = 2 if inputs.mirrored else 1
    sparse = replace(
        _only(inputs, is_expert), num_ranks=mesh.edp * copies, reduces_over=("edp",), clip_grad_norm=False
    )  # fmt: skip
    return merge(hooks_of(step(dense), dense), _of_experts(hooks_of(step(sparse), sparse)))


def has_experts_apart(inputs: StepInputs) -> bool:
    """Whether gradients of experts are reduced among other ranks than those of the rest."""
    mesh = inputs.mesh
    return mesh is not None and mesh.edp != mesh.size("dp", "cp") and any(map(is_expert, inputs.model.parameters))


def _only(inputs: StepInputs, wanted: Callable[[ParameterTensor], bool]) -> StepInputs:
    """The inputs with some of the parameters: all operations run, the others' parameters are another's business."""
    operations = tuple(
        replace(_with_only(o, wanted), replayed=tuple(_with_only(again, wanted) for again in o.replayed))
        for o in inputs.model.operations
    )  # fmt: skip
    parameters = tuple(t for t in inputs.model.parameters if wanted(t))
    names = {tensor.name for tensor in parameters}
    model = replace(
        inputs.model, operations=operations, parameters=parameters, num_parameters=num_elements(parameters),
        tied=tuple(pair for pair in inputs.model.tied if pair[1] in names),
    )  # fmt: skip
    return inputs.with_part(model)


def _with_only(operation: Operation, wanted: Callable[[ParameterTensor], bool]) -> Operation:
    return replace(operation, parameters=tuple(t for t in operation.parameters if wanted(t)))


def _of_experts(hooks: Hooks) -> Hooks:
    """The same under names and axes of the experts, without what the rank holds once."""
    entries = (*hooks.forward, *hooks.backward, *hooks.update)
    own = {entry.name for entry in entries if not isinstance(entry, Passing)}
    return Hooks(
        forward=tuple(_told(entry, own) for entry in hooks.forward),
        backward=tuple(_told(entry, own) for entry in hooks.backward),
        gradients=tuple(map(_buffer, hooks.gradients)),
        update=tuple(_told_task(task, own) for task in hooks.update),
        axes={_expert_axis(axis): groups for axis, groups in hooks.axes.items()},
        resident=tuple(_buffer(b) for b in hooks.resident if b.name not in _ONCE),
    )  # fmt: skip


def _told(entry: Passing | Task, own: set[str]) -> Passing | Task:
    if not isinstance(entry, Passing):
        return _told_task(entry, own)
    return replace(
        entry, after=_named(entry.after, own), allocates=tuple(map(_buffer, entry.allocates)),
        frees=tuple(map(_word, entry.frees)),
    )  # fmt: skip


def _told_task(task: Task, own: set[str]) -> Task:
    """A task of the strategy. own: names of all of them; others are passes over operations, which keep theirs."""
    found = renamed(task, _word, lambda names: _named(names, own))
    return replace(found, axis=_expert_axis(found.axis)) if isinstance(found, Communicate) else found


def _named(names: Sequence[str], own: set[str]) -> tuple[str, ...]:
    return tuple(_word(name) if name in own else name for name in names)


def _word(name: str) -> str:
    return f"experts' {name}"


def _buffer(buffer: Buffer) -> Buffer:
    return replace(buffer, name=_word(buffer.name))


def _expert_axis(axis: str) -> str:
    return "edp" if axis == "dp" else f"expert {axis}"


def resident_of_role(inputs: StepInputs, parts: Sequence[Hooks], stages: Sequence[int]) -> tuple[Buffer, ...]:
    """What ranks of a role hold all the time: each stage's states, and once what they have in common, with a
    communicator for each further axis.
    """
    found: dict[str, Buffer] = {}
    for number, hooks in zip(stages, parts, strict=True):
        for buffer in hooks.resident:
            name = buffer.name if buffer.name in _ONCE else f"{buffer.name} of stage {number}"
            if name in found and buffer.size_bytes <= found[name].size_bytes:
                continue
            found[name] = replace(buffer, name=name)
    more = further_communicators(inputs)
    return (*found.values(), more) if more.size_bytes else tuple(found.values())


def further_communicators(inputs: StepInputs) -> Buffer:
    """Memory of the communicators of the axes that a replica has beside data parallelism."""
    mesh = inputs.mesh
    count = 0 if mesh is None else sum(mesh.size(axis) > 1 for axis in ("tp", "cp", "pp", "ep"))
    size = count * FURTHER_COMMUNICATOR_BYTES if inputs.communicator_bytes else 0.0
    return Buffer(name="communicators of the replica", kind="workspace", size_bytes=size)
