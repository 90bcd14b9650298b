# mypy: disable-error-code="import-not-found,misc"
"""Collectives of a real run by name: buffers made once, then one call after the other. Needs torch.

Bytes count as in nccl-tests: of an all-gather and a reduce-scatter the whole gathered buffer, of an all-to-all and of a
message to the next rank what one rank sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from simulator.lab.real_trace import noted_as

#: Waits until what a call began is over on this rank.
Wait = Callable[[], None]
#: Begins one call.
Begin = Callable[[], Wait]


def _all_reduce(size: int, group: Any) -> Begin:
    whole = torch.zeros(size // 4)
    return lambda: _of(dist.all_reduce(whole, group=group, async_op=True))


def _all_gather(size: int, group: Any) -> Begin:
    whole, part = torch.zeros(size // 4), torch.zeros(size // 4 // group.size())
    return lambda: _of(dist.all_gather_into_tensor(whole, part, group=group, async_op=True))


def _reduce_scatter(size: int, group: Any) -> Begin:
    whole, part = torch.zeros(size // 4), torch.zeros(size // 4 // group.size())
    return lambda: _of(dist.reduce_scatter_tensor(part, whole, group=group, async_op=True))


def _broadcast(size: int, group: Any) -> Begin:
    whole, root = torch.zeros(size // 4), dist.get_global_rank(group, 0)
    return lambda: _of(dist.broadcast(whole, root, group=group, async_op=True))


def _all_to_all(size: int, group: Any) -> Begin:
    """A part to every other rank and one from each, as ProcessGroupNCCL does it: one group of sends and receives."""
    parts, place = group.size(), group.rank()
    sent, received = torch.zeros(size // 4).chunk(parts), torch.zeros(size // 4).chunk(parts)
    steps = [((place + step) % parts, (place - step) % parts) for step in range(1, parts)]
    sends = [(sent[following], following) for following, _ in steps]
    return lambda: both_ways("all_to_all", size, sends, [(received[before], before) for _, before in steps], group)


def _send_recv(size: int, group: Any) -> Begin:
    """To the next rank of a ring and from the one before, as ring attention passes keys and values on."""
    sent, received, place = torch.zeros(size // 4), torch.zeros(size // 4), group.rank()
    following, before = ((place + step) % group.size() for step in (1, -1))
    return lambda: both_ways("send_recv", size, [(sent, following)], [(received, before)], group)


def both_ways(
    op: str, size: int, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]], group: Any
) -> Wait:
    """Tensors to ranks of a group and from others, all at once, receives first; noted as one operation.

    NCCL runs a group of sends and receives together, whatever their order. Over gloo a pair of ranks has one
    connection, and a receive that is asked for after a send waits until that is through: torch's own all-to-all over
    gloo sends first and takes half as long again.
    """
    with noted_as(op, size, group.size()):
        works = [dist.irecv(tensor, group=group, group_src=rank) for tensor, rank in receives]
        works += [dist.isend(tensor, group=group, group_dst=rank) for tensor, rank in sends]
    return _of(*works)


def _of(*works: Any) -> Wait:
    def wait() -> None:
        for work in works:
            work.wait()

    return wait


#: Operation -> (bytes, group) -> how to begin one.
OPERATIONS: dict[str, Callable[[int, Any], Begin]] = {
    "all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter, "broadcast": _broadcast,
    "all_to_all": _all_to_all, "send_recv": _send_recv,
}  # fmt: skip


def whole_ranks(size_bytes: float, group: Any) -> int:
    """The least multiple of an fp32 number on each rank that holds so many bytes."""
    unit = 4 * group.size()
    return int(-(-int(size_bytes) // unit) * unit)
