"""What a caching allocator holds beyond live tensors: pools of other streams, and blocks of the wrong size.

PyTorch's keeps a pool of blocks for each stream: what a stream's tensors leave behind serves only that stream again
(c10/cuda/CUDACachingAllocator.cpp, ``get_free_block``). So the memory that it reserves, which ``nvidia-smi`` and
torchtitan's logs show, is at least the sum of what each stream's tensors need at their own peak; that follows from the
plan (``Memory.pools_bytes``): FSDP2 gathers on one stream, computes on another and keeps reduced gradients of a third.
On top come blocks of the wrong size (fragmentation): no model, a range of shares.

Both are told beside the peak and not added to it. They are not counted in ``fits``, because

* PyTorch's allocator gives cached blocks back to the driver before it raises out of memory (``release_cached_blocks``),
  so a run whose tensors fit usually survives, slower, and how the rest is cut depends on the allocator's history;
* who wants a margin says so: ``limits.memory: 90%``.

So a step whose tensors fit is feasible, and called tight when the range says that it may not run as planned.

Limits: a buffer is counted in the pool of the stream of the task that makes it; ZeRO-3 by hand, which makes its
buffers on the compute stream before it calls a collective, is told a little too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Shares of the tensors' peak, low and high, to plan with.
SHARES = (0.02, 0.10)
SOURCE = (
    "reserved over allocated bytes: 4 % in PyTorch's own message of github.com/threestudio-project/threestudio/"
    "discussions/403 (33.29 GiB allocated, 1.22 GiB reserved but unallocated); more where shapes vary or streams share "
    "blocks: 27 % in github.com/meta-llama/llama-cookbook/pull/41 (FSDP1, active 15.22 GB, reserved 19.36 GB), up to "
    "43 % in arXiv:2507.16274 (recomputation and virtual pipelines); 'uncertain'"
)
#: What the allocator does not hand out: the context and the communicators are the driver's and NCCL's own.
_NOT_ITS_OWN = "workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """Bytes that the allocator may hold beyond a peak: between ``low_bytes`` and ``high_bytes``."""

    low_bytes: float
    high_bytes: float


def slack_of(by_kind_bytes: Mapping[str, float], pools_bytes: float = 0.0) -> Slack:
    """The range for a peak that is given by kind of memory; pools_bytes: of ``report.memory.Memory``."""
    tensors = sum(size for kind, size in by_kind_bytes.items() if kind != _NOT_ITS_OWN) + pools_bytes
    low, high = SHARES
    return Slack(low_bytes=pools_bytes + low * tensors, high_bytes=pools_bytes + high * tensors)
