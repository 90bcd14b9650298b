"""Megatron-LM's distributed optimizer (``--use-distributed-optimizer``): ZeRO-1 on contiguous fp32 gradient buffers.

Source: NVIDIA/Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py and distributed_data_parallel.py (Core
0.15), docs/source/api-guide/dist_optimizer.md. Data parallelism alone, tp = pp = 1.

* Buffers: parameters in reverse order of registration, each from a multiple of 64 elements on; a bucket closes once it
  has ``reduce_bucket_size`` elements, by default max(40 M, 1 M x W), and is padded to lcm(W, 128). Without
  ``overlap_grad_reduce`` all is one bucket (``_ParamAndGradBuffer.__init__``).
* Gradients add up in fp32 in the buffer over all micro-batches (the fused weight-gradient kernels write there). In the
  last one, when all gradients of a bucket are there, it is scaled by 1/W and reduce-scattered, under the backward; or
  all of it after the backward (``start_grad_sync``, ``finish_grad_sync``).
* The optimizer updates the rank's part of each bucket, and the weights are gathered in 16 bits: right after it, bucket
  by bucket; or, with ``overlap_param_gather``, in the next forward. The step shown is a steady one and starts there:
  a module's pre-forward hook waits for the all-gather of its bucket and then launches that of the next bucket
  (``finish_param_sync``), so the first is exposed and the others are one bucket ahead.

Memory (docs/source/api-guide/dist_optimizer.md): 16-bit weights and fp32 gradients, 6 bytes per parameter, and fp32
weights and two moments, 12 / W. Megatron keeps these states whatever 16-bit recipe ``train.precision`` names; what the
name decides is the moments' type; none means autocast here. With fp32 or tf32 weights there is no copy: 8 + 8 / W.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simulator.errors import ScenarioError
from simulator.parallel_spec import Parallel
from simulator.plan import Buffer, Compute, Task
from simulator.strategies.clipping import clipped, norm_of, scale_of
from simulator.strategies.ddp import AXIS
from simulator.strategies.resident import resident_states
from simulator.strategies.step import Draft, StepInputs, backward, collective, copy, forward, optimizer, without_sync
from simulator.training.operations import ParameterTensor, TrainingModel
from simulator.training.precision import Precision

#: Elements: ``_pad_start_of_param_if_needed``, ``_pad_end_of_bucket_if_needed``, and the default of ``bucket_size``.
PARAMETER_ALIGNMENT, BUCKET_ALIGNMENT = 64, 128
LEAST_BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
FP32_BYTES = 4
#: The norm that clipping needs, one fp32 number (megatron/core/optimizer/clip_grads.py).
NORM_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Parameters in a row of the buffer. numel: with all padding."""

    index: int
    tensors: tuple[ParameterTensor, ...]
    numel: int


def step(inputs: StepInputs) -> Draft:
    """One steady step. A rank alone sends nothing. Raises ScenarioError for an overlap that Megatron refuses."""
    inputs = replace(inputs, precision=states(inputs.precision))
    gathers_ahead = overlaps_gather(inputs.parallel)
    buckets = buckets_of(inputs.model, inputs.num_ranks, bucket_size(inputs.parallel, inputs.num_ranks))
    last = inputs.micro_batches - 1
    ran: list[Task] = [*without_sync(inputs, last), *forward(inputs, last)]
    if inputs.num_ranks > 1:
        ran += _reducing(inputs, buckets, backward(inputs, last, grads=False))
    else:
        ran += backward(inputs, last, grads=False)
    tasks = [_into_the_buffer(task) for task in ran]
    if gathers_ahead and inputs.num_ranks > 1:
        tasks = list(_gathered_ahead(inputs, buckets, tasks))
    tasks += _update(inputs, buckets, tuple(task.name for task in tasks if task.name.startswith("reduce-scatter")))
    if not gathers_ahead and inputs.num_ranks > 1:
        tasks += (_gather(inputs, bucket, ("optimizer",)) for bucket in buckets)
    return Draft(tasks=tuple(tasks), axes={AXIS: inputs.everyone}, resident=_resident(inputs, buckets))


