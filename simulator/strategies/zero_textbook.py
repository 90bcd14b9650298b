"""ZeRO as in its paper, written by hand with ``torch.distributed``: sharded optimizer (1), sharded gradients (2).

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC20 (arXiv
1910.02054), sections 5 and 7. Psi is the number of parameters, W the number of ranks.

* zero1: the gradients of all micro-batches add up whole; after the last backward they are copied into one flat buffer,
  padded to W, and ONE reduce-scatter leaves each rank the sum of its part; the optimizer updates the rank's part, and
  ONE all-gather completes the weights. 2 Psi sent per rank and step, nothing hidden.
* zero2: the same layer by layer (``wrap``), in every micro-batch: a layer's reduce-scatter is launched in backward as
  soon as its last gradient is ready, and its whole gradients are given back when that is over. After the optimizer one
  all-gather per layer, in forward order. 2 Psi per micro-step of gradients Psi and weights Psi.

The third stage, sharded weights, is in ``zero3_textbook``. All collectives are asynchronous on one communicator, so
they overlap with compute on a CPU too; waits are only where a tensor is used. A layer that is one tensor without
padding is sent as it is; any other is copied together first (``torch.cat``), so for a moment its gradients exist twice.

Under autocast (``bf16-mixed``) the 16-bit copies of the weights that it keeps for the backward are not sharded, in no
stage: autograd holds them. The recipe of the paper is ``bf16-master``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator.plan import Buffer, Task
from simulator.strategies.clipping import clipped, norm_of, scale_of
from simulator.strategies.ddp import AXIS
from simulator.strategies.pieces import Piece, cut, total_padded
from simulator.strategies.resident import resident_states
from simulator.strategies.step import (
    Draft,
    StepInputs,
    backward,
    backward_name,
    backward_of,
    collective,
    copy,
    forward,
    gradient_name,
    gradient_names,
    names,
    optimizer,
    without_sync,
)
from simulator.training.operations import Operation, num_elements

#: What the norm of all gradients is added up from: one fp32 number per rank.
NORM_BYTES = 4.0


def zero1(inputs: StepInputs) -> Draft:
    """One steady step: flat reduce-scatter after backward, shard step, flat all-gather. Alone it sends nothing."""
    if inputs.num_ranks == 1:
        return alone(inputs)
    pieces = cut(inputs.model, "root")
    last = inputs.micro_batches - 1
    tasks: list[Task] = [*without_sync(inputs, last), *forward(inputs, last), *backward(inputs, last)]
    reducing = tuple(reduce_scatter(inputs, pieces[0], 0, tasks[-1].name, gradient_names(inputs.model)))
    tasks += (*reducing, average(inputs, pieces, 0, names(reducing)))
    tasks += (*shard_step(inputs, pieces, tasks[-1].name), *_gather_weights(inputs, pieces))
    return Draft(tasks=tuple(tasks), axes={AXIS: inputs.everyone}, resident=_resident(inputs, pieces))


def zero2(inputs: StepInputs) -> Draft:
    """One steady step: layer by layer, reduce-scatters under backward. Alone it sends nothing."""
    if inputs.num_ranks == 1:
        return alone(inputs)
    pieces = cut(inputs.model, inputs.parallel.wrap)
    tasks: list[Task] = []
    for micro in range(inputs.micro_batches):
        tasks += forward(inputs, micro)
        tasks += _backward(inputs, pieces, micro)
    tasks += (*shard_step(inputs, pieces, tasks[-1].name), *_gather_weights(inputs, pieces))
    return Draft(tasks=tuple(tasks), axes={AXIS: inputs.everyone}, resident=_resident(inputs, pieces))


def startup(inputs: StepInputs) -> Draft:
    """Every rank draws the same initial weights from the same seed: nothing is sent."""
    return Draft(tasks=())


def alone(inputs: StepInputs) -> Draft:
    """A step of one rank."""
    last = inputs.micro_batches - 1
    tasks = (*without_sync(inputs, last), *forward(inputs, last), *backward(inputs, last), *clipped(inputs))
    end = optimizer(inputs, frees=gradient_names(inputs.model))
    return Draft(tasks=(*tasks, end), axes={AXIS: inputs.everyone}, resident=resident_states(inputs))


# --------------------------------------------------------------------------------------- gradients, and the shard step


def _backward(inputs: StepInputs, pieces: tuple[Piece, ...], micro: int) -> Iterator[Task]:
    """Backward with the reduce-scatters of the pieces; the next micro-batch starts when all of them are over."""
    ready = {piece.ready_after: piece for piece in pieces}
    reducing: list[str] = []
    for number in reversed(range(len(inputs.model.operations))):
        operation = inputs.model.operations[number]
        yield backward_of(inputs, micro, number, grads=False, allocates=whole_gradient(inputs, operation, micro))
        if number in ready:
            tasks = tuple(reduce_piece(inputs, ready[number], micro))
            yield from tasks
            reducing += names(tasks)
    yield average(inputs, pieces, micro, tuple(reducing))


def of_micro(micro: int) -> str:
    """What tells the names of later micro-batches from those of the first."""
    return f" @{micro}" if micro else ""


def whole_gradient(inputs: StepInputs, operation: Operation, micro: int) -> tuple[Buffer, ...]:
    """The gradients that an operation's backward brings to life, until they are sent."""
    size = float(num_elements(operation.parameters) * inputs.precision.grad_bytes)
    return (Buffer(name=_whole(operation, micro), kind="grads", size_bytes=size),) if size else ()


