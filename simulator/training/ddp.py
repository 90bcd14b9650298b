"""DistributedDataParallel: what it communicates and when, in a steady step and at construction.

Steady step (PyTorch 2.13, traced): no communication in all micro-batches but the last (``no_sync``); in the last
backward, each bucket is scaled by 1/world and all-reduced as soon as all its gradients are ready, strictly in bucket
order on one communicator; the optimizer waits for all of them. Three variants, as in the lectures:

* bucketed: DDP itself;
* per_parameter: every tensor is its own all-reduce, launched when its gradient is ready;
* none: naive data parallelism, one all-reduce per tensor after the whole backward.

Limits: buffers are not broadcast before each forward (transformers have none; ResNet's are 38 kB), no
``find_unused_parameters``, no iteration 0 (its single bucket hides nothing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator.plan import Communicate, Compute, Task
from simulator.training.buckets import Bucket, ReadyTensor, assign, ready_order
from simulator.training.step import ALL_RANKS, StepInputs, backward, backward_name, forward, without_sync

AXIS = "dp"
#: Parameters are broadcast in groups that close once they reach this many bytes (torch.nn.parallel.distributed).
BROADCAST_GROUP_BYTES = 250 * 2**20


def step(inputs: StepInputs) -> tuple[Task, ...]:
    """One steady training step."""
    last = inputs.micro_batches - 1
    tasks: list[Task] = []
    tasks += without_sync(inputs, last)
    tasks += forward(inputs, last)
    reducing = list(backward(inputs, last)) if inputs.num_ranks == 1 else list(_VARIANTS[inputs.overlap](inputs, last))
    tasks += reducing
    waits = tuple(task.name for task in reducing if isinstance(task, Communicate))
    tasks.append(
        Compute(name="optimizer", kind="optimizer", classes=(ALL_RANKS,), seconds=inputs.optimizer_s, after=waits)
    )
    return tuple(tasks)


def _all_reduce(name: str, size_bytes: float, after: str, inputs: StepInputs, purpose: str) -> Communicate:
    return Communicate(
        name=name, op="all_reduce", axis=AXIS, algorithm=inputs.algorithm, message_bytes=size_bytes,
        classes=(ALL_RANKS,), purpose=purpose, after=(after,),
    )  # fmt: skip


def step_buckets(inputs: StepInputs) -> tuple[Bucket, ...]:
    """The gradient buckets of the step, in launch order."""
    ready = ready_order(inputs.model, inputs.precision.reduce_bytes)
    return assign(ready, first_cap_bytes=inputs.first_bucket_bytes, cap_bytes=inputs.bucket_cap_bytes)


def _bucketed(inputs: StepInputs, micro: int) -> Iterator[Task]:
    closing: dict[str, list[Bucket]] = {}
    buckets = step_buckets(inputs)
    for bucket in buckets:
        closing.setdefault(bucket.ready_after, []).append(bucket)
    for task in backward(inputs, micro):
        yield task
        for bucket in closing.get(task.name.split(": ", 1)[1], ()):
            yield from _reduce_bucket(bucket, inputs)
    if not inputs.gradient_as_bucket_view:
        for bucket in buckets:
            yield Compute(
                name=f"copy bucket {bucket.index} out", kind="copy", classes=(ALL_RANKS,),
                seconds=inputs.copy_s(bucket.size_bytes), after=(_bucket_name(bucket),),
            )  # fmt: skip


def _bucket_name(bucket: Bucket) -> str:
    return f"all-reduce bucket {bucket.index}"


def _reduce_bucket(bucket: Bucket, inputs: StepInputs) -> Iterator[Task]:
    scale = f"scale bucket {bucket.index}"
    yield Compute(name=scale, kind="copy", classes=(ALL_RANKS,), seconds=inputs.copy_s(bucket.size_bytes))
    yield _all_reduce(_bucket_name(bucket), bucket.size_bytes, scale, inputs, _purpose(bucket))


def _purpose(bucket: Bucket) -> str:
    """The gradients of a bucket in few words: names without what all of them share."""
    names = [t.tensor.name.removeprefix("model.").removesuffix(".weight") for t in bucket.tensors]
    return f"gradients {names[0]} .. {names[-1]}" if len(names) > 1 else f"gradient {names[0]}"


def _per_parameter(inputs: StepInputs, micro: int) -> Iterator[Task]:
    ready: dict[str, list[ReadyTensor]] = {}
    for gradient in ready_order(inputs.model, inputs.precision.reduce_bytes):
        ready.setdefault(gradient.operation, []).append(gradient)
    for task in backward(inputs, micro):
        yield task
        yield from _reduce_each(ready.get(task.name.split(": ", 1)[1], ()), task.name, inputs)


def _after_backward(inputs: StepInputs, micro: int) -> Iterator[Task]:
    yield from backward(inputs, micro)
    end = backward_name(micro, inputs.model.operations[0].name)
    yield from _reduce_each(ready_order(inputs.model, inputs.precision.reduce_bytes), end, inputs)


def _reduce_each(gradients: Iterable[ReadyTensor], after: str, inputs: StepInputs) -> Iterator[Task]:
    for gradient in gradients:
        tensor = gradient.tensor.name
        yield _all_reduce(f"all-reduce {tensor}", gradient.size_bytes, after, inputs, f"gradient {tensor}")


_VARIANTS = {"bucketed": _bucketed, "per_parameter": _per_parameter, "none": _after_backward}


def startup(inputs: StepInputs) -> tuple[Task, ...]:
    """What DDP's constructor sends: parameter count, shapes, then the weights, coalesced, from rank 0."""
    if inputs.num_ranks == 1:
        return ()
    params = inputs.model.parameters
    sizes = [tensor.numel * float(inputs.precision.param_bytes) for tensor in params]
    calls = [
        ("check parameter count", "all_gather", 8.0 * inputs.num_ranks),
        ("broadcast shapes", "broadcast", 16.0 * len(params)),
    ]  # fmt: skip
    calls += [(f"broadcast parameters {i}", "broadcast", size) for i, size in enumerate(_coalesced(sizes))]
    tasks: list[Task] = []
    for name, op, size_bytes in calls:
        tasks.append(Communicate(
            name=name, op=op, axis=AXIS, algorithm="auto", message_bytes=size_bytes, classes=(ALL_RANKS,),
            purpose="construction of DDP",
        ))  # fmt: skip
    return tuple(tasks)


def _coalesced(sizes: Iterable[float]) -> Iterator[float]:
    """Sums of neighbours by the rule of gradient buckets: the tensor that reaches BROADCAST_GROUP_BYTES is included.

    As ``broadcast_coalesced`` does in torch/csrc/distributed/c10d/comm.cpp.
    """
    held = 0.0
    for size in sizes:
        held += size
        if held >= BROADCAST_GROUP_BYTES:
            yield held
            held = 0.0
    if held:
        yield held