def startup(inputs: StepInputs) -> Draft:
    """Weights are drawn alike on all ranks; ``broadcast_params`` is for ``--data-parallel-random-init`` only."""
    return Draft(tasks=())


def states(precision: Precision) -> Precision:
    """The bytes that Megatron keeps per parameter for a recipe: see the module."""
    half = precision.compute_bytes < FP32_BYTES
    return replace(
        precision, param_bytes=precision.compute_bytes if half else FP32_BYTES, grad_bytes=FP32_BYTES,
        reduce_bytes=FP32_BYTES, master_bytes=FP32_BYTES if half else 0, cached_weight_bytes=0,
        moment_bytes=precision.moment_bytes if precision.master_bytes else FP32_BYTES,
    )  # fmt: skip


def overlaps_gather(parallel: Parallel) -> bool:
    """Whether weights are gathered in the next forward. Megatron refuses that without ``overlap_grad_reduce``."""
    if parallel.overlap_param_gather and not parallel.overlap_grad_reduce:
        raise ScenarioError(
            "parallel.overlap_param_gather: true needs overlap_grad_reduce: true, as in Megatron "
            "(--overlap-param-gather with --overlap-grad-reduce)"
        )
    return parallel.overlap_grad_reduce if parallel.overlap_param_gather is None else parallel.overlap_param_gather


# ---------------------------------------------------------------------------------------------------------- buckets


def bucket_size(parallel: Parallel, num_ranks: int) -> float:
    """Elements at which a bucket closes; never without ``overlap_grad_reduce``."""
    if not parallel.overlap_grad_reduce:
        return math.inf
    return parallel.reduce_bucket_size or max(LEAST_BUCKET, BUCKET_PER_RANK * num_ranks)


def buckets_of(model: TrainingModel, num_ranks: int, size: float) -> tuple[Bucket, ...]:
    """The buckets in the order of the buffer, which is about that in which backward fills them."""
    found: list[Bucket] = []
    held: list[ParameterTensor] = []
    start = end = 0
    for tensor in reversed(model.parameters):
        end = _padded(end, PARAMETER_ALIGNMENT) + tensor.numel
        held.append(tensor)
        if end - start >= size or tensor is model.parameters[0]:
            end = _padded(end, math.lcm(num_ranks, BUCKET_ALIGNMENT))
            found.append(Bucket(index=len(found), tensors=tuple(held), numel=end - start))
            start, held = end, []
    return tuple(found)


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _owners(model: TrainingModel, tensors: Sequence[ParameterTensor]) -> list[int]:
    """Numbers of the operations that own the tensors."""
    wanted = {tensor.name for tensor in tensors}
    return [
        number for number, operation in enumerate(model.operations)
        if any(tensor.name in wanted for tensor in operation.parameters)
    ]  # fmt: skip


def _told(bucket: Bucket) -> str:
    ends = [t.name.removeprefix("model.").removesuffix(".weight") for t in (bucket.tensors[0], bucket.tensors[-1])]
    return " .. ".join(dict.fromkeys(ends))


# -------------------------------------------------------------------------------------------- gradients and weights


def _into_the_buffer(task: Task) -> Task:
    """Gradients come to life in no memory of their own."""
    names = {buffer.name for buffer in task.allocates if buffer.kind == "grads"}
    if not names:
        return task
    return replace(
        task, allocates=tuple(b for b in task.allocates if b.name not in names),
        frees=tuple(name for name in task.frees if name not in names),
    )  # fmt: skip


def _reducing(inputs: StepInputs, buckets: Sequence[Bucket], passing: Iterator[Compute]) -> Iterator[Task]:
    """The backward with each bucket scaled and sent when it is full, or all after it."""
    full: dict[str, list[Bucket]] = {}
    for bucket in buckets:
        first = min(_owners(inputs.model, bucket.tensors)) if inputs.parallel.overlap_grad_reduce else 0
        full.setdefault(inputs.model.operations[first].name, []).append(bucket)
    for task in passing:
        yield task
        for bucket in full.get(task.name.split(": ", 1)[1], ()):
            yield from _reduce(inputs, bucket)


