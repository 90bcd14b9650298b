"""Which parameters DeepSpeed's ZeRO-3 gathers before each module, what it gathers ahead, and what it frees after.

The rules of ``PartitionedParameterCoordinator`` (DeepSpeed 0.19.6, runtime/zero/partitioned_param_coordinator.py), for
a step whose trace of modules is known: a steady one. Before a module runs, its missing parameters are gathered; then
the queue of the parameters that follow in the trace is read on, until ``prefetch_bucket_size`` elements are on their
way or ``max_live_parameters`` are there. A module without parameters of its own (a block, the whole model) does that
too. After a module has run, its parameters are freed, unless the queue was read past a later use of theirs, or the next
use is less than ``max_reuse_distance`` elements away.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from simulator.training.operations import Operation, ParameterTensor, TrainingModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One run of a module's hooks. weights: its own tensors, by their place in ``model.parameters``, ascending.

    operation: the operation that runs once its weights are there; None for a module that only contains others.
    """

    weights: tuple[int, ...] = ()
    operation: int | None = None
    is_forward: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the hooks do at a visit: gather what is missing, gather ahead, and, after it, free. Tensors as in Visit."""

    visit: Visit
    fetched: tuple[int, ...]
    prefetched: tuple[int, ...]
    released: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Elements: gathered ahead at most, live at most, kept when reused within, kept whole when not larger."""

    prefetch: int
    live: int
    reuse: int
    persistence: int


def coordinate(model: TrainingModel, limits: Limits, *, micro_batches: int = 1) -> tuple[Turn, ...]:
    """All turns of a forward and backward, in order.

    What is freed is decided once, in the first micro-batch whose trace is known, the third of all. When there are so
    many in a step, it comes before the first step and finds the small tensors, which are whole later, cut as well.
    """
    order, numel = tuple(visits(model)), [tensor.numel for tensor in model.parameters]
    whole = frozenset(weight for weight, size in enumerate(numel) if size <= limits.persistence)
    steady = _Coordinator(order, numel, limits, whole, there=whole)
    if micro_batches >= 3:
        first = _Coordinator(order, numel, limits, whole, there=frozenset())
        steady.decided = [first.decide(turn.visit, step) for step, turn in enumerate(first.turns(), start=1)]
    return tuple(steady.turns())


def persistent(model: TrainingModel, limits: Limits) -> tuple[ParameterTensor, ...]:
    """Tensors that stay whole on every rank, in the order in which they are registered."""
    return tuple(tensor for tensor in model.parameters if tensor.numel <= limits.persistence)


# ------------------------------------------------------------------------------------------------------ the trace


def visits(model: TrainingModel) -> Iterator[Visit]:
    """Modules in the order in which their hooks run; an operation that runs others again visits them first."""
    places = {tensor.name: place for place, tensor in enumerate(model.parameters)}
    leaves = [_leaves(model, operation, places) for operation in model.operations]
    by_name = {operation.name: found for operation, found in zip(model.operations, leaves, strict=True)}
    yield from _walk((number, leaf) for number, found in enumerate(leaves) for leaf in found)
    yield from _backward_walk(model, leaves, by_name)


_Leaf = tuple[str, tuple[int, ...]]


def _backward_walk(
    model: TrainingModel, leaves: Sequence[list[_Leaf]], by_name: dict[str, list[_Leaf]]
) -> Iterator[Visit]:
    path: list[_Step] = []
    for number in reversed(range(len(leaves))):
        again = [leaf for operation in model.operations[number].replayed for leaf in by_name[operation.name]]
        path += [(number, leaf) for leaf in (*again, *reversed(leaves[number]))]
    yield from _walk(path, is_forward=False)


_Step = tuple[int, _Leaf]


def _walk(steps: Iterable[_Step], *, is_forward: bool = True) -> Iterator[Visit]:
    """Leaves, and before each of them the modules around it that the one before was not in."""
    before: tuple[str, ...] = ()
    for number, (module, weights) in steps:
        around = _containers(module)
        yield from (Visit(is_forward=is_forward) for container in around if container not in before)
        yield Visit(weights=weights, operation=number, is_forward=is_forward)
        before = around


