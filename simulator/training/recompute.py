"""Activation checkpointing: keep less of a block in forward, run parts of it again before its backward.

* ``full``: each block keeps its input (``2 s b h`` bytes in 16 bits, 4 where the residual stream is fp32) and runs its
  whole forward again: a third more arithmetic than 3 forwards. One block at a time is alive in full, beside its input.
* ``selective`` (Korthikanti et al. 2022, arXiv:2205.05198, section 5): only the attention core runs again, so its
  scores (``5 a s`` per ``s b h`` term) are not kept. A fused kernel keeps none anyway; there it saves only statistics.

Limits: frameworks call other things selective too (every second matrix product, every second block); not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simulator.training.operations import Operation

MODES = ("none", "selective", "full")


def recomputed_block(block: list[Operation], input_bytes: float) -> list[Operation]:
    """``full``: the operations of one block, all run again before the backward of the last, which comes first.

    Only the block's input is kept, by its first operation.
    """
    kept = [replace(operation, saved_bytes=0.0) for operation in block]
    kept[0] = replace(kept[0], saved_bytes=input_bytes)
    kept[-1] = replace(kept[-1], replayed=tuple(block))
    return kept


def recomputed_attention(core: Operation, input_bytes: float) -> Operation:
    """``selective``: the attention core keeps q, k and v only, and runs its forward again."""
    return replace(core, saved_bytes=input_bytes, replayed=(core,))


def replayed_bytes(operations: Iterable[Operation]) -> float:
    """The most that one replay brings back to life beyond what the operations keep."""
    return max(
        (
            sum(again.saved_bytes for again in operation.replayed) - operation.saved_bytes
            for operation in operations
            if operation.replayed
        ),
        default=0.0,
    )
