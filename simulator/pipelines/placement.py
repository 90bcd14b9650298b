"""Which rank holds which stage: (ranks, chunks) -> the rank of each stage."""

from __future__ import annotations


def loop(num_ranks: int, chunks: int) -> tuple[int, ...]:
    """Round and round: stage s on rank s mod p (Megatron-LM, https://arxiv.org/abs/2104.04473, section 2.2)."""
    return tuple(range(num_ranks)) * chunks


def v_shape(num_ranks: int, chunks: int) -> tuple[int, ...]:
    """Down and up again, so that rank 0 holds the first stage and the last (https://arxiv.org/abs/2405.15362)."""
    down = tuple(range(num_ranks))
    return tuple(rank for chunk in range(chunks) for rank in (down if chunk % 2 == 0 else down[::-1]))


def two_way(num_ranks: int, chunks: int) -> tuple[int, ...]:
    """Two whole models, one from rank 0 on and one from the last rank back (DualPipe, https://arxiv.org/abs/2412.19437,
    section 3.2.1): stages 0 to p - 1 are the first model, p to 2 p - 1 the second."""
    return v_shape(num_ranks, 2 * chunks)
