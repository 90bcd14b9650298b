"""What the ranks of one replica send each other, put between the computations of any strategy of data parallelism.

A strategy plans forward and backward of a rank's part of the model as if it were a whole one. Here each operation gets
its ``exchanges``: those before it keep it waiting, those after it keep waiting what follows on the compute stream, and
those beside it run while it (or the half of its backward that they belong to) does. Each axis has a communicator of its
own, so they share links, and nothing else, with what the strategy sends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from simulator.plan import BATCH_WORK, COMPUTE_LANE, Communicate, Compute, Task
from simulator.strategies.step import StepInputs
from simulator.training.operations import Exchange, Operation

#: ``forward 3: layers.0.attn.qkv`` or, of many micro-batches at once, ``backward 1 .. 7: all operations``.
_PASS = re.compile(r"(?:forward|backward) (\d+)(?: \.\. (\d+))?: (.+)$")
#: When each half of a backward has something beside it.
_HALVES = ("beside input", "beside weights")


def woven(inputs: StepInputs, tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks of a step with the exchanges of each operation around its forward and backward."""
    operations = {operation.name: operation for operation in inputs.model.operations}
    if not any(_has_exchanges(operation) for operation in operations.values()):
        return tuple(tasks)
    return tuple(_Loom(inputs, operations).weave(tasks))


def _has_exchanges(operation: Operation) -> bool:
    return bool(operation.exchanges) or any(again.exchanges for again in operation.replayed)


def exchanges_of(operation: Operation, kind: str) -> tuple[Exchange, ...]:
    """What a forward or backward sends. A backward that runs forwards again repeats what they send, before it."""
    if kind == "forward":
        return tuple(e for e in operation.exchanges if e.when.endswith("forward"))
    again = (e for other in operation.replayed for e in other.exchanges if e.when.endswith("forward"))
    repeated = tuple(replace(e, when="before backward") for e in again)
    return (*repeated, *(e for e in operation.exchanges if not e.when.endswith("forward")))


