# mypy: disable-error-code="import-not-found,misc"
"""A training step out of parts: micro-steps of forward and backward, then the optimizer. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from simulator.lab.real_groups import Groups
from simulator.lab.real_model import SleepingModel

#: A power of two, so that what plain SGD does to parameters of zero is exact in binary.
LEARNING_RATE = 2.0**-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a strategy gets: the model, the ranks that train it together and their group, its options, the optimizer."""

    model: SleepingModel
    ranks: tuple[int, ...]
    group: Any
    groups: Groups
    workers: int
    options: dict[str, Any]
    optimizer: str

    @property
    def world(self) -> int:
        """How many ranks train the model."""
        return len(self.ranks)

    def mesh(self) -> Any:
        """The DeviceMesh that the option ``mesh`` asks for, by default one dimension of all."""
        return self.groups.mesh(self.ranks, self.options.get("mesh") or [self.world], self.group, self.workers)


def _no_tensors() -> Sequence[Any]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """A model under a strategy.

    run: the forward pass. micro: what holds during a micro-step; gets whether it is the last of its step.
    after_backward: what follows each backward, told the same. before_update: what comes once before the optimizer.
    update: the optimizer and what it communicates. held: what this rank has of the parameters, for a look at their
    values; every rank must call it. trained: the tensors whose memory is that of parameters, this rank's shards or all.
    clear: forget the gradients.
    """

    run: Callable[[Any], Any]
    update: Callable[[], None]
    held: Callable[[], Sequence[Any]] = _no_tensors
    trained: Callable[[], Sequence[Any]] = _no_tensors
    micro: Callable[[bool], AbstractContextManager[Any]] = field(default=lambda last: nullcontext())
    after_backward: Callable[[bool], None] = field(default=lambda last: None)
    before_update: Callable[[], None] = field(default=lambda: None)
    clear: Callable[[], None] = field(default=lambda: None)


def train_step(model: SleepingModel, wrapped: Wrapped, micro_steps: int) -> None:
    """One step: ``micro_steps`` times forward and backward, then the optimizer."""
    for number in range(micro_steps):
        last = number == micro_steps - 1
        with wrapped.micro(last):
            model.loss(wrapped.run).backward()
            wrapped.after_backward(last)
    wrapped.before_update()
    wrapped.update()
    wrapped.clear()


def local(tensor: Any) -> Any:
    """What this rank holds of a tensor: its own part of a DTensor."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


class PlainSgd:
    """SGD without momentum on what this rank holds: one fused multiply-add per parameter, no state."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        """Parameters -= LEARNING_RATE * gradient."""
        with torch.no_grad():
            pairs = [(local(p), local(p.grad)) for p in self.parameters if p.grad is not None]
            pairs = [(held, gradient) for held, gradient in pairs if held.numel()]
            if pairs:
                held, gradients = zip(*pairs, strict=True)
                torch._foreach_add_(list(held), list(gradients), alpha=-LEARNING_RATE)


class NoOptimizer:
    """For times of communication alone."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        """Nothing."""


def _adamw(parameters: Sequence[Any]) -> Any:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=True)


#: Name -> optimizer over parameters. 'adamw' is torch's, with its two states per parameter.
OPTIMIZERS: dict[str, Callable[[Sequence[Any]], Any]] = {"sgd": PlainSgd, "adamw": _adamw, "none": NoOptimizer}


def clear(parameters: Sequence[Any]) -> None:
    """Forget the gradients."""
    for parameter in parameters:
        parameter.grad = None
