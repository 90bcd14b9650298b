"""ZeRO stage 3 as DeepSpeed 0.19.6 runs it (runtime/zero/stage3.py; traced in tests/data).

Every tensor is cut into W parts, each padded to ceil(numel / W). ``deepspeed_fetch`` knows what is gathered and freed
when; a gather of several tensors is one all-gather into a flat buffer, from which the tensors are copied before their
module runs. Gradients go into a bucket, which is reduce-scattered when the next one would overflow it, and at the end
of each backward. After the optimizer's step the small tensors that stay whole are gathered one by one.

With ``overlap_comm``, the default, gathers and reductions have streams of their own. The stream of gathers never waits
for compute, so a host that is ahead of the device would gather the whole model ahead; here the parameters that wait to
be freed by the device count as live, and a gather that would exceed ``max_live_parameters`` waits for them.

Not modelled: offloading, quantized or hierarchical partitions (ZeRO++), and modules without parameters inside an
operation (an activation function), at which DeepSpeed gathers ahead too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from simulator.plan import COMPUTE_LANE, Buffer, Communicate, Compute, Task
from simulator.strategies.deepspeed import alone, ask_all_ranks, step_on_part
from simulator.strategies.deepspeed_buckets import Bucket, Share
from simulator.strategies.deepspeed_fetch import persistent
from simulator.strategies.deepspeed_gathers import ONGOING, Gathers, Zero3
from simulator.strategies.deepspeed_reduction import AXIS, host_waits
from simulator.strategies.resident import resident_states
from simulator.strategies.step import (
    Draft,
    StepInputs,
    backward_of,
    collective,
    copy,
    forward_of,
)
from simulator.training.operations import num_elements


def step(inputs: StepInputs) -> Draft:
    """One steady training step, in which the trace of modules is known."""
    zero = Zero3(inputs=inputs)
    share = zero.parts / inputs.model.num_parameters
    states = resident_states(inputs, params=share, optimizer_share=share)
    if inputs.num_ranks == 1:
        return Draft(tasks=alone(inputs), resident=states)
    return Draft(tasks=tuple(_tasks(zero)), axes={AXIS: inputs.everyone}, resident=(*states, *_resident(zero)))


def _resident(zero: Zero3) -> Iterator[Buffer]:
    """What is allocated once: the gradients of the rank's own parts, a bucket, and the tensors that stay whole."""
    precision, whole = zero.inputs.precision, persistent(zero.inputs.model, zero.limits)
    kept = float(sum(zero.part(tensor) for tensor in whole) * zero.inputs.num_ranks * precision.param_bytes)
    yield Buffer(name="own gradients", kind="grads", size_bytes=float(zero.parts * precision.grad_bytes))
    yield Buffer(name="bucket", kind="buffers", size_bytes=float(zero.bucket_size * precision.reduce_bytes))
    if kept:
        yield Buffer(name="persistent weights", kind="gathered", size_bytes=kept)


def _tasks(zero: Zero3) -> Iterator[Task]:
    inputs, before = zero.inputs, ""
    for micro in range(inputs.micro_batches):
        tasks = tuple(_MicroBatch(zero, micro, before).tasks())
        yield from tasks
        before = tasks[-1].name
    overflow = inputs.precision.dtype == "fp16" and inputs.precision.param_bytes == 2
    asked = ask_all_ranks(inputs, before, norm_bytes=8, overflow=overflow, waits=True)
    yield from asked
    yield from step_on_part(inputs, zero.parts, asked)
    for tensor in persistent(inputs.model, zero.limits):
        size = float(zero.part(tensor) * inputs.num_ranks * inputs.precision.param_bytes)
        yield collective(
            inputs, f"all-gather {tensor.name}", "all_gather", AXIS, size, purpose="updated weights that stay whole",
            after=("optimizer",),
        )  # fmt: skip


