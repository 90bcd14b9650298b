"""Proof that a schedule delivers its collective: played on sets of contributors and on real numpy data.

In a step every transfer reads what its sender held when the step began. A switch holds nothing before, and what is
reduced in it is the sum of what arrives in that step. A wrong chunk offset passes every test
of time and bytes; only playing the schedule finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.promise import Promise, promise
from simulator.schedule import Bools, Ints, Schedule


def steps(schedule: Schedule) -> Iterator[tuple[Ints, Ints, Ints, Bools]]:
    """Every step as (src, dst, chunk, reduce): one entry per chunk moved. Ends from num_ranks on are switches."""
    for phase in schedule.phases:
        src = np.repeat(phase.pattern.src, phase.pattern.chunks)
        dst = np.repeat(phase.pattern.dst, phase.pattern.chunks)
        whole = isinstance(phase.reduce, bool)
        reduce = np.full(len(src), phase.reduce) if whole else np.repeat(phase.reduce, phase.pattern.chunks)
        for step in range(phase.steps):
            chunks = phase.moves(step)
            assert len(chunks) == len(src), "moves must name as many chunks as the pattern carries"
            yield src, dst, chunks, reduce


def play(schedule: Schedule, state: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Play the schedule on ``state``, shape (num_ranks, num_chunks, ...), in place, and yield it after every step."""
    p = schedule.num_ranks
    held = state
    if schedule.num_switches:
        nothing = np.full((schedule.num_switches, *state.shape[1:]), np.nan)
        held = np.concatenate([state, nothing])
    for src, dst, chunks, reduce in steps(schedule):
        sent = held[src, chunks]  # a copy: what the senders held when the step began
        if reduce.all():
            _add(held, p, dst, chunks, sent)
        elif not reduce.any():
            held[dst, chunks] = sent
        else:
            held[dst[~reduce], chunks[~reduce]] = sent[~reduce]
            _add(held, p, dst[reduce], chunks[reduce], sent[reduce])
        if held is not state:
            state[...] = held[:p]
        yield state


def _add(held: NDArray[np.float64], p: int, dst: Ints, chunks: Ints, sent: NDArray[np.float64]) -> None:
    """Add what was sent to what ranks hold; in a switch, to nothing."""
    if len(held) > p:
        in_switch = dst >= p
        held[dst[in_switch], chunks[in_switch]] = 0.0
    np.add.at(held, (dst, chunks), sent)


def _played(schedule: Schedule, state: NDArray[np.float64]) -> NDArray[np.float64]:
    for _ in play(schedule, state):
        pass
    return state


def check(schedule: Schedule) -> None:
    """Raise AssertionError unless everyone ends with exactly what the collective promises.

    Plays contributor counts: state[r, c, k] is how often rank k's data is in chunk c on rank r. At the end a
    promised chunk holds each contributor once, and nobody twice. Memory grows as ranks**2 * chunks.
    """
    goal = promise(schedule)
    state = np.zeros((schedule.num_ranks, schedule.num_chunks, schedule.num_ranks))
    rank, chunk = np.nonzero(goal.start)
    state[rank, chunk, rank] = 1
    final = _played(schedule, state)
    wanted = np.broadcast_to(goal.contributors, final.shape)
    wrong = goal.end[:, :, None] & (final != wanted)
    if wrong.any():
        r, c, k = (int(i[0]) for i in np.nonzero(wrong))
        raise AssertionError(
            f"{schedule.op}/{schedule.algorithm} on {schedule.num_ranks} ranks: chunk {c} on rank {r} holds "
            f"rank {k}'s data {final[r, c, k]:g} times instead of {int(wanted[r, c, k])}"
        )


#: What each operation must compute, written with numpy alone: data[rank, chunk, element] -> result.
_REFERENCE: dict[str, Callable[[NDArray[np.float64], int], NDArray[np.float64]]] = {
    "broadcast": lambda data, root: np.broadcast_to(data[root], data.shape),
    "send": lambda data, root: np.broadcast_to(data[root], data.shape),
    "scatter": lambda data, root: np.broadcast_to(data[root], data.shape),
    "reduce": lambda data, _: np.broadcast_to(data.sum(axis=0), data.shape),
    "all_reduce": lambda data, _: np.broadcast_to(data.sum(axis=0), data.shape),
    "reduce_scatter": lambda data, _: np.broadcast_to(data.sum(axis=0), data.shape),
    "gather": lambda data, _: _own_slices(data),
    "all_gather": lambda data, _: _own_slices(data),
    "all_to_all": lambda data, _: _own_slices(data),
    "send_recv": lambda data, _: _own_slices(data),
}


def _own_slices(data: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every rank's own slice, joined: what a gather collects."""
    slices = np.split(np.arange(data.shape[1]), data.shape[0])
    joined = np.concatenate([data[rank, chunks] for rank, chunks in enumerate(slices)])
    return np.broadcast_to(joined, data.shape)


def check_data(schedule: Schedule, data: NDArray[np.float64]) -> None:
    """Play on real numbers, shape (num_ranks, num_chunks, elements), and compare with numpy's own result.

    What a rank does not hold at the start is NaN, so an algorithm that reads it is found out.
    """
    goal: Promise = promise(schedule)
    state = np.where(goal.start[:, :, None], data, np.nan)
    final = _played(schedule, state)
    expected = _REFERENCE[schedule.op](data, schedule.root)
    np.testing.assert_allclose(final[goal.end], expected[goal.end], rtol=1e-12)