def _whole(operation: Operation, micro: int) -> str:
    return gradient_name(operation) + of_micro(micro)


def reduce_piece(inputs: StepInputs, piece: Piece, micro: int) -> Iterator[Task]:
    """The reduce-scatter of a piece whose gradients are whole, see ``whole_gradient``."""
    after = backward_name(micro, inputs.model.operations[piece.ready_after].name)
    whole = tuple(_whole(inputs.model.operations[number], micro) for number in piece.owners)
    return reduce_scatter(inputs, piece, micro, after, whole)


def reduce_scatter(
    inputs: StepInputs, piece: Piece, micro: int, after: str, whole: tuple[str, ...]
) -> Iterator[Task]:  # fmt: skip
    """Copy the gradients together where that is needed, and send them. whole: buffers of these gradients."""
    elements, width = piece.padded(inputs.num_ranks), inputs.precision.reduce_bytes
    label = piece.name + of_micro(micro)
    part: tuple[Buffer, ...] = (
        Buffer(name=_part(piece, micro), kind="grads", size_bytes=elements / inputs.num_ranks * width),
    )
    if piece.tensors > 1 or elements > piece.numel:
        flat = Buffer(name=f"flat gradients {label}", kind="buffers", size_bytes=float(elements * width))
        together = copy(
            inputs, f"flatten gradients {label}", flat.size_bytes, part=piece.name, after=(after,),
            allocates=(flat, *part), frees=whole,
        )  # fmt: skip
        yield together
        after, part, whole = together.name, (), (flat.name,)
    yield collective(
        inputs, f"reduce-scatter {label}", "reduce_scatter", AXIS, float(elements * width),
        purpose=f"gradients {piece.name}", after=(after,), allocates=part, frees=whole,
    )  # fmt: skip


def _part(piece: Piece, micro: int) -> str:
    return f"shards of gradients {piece.name}{of_micro(micro)}"


def average(inputs: StepInputs, pieces: tuple[Piece, ...], micro: int, reducing: tuple[str, ...]) -> Task:
    """Wait for the reduce-scatters, divide the rank's parts by W, and add them to those of micro-batches before."""
    size = total_padded(pieces, inputs.num_ranks) / inputs.num_ranks * inputs.precision.reduce_bytes
    return copy(
        inputs, f"average gradients{of_micro(micro)}", size, after=reducing,
        frees=tuple(_part(piece, micro) for piece in pieces) if micro else (),
    )  # fmt: skip


def shard_step(inputs: StepInputs, pieces: tuple[Piece, ...], after: str) -> Iterator[Task]:
    """The optimizer on the rank's part, which gives the gradients back; before it, if asked, they are clipped."""
    part = total_padded(pieces, inputs.num_ranks) / inputs.num_ranks
    share, size = part / inputs.model.num_parameters, part * inputs.precision.reduce_bytes
    if inputs.clip_grad_norm:
        own = norm_of(inputs, size, after=(after,))
        norm = collective(
            inputs, "all-reduce norm", "all_reduce", AXIS, NORM_BYTES, purpose="norm of the gradients",
            after=(own.name,),
        )  # fmt: skip
        clip = scale_of(inputs, size, after=(norm.name,))
        yield from (own, norm, clip)
        after = clip.name
    yield optimizer(inputs, share=share, after=(after,), frees=tuple(_part(piece, 0) for piece in pieces))


def _gather_weights(inputs: StepInputs, pieces: Iterable[Piece]) -> Iterator[Task]:
    """One all-gather per piece, launched one behind the other; the step ends with the last."""
    for piece in pieces:
        size = float(piece.padded(inputs.num_ranks) * inputs.precision.param_bytes)
        yield collective(
            inputs, f"all-gather {piece.name}", "all_gather", AXIS, size, purpose=f"weights {piece.name}",
            after=("optimizer",),
        )  # fmt: skip


def _resident(inputs: StepInputs, pieces: tuple[Piece, ...]) -> tuple[Buffer, ...]:
    """Whole weights, a part of the optimizer's states."""
    padded = total_padded(pieces, inputs.num_ranks) / inputs.model.num_parameters
    return resident_states(inputs, params=padded, optimizer_share=padded / inputs.num_ranks)
