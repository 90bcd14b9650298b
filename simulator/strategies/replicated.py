"""Gradients of what every rank of tensor parallelism holds whole, but sees only a part of the rows for: norms, routers
and biases of second matrices under sequence parallelism. Their sum over ``tp``, once a step.

Source: Megatron-LM, megatron/core/distributed/finalize_model_grads.py (``_allreduce_layernorm_grads``, now
``_allreduce_non_tensor_model_parallel_grads``): after the gradients have been reduced over data parallelism, all of
these in one flat all-reduce, before the optimizer steps. Norms of queries and keys see a part of the heads, so theirs
are summed without sequence parallelism too.

Limits: torchtitan's norms are DTensors, which FSDP2 sums one by one as it reduces their layer: the same bytes, in more
messages. The copies into the flat buffer and out of it take no time here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.plan import Buffer, Communicate, Task
from simulator.strategies import megatron
from simulator.strategies.clipping import NORMS, SCALE
from simulator.strategies.hooks import is_pass
from simulator.strategies.step import Draft, StepInputs, collective
from simulator.training.operations import num_elements
from simulator.training.tensor import AXIS, summed_parameters

NAME = "all-reduce gradients of replicated parameters"


def summed_bytes(inputs: StepInputs) -> float:
    """Bytes of the flat gradients that are summed over tp; 0 where there are none."""
    mesh, parallel = inputs.mesh, inputs.parallel
    if mesh is None or mesh.tp == 1:
        return 0.0
    precision = inputs.precision
    if parallel.implemented_by == "megatron":
        precision = megatron.states(precision)
    found = summed_parameters(inputs.model.operations, sequence_parallel=parallel.shares_sequence)
    return float(num_elements(found) * precision.grad_bytes)


def with_sum(inputs: StepInputs, draft: Draft) -> Draft:
    """A strategy's step with that all-reduce between the reduction of gradients and what uses them."""
    size = summed_bytes(inputs)
    if not size:
        return draft
    tasks = list(draft.tasks)
    backwards = [number for number, task in enumerate(tasks) if is_pass(task) and task.kind == "backward"]
    end = next(number for number in range(backwards[-1] + 1, len(tasks)) if _uses_gradients(tasks[number]))
    one = _sum(inputs, NAME, size, _reduced(tasks[backwards[0] : end], tasks[backwards[-1]].name))
    user = replace(tasks[end], after=(*tasks[end].after, NAME))
    return replace(draft, tasks=(*tasks[:end], one, user, *tasks[end + 1 :]))


def sums_of_roles(
    inputs: StepInputs, held: Mapping[str, Sequence[StepInputs]], after: Mapping[str, tuple[str, ...]]
) -> dict[str, Communicate]:
    """The same for ranks that hold stages: one all-reduce of all that a rank holds, whatever its chunks.

    held: by role, the inputs of the stages of its ranks. after: by role, what reduces their gradients. Roles without
    anything to sum are left out.
    """
    sizes = {role: sum(map(summed_bytes, stages)) for role, stages in held.items()}
    return {
        role: replace(_sum(inputs, f"{NAME} on {role}", size, after[role]), classes=(role,))
        for role, size in sizes.items() if size
    }  # fmt: skip


def _sum(inputs: StepInputs, name: str, size: float, after: tuple[str, ...]) -> Communicate:
    flat = Buffer(name=f"flat buffer of {name}", kind="buffers", size_bytes=size)
    return collective(
        inputs, name, "all_reduce", AXIS, size, purpose="gradients of norms and other replicated parameters",
        after=tuple(dict.fromkeys(after)), allocates=(flat,), frees=(flat.name,),
    )  # fmt: skip


def _uses_gradients(task: Task) -> bool:
    """Whether it takes their norm, scales them, or is the optimizer."""
    return task.kind == "optimizer" or task.name.startswith((NORMS, SCALE))


def _reduced(tasks: Sequence[Task], last: str) -> tuple[str, ...]:
    """The last backward, and the last collective of each lane since the first."""
    latest = {task.lane: task.name for task in tasks if isinstance(task, Communicate)}
    return (last, *latest.values())
