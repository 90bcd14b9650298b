"""Gradients of DeepSpeed's ZeRO stages 1 and 2 on their way to their owners: settings, and one micro-batch's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.plan import COMPUTE_LANE, Buffer, Communicate, Compute, Task
from simulator.strategies.buckets import ready_order
from simulator.strategies.deepspeed_buckets import (
    REDUCE_BUCKET_SIZE,
    Bucket,
    Gradient,
    Partition,
    Share,
    fill,
    launches,
    partition,
    shares,
)
from simulator.strategies.step import StepInputs, collective, copy, gradient_name
from simulator.training.operations import Operation

AXIS = "dp"
#: Lane of the stream that averages, reduces and keeps gradients when ``overlap_comm`` is on.
REDUCTION_LANE = "reduction"


def host_waits(inputs: StepInputs, *tasks: str) -> tuple[str, ...]:
    """What the host waits for; nothing where launching costs nothing, as such a host is never behind."""
    return tasks if inputs.host.kernel_s or inputs.host.collective_s else ()


@dataclass(frozen=True, kw_only=True)
class Zero:
    """A step's settings, and what follows from them."""

    inputs: StepInputs

    @cached_property
    def stage(self) -> int:
        return int(self.inputs.parallel.strategy.removeprefix("zero"))

    @property
    def overlaps(self) -> bool:
        """``overlap_comm``, off by default in stages 1 and 2."""
        return bool(self.inputs.parallel.overlap_comm)

    @property
    def apart(self) -> bool:
        """Whether reductions run beside compute: on a CPU, which has no streams, they never do."""
        return self.overlaps and self.inputs.streams

    @property
    def lane(self) -> str:
        return REDUCTION_LANE if self.apart else COMPUTE_LANE

    @property
    def hooked(self) -> bool:
        """Whether gradients are reduced as they become ready, or all of them after the backward."""
        return self.stage == 2 or self.overlaps

    @property
    def bucket_size(self) -> int:
        return self.inputs.parallel.reduce_bucket_size or REDUCE_BUCKET_SIZE

    @cached_property
    def partition(self) -> Partition:
        return partition(self.inputs.model, self.inputs.num_ranks)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        ready = [Gradient(tensor=t.tensor, operation=t.operation) for t in ready_order(self.inputs.model, 1.0)]
        if not self.hooked:
            by_name = {gradient.tensor.name: gradient for gradient in ready}
            ready = [by_name[tensor.name] for tensor in self.inputs.model.parameters]
        return fill(ready, self.bucket_size)

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        return shares(self.buckets)

    def bytes(self, numel: float) -> float:
        """Of gradients as they are kept and sent."""
        return numel * self.inputs.precision.reduce_bytes

    @cached_property
    def operations(self) -> dict[str, Operation]:
        """By name."""
        return {operation.name: operation for operation in self.inputs.model.operations}

    def gradients(self, operation: str, micro: int) -> str:
        """Buffer of an operation's gradients: in stage 1 they are kept and added to, micro-batch after micro-batch."""
        kept = gradient_name(self.operations[operation])
        return kept if self.stage == 1 else f"{kept} @{micro}"

    def end_of(self, micro: int) -> str:
        """The task that leaves the gradients of a micro-batch with their owners."""
        adds = self.stage == 2 and micro > 0
        return f"add gradients @{micro}" if adds else f"keep own part of {self.buckets[-1].name} @{micro}"

    def buffers(self, micro: int) -> tuple[Buffer, ...]:
        """The contiguous buckets, two when reductions overlap."""
        size = self.bytes(self.bucket_size)
        return tuple(
            Buffer(name=f"bucket {half} @{micro}", kind="buffers", size_bytes=size) for half in range(1 + self.overlaps)
        )


