"""ZeRO stages 1 and 2 as DeepSpeed 0.19.6 runs them (runtime/zero/stage_1_and_2.py; traced in tests/data).

States of the optimizer are partitioned flat, weights are whole. Stage 1 reduces gradients after the last backward of a
step, in registration order, or during it with ``overlap_comm``; stage 2 in every micro-batch, as buckets fill. Although
``reduce_scatter`` is on by default, each bucket is *all-reduced* and owners keep their slices of it
(``use_multi_rank_bucket_allreduce``); without that there is one ``reduce`` per owner. After the optimizer's step one
all-gather brings all weights back. With ``overlap_comm`` the reduction has a stream and a second bucket of its own:
when a bucket is handed over, the compute stream waits for the one before it.

Before its step the optimizer asks all ranks for overflow (16 bits; the host waits for the answer) and for the norm of
gradients, whether they are clipped or not.

Limits: where ranks are folded into one class, a ``reduce`` to one owner begins when the one before has reached its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.plan import Buffer, Communicate, Compute, Task
from simulator.strategies.clipping import clipped
from simulator.strategies.deepspeed_buckets import by_operation
from simulator.strategies.deepspeed_reduction import AXIS, Reduction, Zero, host_waits
from simulator.strategies.resident import resident_states
from simulator.strategies.step import (
    Draft,
    StepInputs,
    backward,
    backward_of,
    collective,
    copy,
    forward,
    forward_of,
    gradient_names,
    optimizer,
    without_sync,
)
from simulator.training.operations import num_elements


def step(inputs: StepInputs) -> Draft:
    """One steady training step."""
    zero = Zero(inputs=inputs)
    padded = zero.partition.padded / inputs.model.num_parameters
    resident = resident_states(inputs, params=padded, optimizer_share=padded / inputs.num_ranks)
    if inputs.num_ranks == 1:
        return Draft(tasks=alone(inputs), resident=resident)
    return Draft(tasks=tuple(_tasks(zero)), axes={AXIS: inputs.everyone}, resident=resident)


def alone(inputs: StepInputs) -> tuple[Task, ...]:
    """One rank has nothing to send."""
    last = inputs.micro_batches - 1
    update = optimizer(inputs, frees=gradient_names(inputs.model))
    passes = (*without_sync(inputs, last), *forward(inputs, last), *backward(inputs, last))
    return (*passes, *clipped(inputs), update)


def startup(inputs: StepInputs) -> Draft:
    """What ``deepspeed.initialize`` sends: every tensor from rank 0; in stage 3 twice, before and after it is cut.

    In stage 3 each tensor is gathered once more, to find where its gradient will be ready.
    """
    if inputs.num_ranks == 1:
        return Draft(tasks=())
    ops = ("broadcast", "broadcast", "all_gather") if inputs.parallel.strategy == "zero3" else ("broadcast",)
    tasks = tuple(
        collective(
            inputs, f"{op} {tensor.name}{f' {turn}' if turn else ''}".replace("_", "-", 1), op, AXIS,
            float(tensor.numel * inputs.precision.param_bytes), purpose="construction of DeepSpeed's engine",
        )
        for turn, op in enumerate(ops)
        for tensor in inputs.model.parameters
    )  # fmt: skip
    return Draft(tasks=tasks, axes={AXIS: inputs.everyone})


def _tasks(zero: Zero) -> Iterator[Task]:
    last = zero.inputs.micro_batches - 1
    first = last if zero.stage == 1 else 0
    buffers = zero.buffers(last) if first else ()
    for task in without_sync(zero.inputs, first):
        # The first hook makes the buckets, whether they are used in this micro-batch or not.
        makes = buffers if task.kind == "backward" else ()
        yield replace(task, allocates=(*task.allocates, *makes))
        buffers = () if makes else buffers
    for micro in range(first, last + 1):
        yield from _micro_batch(zero, micro, () if first else zero.buffers(micro))
    yield from _update(zero, f"own gradients @{first}")


def _micro_batch(zero: Zero, micro: int, buffers: tuple[Buffer, ...]) -> Iterator[Task]:
    """Forward, backward and reductions; buffers: what the first task of the backward allocates."""
    inputs, reduction = zero.inputs, Reduction(zero, micro)
    # The host waits for all reductions at the end of a backward, so nothing of the next one is issued before.
    over = (zero.end_of(micro - 1),) if micro and zero.stage == 2 else ()
    for number in range(len(inputs.model.operations)):
        task = forward_of(inputs, micro, number, after=over)
        yield replace(task, host_after=host_waits(inputs, *over)) if zero.apart else task
        over = ()
    waiting = by_operation(zero.shares)
    for number in reversed(range(len(inputs.model.operations))):
        yield _backward(zero, micro, number, buffers, reduction.take_waits())
        buffers = ()
        if zero.hooked:
            for share in waiting.get(inputs.model.operations[number].name, ()):
                yield from reduction.add(share)
    if not zero.hooked:
        for share in zero.shares:
            yield from reduction.add(share)
    yield from reduction.end()


def _backward(
    zero: Zero, micro: int, number: int, buffers: tuple[Buffer, ...], after: tuple[str, ...]
) -> Compute:  # fmt: skip
    operation = zero.inputs.model.operations[number]
    own: tuple[Buffer, ...] = ()
    if zero.stage == 2 and operation.parameters:
        size = float(num_elements(operation.parameters) * zero.inputs.precision.grad_bytes)
        own = (Buffer(name=zero.gradients(operation.name, micro), kind="grads", size_bytes=size),)
    return backward_of(zero.inputs, micro, number, grads=zero.stage == 1, after=after, allocates=(*buffers, *own))


# ---------------------------------------------------------------------------------------------- the optimizer's step


def _update(zero: Zero, own: str) -> Iterator[Task]:
    """Overflow and norm of gradients, the step over the rank's own part in fp32, and the weights of all others."""
    inputs, part = zero.inputs, zero.partition.size
    asked = ask_all_ranks(
        inputs, zero.end_of(inputs.micro_batches - 1), norm_bytes=4, overflow=inputs.precision.param_bytes == 2,
        waits=zero.apart,
    )  # fmt: skip
    yield from asked
    yield from step_on_part(inputs, part, asked, frees=(own,))
    yield collective(
        inputs, "all-gather weights", "all_gather", AXIS, float(zero.partition.padded * inputs.precision.param_bytes),
        purpose="updated weights", after=("optimizer",),
    )  # fmt: skip


