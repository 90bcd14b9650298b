# mypy: disable-error-code="import-not-found,misc"
"""The two numbers that a simulation of a real run needs: alpha and rate of a link, and of each collective a tiny time.

Needs torch. A collective of a few bytes over gloo takes milliseconds on a busy machine (threads wake up), so alpha of a
collective is not alpha of a message; ``tiny`` measures the former by operation, ``ping`` the latter.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from simulator.lab.real_groups import Groups
from simulator.lab.real_operations import OPERATIONS, whole_ranks

#: From the agreement on an instant to that instant, s: long enough for everyone to hear of it.
NOTICE_S = 0.01
#: What data parallelism calls.
USUAL = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def agreed_instant(group: Any, notice_s: float = NOTICE_S) -> float:
    """Wait for everyone, then for an instant that rank 0 names; the processes share one clock. Returns it."""
    dist.barrier(group=group)
    now = time.perf_counter() + notice_s if dist.get_rank() == 0 else 0.0
    instant = torch.tensor([now], dtype=torch.float64)
    dist.broadcast(instant, 0, group=group)
    begin = float(instant)
    time.sleep(max(0.0, begin - time.perf_counter()))
    return begin


def ping(job: dict[str, Any], groups: Groups) -> dict[str, Any]:
    """Messages there and back between ``ranks`` of ``sizes_bytes``: {"times_s": {size: one-way times of each round}}.

    One round more comes first. {} times on ranks that take no part.
    """
    group, times = groups.all(job.get("workers", 2)), {}
    for size in job["sizes_bytes"]:
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        agreed_instant(group)
        if groups.rank in job["ranks"]:
            times[str(size)] = _rounds(buffer, job, groups.rank, group)
    return {"times_s": times}


def _rounds(buffer: Any, job: dict[str, Any], rank: int, group: Any) -> list[float]:
    first = job["ranks"][0] == rank
    other, rounds = job["ranks"][1 if first else 0], []
    for _ in range(1 + job.get("repeats", 9)):
        begin = time.perf_counter()
        for sends in (first, not first):
            (dist.send if sends else dist.recv)(buffer, other, group=group)
        rounds.append((time.perf_counter() - begin) / 2)
    return rounds[1:]


def tiny(job: dict[str, Any], groups: Groups) -> dict[str, Any]:
    """Times of one collective after the other, each from an agreed instant to this rank's return.

    job: ``sizes_bytes`` (default: 4 bytes per rank), ``repeats``, ``operations`` (default: USUAL), ``partition`` of the
    ranks into groups that run at once (default: one group), ``workers``. Answer: {"times_s": {operation: {size:
    times}}, "median_s": {operation: {size: median}}}. The time of the collective is the largest over ranks, repeat by
    repeat.
    """
    workers, everyone = job.get("workers", 2), list(range(groups.world))
    group = groups.mine(job.get("partition") or [everyone], workers)
    sizes = job.get("sizes_bytes") or [4 * group.size()]
    times: dict[str, dict[str, list[float]]] = {}
    for operation in job.get("operations") or USUAL:
        times[operation] = {str(size): _timed(operation, size, group, job, groups) for size in sizes}
    medians = {operation: {size: median(held) for size, held in by.items()} for operation, by in times.items()}
    return {"times_s": times, "median_s": medians}


def _timed(operation: str, size: int, group: Any, job: dict[str, Any], groups: Groups) -> list[float]:
    begin_call, found = OPERATIONS[operation](whole_ranks(size, group), group), []
    for _ in range(1 + job.get("repeats", 9)):
        begin = agreed_instant(groups.all(job.get("workers", 2)))
        begin_call()()
        found.append(time.perf_counter() - begin)
    return found[1:]
