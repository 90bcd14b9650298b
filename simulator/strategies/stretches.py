"""A pass of one micro-batch through a row of operations as few tasks: what it computes, sends and holds, all together.

In a pipeline of 16 stages and 128 micro-batches a task for every operation would be millions. So the compute of a
stretch is one task, and equal exchanges are one that is repeated; those that run beside compute do so beside as much of
it as they do one by one. Alone, a stretch takes exactly as long as its operations do one after the other, provided that
its layers are alike: of exchanges beside compute the longer of the two sums counts. What is approximate: at which
moment of the stretch it uses the links.

Memory: what the stretch keeps comes to life when it starts; what it needs only for a while is held all the while, at
its most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.pipelines.order import Kind
from simulator.plan import Buffer, Compute, Task
from simulator.strategies.step import StepInputs, backward_of, forward_of
from simulator.strategies.weaving import communicate, exchanges_of, merged
from simulator.training.operations import MOMENTS_OF_EXCHANGES, Exchange, Operation

#: What a forward keeps for both halves of the backward, and for the gradients of weights alone.
KEPT, INPUTS = "activations", "inputs"
_BESIDE = {"F": ("beside forward",), "B": ("beside input", "beside weights"), "I": ("beside input",), "W": ()}
#: The work that an exchange runs beside.
_HALF: dict[str, Kind] = {"beside forward": "F", "beside input": "I", "beside weights": "W"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Compute that has exchanges beside it."""

    seconds: float
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One kind of pass through a row of operations.

    alone_s: compute with nothing beside it. exposed: exchanges that nothing runs beside. keeps: bytes by purpose (KEPT,
    INPUTS) and kind that a forward leaves for later. transient_bytes: the most that it holds besides.
    """

    kind: Kind
    alone_s: float
    beside: tuple[Beside, ...]
    exposed: tuple[Exchange, ...]
    keeps: tuple[tuple[str, str, float], ...]
    transient_bytes: float
    kernels: int
    host_s: float


def stretch_of(inputs: StepInputs, numbers: Sequence[int], kind: Kind, *, split: bool) -> Stretch:
    """A pass through the operations of these numbers, ascending. split: whether backwards are I and W apart."""
    order, passing = (numbers, "forward") if kind == "F" else (numbers[::-1], "backward")
    tasks = [bare_pass(inputs, number, passing) for number in order]
    seconds = [_seconds(inputs, number, kind) for number in order]
    sent = [_sent(exchanges_of(inputs.model.operations[number], passing), kind) for number in order]
    besides: list[Beside] = []
    for when in _BESIDE[kind]:
        inside = [
            (_seconds(inputs, number, _HALF[when]), tuple(e for e in many if e.when == when))
            for number, many in zip(order, sent, strict=True)
        ]  # fmt: skip
        some = [(s * max(e.covers for e in many), many) for s, many in inside if many]
        if some:
            besides.append(Beside(seconds=sum(s for s, _ in some), exchanges=merged(e for _, m in some for e in m)))
    share = 0.5 if kind in ("I", "W") else 1.0
    return Stretch(
        kind=kind, alone_s=max(0.0, sum(seconds) - sum(b.seconds for b in besides)), beside=tuple(besides),
        exposed=merged(e for many in sent for e in many if e.when not in _BESIDE[kind]),
        keeps=_keeps(inputs, numbers, split=split) if kind == "F" else (),
        transient_bytes=_transient(inputs, order, tasks, kind, split=split),
        kernels=round(share * sum(task.launches for task in tasks)), host_s=share * sum(task.host_s for task in tasks),
    )  # fmt: skip


def bare_pass(inputs: StepInputs, number: int, passing: str) -> Compute:
    """The forward or backward of an operation in micro-batch 0, as it is without any strategy."""
    return forward_of(inputs, 0, number) if passing == "forward" else backward_of(inputs, 0, number, grads=False)


def _seconds(inputs: StepInputs, number: int, kind: Kind) -> float:
    if kind == "F":
        return inputs.forward_s[number]
    whole, weights = inputs.backward_s[number], _weights_s(inputs, number)
    return {"B": whole, "I": whole - weights, "W": weights}[kind]


def _weights_s(inputs: StepInputs, number: int) -> float:
    return min(inputs.weight_grad_s[number], inputs.backward_s[number]) if inputs.weight_grad_s else 0.0


def _sent(exchanges: Sequence[Exchange], kind: Kind) -> tuple[Exchange, ...]:
    """All of a backward is sent with the half that makes gradients of inputs: the stage before waits for them."""
    return () if kind == "W" else tuple(sorted(exchanges, key=lambda one: MOMENTS_OF_EXCHANGES.index(one.when)))


def _keeps(inputs: StepInputs, numbers: Sequence[int], *, split: bool) -> tuple[tuple[str, str, float], ...]:
    """What forwards keep, by purpose and kind. Split backwards need the inputs of products until the weights' half."""
    found: dict[tuple[str, str], float] = {}
    for number in numbers:
        purpose = _purpose(inputs.model.operations[number], split=split)
        for buffer in forward_of(inputs, 0, number).allocates:
            found[purpose, buffer.kind] = found.get((purpose, buffer.kind), 0.0) + buffer.size_bytes
    return tuple((purpose, kind, size) for (purpose, kind), size in found.items())


