"""The strategies of data parallelism, each as its framework issues it: what is sent and when, what lives how long.

A strategy is two functions from StepInputs to a Draft (``step``): ``STRATEGIES`` has a line for each. Knows no network
and no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.strategies import (
    ddp,
    deepspeed,
    deepspeed3,
    fsdp1,
    fsdp2,
    megatron,
    zero3_textbook,
    zero_textbook,
    zero_torch,
)
from simulator.strategies.step import Draft, StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """step: a steady step. startup: what construction sends."""

    step: Callable[[StepInputs], Draft]
    startup: Callable[[StepInputs], Draft]


#: By the names of ``parallel.strategy`` and ``parallel.implementation`` (``parallel_spec.KEYS``).
STRATEGIES: dict[tuple[str, str], Strategy] = {
    ("ddp", "torch"): Strategy(step=ddp.step, startup=ddp.startup),
    ("zero1", "deepspeed"): Strategy(step=deepspeed.step, startup=deepspeed.startup),
    ("zero1", "torch"): Strategy(step=zero_torch.step, startup=zero_torch.startup),
    ("zero1", "megatron"): Strategy(step=megatron.step, startup=megatron.startup),
    ("zero1", "textbook"): Strategy(step=zero_textbook.zero1, startup=zero_textbook.startup),
    ("zero2", "deepspeed"): Strategy(step=deepspeed.step, startup=deepspeed.startup),
    ("zero2", "textbook"): Strategy(step=zero_textbook.zero2, startup=zero_textbook.startup),
    ("zero3", "deepspeed"): Strategy(step=deepspeed3.step, startup=deepspeed.startup),
    ("zero3", "textbook"): Strategy(step=zero3_textbook.step, startup=zero_textbook.startup),
    ("fsdp", "fsdp2"): Strategy(step=fsdp2.step, startup=fsdp2.startup),
    ("fsdp", "fsdp1"): Strategy(step=fsdp1.step, startup=fsdp1.startup),
    ("hsdp", "fsdp2"): Strategy(step=fsdp2.step, startup=fsdp2.startup),
    ("hsdp", "fsdp1"): Strategy(step=fsdp1.step, startup=fsdp1.startup),
}
