# mypy: disable-error-code="import-not-found,misc"
"""ZeRO as in its paper, by hand: sharded optimizer (1), sharded gradients (2), sharded parameters (3). Needs torch.

Source: Rajbhandari et al., ZeRO, SC20, sections 5.1 to 5.3. What torch and DeepSpeed run under these names differs, see
``real_ddp.zero1_torch`` and ``real_fsdp``. Each piece of the model (all of it, or a unit) is one flat buffer, padded to
whole elements per rank, of which rank r owns the r-th part.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from simulator.lab.real_training import OPTIMIZERS, Asked, Wrapped


class Piece:
    """Parameters in one flat buffer, their gradients' reduce-scatter and their all-gather.

    Attributes: full (padded numel,), of which the parameters are views; shard (padded numel / world,), an optimizer's
    parameter, here a view of ``full``.
    """

    def __init__(self, parameters: list[Any], group: Any) -> None:
        self.parameters, self.group, self.world = parameters, group, group.size()
        self.numel = sum(p.numel() for p in parameters)
        self.full = torch.zeros(-(-self.numel // self.world) * self.world, dtype=parameters[0].dtype)
        self.shard = torch.nn.Parameter(self.mine(self.full))
        self.missing = len(parameters)
        self.reducing: tuple[Any, Any, Any] | None = None
        start = 0
        for parameter in parameters:
            view = self.full[start : start + parameter.numel()].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            start += parameter.numel()

    def mine(self, flat: Any) -> Any:
        """This rank's part of a flat buffer."""
        return flat.chunk(self.world)[self.group.rank()]

    def reduce(self) -> None:
        """Launch the reduce-scatter of the gradients, which are freed. ``finish`` ends it."""
        gradients = [p.grad.flatten() if p.grad is not None else torch.zeros_like(p).flatten() for p in self.parameters]
        padding = self.full.new_zeros(len(self.full) - self.numel)
        whole = torch.cat([*gradients, padding]) if len(gradients) > 1 or len(padding) else gradients[0]
        for parameter in self.parameters:
            parameter.grad = None
        part = torch.empty_like(self.shard.data)
        work = dist.reduce_scatter_tensor(part, whole, group=self.group, async_op=True)
        self.reducing, self.missing = (work, part, whole), len(self.parameters)

    def finish(self) -> None:
        """Wait for the reduce-scatter, if one is under way, and add the mean to the shard's gradient."""
        if self.reducing:
            work, part, _ = self.reducing
            work.wait()
            part.div_(self.world)
            self.shard.grad = part if self.shard.grad is None else self.shard.grad.add_(part)
            self.reducing = None

    def gather(self) -> Any:
        """Launch the all-gather of the parameters."""
        return dist.all_gather_into_tensor(self.full, self.shard.data, group=self.group, async_op=True)


def pieces(asked: Asked, whole: bool) -> list[Piece]:
    """The model as one piece, or unit by unit and each layer outside of units by itself; in forward order."""
    parts = [asked.model] if whole else list(asked.model.layers)
    held = [list(part.parameters()) for part in parts]
    return [Piece(parameters, asked.group) for parameters in held if parameters]


def zero1(asked: Asked) -> Wrapped:
    """After backward one reduce-scatter of all gradients, after the update one all-gather of all parameters.

    Options: ``by_unit`` (several of each, unit by unit), ``sync`` as for ``ddp``.
    """
    mine = pieces(asked, whole=not asked.options.get("by_unit", False))
    every = asked.options.get("sync", "last") == "every"

    def after_backward(last: bool) -> None:
        if last or every:
            for piece in reversed(mine):
                piece.reduce()
            for piece in reversed(mine):
                piece.finish()

    return _sharded(asked, mine, after_backward)


class Reductions:
    """Reduce-scatters under way, at most ``most`` at once (None: any number): one more waits for the oldest."""

    def __init__(self, most: int | None) -> None:
        self.most, self.pending, self.wanted = most, list[Piece](), True

    def follow(self, piece: Piece) -> None:
        """Launch the piece's reduce-scatter each time its last gradient is ready, while ``wanted``."""

        def ready(_parameter: Any) -> None:
            piece.missing -= 1
            if not piece.missing:
                piece.missing = len(piece.parameters)
                if self.wanted:
                    self.launch(piece)

        for parameter in piece.parameters:
            parameter.register_post_accumulate_grad_hook(ready)

    def launch(self, piece: Piece) -> None:
        """Begin to reduce the piece's gradients."""
        while self.most is not None and len(self.pending) >= self.most:
            self.pending.pop(0).finish()
        piece.reduce()
        self.pending.append(piece)

    def finish(self) -> None:
        """Wait for all."""
        for piece in self.pending:
            piece.finish()
        self.pending.clear()


def zero2(asked: Asked) -> Wrapped:
    """A reduce-scatter per unit, launched in backward when its last gradient is ready; all-gathers after the update.

    Options: ``sync``: every micro-step reduces, since no rank keeps whole gradients ('every', the default); 'last'
    keeps them whole until the last. ``reduces_in_flight``, see ``Reductions``.
    """
    mine, every = pieces(asked, whole=False), asked.options.get("sync", "every") == "every"
    reductions = Reductions(asked.options.get("reduces_in_flight"))
    for piece in mine:
        reductions.follow(piece)

    def micro(last: bool) -> AbstractContextManager[Any]:
        reductions.wanted = last or every
        return nullcontext()

    wrapped = _sharded(asked, mine, lambda _: reductions.finish())
    return replace(wrapped, micro=micro)


def _sharded(asked: Asked, mine: list[Piece], after_backward: Any) -> Wrapped:
    optimizer = OPTIMIZERS[asked.optimizer]([piece.shard for piece in mine])

    def update() -> None:
        optimizer.step()
        for work in [piece.gather() for piece in mine]:
            work.wait()
        for piece in mine:
            piece.shard.grad = None

    return Wrapped(
        run=asked.model, after_backward=after_backward, update=update, held=lambda: list(asked.model.parameters()),
        trained=lambda: list(asked.model.parameters()),
    )  # fmt: skip
