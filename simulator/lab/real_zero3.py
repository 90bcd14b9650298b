# mypy: disable-error-code="import-not-found,misc"
"""Sharded parameters by hand, with asynchronous all-gathers and a stated prefetch, forward and backward. Needs torch.

What fully_shard does on a GPU, where it overlaps: on gloo its collectives block, so a laptop shows that overlap here.
Each unit (or layer outside of units) is gathered before it runs and freed after.
"""

from __future__ import annotations

from typing import Any

import torch

from simulator.lab.real_training import OPTIMIZERS, Asked, Wrapped
from simulator.lab.real_zero import Piece, Reductions


class ShardedPiece(Piece):
    """A piece whose full buffer exists only while it is needed. Attributes as in ``Piece``; ``shard`` is its own."""

    def __init__(self, parameters: list[Any], group: Any) -> None:
        super().__init__(parameters, group)
        self.shard = torch.nn.Parameter(self.mine(self.full).clone())
        self.full_bytes = self.full.untyped_storage().nbytes()
        self.gathering: Any = None
        self.there = True
        self.free()

    def launch(self) -> None:
        """Begin to gather, unless that is done or under way."""
        if not self.there and self.gathering is None:
            self.full.untyped_storage().resize_(self.full_bytes)
            self.gathering = self.gather()

    def need(self) -> None:
        """Be gathered."""
        self.launch()
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering, self.there = None, True

    def reduce(self) -> None:
        """Launch the reduce-scatter of the gradients and free the full buffer, in this order."""
        super().reduce()
        self.free()

    def free(self) -> None:
        """Give the full buffer back; the parameters keep their shapes and lose their data."""
        self.full.untyped_storage().resize_(0)
        self.there = False


class _Engine:
    """The hooks of all pieces: what is gathered when."""

    def __init__(self, asked: Asked) -> None:
        options = asked.options
        self.forward_depth = int(options.get("prefetch", options.get("forward_prefetch", 1)))
        self.backward_depth = int(options.get("prefetch", options.get("backward_prefetch", 1)))
        self.keep, self.keep_last = (
            not options.get("reshard_after_forward", True),
            bool(options.get("keep_last", False)),
        )
        self.reductions = Reductions(options.get("reduces_in_flight"))
        self.pieces: list[ShardedPiece] = []
        for part in asked.model.layers:
            parameters = list(part.parameters())
            if parameters:
                self._follow(part, ShardedPiece(parameters, asked.group))

    def _follow(self, part: Any, piece: ShardedPiece) -> None:
        number = len(self.pieces)
        self.pieces.append(piece)
        part.register_forward_pre_hook(lambda *_: self._gather(number, 1, self.forward_depth))
        part.register_forward_hook(lambda *_: self._after_forward(number))
        part.register_full_backward_pre_hook(lambda *_: self._gather(number, -1, self.backward_depth))
        self.reductions.follow(piece)

    def _gather(self, number: int, direction: int, depth: int) -> None:
        """Wait for a piece, then launch the gathers of the next ones: they proceed while it computes."""
        self.pieces[number].need()
        for ahead in range(1, depth + 1):
            if 0 <= number + direction * ahead < len(self.pieces):
                self.pieces[number + direction * ahead].launch()

    def _after_forward(self, number: int) -> None:
        last = number == len(self.pieces) - 1
        if not self.keep and not (self.keep_last and last):
            self.pieces[number].free()


def zero3(asked: Asked) -> Wrapped:
    """Options: ``prefetch`` (or ``forward_prefetch`` and ``backward_prefetch``): how many units ahead, 0, 1 (default),
    2, ...; ``reshard_after_forward``; ``keep_last`` (the last unit stays from forward to backward);
    ``reduces_in_flight``: a reduce-scatter waits until fewer than so many others are under way (FSDP: 1).

    Order of a step of L units, prefetch 1: AG 0, AG 1, ... AG L-1; backward AG L-1, AG L-2, RS L-1, AG L-3, ... RS 0.
    """
    engine = _Engine(asked)
    shards = [piece.shard for piece in engine.pieces]
    optimizer = OPTIMIZERS[asked.optimizer](shards)

    def clear() -> None:
        for shard in shards:
            shard.grad = None

    def held() -> list[Any]:
        """Gathers everything, for a look; every rank must call it."""
        for piece in engine.pieces:
            piece.need()
        found = [p.detach().clone() for p in asked.model.parameters()]
        for piece in engine.pieces:
            piece.free()
        return found

    return Wrapped(
        run=asked.model, after_backward=lambda _: engine.reductions.finish(), update=optimizer.step, held=held,
        trained=lambda: shards, clear=clear,
    )  # fmt: skip
