"""Times that no schedule can beat, and the closed forms that textbook schedules reach on a uniform network.

The lower bounds hold for any algorithm on any network without reduction inside the switches:

* latency: a rank that hears k messages a step knows at most (k+1)**s ranks' data after s steps, and every
  collective has a rank whose result needs all p, so s >= log_{k+1} p steps of at least the smallest latency
  (broadcast and scatter: the same, seen from the sender; send_recv and send: one);
* bandwidth: what a rank must send or receive, over what its links can carry, and for all-reduce the total
  ``2 (p-1) n`` over the sum of all ranks' links (Patarasuk and Yuan, JPDC 2009, theorem 1).

With switches that add and multicast (``Schedule.num_switches``) the total falls away; what each single rank must send
and receive stays, and a switch counts as hearing as many at once as its step has.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from simulator.collectives.layout import DEFAULT_PIECES
from simulator.schedule import Floats, Schedule


def latency_steps(schedule: Schedule) -> int:
    """Least number of dependent steps, given how many messages the schedule lets a rank handle per step."""
    p = schedule.num_ranks
    if p == 1 or not schedule.phases:
        return 0
    if schedule.op == "send_recv":
        return 1
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
        "send_recv": (1.0, 1.0, 1.0, 1.0),
        "send": (0.0, 1.0, 1.0, 0.0),
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
    if schedule.op == "all_reduce" and not schedule.num_switches:
        total = min(float(send_bytes_per_s.sum()), float(receive_bytes_per_s.sum()))
        floor = max(floor, 2 * (p - 1) * size / total)
    return floor


def _ring(p: int, n: float, a: float, b: float, rounds: int) -> float:
    return rounds * (p - 1) * (a + n / (p * b))


def _levels(p: int) -> int:
    return math.ceil(math.log2(p)) if p > 1 else 0


def _chain(p: int, n: float, a: float, b: float) -> float:
    return (p + DEFAULT_PIECES - 2) * (a + n / (DEFAULT_PIECES * b)) if p > 1 else 0.0


def _log_steps(p: int, n: float, a: float, b: float) -> float:
    return _levels(p) * a + (p - 1) / p * n / b


def _bruck(p: int, n: float, a: float, b: float) -> float:
    blocks = sum((np.arange(p) >> k & 1).sum() for k in range(_levels(p)))
    return _levels(p) * a + float(blocks) * n / (p * b)


def _at_once(p: int, n: float, a: float, b: float) -> float:
    return a + (p - 1) * n / (p * b) if p > 1 else 0.0


def _scattered(p: int, n: float, a: float, b: float) -> float:
    """On one node: a scatter (or gather) in one step, and a ring all-gather (or reduce-scatter)."""
    return _at_once(p, n, a, b) + _ring(p, n, a, b, 1)


#: (op, algorithm) -> time on a uniform network: ranks, bytes (padded), alpha in s, bandwidth in bytes/s; one
#: channel, DEFAULT_PIECES pieces, no nodes.
CLOSED_FORMS: dict[tuple[str, str], Callable[[int, float, float, float], float]] = {
    ("all_reduce", "ring"): lambda p, n, a, b: _ring(p, n, a, b, 2),
    ("reduce_scatter", "ring"): lambda p, n, a, b: _ring(p, n, a, b, 1),
    ("all_gather", "ring"): lambda p, n, a, b: _ring(p, n, a, b, 1),
    ("all_to_all", "pairwise"): lambda p, n, a, b: _ring(p, n, a, b, 1),
    ("all_reduce", "hierarchical"): lambda p, n, a, b: _ring(p, n, a, b, 2),
    ("reduce_scatter", "hierarchical"): lambda p, n, a, b: _ring(p, n, a, b, 1),
    ("all_gather", "hierarchical"): lambda p, n, a, b: _ring(p, n, a, b, 1),
    ("broadcast", "hierarchical"): _scattered,
    ("reduce", "hierarchical"): _scattered,
    ("broadcast", "ring"): _chain,
    ("reduce", "ring"): _chain,
    ("all_gather", "pat"): _log_steps,
    ("reduce_scatter", "pat"): _log_steps,
    ("all_to_all", "bruck"): _bruck,
    ("all_to_all", "direct"): _at_once,
    ("all_to_all", "rail"): _at_once,
    ("all_reduce", "direct"): lambda p, n, a, b: 2 * _at_once(p, n, a, b),
    ("reduce_scatter", "direct"): _at_once,
    ("all_gather", "direct"): _at_once,
    ("scatter", "direct"): _at_once,
    ("gather", "direct"): _at_once,
    ("send_recv", "direct"): lambda p, n, a, b: (a + n / b) if p > 1 else 0.0,
    ("all_reduce", "tree"): lambda p, n, a, b: 2 * _levels(p) * (a + n / b),
    ("broadcast", "tree"): lambda p, n, a, b: _levels(p) * (a + n / b),
    ("reduce", "tree"): lambda p, n, a, b: _levels(p) * (a + n / b),
    ("all_reduce", "naive"): lambda p, n, a, b: 2 * (p - 1) * (a + n / b),
    ("broadcast", "naive"): lambda p, n, a, b: (p - 1) * (a + n / b),
    ("reduce", "naive"): lambda p, n, a, b: (p - 1) * (a + n / b),
    ("scatter", "naive"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    ("gather", "naive"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
}


def best_pieces(num_hops: int, size_bytes: float, alpha_s: float, bytes_per_s: float) -> int:
    """Pieces that a pipeline over ``num_hops`` hops is fastest with: K of the least ``(hops + K - 1)(a + n/(K b))``."""
    if alpha_s <= 0 or num_hops < 2:
        return 1
    return max(1, round(math.sqrt((num_hops - 1) * size_bytes / (alpha_s * bytes_per_s))))


def double_tree_bound_s(num_ranks: int, size_bytes: float, alpha_s: float, bytes_per_s: float, pieces: int) -> float:
    """What a double-tree all-reduce takes at most on a uniform network: every step as long as a full one.

    ``(K + 2 ceil(log2 p) - 1)(a + 2 n / (K b))``: a rank moves up to four pieces of n / (2 K) each way in a step.
    """
    steps = pieces + 2 * _levels(num_ranks) - 1
    return steps * (alpha_s + 2 * size_bytes / (pieces * bytes_per_s)) if num_ranks > 1 else 0.0


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
