"""Bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md): algorithm bandwidth times a factor per operation."""

from __future__ import annotations


def bus_factor(op: str, num_ranks: int) -> float:
    """busbw / algbw: the bytes a ring rank sends per byte of buffer; 0 for a single rank."""
    if num_ranks == 1:
        return 0.0
    rest = (num_ranks - 1) / num_ranks
    return {"all_reduce": 2 * rest, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0, "send": 1.0}.get(op, rest)
