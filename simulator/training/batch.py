"""One micro-batch on one rank: its size, and how it is computed."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.training.precision import Precision
from simulator.training.recompute import EVERY_BLOCK, Checkpoints
from simulator.training.shards import WHOLE, Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch on one rank: its size, and how it is computed.

    ``attention`` is 'eager' or a fused kernel ('flash', 'flash-1', 'flash-3'); ``kernels`` one of
    ``elementwise.KERNELS``; ``recompute`` one of ``recompute.MODES``, and ``checkpoints`` the layers that 'full' runs
    again. ``shards`` is the rank's part of the model.
    """

    seq_len: int
    micro_batch: int
    precision: Precision
    attention: str
    kernels: str = "eager"
    recompute: str = "none"
    checkpoints: Checkpoints = EVERY_BLOCK
    shards: Shards = WHOLE

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch on one rank: each rank of cp has its part of every sequence."""
        return self.seq_len * self.micro_batch // self.shards.cp

    @property
    def modules(self) -> tuple[str, ...]:
        """Parts of each block that are run again: none unless ``recompute`` is 'selective'."""
        return self.checkpoints.modules if self.recompute == "selective" else ()

    @property
    def fused(self) -> bool:
        """Whether a compiler or a library fuses what lies between the products."""
        return self.kernels == "fused"
