"""ZeRO-3 by hand: weights are sharded too; a piece is gathered before it runs and given back after.

Source: Rajbhandari et al., ZeRO, SC20 (arXiv 1910.02054), sections 5.3 and 7.2.2: 3 Psi sent per rank and micro-step,
an all-gather of each piece in forward, one in backward, and a reduce-scatter in backward. As a program with hooks:

* before a piece runs, wait for its all-gather (launch it, if nobody has); then launch those of the next
  ``forward_prefetch`` (backward: ``backward_prefetch``, by default as many) pieces, which proceed while it computes;
* after its forward, give the whole weights back, unless ``reshard_after_forward`` keeps the piece for its backward;
* when its last gradient is ready, copy the gradients together (``zero_textbook``), launch the reduce-scatter, and give
  the weights back;
* after backward, wait for all reduce-scatters; the optimizer updates the rank's parts. Nothing is gathered then.

An all-gather is launched by the host when it reaches the hook, on a CPU when all compute before is over; on a GPU the
communicator's stream waits for the compute stream as it was at the call: the same instant. All of them are
asynchronous on one communicator, so a gather queues behind the reduce-scatter of the piece before. What FSDP does
differently is in ``fsdp2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simulator.errors import ScenarioError
from simulator.parallel_spec import Parallel
from simulator.plan import Buffer, Communicate, Compute, Task
from simulator.strategies.ddp import AXIS
from simulator.strategies.pieces import Piece, cut, total_padded
from simulator.strategies.resident import resident_states
from simulator.strategies.step import Draft, StepInputs, backward_of, collective, forward_of
from simulator.strategies.zero_textbook import alone, average, of_micro, reduce_piece, shard_step, whole_gradient


class _Visit(NamedTuple):
    """A run of operations that needs a piece. first, last: in the order in which the pass runs them."""

    first: int
    last: int
    piece: Piece


def step(inputs: StepInputs) -> Draft:
    """One steady step. Alone it sends nothing. Raises ScenarioError for settings that only FSDP has."""
    if inputs.num_ranks == 1:
        return alone(inputs)
    pieces = cut(inputs.model, inputs.parallel.wrap)
    kept = _kept(inputs.parallel, pieces)
    tasks: list[Task] = []
    for micro in range(inputs.micro_batches):
        weights = _Weights(inputs=inputs, micro=micro, before=tuple(task.name for task in tasks[-1:]))
        tasks += _micro_step(inputs, weights, pieces, kept)
    tasks += shard_step(inputs, pieces, tasks[-1].name)
    share = total_padded(pieces, inputs.num_ranks) / inputs.num_ranks / inputs.model.num_parameters
    resident = resident_states(inputs, params=share, optimizer_share=share)
    return Draft(tasks=tuple(tasks), axes={AXIS: inputs.everyone}, resident=resident)


def _kept(parallel: Parallel, pieces: tuple[Piece, ...]) -> frozenset[str]:
    """Names of the pieces that stay whole from forward to backward."""
    asked, everything = parallel.reshard_after_forward, tuple(piece.name for piece in pieces)
    if asked == "not-last":
        return frozenset(everything[-1:])
    if isinstance(asked, bool):
        return frozenset(() if asked else everything)
    if isinstance(asked, tuple | list) and len(asked) == len(pieces):
        return frozenset(name for name, free in zip(everything, asked, strict=True) if not free)
    accepted = f"true, false, not-last, or one of true and false for each of {', '.join(everything)}"
    raise ScenarioError(
        f"parallel.reshard_after_forward: {asked!r} is nothing that zero3 (textbook) does; accepted: {accepted}"
    )


def _depths(parallel: Parallel) -> tuple[int, int]:
    """How many pieces are gathered ahead in forward and in backward."""
    ahead, back = parallel.forward_prefetch, parallel.backward_prefetch
    if isinstance(back, str):
        raise ScenarioError(
            f"parallel.backward_prefetch: {back!r} is FSDP1's; accepted by zero3 (textbook): a number of units"
        )
    return ahead, ahead if back is None else back


def _micro_step(
    inputs: StepInputs, weights: _Weights, pieces: tuple[Piece, ...], kept: frozenset[str]
) -> Iterator[Task]:  # fmt: skip
    ahead, back = _depths(inputs.parallel)
    yield from _forward(inputs, weights, _visits(pieces), ahead, kept)
    reducing: list[str] = []
    weights.direction = "backward"
    for task in _backward(inputs, weights, pieces, back):
        if isinstance(task, Communicate) and task.op == "reduce_scatter":
            reducing.append(task.name)
        yield task
    yield average(inputs, pieces, weights.micro, tuple(reducing))


def _visits(pieces: tuple[Piece, ...]) -> list[_Visit]:
    """In forward order, outer before inner."""
    found = [_Visit(first, last, piece) for piece in pieces for first, last in piece.uses]
    return sorted(found, key=lambda visit: (visit.first, -visit.last))


def _visits_back(pieces: tuple[Piece, ...]) -> list[_Visit]:
    """In backward order: operations from high to low numbers."""
    found = [_Visit(last, first, piece) for piece in pieces for first, last in piece.backward_uses]
    return sorted(found, key=lambda visit: (-visit.first, visit.last))


@dataclass(slots=True, kw_only=True)
class _Weights:
    """Which pieces are whole, or on their way, while the host goes through a micro-batch.

    there: the buffer of each and the all-gather that fills it. before: the compute task that was issued last.
    told: names used so far.
    """

    inputs: StepInputs
    micro: int
    before: tuple[str, ...]
    direction: str = "forward"
    there: dict[str, tuple[str, str]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def gather(self, piece: Piece) -> Iterator[Task]:
        """Launch the all-gather, unless the piece is whole or about to be."""
        if piece.name in self.there:
            return
        size = float(piece.padded(self.inputs.num_ranks) * self.inputs.precision.param_bytes)
        label = self._label(piece)
        gathered = Buffer(name=f"gathered {label}", kind="gathered", size_bytes=size)
        self.there[piece.name] = (gathered.name, f"all-gather {label}")
        yield collective(
            self.inputs, f"all-gather {label}", "all_gather", AXIS, size, purpose=f"weights {piece.name}",
            after=self.before, allocates=(gathered,),
        )  # fmt: skip

    def _label(self, piece: Piece) -> str:
        """A tied piece is gathered twice in a pass."""
        label = f"{piece.name} {self.direction}{of_micro(self.micro)}"
        while label in self.told:
            label = label.replace(self.direction, f"{self.direction} again", 1)
        self.told.add(label)
        return label

    def enter(self, visits: list[_Visit], number: int, depth: int) -> tuple[list[Task], tuple[str, ...]]:
        """The hooks before operation ``number``: the gathers they launch, and those that the operation waits for."""
        launched: list[Task] = []
        needed: list[str] = []
        for place, visit in enumerate(visits):
            if visit.first != number:
                continue
            launched += self.gather(visit.piece)
            needed.append(self.there[visit.piece.name][1])
            for later in visits[place + 1 : place + 1 + depth]:
                launched += self.gather(later.piece)
        return launched, tuple(needed)

    def leave(self, visits: list[_Visit], number: int, kept: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Buffers that the hooks after operation ``number`` give back."""
        over = (visit.piece.name for visit in visits if visit.last == number)
        return tuple(self.there.pop(name)[0] for name in over if name not in kept and name in self.there)


