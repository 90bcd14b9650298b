"""Times that no schedule can beat, and the closed forms that textbook schedules reach on a uniform network.

The lower bounds hold for any algorithm on any network without reduction inside the switches:

* latency: a rank that hears k messages a step knows at most (k+1)**s ranks' data after s steps, and every
  collective has a rank whose result needs all p, so s >= log_{k+1} p steps of at least the smallest latency
  (broadcast and scatter: the same, seen from the sender);
* bandwidth: what a rank must send or receive, over what its links can carry, and for all-reduce the total
  ``2 (p-1) n`` over the sum of all ranks' links (Patarasuk and Yuan, JPDC 2009, theorem 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from simulator.schedule import Floats, Schedule


def latency_steps(schedule: Schedule) -> int:
    """Least number of dependent steps, given how many messages the schedule lets a rank handle per step."""
    p = schedule.num_ranks
    if p == 1 or not schedule.phases:
        return 0
    ports = _busiest(schedule)
    steps = 0
    reach = 1
    while reach < p:
        reach *= ports + 1
        steps += 1
    return steps


def _busiest(schedule: Schedule) -> int:
    """Most messages that one rank sends, or receives, in one step."""
    most = 1
    for pattern, _ in schedule.runs():
        if len(pattern) > 1:
            most = max(most, int(np.bincount(pattern.src).max()), int(np.bincount(pattern.dst).max()))
    return most


# op -> what a rank that is not the root must send and receive, then the same for the root, as shares of the size.
def _must(op: str, p: int) -> tuple[float, float, float, float]:
    rest = (p - 1) / p
    return {
        "broadcast": (0.0, 1.0, 1.0, 0.0),
        "scatter": (0.0, 1 / p, rest, 0.0),
        "gather": (1 / p, 0.0, 0.0, rest),
        "reduce": (1.0, 0.0, 0.0, 1.0),
        "all_gather": (1 / p, rest, 1 / p, rest),
        "reduce_scatter": (rest, 1 / p, rest, 1 / p),
        "all_reduce": (1.0, 1.0, 1.0, 1.0),
        "all_to_all": (rest, rest, rest, rest),
    }[op]


def bandwidth_s(schedule: Schedule, send_bytes_per_s: Floats, receive_bytes_per_s: Floats) -> float:
    """Seconds that the bytes alone need. Rates: (num_ranks,) what all links of a rank carry out and in."""
    p = schedule.num_ranks
    if p == 1:
        return 0.0
    size = schedule.size_bytes
    send, receive, root_send, root_receive = _must(schedule.op, p)
    out, into = np.full(p, send * size), np.full(p, receive * size)
    out[schedule.root], into[schedule.root] = root_send * size, root_receive * size
    floor = max(float((out / send_bytes_per_s).max()), float((into / receive_bytes_per_s).max()))
    if schedule.op == "all_reduce":
        total = min(float(send_bytes_per_s.sum()), float(receive_bytes_per_s.sum()))
        floor = max(floor, 2 * (p - 1) * size / total)
    return floor


def _ring(p: int, n: float, a: float, b: float, rounds: int) -> float:
    return rounds * (p - 1) * (a + n / (p * b))


def _levels(p: int) -> int:
    return math.ceil(math.log2(p)) if p > 1 else 0


#: (op, algorithm) -> time on a uniform network: ranks, bytes (padded), alpha in s, bandwidth in bytes/s.
CLOSED_FORMS: dict[tuple[str, str], Callable[[int, float, float, float], float]] = {
    ("all_reduce", "ring"): lambda p, n, a, b: _ring(p, n, a, b, 2),
    ("reduce_scatter", "ring"): lambda p, n, a, b: _ring(p, n, a, b, 1),
    ("all_gather", "ring"): lambda p, n, a, b: _ring(p, n, a, b, 1),
    ("all_to_all", "pairwise"): lambda p, n, a, b: _ring(p, n, a, b, 1),
    ("all_to_all", "direct"): lambda p, n, a, b: (a + (p - 1) * n / (p * b)) if p > 1 else 0.0,
    ("all_reduce", "direct"): lambda p, n, a, b: 2 * (a + (p - 1) * n / (p * b)) if p > 1 else 0.0,
    ("all_reduce", "tree"): lambda p, n, a, b: 2 * _levels(p) * (a + n / b),
    ("broadcast", "tree"): lambda p, n, a, b: _levels(p) * (a + n / b),
    ("reduce", "tree"): lambda p, n, a, b: _levels(p) * (a + n / b),
    ("all_reduce", "naive"): lambda p, n, a, b: 2 * (p - 1) * (a + n / b),
    ("broadcast", "naive"): lambda p, n, a, b: (p - 1) * (a + n / b),
    ("reduce", "naive"): lambda p, n, a, b: (p - 1) * (a + n / b),
    ("scatter", "naive"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    ("gather", "naive"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
}


def ring_tree_crossover_bytes(num_ranks: int, alpha_s: float, bytes_per_s: float) -> float | None:
    """Size at which ring and binomial-tree all-reduce take the same time; above it the ring wins.

    ``2(p-1)(a + n/(p b)) = 2 ceil(log2 p)(a + n/b)``; 2.84 MB at p = 64, a = 5 us, b = 50 GB/s. None where one
    of them wins at every size.
    """
    p, levels = num_ranks, _levels(num_ranks)
    gained = levels - (p - 1) / p
    extra = (p - 1) - levels
    if extra <= 0 or gained <= 0:
        return None
    return extra * alpha_s * bytes_per_s / gained