def ask_all_ranks(
    inputs: StepInputs, after: str, *, norm_bytes: int, overflow: bool, waits: bool
) -> tuple[Communicate, ...]:  # fmt: skip
    """One number of all ranks each: whether 16-bit gradients overflowed, and their norm.

    waits: whether the host has waited for ``after``.
    """
    asked: list[Communicate] = []
    for name, size, wanted in (("check overflow", 1, overflow), ("norm of gradients", norm_bytes, True)):
        if wanted:
            before = asked[-1].name if asked else after
            asked.append(collective(
                inputs, name, "all_reduce", AXIS, float(size), purpose=name, after=(before,),
                host_after=host_waits(inputs, before) if waits or asked else (),
            ))  # fmt: skip
    return tuple(asked)


def step_on_part(
    inputs: StepInputs, numel: int, asked: tuple[Communicate, ...], *, frees: tuple[str, ...] = ()
) -> tuple[Compute, Compute]:  # fmt: skip
    """The optimizer over ``numel`` elements, on a copy of their gradients in one piece, in fp32 if a master is kept."""
    precision = inputs.precision
    each = 4 if precision.master_bytes else precision.grad_bytes
    flat = Buffer(name="flat gradients", kind="grads", size_bytes=float(numel * precision.grad_bytes))
    master = Buffer(name="master gradients", kind="grads", size_bytes=float(numel * each))
    flatten = copy(
        inputs, "flatten gradients", numel * (3 * precision.grad_bytes + each) / 2, after=(asked[-1].name,),
        allocates=(flat, master) if precision.master_bytes else (master,),
        frees=(*frees, *((flat.name,) if precision.master_bytes else ())),
    )  # fmt: skip
    update = optimizer(
        inputs, share=numel / inputs.model.num_parameters, after=(flatten.name,), frees=(master.name,)
    )  # fmt: skip
    return flatten, update