def _purpose(operation: Operation, *, split: bool) -> str:
    return INPUTS if split and (operation.gemm or operation.kind == "measured") else KEPT


def _transient(inputs: StepInputs, order: Sequence[int], tasks: Sequence[Compute], kind: Kind, *, split: bool) -> float:
    """The most that a backward holds beyond what forwards kept, which it gives back on the way.

    Layers that keep all have given that back before an earlier layer runs again; nothing else is taken off.
    """
    if kind in ("F", "W"):
        return 0.0
    sizes = {buffer.name: buffer.size_bytes for task in tasks for buffer in task.allocates}
    spared = _keeping_all(inputs)
    now = most = 0.0
    for number, task in zip(order, tasks, strict=True):
        now += sum(buffer.size_bytes for buffer in task.allocates)
        most = max(most, now)
        now -= sum(sizes.get(name, 0.0) for name in task.frees)
        operation = inputs.model.operations[number]
        if operation.layer in spared and _purpose(operation, split=split) == KEPT:
            now -= operation.saved_bytes
    return most


def _keeping_all(inputs: StepInputs) -> frozenset[str]:
    """Layers of which no part runs again, where others have one that does (``--recompute-method block``)."""
    operations = inputs.model.operations
    names = {again.name for operation in operations for again in operation.replayed}
    again = {operation.layer for operation in operations if operation.name in names}
    blocks = {operation.layer for operation in operations if operation.layer.startswith("layers.")}
    return frozenset(blocks - again) if again else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Tasks of a stretch. ends: names of those that have to be over for it to be."""

    tasks: tuple[Task, ...]
    ends: tuple[str, ...]


def run(
    inputs: StepInputs, stretch: Stretch, name: str, *, part: str, classes: tuple[str, ...],
    after: tuple[str, ...] = (), holds: str = "", frees: tuple[str, ...] = (), allocates: tuple[Buffer, ...] = (),
) -> Run:  # fmt: skip
    """The tasks of a stretch. holds: what tells what this forward keeps from that of others, such as ``stage 3 @5``."""
    kind = "forward" if stretch.kind == "F" else "backward"
    kept, transient = kept_buffers(stretch, holds), transient_of(stretch, name)
    pieces = (("", stretch.alone_s, ()), *((" (beside)", b.seconds, b.exchanges) for b in stretch.beside))
    pieces = tuple(p for p in pieces if p[1] > 0 or p[2] or p[0] == "")
    tasks: list[Task] = []
    waits = after
    for place, (words, seconds, exchanges) in enumerate(pieces):
        last = place == len(pieces) - 1
        beside = [
            communicate(inputs, e, _sending(e, name, f"{words} {place}" if words else ""), classes, waits)
            for e in exchanges
        ]  # fmt: skip
        first = place == 0
        compute = Compute(
            name=name if first else f"{name}{words} {place}", kind=kind, classes=classes, seconds=seconds, part=part,
            after=waits, host_s=stretch.host_s if first else 0.0, launches=stretch.kernels if first else 0,
            allocates=(*allocates, *kept, *transient) if first else (),
            frees=(*frees, *(buffer.name for buffer in transient)) if last else (),
        )  # fmt: skip
        tasks += [*beside, compute]
        waits = (compute.name, *(one.name for one in beside))
        if first:
            for exchange in stretch.exposed:
                tasks.append(one := communicate(inputs, exchange, _sending(exchange, name, ""), classes, waits))
                waits = (one.name,)
    return Run(tasks=tuple(tasks), ends=waits)


def kept_buffers(stretch: Stretch, holds: str) -> tuple[Buffer, ...]:
    """What a forward leaves for the backward; ``holds`` tells it from that of other passes."""
    return tuple(
        Buffer(name=_kept_name(purpose, of, holds), kind=of, size_bytes=size) for purpose, of, size in stretch.keeps
    )  # fmt: skip


def kept_names(stretch: Stretch, holds: str, purpose: str) -> tuple[str, ...]:
    """Buffers that a forward of the stretch left for one purpose."""
    return tuple(_kept_name(purpose, of, holds) for known, of, _ in stretch.keeps if known == purpose)


def without_casts(stretch: Stretch) -> Stretch:
    """The same pass where autocast has its copies of the weights already: they live for the whole step."""
    keeps = tuple(kept for kept in stretch.keeps if kept[1] != "params")
    return stretch if keeps == stretch.keeps else replace(stretch, keeps=keeps)


def casts_of(stretch: Stretch, holds: str) -> tuple[str, ...]:
    """The copies of weights that autocast makes in a forward."""
    return tuple(_kept_name(purpose, of, holds) for purpose, of, _ in stretch.keeps if of == "params")


def _kept_name(purpose: str, of: str, holds: str) -> str:
    return f"{purpose} {holds}" if of == "activations" else f"{of} for {purpose} {holds}"


def transient_of(stretch: Stretch, name: str) -> tuple[Buffer, ...]:
    """What a pass holds for a while, if anything."""
    size = stretch.transient_bytes
    return (Buffer(name=f"replayed {name}", kind="activations", size_bytes=size),) if size else ()


def _sending(exchange: Exchange, name: str, words: str) -> str:
    size = f"{exchange.size_bytes:.0f} B"
    return f"{exchange.axis} {exchange.op.replace('_', '-')} of {size} in {name}{words}"


def run_beside(
    inputs: StepInputs, rows: Sequence[tuple[Stretch, str, str]], *, classes: tuple[str, ...], after: tuple[str, ...],
    allocates: Sequence[tuple[Buffer, ...]], frees: Sequence[tuple[str, ...]],
) -> Run:  # fmt: skip
    """Stretches side by side, as DualPipe runs a forward and a backward: all that they send runs beside what they
    compute, and both end together. rows: stretch, name, part. Compute of one follows that of the other.
    """
    tasks: list[Task] = []
    ends: list[str] = []
    for (stretch, name, part), made, gone in zip(rows, allocates, frees, strict=True):
        waits = after
        for exchange in merged((*stretch.exposed, *(e for b in stretch.beside for e in b.exchanges))):
            tasks.append(one := communicate(inputs, exchange, _sending(exchange, name, ""), classes, waits))
            waits = (one.name,)
        tasks.append(Compute(
            name=name, kind="forward" if stretch.kind == "F" else "backward", classes=classes, part=part, after=after,
            seconds=stretch.alone_s + sum(b.seconds for b in stretch.beside), host_s=stretch.host_s,
            launches=stretch.kernels, allocates=made, frees=gone,
        ))  # fmt: skip
        ends += [name, *(waits if waits is not after else ())]
    return Run(tasks=tuple(tasks), ends=tuple(ends))
