"""Activations that wait for their backward in host memory: copied out after a layer's forward, fetched before its
backward.

Put between the computations of any strategy, as exchanges are (``weaving``). A layer (or the layers of one checkpoint)
is copied as one once its forward has made all that it keeps, on a stream of its own; the device memory is free when
that copy is over. It comes back on another stream, one layer ahead: the copy starts when the backward of the layer
after it does, and the layer's own backward waits for its end. So copies hide behind compute as far as the host link is
fast enough, and what does not hide shows as exposed copies.

Sources: TransformerEngine, transformer_engine/pytorch/cpu_offload.py (``AsyncDoubleBufferGroupOffloadHandler``: a group
of tensors a layer, two streams, forward waits when two layers are on their way out, backward fetches one group ahead;
Megatron-LM's ``--cpu-offloading-num-layers`` takes the first layers); Megatron-LM, fine-grained activation offloading
(megatron/core/transformer/README.md: reload "the corresponding tensors of next module"); torchtune,
``OffloadActivations`` (tensors of the forward stay on the device until their copy is over, at most a few of them; the
output head is left out). What lies outside layers (embedding, final norm, head, loss) stays on the device.

Limits: weights that autocast casts are no activations and stay. Copies share neither the lanes of PCIe with what the
GPU sends through its NIC, nor its switch with other GPUs, nor memory bandwidth with compute. Pinned host memory is made
before the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.errors import ScenarioError
from simulator.plan import COMPUTE_LANE, HOST_COPY, HOST_MEMORY, Buffer, Compute, Task
from simulator.rank_classes import ALL_RANKS
from simulator.strategies.step import StepInputs, forward_of
from simulator.training.operations import TrainingModel

OUT_LANE, IN_LANE = "copies to the host", "copies from the host"
#: Layers whose activations are on their way out or being made: the next one waits.
_BUFFERED = 2
_PASS = re.compile(r"(forward|backward) (\d+): (.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Layers that are copied as one. first, last: numbers of their operations. keepers: of those that keep something.

    number: among those of the model, from the input on. asked_at: the operation before whose backward its fetch starts,
    the last of the layer behind it (of the model, where it is the last layer).
    """

    number: int
    name: str
    first: int
    last: int
    asked_at: int
    keepers: tuple[int, ...]
    size_bytes: float


