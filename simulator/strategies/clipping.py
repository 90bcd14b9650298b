"""Clipping gradients: the norm of a rank's, and where ranks hold parts of the model the sum over those of a replica.

Source: Megatron-LM, megatron/core/optimizer/clip_grads.py (``get_grad_norm_fp32``: an all-reduce over the ranks of the
model-parallel group); torchtitan, distributed/utils.py (``clip_grad_norm_``: over the stages of the pipeline).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.plan import Communicate, Compute, Task
from simulator.strategies.step import Groups, StepInputs, copy

#: Axis of the ranks that hold one copy of the parameters, and bytes of a norm (fp32).
REPLICA, NORM_BYTES = "replica", 4.0
#: Name of the task that scales, before which the norm has to be that of all.
SCALE = "scale gradients"
#: Name of the task that takes the norm of a rank's gradients.
NORMS = "norms of gradients"


def norm_of(inputs: StepInputs, size_bytes: float, *, after: tuple[str, ...] = ()) -> Compute:
    """The norm of gradients of so many bytes on this rank, which reads them once."""
    return copy(inputs, NORMS, size_bytes / 2, after=after)


def scale_of(inputs: StepInputs, size_bytes: float, *, after: tuple[str, ...] = ()) -> Compute:
    """The clipping itself: ``clip_grad_norm_`` scales in any case, by 1 where the norm is small enough."""
    return copy(inputs, SCALE, size_bytes, after=after)


def clipped(inputs: StepInputs, *, after: tuple[str, ...] = ()) -> Iterator[Compute]:
    """If asked, ``torch.nn.utils.clip_grad_norm_`` where each rank has all gradients: nothing is sent."""
    if inputs.clip_grad_norm:
        size = float(inputs.model.num_parameters * inputs.precision.grad_bytes)
        yield from (norm_of(inputs, size, after=after), scale_of(inputs, size))


def replica_axis(inputs: StepInputs) -> dict[str, Groups]:
    """The ranks whose parts make one model, if there are several and gradients are clipped."""
    mesh = inputs.mesh
    if mesh is None or not inputs.clip_grad_norm or mesh.size("tp", "pp") == 1:
        return {}
    return {REPLICA: mesh.groups("tp", "pp")}


def with_norm_of_replica(
    inputs: StepInputs, updates: Sequence[Sequence[Task]], classes: tuple[str, ...]
) -> Iterator[Task]:
    """What follows the last backward, part by part: own norms, their sum over the replica, then scaling and optimizer.

    updates: the tasks of each part. classes: all that take part. Without clipping the tasks as they are.
    """
    cuts = [next((n for n, task in enumerate(tasks) if task.name.startswith(SCALE)), len(tasks)) for tasks in updates]
    norms = [tasks[:cut] for tasks, cut in zip(updates, cuts, strict=True)]
    rest = [tasks[cut:] for tasks, cut in zip(updates, cuts, strict=True)]
    if not replica_axis(inputs) or not any(cut < len(tasks) for tasks, cut in zip(updates, cuts, strict=True)):
        yield from (task for tasks in updates for task in tasks)
        return
    yield from (task for tasks in norms for task in tasks)
    total = Communicate(
        name="all-reduce norm of the replica", op="all_reduce", axis=REPLICA, algorithm="auto",
        message_bytes=NORM_BYTES, classes=classes, purpose="norm of the gradients", host_s=inputs.host.collective_s,
        after=tuple(tasks[-1].name for tasks in norms if tasks),
    )  # fmt: skip
    yield total
    for tasks in rest:
        yield from (replace(t, after=(*t.after, total.name)) if t.name.startswith(SCALE) else t for t in tasks)