def _reduce(inputs: StepInputs, bucket: Bucket) -> Iterator[Task]:
    size = float(bucket.numel * inputs.precision.reduce_bytes)
    scale = copy(inputs, f"scale bucket {bucket.index}", size)
    yield scale
    yield collective(
        inputs, f"reduce-scatter bucket {bucket.index}", "reduce_scatter", AXIS, size,
        purpose=f"gradients {_told(bucket)}", after=(scale.name,),
    )  # fmt: skip


def _gather(inputs: StepInputs, bucket: Bucket, after: tuple[str, ...]) -> Task:
    size = float(bucket.numel * inputs.precision.param_bytes)
    return collective(
        inputs, _gather_name(bucket), "all_gather", AXIS, size, purpose=f"weights {_told(bucket)}", after=after
    )  # fmt: skip


def _gather_name(bucket: Bucket) -> str:
    return f"all-gather bucket {bucket.index}"


def _gathered_ahead(inputs: StepInputs, buckets: Sequence[Bucket], tasks: Sequence[Task]) -> Iterator[Task]:
    """The first forward waits, module by module, for its weights. Buckets are gathered from the last to the first."""
    bucket_of = {tensor.name: bucket for bucket in buckets for tensor in bucket.tensors}
    tied = dict(inputs.model.tied)
    needs = {
        f"forward 0: {operation.name}": [
            bucket_of[name] for name in (*(t.name for t in operation.parameters), *_tied_to(tied, operation.name))
        ]
        for operation in inputs.model.operations
    }  # fmt: skip
    launched: dict[int, str] = {}
    waited: set[int] = set()
    before: tuple[str, ...] = ()
    for task in tasks:
        waits: list[str] = []
        for bucket in needs.get(task.name, ()):
            if bucket.index in waited:
                continue
            waited.add(bucket.index)
            for wanted in (bucket, *buckets[max(0, bucket.index - 1) : bucket.index]):
                if wanted.index not in launched:
                    gather = _gather(inputs, wanted, (*before, *waits))
                    launched[wanted.index] = gather.name
                    yield gather
                if wanted is bucket:
                    waits.append(launched[bucket.index])
        yield replace(task, after=(*task.after, *waits)) if waits else task
        before = (task.name,)


def _tied_to(tied: dict[str, str], operation: str) -> tuple[str, ...]:
    return (tied[operation],) if operation in tied else ()


def _update(inputs: StepInputs, buckets: Sequence[Bucket], reducing: tuple[str, ...]) -> Iterator[Task]:
    """The optimizer on the rank's part, once all gradients are there and, if asked, clipped."""
    after = reducing
    if inputs.clip_grad_norm and inputs.num_ranks == 1:
        yield from clipped(inputs, after=after)
    elif inputs.clip_grad_norm:
        size = sum(bucket.numel for bucket in buckets) / inputs.num_ranks * inputs.precision.grad_bytes
        own = norm_of(inputs, size, after=after)
        norm = collective(
            inputs, "all-reduce norm", "all_reduce", AXIS, NORM_BYTES, purpose="norm of the gradients",
            after=(own.name,),
        )  # fmt: skip
        clip = scale_of(inputs, size, after=(norm.name,))
        yield from (own, norm, clip)
        after = (clip.name,)
    yield optimizer(inputs, share=_part(inputs, buckets), after=after)


def _part(inputs: StepInputs, buckets: Sequence[Bucket]) -> float:
    """The rank's part of the buffers over all parameters."""
    return sum(bucket.numel for bucket in buckets) / inputs.num_ranks / inputs.model.num_parameters


def _resident(inputs: StepInputs, buckets: Sequence[Bucket]) -> tuple[Buffer, ...]:
    """Buffers of weights and gradients, padding included, and the rank's part of the states."""
    elements = sum(bucket.numel for bucket in buckets)
    held = resident_states(
        inputs, params=elements / inputs.model.num_parameters, optimizer_share=_part(inputs, buckets)
    )
    gradients = Buffer(name="gradients", kind="grads", size_bytes=float(elements * inputs.precision.grad_bytes))
    return (*held, gradients)