def _forward(
    inputs: StepInputs, weights: _Weights, visits: list[_Visit], depth: int, kept: frozenset[str]
) -> Iterator[Task]:
    for number in range(len(inputs.model.operations)):
        launched, needed = weights.enter(visits, number, depth)
        yield from launched
        task = forward_of(inputs, weights.micro, number, after=needed)
        yield replace(task, frees=weights.leave(visits, number, kept))
        weights.before = (task.name,)


def _backward(inputs: StepInputs, weights: _Weights, pieces: tuple[Piece, ...], depth: int) -> Iterator[Task]:
    visits = _visits_back(pieces)
    ready = {piece.ready_after: piece for piece in pieces}
    for number in reversed(range(len(inputs.model.operations))):
        launched, needed = weights.enter(visits, number, depth)
        yield from launched
        made = whole_gradient(inputs, inputs.model.operations[number], weights.micro)
        task = backward_of(inputs, weights.micro, number, grads=False, after=needed, allocates=made)
        reducing = list(reduce_piece(inputs, ready[number], weights.micro)) if number in ready else []
        own = [task, *(t for t in reducing if isinstance(t, Compute))]
        own[-1] = replace(own[-1], frees=(*own[-1].frees, *weights.leave(visits, number)))
        yield from own
        yield from (t for t in reducing if isinstance(t, Communicate))
        weights.before = (own[-1].name,)
