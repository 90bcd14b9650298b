"""DeepSpeed's pipeline with bf16 weights and ZeRO-1: gradients add up in fp32, whole on every rank, as BLOOM trained.

Source: DeepSpeed 0.19, runtime/bf16_optimizer.py (``BF16_Optimizer``) and runtime/pipe/engine.py
(``_bf16_reduce_grads``). Beside the 16-bit weights and gradients each rank keeps an fp32 sum of gradients: 2 + 2 + 4
bytes for each parameter, and 12 / W of fp32 weights and moments. After the last backward the sums are all-reduced, in
calls of 500 M elements (``MEMORY_OPT_ALLREDUCE_SIZE``), with nothing beside them; each rank steps on its part, and the
16-bit weights are all-gathered in calls as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.plan import Buffer, Communicate, Task
from simulator.strategies.clipping import clipped
from simulator.strategies.ddp import AXIS
from simulator.strategies.resident import resident_states
from simulator.strategies.step import Draft, StepInputs, backward, collective, forward, optimizer
from simulator.training.precision import Precision

CALL_ELEMENTS = 500_000_000
FP32_BYTES, HALF_BYTES = 4, 2


def states(precision: Precision) -> Precision:
    """The bytes that are kept for each parameter, apart from the sums of gradients."""
    return replace(
        precision, param_bytes=HALF_BYTES, grad_bytes=HALF_BYTES, reduce_bytes=FP32_BYTES, master_bytes=FP32_BYTES,
        moment_bytes=FP32_BYTES, cached_weight_bytes=0,
    )  # fmt: skip


def step(inputs: StepInputs) -> Draft:
    """One step of one micro-batch, which ``pipelined`` puts around the passes of a stage."""
    inputs = replace(inputs, precision=states(inputs.precision))
    count = inputs.model.num_parameters
    tasks: list[Task] = [*forward(inputs, 0), *backward(inputs, 0, grads=False)]
    shared = inputs.num_ranks > 1
    reduced = tuple(_calls(inputs, "all_reduce", FP32_BYTES, "gradients", (tasks[-1].name,))) if shared else ()
    tasks += reduced
    after = tuple(task.name for task in reduced)
    tasks += [*clipped(inputs, after=after), optimizer(inputs, share=1 / inputs.num_ranks, after=after)]
    if shared:
        tasks += _calls(inputs, "all_gather", HALF_BYTES, "weights", ("optimizer",))
    held = resident_states(inputs, optimizer_share=1 / inputs.num_ranks)
    gradients = (
        Buffer(name="gradients", kind="grads", size_bytes=float(HALF_BYTES * count)),
        Buffer(name="sums of gradients", kind="grads", size_bytes=float(FP32_BYTES * count)),
    )  # fmt: skip
    axes = {AXIS: inputs.everyone} if shared else {}
    return Draft(tasks=tuple(tasks), axes=axes, resident=(*held, *(b for b in gradients if b.size_bytes)))


def _calls(inputs: StepInputs, op: str, width: int, what: str, after: tuple[str, ...]) -> Iterator[Communicate]:
    """All elements in calls of at most CALL_ELEMENTS."""
    left, number = inputs.model.num_parameters, 0
    while left:
        elements = min(left, CALL_ELEMENTS)
        name = f"{op.replace('_', '-')} {what} {number}"
        yield collective(inputs, name, op, AXIS, float(elements * width), purpose=what, after=after)
        left, number = left - elements, number + 1