def _leaves(model: TrainingModel, operation: Operation, places: dict[str, int]) -> list[_Leaf]:
    """Modules of an operation by the names of its tensors, without their last part; tied tensors count as its own."""
    found: dict[str, list[int]] = {}
    for tensor in operation.parameters:
        found.setdefault(tensor.name.rpartition(".")[0], []).append(places[tensor.name])
    for user, tensor_name in model.tied:
        if user == operation.name:
            found.setdefault(operation.name, []).append(places[tensor_name])
    return [(module, tuple(sorted(weights))) for module, weights in found.items()]


def _containers(module: str) -> tuple[str, ...]:
    """Modules around one: all prefixes of its name but lists, which are never called: what a number follows."""
    parts = module.split(".")
    return (
        "", *(".".join(parts[:end]) for end in range(1, len(parts)) if not parts[end].isdigit())
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ the coordinator


class _Coordinator:
    """Plays the trace once. there: what is whole before. decided: what is freed when, if that is known already."""

    def __init__(
        self, order: Sequence[Visit], numel: Sequence[int], limits: Limits, whole: frozenset[int], *,
        there: frozenset[int],
    ) -> None:  # fmt: skip
        self._order, self._numel, self._limits, self._whole = order, numel, limits, whole
        self.decided: list[tuple[int, ...]] | None = None
        self._queue = deque((weight, step) for step, visit in enumerate(order) for weight in visit.weights)
        self._fetched_for: dict[int, int] = {}
        self._there = set(there)
        self._num_live = 0
        self._traversed = [0, *accumulate(sum(numel[w] for w in visit.weights) for visit in order)]
        self._uses: dict[int, list[int]] = {}
        for step, visit in enumerate(order):
            for weight in visit.weights:
                self._uses.setdefault(weight, []).append(step)

    def turns(self) -> Iterator[Turn]:
        """One per visit."""
        for step, visit in enumerate(self._order):
            fetched = tuple(weight for weight in visit.weights if weight not in self._there)
            self._gather(fetched)
            self._drop_from_queue(visit, step)
            prefetched = self._choose_ahead()
            self._gather(prefetched)
            yield Turn(visit=visit, fetched=fetched, prefetched=prefetched, released=self._release(visit, step + 1))

    def _gather(self, weights: tuple[int, ...]) -> None:
        self._there.update(weights)
        self._num_live += sum(self._numel[weight] for weight in weights)

    def _drop_from_queue(self, visit: Visit, step: int) -> None:
        """What the module itself needs leaves the queue, unless it has left it when it was gathered ahead."""
        missing = {weight for weight in visit.weights if self._fetched_for.get(weight, -1) < step}
        dropped: set[int] = set()
        while self._queue and len(dropped) < len(missing):
            weight, used_at = self._queue.popleft()
            self._fetched_for[weight] = used_at
            dropped.add(weight)

    def _choose_ahead(self) -> tuple[int, ...]:
        most = min(self._limits.live - self._num_live, self._limits.prefetch)
        chosen: set[int] = set()
        size = 0
        while self._limits.prefetch and self._queue and size < most:
            weight, used_at = self._queue.popleft()
            self._fetched_for[weight] = max(self._fetched_for.get(weight, -1), used_at)
            if weight not in self._there and weight not in chosen:
                chosen.add(weight)
                size += self._numel[weight]
        return tuple(sorted(chosen))

    def _release(self, visit: Visit, step: int) -> tuple[int, ...]:
        chosen = self.decide(visit, step) if self.decided is None else self.decided[step - 1]
        released = tuple(weight for weight in chosen if weight in self._there)
        self._there.difference_update(released)
        self._num_live -= sum(self._numel[weight] for weight in released)
        return released

    def decide(self, visit: Visit, step: int) -> tuple[int, ...]:
        """What may be freed after a visit. step: the place in the trace of the module that comes next."""
        return tuple(
            weight for weight in visit.weights
            if weight not in self._whole and self._fetched_for.get(weight, -1) <= step
            and not self._is_reused(weight, step)
        )  # fmt: skip

    def _is_reused(self, weight: int, step: int) -> bool:
        """Whether the weight's next use begins before so many elements have been passed."""
        uses = self._uses[weight]
        following = bisect_left(uses, step)
        if following == len(uses):
            return False
        return self._traversed[uses[following]] - self._traversed[step] < self._limits.reuse
