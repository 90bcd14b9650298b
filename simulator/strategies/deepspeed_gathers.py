"""Settings of DeepSpeed's ZeRO-3, and its gathers as tasks: what is launched, waited for and given back when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from simulator.plan import COMPUTE_LANE, Buffer, Task
from simulator.strategies.deepspeed_buckets import (
    REDUCE_BUCKET_SIZE,
    Bucket,
    Gradient,
    Share,
    by_operation,
    fill,
    label,
    shares,
)
from simulator.strategies.deepspeed_fetch import Limits, Turn, coordinate
from simulator.strategies.deepspeed_reduction import AXIS, REDUCTION_LANE, host_waits
from simulator.strategies.step import StepInputs, collective, copy
from simulator.training.operations import Operation, ParameterTensor

#: Lane of the stream of gathers when ``overlap_comm`` is on.
GATHER_LANE = "gather"
#: Fetches and reductions that may be under way before the host waits for the oldest (``__max_ongoing_fetch_events``).
ONGOING = 2


@dataclass(frozen=True, kw_only=True)
class Zero3:
    """A step's settings, and what follows from them."""

    inputs: StepInputs

    @property
    def apart(self) -> bool:
        """Whether gathers and reductions have streams of their own: ``overlap_comm``, on by default."""
        return self.inputs.parallel.overlap_comm is not False and self.inputs.streams

    @property
    def gather_lane(self) -> str:
        return GATHER_LANE if self.apart else COMPUTE_LANE

    @property
    def reduce_lane(self) -> str:
        return REDUCTION_LANE if self.apart else COMPUTE_LANE

    @cached_property
    def limits(self) -> Limits:
        parallel = self.inputs.parallel
        return Limits(
            prefetch=parallel.prefetch_bucket_size, live=parallel.max_live_parameters,
            reuse=parallel.max_reuse_distance, persistence=parallel.param_persistence_threshold,
        )  # fmt: skip

    @cached_property
    def _turns(self) -> dict[tuple[int, bool], tuple[Turn, ...]]:
        """By operation and direction; what modules around it do comes before its own modules."""
        found: dict[tuple[int, bool], tuple[Turn, ...]] = {}
        around: tuple[Turn, ...] = ()
        for turn in coordinate(self.inputs.model, self.limits, micro_batches=self.inputs.micro_batches):
            around = (*around, turn)
            if turn.visit.operation is not None:
                key = (turn.visit.operation, turn.visit.is_forward)
                found[key] = (*found.get(key, ()), *around)
                around = ()
        return found

    def turns_of(self, number: int, *, is_forward: bool) -> tuple[Turn, ...]:
        """What hooks do before an operation."""
        return self._turns.get((number, is_forward), ())

    @property
    def bucket_size(self) -> int:
        return self.inputs.parallel.reduce_bucket_size or REDUCE_BUCKET_SIZE

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        ready = (
            Gradient(tensor=tensor, operation=operation.name)
            for operation in reversed(self.inputs.model.operations)
            for tensor in _ready(operation)
        )
        return fill(ready, self.bucket_size)

    @cached_property
    def shares(self) -> dict[str, tuple[Share, ...]]:
        return dict(by_operation(shares(self.buckets)))

    def part(self, tensor: ParameterTensor) -> int:
        """Elements that each rank holds of a tensor, padding included."""
        return -(-tensor.numel // self.inputs.num_ranks)

    @cached_property
    def parts(self) -> int:
        """Elements that each rank holds of all tensors."""
        return sum(self.part(tensor) for tensor in self.inputs.model.parameters)

    def gathered_bytes(self, weights: tuple[int, ...]) -> float:
        """Of tensors, by their places in the model, with their padding."""
        parts = sum(self.part(self.inputs.model.parameters[weight]) for weight in weights)
        return float(parts * self.inputs.num_ranks * self.inputs.precision.param_bytes)

    def scattered_bytes(self, bucket: Bucket) -> float:
        """Of a bucket as it is sent: every tensor padded."""
        parts = sum(self.part(gradient.tensor) for gradient in bucket.gradients)
        return float(parts * self.inputs.num_ranks * self.inputs.precision.reduce_bytes)


def _ready(operation: Operation) -> tuple[ParameterTensor, ...]:
    """Gradients in the order in which they are ready: DeepSpeed's linear layer has its weight's before its bias's."""
    modules: dict[str, list[ParameterTensor]] = {}
    for tensor in reversed(operation.parameters):
        modules.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    return tuple(t for found in modules.values() for t in sorted(found, key=lambda t: t.name.endswith(".bias")))


@dataclass(kw_only=True)
class _Gather:
    """One all-gather under way. missing: tensors that nobody has waited for yet. flat: its buffer, while it lives.

    over: the task after which its tensors can be used.
    """

    name: str
    number: int
    weights: tuple[int, ...]
    missing: set[int]
    over: str
    flat: str = ""
    arrived: bool = False


class Gathers:
    """The all-gathers of one micro-batch.

    last: the last task of the compute stream, for gathers that have no stream of their own.
    """

    def __init__(self, zero: Zero3, micro: int, before: str) -> None:
        self._zero, self._inputs, self._micro = zero, zero.inputs, micro
        self.last = before
        self._before = (before,) if before else ()
        self._count = 0
        self._under_way: dict[int, _Gather] = {}
        self._buffers: dict[int, str] = {}
        self._arrived: list[str] = []
        self._emptied: list[str] = []
        self._ongoing: deque[str] = deque()
        self._host_waits = host_waits(self._inputs, *self._before)
        self._live = 0
        self._to_be_freed: deque[tuple[str, int]] = deque()

    def launch(self, weights: tuple[int, ...]) -> Iterator[Task]:
        """Gather tensors together: parts into a flat buffer, unless there is only one."""
        if not weights:
            return
        name = f"all-gather {self._count} @{self._micro}"
        gather = _Gather(
            name=name, number=self._count, weights=weights, missing=set(weights),
            over=name if len(weights) == 1 else f"copy weights out, {name}",
        )  # fmt: skip
        self._count += 1
        self._under_way.update(dict.fromkeys(weights, gather))
        size, after = self._zero.gathered_bytes(weights), self._may_start(weights)
        waits, self._host_waits = self._host_waits, ()
        if len(weights) > 1:
            flat = Buffer(name=f"gathering {gather.number} @{self._micro}", kind="gathered", size_bytes=size)
            gather.flat = flat.name
            parts = copy(
                self._inputs, f"copy parts in, {gather.name}", size / self._inputs.num_ranks, after=after,
                lane=self._zero.gather_lane, allocates=(flat,),
            )  # fmt: skip
            yield parts
            after = (parts.name,)
        made = () if gather.flat else (self._buffer(gather, weights[0]),)
        names = [self._inputs.model.parameters[weight].name for weight in weights]
        yield collective(
            self._inputs, gather.name, "all_gather", AXIS, size, purpose=f"weights {label(names)}", after=after,
            allocates=made, host_after=waits,
        )  # fmt: skip

    def wait(self, weights: Iterable[int]) -> Iterator[Task]:
        """Wait for tensors; the first wait for any of a flat buffer copies all of it out."""
        needed = set(weights)
        for weight in weights:
            gather = self._under_way.pop(weight, None)
            if gather is None:
                continue
            gather.missing.discard(weight)
            if not gather.arrived:
                gather.arrived = True
                self._arrived.append(gather.over)
                if gather.flat:
                    yield copy(
                        self._inputs, gather.over, self._zero.gathered_bytes(gather.weights), after=(gather.name,),
                        lane=self._zero.gather_lane, allocates=tuple(self._buffer(gather, w) for w in gather.weights),
                        frees=(gather.flat,) if gather.missing <= needed else (),
                    )  # fmt: skip
                    gather.flat = "" if gather.missing <= needed else gather.flat
            elif gather.flat and not gather.missing:
                self._emptied.append(gather.flat)
            self._limit_ongoing(gather.over)

    def _buffer(self, gather: _Gather, weight: int) -> Buffer:
        tensor = self._inputs.model.parameters[weight]
        name = f"gathered {tensor.name} {gather.number} @{self._micro}"
        self._buffers[weight] = name
        return Buffer(name=name, kind="gathered", size_bytes=self._zero.gathered_bytes((weight,)))

    def take_arrived(self) -> list[str]:
        """What a module has to wait for before it runs."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def take_emptied(self) -> list[str]:
        """Flat buffers that nothing refers to any more."""
        emptied, self._emptied = self._emptied, []
        return emptied

    def drop(self, weights: Iterable[int]) -> list[str]:
        """Buffers of tensors that are to be freed."""
        return [self._buffers.pop(weight) for weight in weights]

    def release(self, weights: Iterable[int], after: str) -> None:
        """Tensors that the device frees when the task is over."""
        numel = sum(self._inputs.model.parameters[weight].numel for weight in weights)
        if numel:
            self._live -= numel
            self._to_be_freed.append((after, numel))

    def _may_start(self, weights: tuple[int, ...]) -> tuple[str, ...]:
        """What has to be over before there is room."""
        numel = sum(self._inputs.model.parameters[weight].numel for weight in weights)
        first, self._before = self._before, ()
        self._live += numel
        if not self._zero.apart:
            return (*first, *((self.last,) if self.last else ()))
        freed: tuple[str, ...] = ()
        while self._to_be_freed and self._live + self._num_to_be_freed() > self._zero.limits.live:
            freed = (self._to_be_freed.popleft()[0],)
        return (*first, *freed)

    def _num_to_be_freed(self) -> int:
        return sum(numel for _, numel in self._to_be_freed)

    def _limit_ongoing(self, over: str) -> None:
        """The host waits for the oldest fetch when there are too many."""
        if len(self._ongoing) > ONGOING:
            self._host_waits = host_waits(self._inputs, self._ongoing.popleft())
        self._ongoing.append(over)
