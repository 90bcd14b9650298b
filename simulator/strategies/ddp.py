"""DistributedDataParallel: what it communicates and when, in a step and at construction (PyTorch 2.13, traced).

A steady step: no communication in all micro-batches but the last (``no_sync``), or in each with
``sync_each_micro_batch``; there, each bucket's gradients are scaled by 1/world into the bucket, which is all-reduced
once it is ready, strictly in bucket order on one communicator; compute waits for all of them when backward ends and
copies them back. Three variants, as in the lectures:

* bucketed: DDP itself;
* per_parameter: every tensor is its own all-reduce, launched when its gradient is ready;
* none: naive data parallelism, one all-reduce per tensor after the whole backward, in the order of ``parameters()``.

DDP's settings (what each sends is compared with real runs in tests/test_real_ddp_steps.py):

* ``iteration: first`` is iteration 0 only, where one bucket holds everything. Two small broadcasts at the start of
  iteration 1 then agree on new buckets; from there on a step is steady;
* ``find_unused_parameters``: buckets by registration from iteration 0 on, the host looks through the graph after
  forward, and one more all-reduce of an int32 per parameter tensor follows the last bucket;
* ``comm_hook``: the bucket is cast to 16 bits and divided (two kernels), reduced, and cast back by the callback of
  the hook's future, on a stream of its own;
* ``gradient_as_bucket_view``: gradients live in the buckets, always. A fresh one is copied in once it is ready;
  those of a micro-batch under ``no_sync`` stay beside the buckets until one that reduces (zero_grad sets to None);
* a model with buffers broadcasts them, flat by dtype, before the forward of each micro-batch that follows one that
  reduced: under ``no_sync`` that is the first.

Limits: parameters are of one dtype, all are used, and shapes in the constructor's check count as one-dimensional.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from simulator.plan import COMPUTE_LANE, Buffer, Communicate, Compute, Task
from simulator.rank_classes import ALL_RANKS
from simulator.strategies.buckets import Bucket, ReadyTensor, assign, by_registration, ready_order, whole
from simulator.strategies.clipping import clipped
from simulator.strategies.ddp_broadcasts import AXIS as AXIS
from simulator.strategies.ddp_broadcasts import broadcast_buffers, of_micro
from simulator.strategies.ddp_broadcasts import startup as startup
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
    optimizer,
    without_sync,
)
from simulator.training.operations import num_elements

#: Stream on which the future of a communication hook casts gradients back.
HOOK_LANE = "comm hook"
#: Bytes per element that the hooks send (torch.distributed.algorithms.ddp_comm_hooks.default_hooks).
COMPRESSED_BYTES = 2
#: The map of used parameters is int32[number of tensors] (reducer.cpp, ``local_used_map_``).
USED_MAP_BYTES = 4.0
#: Seconds per node of the autograd graph that ``find_unused_parameters`` looks through after forward. Measured: torch
#: 2.13 on an AMD EPYC, 100 and 400 x (Linear, LayerNorm, ReLU), 0.12 and 0.14 us; 0.3 where the graph outgrows caches.
GRAPH_WALK_S = 0.13e-6


def step(inputs: StepInputs) -> Draft:
    """One training step."""
    tasks = micro_batches(inputs)
    kept = () if as_views(inputs) else gradient_names(inputs.model)
    reduced = apart(tasks)
    tasks += [*clipped(inputs, after=reduced), optimizer(inputs, after=reduced, frees=kept)]
    return Draft(tasks=tuple(tasks), axes={AXIS: inputs.everyone}, resident=resident(inputs))


def micro_batches(inputs: StepInputs) -> list[Task]:
    """All micro-batches, with what reduces gradients; no optimizer."""
    last = inputs.micro_batches - 1
    every = inputs.parallel.sync_each_micro_batch and inputs.num_ranks > 1
    tasks: list[Task] = []
    if not every:
        tasks += [*broadcast_buffers(inputs, 0), *without_sync(inputs, last)]
    for micro in range(inputs.micro_batches) if every else (last,):
        added = [*(broadcast_buffers(inputs, micro) if every else ()), *forward(inputs, micro)]
        added += reduce_gradients(inputs, micro)
        tasks += _after_all(added, apart(tasks))
    return tasks


def reduce_gradients(inputs: StepInputs, micro: int) -> list[Task]:
    """The backward of a micro-batch with what reduces its gradients."""
    if inputs.num_ranks == 1:
        return list(backward(inputs, micro))
    return list(_VARIANTS[inputs.parallel.overlap](inputs, micro))


def apart(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Names of tasks on other lanes than that of compute: what has to be over before gradients are used."""
    return tuple(task.name for task in tasks if task.lane != COMPUTE_LANE)


