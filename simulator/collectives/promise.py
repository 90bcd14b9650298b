"""What each collective must achieve, stated apart from any algorithm: who holds what before and after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Ints, Schedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Promise:
    """Chunks at the start and at the end.

    start, end: bool, shape (num_ranks, num_chunks): what a rank holds before, must hold after.
    contributors: bool, shape (num_chunks, num_ranks): whose data chunk c must contain at the end.
    """

    start: NDArray[np.bool_]
    end: NDArray[np.bool_]
    contributors: NDArray[np.bool_]


def chunk_owners(schedule: Schedule) -> Ints:
    """Rank whose slice each chunk belongs to: slices are contiguous and equally many chunks long."""
    p, count = schedule.num_ranks, schedule.num_chunks
    return np.arange(count, dtype=np.int64) * p // count


def promise(schedule: Schedule) -> Promise:
    """The promise of ``schedule.op`` for its ranks and chunks."""
    p, count, root = schedule.num_ranks, schedule.num_chunks, schedule.root
    everywhere = np.ones((p, count), dtype=bool)
    at_root = np.zeros((p, count), dtype=bool)
    at_root[root] = True
    everyone = np.ones((count, p), dtype=bool)
    from_root = np.zeros((count, p), dtype=bool)
    from_root[:, root] = True
    owner = chunk_owners(schedule)
    at_owner = owner[None, :] == np.arange(p)[:, None]
    from_owner = at_owner.T
    if schedule.op == "all_to_all":
        receiver = np.arange(count) % p
        at_receiver = receiver[None, :] == np.arange(p)[:, None]
        return Promise(start=at_owner, end=at_receiver, contributors=from_owner)
    if schedule.op == "send_recv":
        return Promise(start=at_owner, end=np.roll(at_owner, 1, axis=0), contributors=from_owner)
    if schedule.op == "send":
        return Promise(start=at_root, end=~at_root, contributors=from_root)
    start, end, contributors = {
        "broadcast": (at_root, everywhere, from_root),
        "scatter": (at_root, at_owner, from_root),
        "gather": (at_owner, at_root, from_owner),
        "reduce": (everywhere, at_root, everyone),
        "all_gather": (at_owner, everywhere, from_owner),
        "reduce_scatter": (everywhere, at_owner, everyone),
        "all_reduce": (everywhere, everywhere, everyone),
    }[schedule.op]
    return Promise(start=start, end=end, contributors=contributors)