class _Loom:
    """Goes through the tasks in order. computed: the last task of the compute stream; owed: what the next one needs."""

    def __init__(self, inputs: StepInputs, operations: Mapping[str, Operation]) -> None:
        self._inputs, self._operations = inputs, operations
        self._weights_s = dict(zip(operations, inputs.weight_grad_s, strict=False))
        self._computed: tuple[str, ...] = ()
        self._owed: tuple[str, ...] = ()
        self._names: Counter[str] = Counter()

    def weave(self, tasks: Iterable[Task]) -> Iterator[Task]:
        for task in tasks:
            if not isinstance(task, Compute) or task.lane != COMPUTE_LANE:
                yield task
                continue
            found = _PASS.match(task.name) if task.kind in BATCH_WORK else None
            if found is None:
                yield self._run(task)
            elif found[2] is not None:
                yield from self._several(task, int(found[2]) - int(found[1]) + 1)
            else:
                yield from self._around(task, self._operations[found[3]])

    def _run(self, task: Compute) -> Compute:
        """The task on the compute stream, after all that has to be over by then."""
        if self._owed:
            task, self._owed = replace(task, after=(*task.after, *self._owed)), ()
        self._computed = (task.name,)
        return task

    def _around(self, task: Compute, operation: Operation) -> Iterator[Task]:
        sent = exchanges_of(operation, task.kind)
        first, rest = [e for e in sent if e.when.startswith("before")], [e for e in sent if "before" not in e.when]
        waits = (*self._computed, *self._owed, *task.after)
        for exchange in first:
            yield (one := self._communicate(exchange, task, waits))
            waits, self._owed = (one.name,), (*self._owed, one.name)
        if task.kind == "backward" and any(e.when in _HALVES for e in rest):
            yield from self._halves(task, operation, rest, waits)
        else:
            yield from self._beside(task, [e for e in rest if e.when.startswith("beside")], waits)
        yield from self._after(task, rest)

    def _beside(self, task: Compute, exchanges: list[Exchange], waits: tuple[str, ...]) -> Iterator[Task]:
        """A pass with exchanges beside it, or beside all of it but its last piece."""
        beside = [self._communicate(e, task, waits) for e in exchanges]
        yield from beside
        share = max((e.covers for e in exchanges), default=1.0)
        if share < 1.0:
            covered, task = _cut(task, share, "pieces")
            yield self._run(covered)
            self._owed = tuple(one.name for one in beside)
            beside = []
        yield self._run(task)
        self._owed = tuple(one.name for one in beside)

    def _halves(
        self, task: Compute, operation: Operation, rest: list[Exchange], waits: tuple[str, ...]
    ) -> Iterator[Task]:
        """The gradient of the input, then those of the weights, each with what is sent beside it."""
        weights_s = min(self._weights_s.get(operation.name, 0.0), task.seconds)
        input_part, weights_part = _cut(task, 1 - weights_s / task.seconds if task.seconds else 1.0, "input")
        beside = [self._communicate(e, task, waits) for e in rest if e.when == "beside input"]
        yield from beside
        yield self._run(input_part)
        self._owed = tuple(one.name for one in beside)
        waits = (*self._computed, *self._owed)
        late = [self._communicate(e, task, waits) for e in rest if e.when == "beside weights"]
        yield from late
        yield self._run(weights_part)
        self._owed = tuple(one.name for one in late)

    def _after(self, task: Compute, rest: list[Exchange]) -> Iterator[Task]:
        waits = (*self._computed, *self._owed)
        for exchange in rest:
            if exchange.when.startswith("after"):
                yield (one := self._communicate(exchange, task, waits))
                waits, self._owed = (one.name,), (*self._owed, one.name)

    def _several(self, task: Compute, count: int) -> Iterator[Task]:
        """All operations of many micro-batches as one task: what they send follows, equal ones as one task each."""
        yield self._run(task)
        waits = self._computed
        for exchange in merged(e for o in self._operations.values() for e in exchanges_of(o, task.kind)):
            again = replace(exchange, count=exchange.count * count)
            yield (one := self._communicate(again, task, waits))
            waits, self._owed = (one.name,), (*self._owed, one.name)

    def _communicate(self, exchange: Exchange, task: Compute, waits: tuple[str, ...]) -> Communicate:
        name = f"{exchange.axis} {exchange.op.replace('_', '-')} of {task.name}"
        self._names[name] += 1
        if self._names[name] > 1:
            name += f" ({self._names[name]})"
        return communicate(self._inputs, exchange, name, task.classes, waits)


def _cut(task: Compute, share: float, first: str) -> tuple[Compute, Compute]:
    """A pass in two: a share of its time, and the rest, which has its name. Half of the kernels are in each."""
    launches = max(1, task.launches // 2)
    host_s = task.host_s * launches / max(1, task.launches)
    one = replace(
        task, name=f"{task.name} ({first})", seconds=share * task.seconds, frees=(), launches=launches, host_s=host_s
    )
    rest = replace(
        task, seconds=task.seconds - one.seconds, after=(), allocates=(), launches=task.launches - launches,
        host_s=task.host_s - host_s,
    )  # fmt: skip
    return one, rest


def communicate(
    inputs: StepInputs, exchange: Exchange, name: str, classes: tuple[str, ...], after: tuple[str, ...]
) -> Communicate:
    """The task of an exchange."""
    return Communicate(
        name=name, op=exchange.op, axis=exchange.axis, algorithm="auto", message_bytes=exchange.size_bytes,
        classes=classes, purpose=exchange.purpose, after=after, repeat=exchange.count,
        host_s=inputs.host.collective_s * exchange.count,
    )  # fmt: skip


def merged(exchanges: Iterable[Exchange]) -> tuple[Exchange, ...]:
    """Equal ones as one that is repeated, whenever each of them is; in the order of the first of each."""
    found: dict[tuple[str, str, float], Exchange] = {}
    for exchange in exchanges:
        key = (exchange.axis, exchange.op, exchange.size_bytes)
        known = found.get(key)
        found[key] = replace(known, count=known.count + exchange.count) if known else exchange
    return tuple(found.values())