def offloaded(inputs: StepInputs, tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks of a step with copies to and from the host around the layers that are offloaded."""
    loads = loads_of(inputs.model, inputs.offloaded_share)
    return tuple(_Porter(inputs, loads).carry(tasks)) if loads else tuple(tasks)


def loads_of(model: TrainingModel, share: float) -> tuple[Load, ...]:
    """What is copied, from the input on: a share of the layers (of the checkpoints), the first ones.

    Raises ScenarioError for a share that makes no layer, or a model that keeps nothing in its layers.
    """
    if not share:
        return ()
    spans = list(_spans(model))
    count = round(share * len(spans))
    if not count:
        told = f"{model.name} has no layers that keep activations; accepted: false"
        if spans:
            least = 100 / len(spans)
            told = (
                f"{share:.3%} of {len(spans)} layers (or checkpoints) is none; accepted: {least:.3g}% or more, or false"
            )
        raise ScenarioError(f"train.offload_activations: {told}")
    found = []
    for number, (first, last) in enumerate(spans[:count]):
        keepers = tuple(n for n in range(first, last + 1) if model.operations[n].saved_bytes)
        names = list(dict.fromkeys(model.operations[n].layer for n in range(first, last + 1)))
        found.append(Load(
            number=number, name=names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}", first=first, last=last,
            asked_at=spans[number + 1][1] if number + 1 < len(spans) else len(model.operations) - 1, keepers=keepers,
            size_bytes=sum(model.operations[n].saved_bytes for n in keepers),
        ))  # fmt: skip
    return tuple(found)


def _spans(model: TrainingModel) -> Iterator[tuple[int, int]]:
    """First and last operation of each layer that keeps something; layers of one checkpoint together."""
    numbers = {operation.name: number for number, operation in enumerate(model.operations)}
    first_of: dict[str, int] = {}
    last_of: dict[str, int] = {}
    for number, operation in enumerate(model.operations):
        if operation.layer.startswith("layers.") or operation.kind == "measured":
            first_of.setdefault(operation.layer, number)
            last_of[operation.layer] = number
    spans: list[tuple[int, int]] = []
    for layer, first in first_of.items():
        last = last_of[layer]
        again = (numbers[a.name] for n in range(first, last + 1) for a in model.operations[n].replayed)
        start = min((first, *again))
        while spans and spans[-1][0] >= start:
            spans.pop()
        spans.append((start, last))
    yield from ((a, b) for a, b in spans if any(model.operations[n].saved_bytes for n in range(a, b + 1)))


class _Porter:
    """Goes through the tasks in order, micro-batch by micro-batch. computed: the last task of the compute stream."""

    def __init__(self, inputs: StepInputs, loads: Sequence[Load]) -> None:
        self._inputs, self._loads = inputs, loads
        self._numbers: Mapping[str, int] = {o.name: n for n, o in enumerate(inputs.model.operations)}
        self._enters = {load.first: load for load in loads}
        self._made_at = {load.keepers[-1]: load for load in loads}
        self._leaves = {load.last: load for load in loads}
        self._asked_at: dict[int, list[Load]] = {}
        for load in reversed(loads):
            self._asked_at.setdefault(load.asked_at, []).append(load)
        self._computed: tuple[str, ...] = ()

    def carry(self, tasks: Iterable[Task]) -> Iterator[Task]:
        for task in tasks:
            if not isinstance(task, Compute) or task.lane != COMPUTE_LANE:
                yield task
                continue
            found = _PASS.match(task.name)
            if found is None:
                yield task
            else:
                turn = self._forward if found[1] == "forward" else self._backward
                yield from turn(task, int(found[2]), self._numbers[found[3]])
            self._computed = (task.name,)

    def _forward(self, task: Compute, micro: int, number: int) -> Iterator[Task]:
        entering = self._enters.get(number)
        if entering is not None and entering.number >= _BUFFERED:
            before = self._loads[entering.number - _BUFFERED]
            task = replace(task, after=(*task.after, _out(before, micro)))
        yield task
        if load := self._made_at.get(number):
            yield self._copy(
                load, _out(load, micro), OUT_LANE, (task.name,), made=(_in_host(load, micro),),
                gone=tuple(buffer.name for buffer in self._on_device(load, micro)),
            )  # fmt: skip

    def _backward(self, task: Compute, micro: int, number: int) -> Iterator[Task]:
        for load in self._asked_at.get(number, ()):
            yield self._copy(
                load, _back(load, micro), IN_LANE, (*self._computed, _out(load, micro)),
                made=tuple(self._on_device(load, micro)), gone=(_in_host(load, micro).name,),
            )  # fmt: skip
        leaving = self._leaves.get(number)
        yield replace(task, after=(*task.after, _back(leaving, micro))) if leaving else task

    def _on_device(self, load: Load, micro: int) -> Iterator[Buffer]:
        """What the forwards of its operations keep, under their names (``step.forward_of``)."""
        for number in load.keepers:
            kept = forward_of(self._inputs, micro, number).allocates
            yield from (buffer for buffer in kept if buffer.kind == "activations")

    def _copy(
        self, load: Load, name: str, lane: str, after: tuple[str, ...], *, made: tuple[Buffer, ...],
        gone: tuple[str, ...],
    ) -> Compute:  # fmt: skip
        inputs, count = self._inputs, len(load.keepers)
        return Compute(
            name=name, kind=HOST_COPY, classes=(ALL_RANKS,), part=load.name, lane=lane, after=after,
            seconds=load.size_bytes / inputs.host_bytes_per_s, host_s=count * inputs.host.kernel_s, launches=count,
            allocates=made, frees=gone,
        )  # fmt: skip


def _out(load: Load, micro: int) -> str:
    return f"offload {micro}: {load.name}"


def _back(load: Load, micro: int) -> str:
    return f"fetch {micro}: {load.name}"


def _in_host(load: Load, micro: int) -> Buffer:
    return Buffer(name=f"offloaded {load.name} @{micro}", kind=HOST_MEMORY, size_bytes=load.size_bytes)