def _after_all(tasks: Iterable[Task], before: tuple[str, ...]) -> Iterator[Task]:
    """The first task on the compute lane waits for all that the last backward left on others."""
    for task in tasks:
        if before and task.lane == COMPUTE_LANE:
            task, before = replace(task, after=(*task.after, *before)), ()
        yield task


# ------------------------------------------------------------------------------------------------------- memory


def as_views(inputs: StepInputs) -> bool:
    """Whether gradients live in the buckets."""
    return inputs.num_ranks > 1 and inputs.parallel.overlap == "bucketed" and inputs.parallel.gradient_as_bucket_view


def resident(inputs: StepInputs) -> tuple[Buffer, ...]:
    """Weights, states and the buckets, which are the gradients themselves or stand beside them."""
    if inputs.num_ranks == 1 or inputs.parallel.overlap != "bucketed":
        return resident_states(inputs)
    size = float(inputs.model.num_parameters * inputs.precision.reduce_bytes)
    views = inputs.parallel.gradient_as_bucket_view
    held = Buffer(name="gradients in buckets" if views else "buckets", kind="grads" if views else "buffers",
                  size_bytes=size)  # fmt: skip
    return (*resident_states(inputs), held) if size else resident_states(inputs)


def _backward(inputs: StepInputs, micro: int) -> Iterator[Compute]:
    """Backward whose gradients stay, or are copied into buckets and gone with what no_sync has kept."""
    if not as_views(inputs):
        return backward(inputs, micro)
    return (_into_views(inputs, micro, number) for number in reversed(range(len(inputs.model.operations))))


def _into_views(inputs: StepInputs, micro: int, number: int) -> Compute:
    operation = inputs.model.operations[number]
    if not operation.parameters:
        return backward_of(inputs, micro, number)
    if micro:
        kept = () if inputs.parallel.sync_each_micro_batch else (gradient_name(operation),)
        return backward_of(inputs, micro, number, frees=kept)
    size = float(num_elements(operation.parameters) * inputs.precision.grad_bytes)
    fresh = Buffer(name=gradient_name(operation), kind="grads", size_bytes=size)
    return backward_of(inputs, micro, number, grads=False, allocates=(fresh,), frees=(fresh.name,))


# ------------------------------------------------------------------------------------------------------ buckets


def step_buckets(inputs: StepInputs) -> tuple[Bucket, ...]:
    """The gradient buckets of the step, in launch order."""
    ready = ready_order(inputs.model, inputs.precision.reduce_bytes)
    parallel = inputs.parallel
    first, cap = parallel.first_bucket_bytes, parallel.bucket_cap
    if parallel.find_unused_parameters:
        return by_registration(inputs.model, ready, first_cap_bytes=first, cap_bytes=cap)
    if parallel.iteration == "first":
        return whole(inputs.model, ready)
    return assign(ready, first_cap_bytes=first, cap_bytes=cap)


def _bucketed(inputs: StepInputs, micro: int) -> Iterator[Task]:
    buckets, launched = step_buckets(inputs), 0
    unfinished = {operation.name for operation in inputs.model.operations}
    if inputs.parallel.find_unused_parameters:
        yield _look_through_the_graph(inputs, micro)
    for task, operation in zip(_backward(inputs, micro), reversed(inputs.model.operations), strict=True):
        yield task
        unfinished.discard(operation.name)
        while launched < len(buckets) and buckets[launched].ready_after not in unfinished:
            yield from _reduce_bucket(buckets[launched], inputs, micro)
            launched += 1
    if inputs.parallel.find_unused_parameters:
        yield _reduce_used_map(inputs, micro)
    if not inputs.parallel.gradient_as_bucket_view:
        for bucket in buckets:
            yield copy(
                inputs, f"copy bucket {bucket.index} out{of_micro(inputs, micro)}", bucket.size_bytes,
                after=(_reduced_name(inputs, bucket, micro),), kernels=len(bucket.tensors),
            )  # fmt: skip


def _bucket_name(inputs: StepInputs, bucket: Bucket, micro: int) -> str:
    return f"all-reduce bucket {bucket.index}{of_micro(inputs, micro)}"


def _reduced_name(inputs: StepInputs, bucket: Bucket, micro: int) -> str:
    """The task after which the bucket holds the mean of all ranks."""
    if inputs.parallel.comm_hook == "none":
        return _bucket_name(inputs, bucket, micro)
    return f"decompress bucket {bucket.index}{of_micro(inputs, micro)}"