class _MicroBatch:
    """Plans one forward and backward. before: the task that ends the one before, for which the host has waited."""

    def __init__(self, zero: Zero3, micro: int, before: str) -> None:
        self._zero, self._inputs, self._micro, self._before = zero, zero.inputs, micro, before
        self._gathers, self._reduction = Gathers(zero, micro, before), _Reduction(zero, micro)

    def tasks(self) -> Iterator[Task]:
        """All tasks; the last leaves the gradients with their owners."""
        for task in self._all():
            if task.lane == COMPUTE_LANE or (isinstance(task, Communicate) and task.op == "reduce_scatter"):
                self._gathers.last = task.name
            yield task

    def _all(self) -> Iterator[Task]:
        for number in range(len(self._inputs.model.operations)):
            yield from self._run(number, is_forward=True)
        for number in reversed(range(len(self._inputs.model.operations))):
            yield from self._run(number, is_forward=False)
            for share in self._zero.shares.get(self._inputs.model.operations[number].name, ()):
                yield from self._reduction.add(share)
        yield from self._reduction.end()

    def _run(self, number: int, *, is_forward: bool) -> Iterator[Task]:
        """An operation, and before it all that its modules' hooks do."""
        frees: list[str] = []
        waits = [self._before] if is_forward and number == 0 and self._before else []
        released: list[int] = []
        for turn in self._zero.turns_of(number, is_forward=is_forward):
            yield from self._gathers.launch(turn.fetched)
            yield from self._gathers.wait(turn.visit.weights)
            yield from self._gathers.launch(turn.prefetched)
            frees += self._gathers.drop(turn.released)
            released += turn.released
        waits += self._gathers.take_arrived()
        frees += self._gathers.take_emptied()
        task = self._work(number, is_forward, tuple(waits), tuple(frees))
        yield task
        self._gathers.release(released, task.name)

    def _work(self, number: int, is_forward: bool, after: tuple[str, ...], frees: tuple[str, ...]) -> Compute:
        if is_forward:
            task = forward_of(self._inputs, self._micro, number, after=after)
            return replace(task, frees=(*task.frees, *frees))
        operation = self._inputs.model.operations[number]
        made: tuple[Buffer, ...] = ()
        if operation.parameters:
            size = float(num_elements(operation.parameters) * self._inputs.precision.grad_bytes)
            made = (Buffer(name=gradients_buffer(operation.name, self._micro), kind="grads", size_bytes=size),)
        return backward_of(
            self._inputs, self._micro, number, grads=False, after=after, allocates=made, frees=frees
        )  # fmt: skip


def gradients_buffer(operation: str, micro: int) -> str:
    """Name of the buffer of an operation's whole gradients, which live from its backward until they are in a bucket."""
    return f"gradients {operation} @{micro}"


class _Reduction:
    """Fills and reduce-scatters the buckets of one micro-batch, gradient by gradient."""

    def __init__(self, zero: Zero3, micro: int) -> None:
        self._zero, self._micro = zero, micro
        self._filling: tuple[Bucket, str] | None = None
        self._in_place: list[str] = []
        self._ongoing: deque[str] = deque()

    def add(self, share: Share) -> Iterator[Task]:
        """Put gradients into their bucket; before that, reduce the one that they would overflow."""
        if self._filling and self._filling[0].index != share.bucket.index:
            yield from self.end()
        gradients = (gradients_buffer(share.operation, self._micro),) if share.is_last else ()
        ready = f"backward {self._micro}: {share.operation}"
        if not share.bucket.fits:
            self._in_place += gradients
            self._filling = (share.bucket, ready)
            return
        size = float(share.numel * self._zero.inputs.precision.reduce_bytes)
        name = f"copy {share.operation} to {share.bucket.name} @{self._micro}"
        self._filling = (share.bucket, name)
        yield copy(self._zero.inputs, name, size, after=(ready,), lane=self._zero.reduce_lane, frees=gradients)

    def end(self) -> Iterator[Task]:
        """Interleave the parts of the ranks, average, reduce-scatter, and keep (or add) the rank's own part."""
        assert self._filling, "a model without parameters has nothing to train"
        bucket, filled = self._filling
        inputs, lane = self._zero.inputs, self._zero.reduce_lane
        name, size = f"{bucket.name} @{self._micro}", self._zero.scattered_bytes(bucket)
        whole = len(bucket.gradients) == 1 and bucket.numel % inputs.num_ranks == 0
        flat = () if whole else (Buffer(name=f"flattened {name}", kind="buffers", size_bytes=size),)
        average = copy(
            inputs, f"average {name}", size * (1 + len(flat)), after=(filled,), lane=lane, allocates=flat
        )  # fmt: skip
        yield replace(average, host_after=self._host_waits())
        scatter = collective(
            inputs, f"reduce-scatter {name}", "reduce_scatter", AXIS, size, purpose=bucket.purpose,
            after=(average.name,),
        )  # fmt: skip
        yield scatter
        keep = copy(
            inputs, f"keep own part of {name}", size / inputs.num_ranks * (1.5 if self._micro else 1.0), lane=lane,
            after=(scatter.name,), frees=(*(buffer.name for buffer in flat), *self._in_place),
        )  # fmt: skip
        yield keep
        self._ongoing.append(keep.name)
        self._in_place = []

    def _host_waits(self) -> tuple[str, ...]:
        """The oldest reduction, when there are too many."""
        return host_waits(self._zero.inputs, self._ongoing.popleft()) if len(self._ongoing) > ONGOING else ()
