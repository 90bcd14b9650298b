"""What the links at a rank's own end need for a whole step: a lower bound where a rank has several transfers at once.

All transfers of a rank that leave by one link, or enter by one, have to pass it before the rank's step is over: not
before the first of them begins and has paid its latency, and then their bytes at the link's full rate. Of the first
two links of a route, and of the last two, the slower one is looked at (a NIC behind PCIe). On a network whose ports are
what all transfers wait for, this bound is the time itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.engine.wires import Paths, Wires
from simulator.schedule import Floats, Ints, Pattern


class _Side(NamedTuple):
    """Transfers grouped by the link at one end: ``order`` sorts them, group g starts at ``firsts[g]``.

    place: (num_groups,) which of the pattern's ranks a group belongs to. chunk_s: (num_groups,) seconds per byte of a
        chunk.
    """

    order: Ints
    firsts: Ints
    place: Ints
    chunk_s: Floats


def port_floors(
    pattern: Pattern, paths: Paths, wires: Wires, chunk_bytes: Floats
) -> Callable[[Floats, Floats], None] | None:
    """Function (begins, ready) that raises ``ready`` to the bound, in place; None where no rank has two transfers.

    begins: (num_sizes, num_transfers) when transfers begin. ready: (num_sizes, num_pattern_ranks).
    """
    if len(pattern) < 2 or max(np.bincount(pattern.src).max(), np.bincount(pattern.dst).max()) < 2:
        return None
    rows, last = np.arange(len(pattern)), (paths.links != wires.filler).sum(axis=1) - 1
    second, before = np.minimum(last, 1), np.maximum(last - 1, 0)
    sides = [
        _side(pattern, pattern.src, _slower(paths.links[:, 0], paths.links[rows, second], wires), wires),
        _side(pattern, pattern.dst, _slower(paths.links[rows, last], paths.links[rows, before], wires), wires),
    ]

    def floors(begins: Floats, ready: Floats) -> None:
        flows = begins + paths.latency_s
        for side in sides:
            opens = np.minimum.reduceat(flows[:, side.order], side.firsts, axis=1)
            bound = opens + chunk_bytes[:, None] * side.chunk_s
            for size in range(len(ready)):
                np.maximum.at(ready[size], side.place, bound[size])

    return floors


def _slower(outer: Ints, inner: Ints, wires: Wires) -> Ints:
    """The slower of two links of each route; of equals the one at the rank's own end."""
    return np.where(wires.capacity[inner] < wires.capacity[outer], inner, outer)


def _side(pattern: Pattern, ends: Ints, links: Ints, wires: Wires) -> _Side:
    key = links * (int(ends.max()) + 1) + ends
    order = np.argsort(key, kind="stable")
    firsts = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    chunks = np.add.reduceat(pattern.chunks[order], firsts)
    return _Side(
        order, firsts, np.searchsorted(pattern.ranks, ends[order][firsts]),
        chunks / wires.capacity[links[order][firsts]],
    )  # fmt: skip