class Reduction:
    """Fills and reduces the buckets of one micro-batch, gradient by gradient."""

    def __init__(self, zero: Zero, micro: int) -> None:
        self._zero, self._micro = zero, micro
        self._filling: Share | None = None
        self._in_place: list[str] = []
        self._kept: Compute | None = None
        self._waits: tuple[str, ...] = ()

    def take_waits(self) -> tuple[str, ...]:
        """What the next task of the compute stream has to wait for, told once."""
        waits, self._waits = self._waits, ()
        return waits

    def add(self, share: Share) -> Iterator[Task]:
        """Put gradients into their bucket; before that, reduce the one that they would overflow."""
        if self._filling and self._filling.bucket.index != share.bucket.index:
            yield from self._reduce(self._filling.bucket)
        self._filling = share
        gradients = (self._zero.gradients(share.operation, self._micro),) if share.is_last else ()
        if not share.bucket.fits:
            self._in_place += gradients
            return
        yield copy(
            self._zero.inputs, f"copy {share.operation} to {share.bucket.name} @{self._micro}",
            self._zero.bytes(share.numel), after=self.take_waits(), frees=gradients,
        )  # fmt: skip

    def end(self) -> Iterator[Task]:
        """Reduce what is left; then the buffers go, and what was kept is added to that of earlier micro-batches."""
        assert self._filling, "a model without parameters has nothing to train"
        *most, kept = self._reduce(self._filling.bucket)
        yield from most
        made = (buffer.name for buffer in self._zero.buffers(self._micro))
        yield replace(kept, frees=(*kept.frees, *made))
        if self._zero.stage == 2 and self._micro > 0:
            yield copy(
                self._zero.inputs, self._zero.end_of(self._micro), 1.5 * self._zero.bytes(self._zero.partition.size),
                after=(kept.name,), frees=(self._own,),
            )  # fmt: skip

    @property
    def _own(self) -> str:
        return f"own gradients @{self._micro}"

    def _reduce(self, bucket: Bucket) -> Iterator[Task]:
        """Average on the reduction's stream, send, and let owners keep theirs."""
        inputs, previous = self._zero.inputs, (self._kept.name,) if self._kept else ()
        name, size = f"{bucket.name} @{self._micro}", self._zero.bytes(bucket.numel)
        calls = list(self._calls(bucket))
        flattened = sum(self._zero.bytes(numel) for _, numel, slices, _ in calls if slices > 1)
        flat = (Buffer(name=f"flattened {name}", kind="buffers", size_bytes=flattened),) if flattened else ()
        # The stream is handed the bucket once the last gradient is in it.
        average = copy(
            inputs, f"average {name}", size + flattened, lane=self._zero.lane, allocates=flat,
            after=(*self._filled(), *previous),
        )  # fmt: skip
        yield average
        chain: list[Task] = [average]
        for part, numel, _, owner in calls:
            chain.append(replace(self._call(f"{part} {name}", bucket, numel, chain[-1].name), root=owner))
            yield chain[-1]
        own: tuple[Buffer, ...] = ()
        if self._kept is None:
            kept_bytes = self._zero.bytes(self._zero.partition.most_kept())
            own = (Buffer(name=self._own, kind="grads", size_bytes=kept_bytes),)
        # Owners copy their slices out of the flattened bucket, and the gradients of all tensors they own out of it.
        self._kept = copy(
            inputs, f"keep own part of {name}", 2 * size / inputs.num_ranks, lane=self._zero.lane, allocates=own,
            after=(chain[-1].name,), frees=(*(buffer.name for buffer in flat), *self._in_place),
        )  # fmt: skip
        yield self._kept
        self._in_place = []
        if self._zero.apart:
            several = not inputs.parallel.use_multi_rank_bucket_allreduce
            # A reduce per owner waits for the whole device before each call, on the host.
            self._waits = (chain[-2].name,) if several else previous

    def _filled(self) -> tuple[str, ...]:
        assert self._filling
        share = self._filling
        if share.bucket.fits:
            return (f"copy {share.operation} to {share.bucket.name} @{self._micro}",)
        return (f"backward {self._micro}: {share.operation}",)

    def _calls(self, bucket: Bucket) -> Iterator[tuple[str, int, int, int]]:
        """(name, elements, slices, the rank that gets the sum where not all do) of each collective."""
        parts = self._zero.partition.owners(bucket)
        if self._zero.inputs.parallel.use_multi_rank_bucket_allreduce:
            for part, (numel, slices) in enumerate(launches(parts, self._zero.bucket_size)):
                yield f"all-reduce{f' {part + 1}' if part else ''}", numel, slices, 0
            return
        for owner in dict.fromkeys(owner for owner, _ in parts):
            owned = [part for part in parts if part[0] == owner]
            for part, (numel, slices) in enumerate(launches(owned, self._zero.bucket_size)):
                yield f"reduce{f' {part + 1}' if part else ''} to rank {owner}", numel, slices, owner

    def _call(self, name: str, bucket: Bucket, numel: int, after: str) -> Communicate:
        inputs = self._zero.inputs
        op = "all_reduce" if inputs.parallel.use_multi_rank_bucket_allreduce else "reduce"
        algorithm = inputs.parallel.algorithm if op == "all_reduce" else "auto"
        return collective(
            inputs, name, op, AXIS, self._zero.bytes(numel), purpose=bucket.purpose, after=(after,),
            algorithm=algorithm,
        )  # fmt: skip
