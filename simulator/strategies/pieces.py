"""A model cut into the flat buffers of hand-written ZeRO: what is reduced, owned and gathered together.

A piece holds the parameters of a unit (training.units) in one flat buffer, padded to whole elements per rank, of which
rank r owns the r-th part (Rajbhandari et al., ZeRO, SC20, section 5). What no unit holds makes pieces layer by layer:
embedding, output head. A parameter that a second operation uses, as a tied head does, stays in one piece, which is
needed in two places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from simulator.strategies.units import ROOT, Unit, sharded_units
from simulator.training.operations import TrainingModel, num_elements

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """owners: numbers of the operations whose parameters it holds, ascending. tensors: how many parameters these are.

    numel: elements without padding. uses: (first, last) operation of each run that needs it in forward;
    backward_uses: the same in backward, where operations that are run again need it earlier.
    """

    name: str
    owners: tuple[int, ...]
    tensors: int
    numel: int
    uses: tuple[Span, ...]
    backward_uses: tuple[Span, ...]

    @property
    def ready_after(self) -> int:
        """The operation after whose backward all its gradients are ready."""
        return self.owners[0]

    def padded(self, num_ranks: int) -> int:
        """Elements of the flat buffer: a multiple of the number of ranks."""
        return -(-self.numel // num_ranks) * num_ranks


def cut(model: TrainingModel, wrap: str | int | Sequence[str]) -> tuple[Piece, ...]:
    """The pieces in forward order. wrap as for ``sharded_units``, which says what it raises; 'root' is one piece."""
    units = sharded_units(model, wrap)
    found: list[Piece] = []
    for unit in units:
        if unit.is_root and wrap != ROOT:
            runs = _runs(model, unit)
            found += [_piece(model, model.operations[run[0]].layer, run, (run[0], run[-1])) for run in runs]
        elif unit.owned:
            name = model.name if unit.is_root else unit.name
            found.append(_piece(model, name, unit.owned, (unit.first, unit.last)))
    return tuple(sorted(found, key=lambda piece: (piece.uses[0][0], -piece.uses[0][1])))


def _runs(model: TrainingModel, unit: Unit) -> Iterator[tuple[int, ...]]:
    """The unit's own operations, layer by layer."""
    layers: dict[str, list[int]] = {}
    for number in unit.owned:
        layers.setdefault(model.operations[number].layer, []).append(number)
    return (tuple(numbers) for numbers in layers.values())


def _piece(model: TrainingModel, name: str, owners: tuple[int, ...], own: Span) -> Piece:
    parameters = tuple(tensor for number in owners for tensor in model.operations[number].parameters)
    held = {tensor.name for tensor in parameters}
    tied = {operation for operation, tensor in model.tied if tensor in held}
    again = [i for i, op in enumerate(model.operations) if op.name in tied and not own[0] <= i <= own[1]]
    uses = (own, *((number, number) for number in again))
    return Piece(
        name=name, owners=owners, tensors=len(parameters), numel=num_elements(parameters), uses=uses,
        backward_uses=tuple((first, _earliest(model, (first, last))) for first, last in uses),
    )  # fmt: skip


def _earliest(model: TrainingModel, use: Span) -> int:
    """The operation whose backward is the first to need what a run of operations uses: one may run others again."""
    inside = {operation.name for operation in model.operations[use[0] : use[1] + 1]}
    replaying = (
        number for number, operation in enumerate(model.operations)
        if not inside.isdisjoint(again.name for again in operation.replayed)
    )  # fmt: skip
    return max(use[1], *replaying, -1)


def total_padded(pieces: Iterable[Piece], num_ranks: int) -> int:
    """Elements of all flat buffers."""
    return sum(piece.padded(num_ranks) for piece in pieces)
