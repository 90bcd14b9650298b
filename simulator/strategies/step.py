"""What a strategy gets to plan a step with, and the parts that all strategies share. Knows no network and no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from simulator.mesh import Mesh
from simulator.parallel_spec import Parallel
from simulator.plan import Buffer, Communicate, Compute, Task
from simulator.rank_classes import ALL_RANKS
from simulator.training.operations import Operation, TrainingModel, num_elements
from simulator.training.precision import Precision

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a strategy lays out. axes: groups of ranks by name. resident: memory held before the first task.

    Every task runs on the class ALL_RANKS, or on roles where ranks have unlike ones (``roles``, one for each rank, with
    memory of their own in ``resident_of``); the planner puts the classes of equal ranks in their place.
    """

    tasks: tuple[Task, ...]
    axes: Mapping[str, Groups] = field(default_factory=dict)
    resident: tuple[Buffer, ...] = ()
    roles: tuple[str, ...] = ()
    resident_of: Mapping[str, tuple[Buffer, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds the host thread takes to launch one kernel and to call one collective; 0 when it keeps ahead anyway.

    syncs: whether it waits for the device at the end of each micro-batch.
    """

    kernel_s: float = 0.0
    collective_s: float = 0.0
    syncs: bool = False


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Everything a strategy needs, as plain values.

    forward_s, backward_s: seconds of each operation of ``model.operations``, in that order.
    optimizer_s: of a step over all parameters of the model on one rank; ``launch_s`` of it is per call.
    copy_bytes_per_s: rate at which gradients are scaled or copied (memory traffic); inf when copies are free.
    precision: bytes per element of weights, gradients and what is sent. optimizer: one of ``precision.MOMENTS``.
    num_ranks: ranks of data parallelism, which reduce gradients together. mesh: where all ranks of the job stand; None
    where data parallelism has them all. reduces_over: axes of it over which gradients are reduced; mirrored:
    together with the ranks at the mirrored place of the pipeline, which hold the same layers (DualPipe). weight_grad_s:
    the part of each backward that makes gradients of weights.
    node_size: ranks in a node. streams: whether the device runs apart from the host, so that a call to a collective
    returns before it is done; on a CPU it does not. both_ways: whether messages of two ranks pass each other, see
    ``sends.Sends``.
    offloaded_share: of the layers whose activations wait in host memory; host_bytes_per_s: of the link to it, each way.
    context_bytes, communicator_bytes: device memory that no tensor shows.
    """

    model: TrainingModel
    precision: Precision
    parallel: Parallel
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    num_ranks: int
    mesh: Mesh | None = None
    reduces_over: tuple[str, ...] = ("dp", "cp")
    mirrored: bool = False
    weight_grad_s: tuple[float, ...] = ()
    optimizer_s: float = 0.0
    optimizer: str = "adamw"
    copy_bytes_per_s: float = float("inf")
    launch_s: float = 0.0
    host: HostCosts = HostCosts()
    node_size: int = 1
    streams: bool = True
    both_ways: bool = True
    micro_batches: int = 1
    clip_grad_norm: bool = False
    offloaded_share: float = 0.0
    host_bytes_per_s: float = float("inf")
    context_bytes: float = 0.0
    communicator_bytes: float = 0.0

    @cached_property
    def replayers(self) -> Mapping[str, Operation]:
        """By name of an operation, the one whose backward runs it again."""
        return {again.name: owner for owner in self.model.operations for again in owner.replayed}

    @property
    def everyone(self) -> Groups:
        """The groups that reduce gradients together: one of all ranks where nothing but data is parallel."""
        if self.mesh is None:
            return (tuple(range(self.num_ranks)),)
        groups = self.mesh.groups(*self.reduces_over)
        return self.mesh.with_mirrored(groups) if self.mirrored else groups

    @property
    def world_size(self) -> int:
        """All ranks of the job."""
        return self.mesh.num_ranks if self.mesh else self.num_ranks

    def copy_s(self, size_bytes: float) -> float:
        """Seconds of a kernel that reads and writes ``size_bytes``."""
        return 2.0 * size_bytes / self.copy_bytes_per_s + self.launch_s

    def with_part(self, model: TrainingModel) -> StepInputs:
        """The inputs with a part of the parameters, whose optimizer step takes its share."""
        share = model.num_parameters / max(1, self.model.num_parameters)
        return replace(self, model=model, optimizer_s=self.optimizer_share_s(share))

    def optimizer_share_s(self, share: float) -> float:
        """Seconds of an optimizer step over a share of the parameters."""
        return share * max(0.0, self.optimizer_s - self.launch_s) + min(self.launch_s, self.optimizer_s)


# --------------------------------------------------------------------------------------------- forward and backward


def forward(inputs: StepInputs, micro: int) -> Iterator[Compute]:
    """Forward of one micro-batch, operation by operation."""
    return (forward_of(inputs, micro, number) for number in range(len(inputs.model.operations)))


def backward(inputs: StepInputs, micro: int, *, grads: bool = True) -> Iterator[Compute]:
    """Backward of one micro-batch, in reverse. grads: whether it allocates gradients (see ``backward_of``)."""
    numbers = reversed(range(len(inputs.model.operations)))
    return (backward_of(inputs, micro, number, grads=grads) for number in numbers)


def forward_of(inputs: StepInputs, micro: int, number: int, *, after: tuple[str, ...] = ()) -> Compute:
    """Forward of operation ``number``; it keeps activations for the backward."""
    operation = inputs.model.operations[number]
    return Compute(
        name=f"forward {micro}: {operation.name}", kind="forward", classes=(ALL_RANKS,),
        seconds=inputs.forward_s[number], part=operation.layer, after=after,
        host_s=operation.forward_kernels * inputs.host.kernel_s, launches=operation.forward_kernels,
        allocates=tuple(_kept(inputs, micro, operation)),
    )  # fmt: skip


def backward_of(
    inputs: StepInputs, micro: int, number: int, *, grads: bool = True, after: tuple[str, ...] = (),
    allocates: tuple[Buffer, ...] = (), frees: tuple[str, ...] = (),
) -> Compute:  # fmt: skip
    """Backward of operation ``number``: what it kept is given back, what is run again lives until its own backward.

    grads: gradients of the parameters are allocated in micro-batch 0 (whoever uses them up frees them,
    ``gradient_name``), and live beside these for the time of the operation in later ones, which add to them.
    """
    operation = inputs.model.operations[number]
    made, gone = list(allocates), list(frees)
    gone += [buffer.name for buffer in _kept(inputs, micro, operation)]
    for again in operation.replayed:
        made.append(_replay(micro, operation, again))
    if operation.name in inputs.replayers:
        gone.append(_replay(micro, inputs.replayers[operation.name], operation).name)
    if number == len(inputs.model.operations) - 1 and inputs.model.loss_gradient_bytes:
        made.append(Buffer(
            name=f"loss gradient @{micro}", kind="activations", size_bytes=inputs.model.loss_gradient_bytes
        ))  # fmt: skip
    if number == _reads_logits(inputs.model) and inputs.model.loss_gradient_bytes:
        gone.append(f"loss gradient @{micro}")
    if grads and operation.parameters:
        gradient = Buffer(
            name=gradient_name(operation) + (f" @{micro}" if micro else ""), kind="grads",
            size_bytes=float(num_elements(operation.parameters) * inputs.precision.grad_bytes),
        )  # fmt: skip
        made.append(gradient)
        gone += [gradient.name] if micro else []
    return Compute(
        name=backward_name(micro, operation.name), kind="backward", classes=(ALL_RANKS,),
        seconds=inputs.backward_s[number], part=operation.layer, after=after,
        host_s=_backward_kernels(operation) * inputs.host.kernel_s, launches=_backward_kernels(operation),
        allocates=tuple(made), frees=tuple(gone),
    )  # fmt: skip


def _backward_kernels(operation: Operation) -> int:
    return operation.backward_kernels + sum(again.forward_kernels for again in operation.replayed)


def _kept(inputs: StepInputs, micro: int, operation: Operation) -> Iterator[Buffer]:
    """What lives from an operation's forward to its backward: activations, and autocast's copies of its weights."""
    if operation.saved_bytes:
        yield Buffer(
            name=f"activations {operation.name} @{micro}", kind="activations", size_bytes=operation.saved_bytes
        )  # fmt: skip
    cast = num_elements(operation.parameters) * inputs.precision.cached_weight_bytes
    if cast:
        yield Buffer(name=f"cast {operation.name} @{micro}", kind="params", size_bytes=float(cast))


def _replay(micro: int, owner: Operation, again: Operation) -> Buffer:
    """What running ``again`` once more brings back to life, beyond what it keeps anyway when it is its own owner."""
    kept = owner.saved_bytes if again.name == owner.name and len(owner.replayed) == 1 else 0.0
    return Buffer(
        name=f"replayed {again.name} @{micro}", kind="activations", size_bytes=max(0.0, again.saved_bytes - kept)
    )  # fmt: skip


def _reads_logits(model: TrainingModel) -> int:
    """The operation before the loss, whose backward uses up the gradient of the logits."""
    return max(0, len(model.operations) - 2)


def gradient_name(operation: Operation) -> str:
    """Buffer of the gradients of an operation's parameters."""
    return f"gradients {operation.name}"


def gradient_names(model: TrainingModel) -> tuple[str, ...]:
    """Buffers of all gradients, which the optimizer's ``zero_grad`` gives back."""
    return tuple(gradient_name(operation) for operation in model.operations if operation.parameters)


def backward_name(micro: int, operation: str) -> str:
    """Name of the task in which an operation's gradients become ready."""
    return f"backward {micro}: {operation}"


def without_sync(inputs: StepInputs, count: int) -> Iterator[Compute]:
    """``count`` micro-batches in which nothing is sent (DDP's ``no_sync``), before the one that reduces.

    The first is planned operation by operation; as nothing can disturb the others, they are one forward and one
    backward task of the same total time, so that a step of 1,000 micro-batches costs no more than one of three.
    """
    whole = count if count <= 2 or inputs.host.syncs or inputs.offloaded_share else 1
    for micro in range(whole):
        yield from forward(inputs, micro)
        yield from backward(inputs, micro)
    if count > whole:
        operations = inputs.model.operations
        passes = (
            ("forward", sum(inputs.forward_s), sum(o.forward_kernels for o in operations)),
            ("backward", sum(inputs.backward_s), sum(_backward_kernels(o) for o in operations)),
        )
        for kind, seconds, kernels in passes:
            yield Compute(
                name=f"{kind} 1 .. {count - 1}: all operations", kind=kind, classes=(ALL_RANKS,),
                seconds=(count - 1) * seconds, part=f"micro-batches 1 .. {count - 1}",
                host_s=(count - 1) * kernels * inputs.host.kernel_s, launches=(count - 1) * kernels,
            )  # fmt: skip


# -------------------------------------------------------------------------------------------- the rest of the step


def collective(
    inputs: StepInputs, name: str, op: str, axis: str, size_bytes: float, *, purpose: str, after: tuple[str, ...] = (),
    algorithm: str = "auto", communicator: str = "", allocates: tuple[Buffer, ...] = (), frees: tuple[str, ...] = (),
    host_after: tuple[str, ...] = (),
) -> Communicate:  # fmt: skip
    """One collective of all groups of an axis, with what calling it costs the host."""
    return Communicate(
        name=name, op=op, axis=axis, algorithm=algorithm, message_bytes=size_bytes, classes=(ALL_RANKS,),
        purpose=purpose, after=after, communicator=communicator, host_s=inputs.host.collective_s,
        host_after=host_after, allocates=allocates, frees=frees,
    )  # fmt: skip


def copy(
    inputs: StepInputs, name: str, size_bytes: float, *, part: str = "", after: tuple[str, ...] = (),
    lane: str = "compute", kernels: int = 1, allocates: tuple[Buffer, ...] = (), frees: tuple[str, ...] = (),
) -> Compute:  # fmt: skip
    """As many kernels, which together read and write ``size_bytes``."""
    return Compute(
        name=name, kind="copy", classes=(ALL_RANKS,), part=part, after=after, lane=lane,
        seconds=inputs.copy_s(size_bytes) + (kernels - 1) * inputs.launch_s,
        host_s=kernels * inputs.host.kernel_s, launches=kernels, allocates=allocates, frees=frees,
    )  # fmt: skip


def optimizer(
    inputs: StepInputs, *, share: float = 1.0, after: tuple[str, ...] = (), frees: tuple[str, ...] = ()
) -> Compute:
    """The optimizer's step over a share of the parameters, and ``zero_grad``, which gives gradients back."""
    return Compute(
        name="optimizer", kind="optimizer", classes=(ALL_RANKS,), seconds=inputs.optimizer_share_s(share), after=after,
        host_s=inputs.host.kernel_s, frees=frees,
    )  # fmt: skip


def names(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Names of the collectives among the tasks: what has to be over before gradients are used."""
    return tuple(task.name for task in tasks if isinstance(task, Communicate))
