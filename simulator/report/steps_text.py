"""A schedule played on small numbers, step by step, as a lecture would draw it on the board."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.check import play, steps
from simulator.collectives.promise import chunk_owners, promise
from simulator.errors import ScenarioError
from simulator.schedule import Schedule

#: More ranks than this do not fit on a screen.
MAX_RANKS = 16
MAX_CHUNKS = 64


def steps_text(schedule: Schedule) -> Iterator[str]:
    """Start, every step with who sends what to whom, and the end. Rank r starts with chunk values [0, 1, 2, ...] + r.

    A chunk that a rank does not hold at the start is shown as a dot. Raises ScenarioError for more than MAX_RANKS.
    """
    p, chunks = schedule.num_ranks, schedule.num_chunks
    if p > MAX_RANKS or chunks > MAX_CHUNKS:
        raise ScenarioError(
            f"--show-steps prints up to {MAX_RANKS} ranks and {MAX_CHUNKS} chunks; this schedule has {p} and {chunks}"
        )
    data = np.arange(chunks)[None, :] + np.arange(p)[:, None]
    held = promise(schedule).start
    state = np.where(held, data, np.nan).astype(np.float64)
    yield (
        f"{schedule.op}, {schedule.algorithm}, {p} ranks: {schedule.num_steps} steps, {schedule.num_messages} "
        f"messages, {chunks} chunk{'s' if chunks > 1 else ''} of {schedule.chunk_bytes:g} B"
    )
    yield from _ranks("start", schedule, state)
    moved = steps(schedule)
    for number, after in enumerate(play(schedule, state), start=1):
        moves = zip(*(column.tolist() for column in next(moved)), strict=True)
        sends = [f"{s} -> {d} {'adds' if reduce else 'takes'} [{c}]" for s, d, c, reduce in moves]
        yield from _ranks(f"step {number}: {', '.join(sends)}", schedule, after)


def _ranks(title: str, schedule: Schedule, state: NDArray[np.float64]) -> Iterator[str]:
    yield ""
    yield title
    for rank, values in enumerate(state):
        yield f"  rank {rank}: [{', '.join('.' if np.isnan(v) else f'{v:g}' for v in values)}]"


def owners_line(schedule: Schedule) -> str:
    """Which chunks are whose slice, for operations in which ranks own slices."""
    owners = chunk_owners(schedule)
    return ", ".join(f"rank {r}: {np.flatnonzero(owners == r).tolist()}" for r in range(schedule.num_ranks))
