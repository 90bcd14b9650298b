"""How much a collective slows the compute of its ranks: it occupies cores, and its bytes pass through their memory.

    speed of compute = product over collectives of (1 - cores taken) x (1 - memory_s_per_byte x bytes/s that all send)

Cores: NCCL runs a thread block per channel, alone on its core: 2 over a single NIC, 16 over the 8 NICs of a DGX, 24
inside one (NVIDIA/nccl issue 689, and logs of issue 100 of nccl-tests). One factor for all kinds of kernels: on an
A100, products, attention and element-wise kernels beside an all-gather took 1.76, 1.83 and (by two digits) 1.8 to 3.7
times as long (NVIDIA/nccl issue 1428), whatever they are bound by. A rank that waits in a collective for others
occupies the cores (its kernel spins) but sends nothing yet.
Limits: collectives are not slowed by compute; the factor does not know how much bandwidth a kernel asks for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

#: Compute keeps at least this share of its speed, whatever runs beside it.
LEAST_SPEED = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """A collective on one rank: its channels (0: unknown), and the bytes/s that the rank sends at the moment."""

    channels: int = 0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """core_share: cores that a collective of unknown channels takes from compute, 0 <= s < 1.

    channel_share: cores that one channel takes. memory_s_per_byte: share of the memory's bandwidth that one byte/s sent
    by the rank takes.
    """

    core_share: float = 0.0
    channel_share: float = 0.0
    memory_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        assert 0 <= self.core_share < 1, "cores are a share"
        assert 0 <= self.channel_share < 1, "cores are a share"
        assert self.memory_s_per_byte >= 0, "memory traffic is no gain"

    def speed(self, active: Collection[Active]) -> float:
        """Speed of compute beside these collectives; 1 beside none."""
        if not active:
            return 1.0
        cores = prod(max(0.0, 1.0 - self._cores(one)) for one in active)
        memory = max(0.0, 1.0 - self.memory_s_per_byte * sum(one.bytes_per_s for one in active))
        return max(LEAST_SPEED, cores * memory)

    def _cores(self, one: Active) -> float:
        return one.channels * self.channel_share if one.channels and self.channel_share else self.core_share