def _reduce_bucket(bucket: Bucket, inputs: StepInputs, micro: int) -> Iterator[Task]:
    hook, name, of = inputs.parallel.comm_hook, _bucket_name(inputs, bucket, micro), of_micro(inputs, micro)
    verb = "scale" if hook == "none" else "fill"
    ready = copy(inputs, f"{verb} bucket {bucket.index}{of}", bucket.size_bytes, kernels=len(bucket.tensors))
    yield ready
    if hook == "none":
        yield _all_reduce(name, bucket.size_bytes, ready.name, inputs, _purpose(bucket))
        return
    # buffer.to(dtype) reads the bucket and writes 16 bits, div_(world) reads and writes these; then copy_ goes back
    sent = float(COMPRESSED_BYTES * bucket.numel)
    made = Buffer(name=f"compressed bucket {bucket.index}{of}", kind="buffers", size_bytes=sent)
    compress = copy(
        inputs, f"compress bucket {bucket.index}{of}", (bucket.size_bytes + 3 * sent) / 2, kernels=2, allocates=(made,)
    )  # fmt: skip
    yield compress
    yield _all_reduce(name, sent, compress.name, inputs, f"{_purpose(bucket)} in {hook}")
    yield copy(
        inputs, _reduced_name(inputs, bucket, micro), (sent + bucket.size_bytes) / 2, after=(name,), lane=HOOK_LANE,
        frees=(made.name,),
    )  # fmt: skip


def _all_reduce(name: str, size_bytes: float, after: str, inputs: StepInputs, purpose: str) -> Communicate:
    return collective(
        inputs, name, "all_reduce", AXIS, size_bytes, purpose=purpose, after=(after,),
        algorithm=inputs.parallel.algorithm,
    )  # fmt: skip


def _purpose(bucket: Bucket) -> str:
    """The gradients of a bucket in few words: names without what all of them share."""
    tensors = [t.tensor.name.removeprefix("model.").removesuffix(".weight") for t in bucket.tensors]
    return f"gradients {tensors[0]} .. {tensors[-1]}" if len(tensors) > 1 else f"gradient {tensors[0]}"


def _look_through_the_graph(inputs: StepInputs, micro: int) -> Compute:
    """The host's search for parameters without gradient, before the backward; its time counts where the host's does."""
    # a node for each forward kernel, and one that accumulates each parameter's gradient
    nodes = len(inputs.model.parameters) + sum(operation.forward_kernels for operation in inputs.model.operations)
    return Compute(
        name=f"search of the graph{of_micro(inputs, micro)}", kind="copy", classes=(ALL_RANKS,), seconds=0.0,
        host_s=nodes * GRAPH_WALK_S if inputs.host.kernel_s else 0.0,
    )  # fmt: skip


def _reduce_used_map(inputs: StepInputs, micro: int) -> Communicate:
    end = backward_name(micro, inputs.model.operations[0].name)
    size = USED_MAP_BYTES * len(inputs.model.parameters)
    return _all_reduce(
        f"all-reduce used parameters{of_micro(inputs, micro)}", size, end, inputs, "which parameters are used"
    )


# ------------------------------------------------------------------------------------------------- tensor by tensor


def _per_parameter(inputs: StepInputs, micro: int) -> Iterator[Task]:
    ready: dict[str, list[ReadyTensor]] = {}
    for gradient in ready_order(inputs.model, inputs.precision.reduce_bytes):
        ready.setdefault(gradient.operation, []).append(gradient)
    for task, operation in zip(backward(inputs, micro), reversed(inputs.model.operations), strict=True):
        yield task
        yield from _reduce_each(ready.get(operation.name, ()), task.name, inputs, micro)


def _after_backward(inputs: StepInputs, micro: int) -> Iterator[Task]:
    yield from backward(inputs, micro)
    end = backward_name(micro, inputs.model.operations[0].name)
    for bucket in whole(inputs.model, ready_order(inputs.model, inputs.precision.reduce_bytes)):
        yield from _reduce_each(bucket.tensors, end, inputs, micro)


def _reduce_each(gradients: Iterable[ReadyTensor], after: str, inputs: StepInputs, micro: int) -> Iterator[Task]:
    for gradient in gradients:
        tensor = gradient.tensor.name
        name = f"all-reduce {tensor}{of_micro(inputs, micro)}"
        yield _all_reduce(name, gradient.size_bytes, after, inputs, f"gradient {tensor}")


_VARIANTS = {"bucketed": _bucketed, "per_parameter": _per_parameter, "none": _after_backward}
