"""Every algorithm of the table delivers what its collective promises, and moves no byte that it does not state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from strategies import torus_shapes

from simulator.collectives import ALGORITHMS, OPERATIONS, algorithms_of, make_schedule
from simulator.collectives.busbw import bus_factor
from simulator.collectives.check import check, check_data, play, steps
from simulator.collectives.layout import Layout
from simulator.errors import ScenarioError
from simulator.schedule import Ints, Phase, Schedule, pattern, slice_padding

TABLE = sorted(ALGORITHMS)
NUM_RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
#: Padded so that every rank's slice is equally large; the others take any size as it is.
PADDED = ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter")


def layouts(p: int, algorithm: str) -> Iterator[Layout]:
    """Every root's kind, node size, channel count, number of pieces, torus shape and wrap that ``p`` ranks allow.

    Shapes of a torus only for the algorithm that reads them (``test_only_the_torus_ring_reads_the_shape_of_a_torus``).
    """
    for root in sorted({0, p // 2, p - 1}):
        yield Layout(num_ranks=p, root=root)
    yield Layout(num_ranks=p, channels=2, pieces=1)
    for per_node in (d for d in range(1, p + 1) if p % d == 0):
        for channels in sorted({1, 2, per_node}):
            yield Layout(num_ranks=p, root=p - 1, ranks_per_node=per_node, channels=channels, pieces=channels + 1)
    for shape in torus_shapes(p) if algorithm == "torus" else ():
        for wrap in sorted({tuple(w and d > 1 for w, d in zip(ws, shape, strict=True)) for ws in wraps(len(shape))}):
            yield Layout(num_ranks=p, torus_shape=shape, torus_wrap=wrap, pieces=1)


def wraps(num_axes: int) -> Iterator[tuple[bool, ...]]:
    return product((False, True), repeat=num_axes)


def per_buffer(schedule: Schedule) -> int:
    """Chunks in what nccl-tests calls the size: all-to-all and send_recv count one rank's buffer, others all of it."""
    one_rank = schedule.op in ("all_to_all", "send_recv")
    return schedule.num_chunks // schedule.num_ranks if one_rank else schedule.num_chunks


def random_data(schedule: Schedule) -> np.ndarray:
    shape = (schedule.num_ranks, schedule.num_chunks, 2)
    return np.random.default_rng(7).integers(-1000, 1000, shape).astype(np.float64)


# ---------------------------------------------------------------------------------------- what everyone ends with


@pytest.mark.parametrize("p", [pytest.param(p, marks=pytest.mark.slow) if p > 8 else p for p in NUM_RANKS])
@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_everyone_ends_with_what_the_collective_promises(op: str, algorithm: str, p: int) -> None:
    for layout in layouts(p, algorithm):
        schedule = make_schedule(op, algorithm, layout, 1000.0)
        check(schedule)
        check_data(schedule, random_data(schedule))


@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_only_the_torus_ring_reads_the_shape_of_a_torus(op: str, algorithm: str) -> None:
    plain = [Layout(num_ranks=p, ranks_per_node=p // 2, channels=2) for p in (4, 8)]
    shaped = [replace(plain[0], torus_shape=(2, 2)), replace(plain[1], torus_shape=(2, 4), torus_wrap=(False, True))]
    same = all(
        [[part.tolist() for part in step] for step in steps(make_schedule(op, algorithm, flat, 64.0))]
        == [[part.tolist() for part in step] for step in steps(make_schedule(op, algorithm, torus, 64.0))]
        for flat, torus in zip(plain, shaped, strict=True)
    )
    assert same is (algorithm != "torus")


@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_thirty_three_ranks_work_too(op: str, algorithm: str) -> None:
    for root in (0, 20):
        check(make_schedule(op, algorithm, Layout(num_ranks=33, root=root), 1000.0))


@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_one_rank_sends_nothing(op: str, algorithm: str) -> None:
    schedule = make_schedule(op, algorithm, Layout(num_ranks=1), 1000.0)
    assert (schedule.num_messages, schedule.num_steps, schedule.padding_bytes) == (0, 0, 0.0)
    assert schedule.sent_bytes().tolist() == [0.0]


def test_there_is_an_algorithm_for_each_of_the_eight_primitives_and_for_send_recv() -> None:
    assert len(OPERATIONS) == 9
    assert {op for op, _ in TABLE} == set(OPERATIONS)
    assert all("naive" in algorithms_of(op) for op in OPERATIONS if op != "send_recv")


# ------------------------------------------------------------------------------------- the proof can fail


def without_last_step(schedule: Schedule) -> Schedule:
    *before, last = schedule.phases
    return replace(schedule, phases=(*before, replace(last, steps=last.steps - 1)))


def without_first_step(schedule: Schedule) -> Schedule:
    first, *after = schedule.phases
    later = replace(first, steps=first.steps - 1, moves=lambda step: first.moves(step + 1))
    return replace(schedule, phases=(later, *after))


def with_a_wrong_chunk(schedule: Schedule) -> Schedule:
    """In the last phase the last chunk of every transfer is the one after the right one."""
    *before, last = schedule.phases
    ends = np.cumsum(last.pattern.chunks) - 1

    def moves(step: int) -> Ints:
        chunks = last.moves(step).copy()
        chunks[ends] = (chunks[ends] + 1) % schedule.num_chunks
        return chunks

    return replace(schedule, phases=(*before, replace(last, moves=moves)))


def with_a_step_twice(schedule: Schedule) -> Schedule:
    phases = list(schedule.phases)
    last_adding = max(i for i, phase in enumerate(phases) if adds_on_a_rank(schedule, phase))
    phases.insert(last_adding, replace(phases[last_adding], steps=1))
    return replace(schedule, phases=tuple(phases))


def adds_on_a_rank(schedule: Schedule, phase: Phase) -> bool:
    """A sum that a switch makes is made anew from what arrives in a step, so it may be made twice."""
    return bool((phase.reduce & (phase.pattern.dst < schedule.num_ranks)).any())


def with_overwriting(schedule: Schedule) -> Schedule:
    return replace(schedule, phases=tuple(replace(phase, reduce=False) for phase in schedule.phases))


def with_messages_going_the_other_way(schedule: Schedule) -> Schedule:
    def turned(phase: Phase) -> Phase:
        return replace(phase, pattern=pattern(phase.pattern.dst, phase.pattern.src, phase.pattern.chunks))

    return replace(schedule, phases=tuple(turned(phase) for phase in schedule.phases))


MUTATIONS: dict[str, Callable[[Schedule], Schedule]] = {
    "without its last step": without_last_step,
    "without its first step": without_first_step,
    "with a wrong chunk": with_a_wrong_chunk,
    "with a reduction done twice": with_a_step_twice,
    "with sums overwritten": with_overwriting,
    "with every message going the other way": with_messages_going_the_other_way,
}


BREAKABLE = {
    "flat": Layout(num_ranks=6, root=2, torus_shape=(2, 3)),
    "nodes": Layout(num_ranks=6, root=4, ranks_per_node=3, channels=2, pieces=2),
}


def mutations() -> Iterator[tuple[str, str, str, str]]:
    """(op, algorithm, layout, mutation), without those that change nothing: doubling or overwriting without a sum."""
    for (op, algorithm), where in product(TABLE, BREAKABLE):
        schedule = make_schedule(op, algorithm, BREAKABLE[where], 1000.0)
        able = {
            "with a reduction done twice": any(adds_on_a_rank(schedule, phase) for phase in schedule.phases),
            "with sums overwritten": any(np.any(phase.reduce) for phase in schedule.phases),
            "with a wrong chunk": schedule.num_chunks > 1,
        }
        yield from ((op, algorithm, where, mutation) for mutation in MUTATIONS if able.get(mutation, True))


@pytest.mark.parametrize(("op", "algorithm", "where", "mutation"), list(mutations()))
def test_the_proof_finds_a_broken_schedule(op: str, algorithm: str, where: str, mutation: str) -> None:
    schedule = make_schedule(op, algorithm, BREAKABLE[where], 1000.0)
    broken = MUTATIONS[mutation](schedule)
    with pytest.raises(AssertionError, match="holds rank"):
        check(broken)
    with pytest.raises(AssertionError):
        check_data(broken, random_data(schedule))


def test_a_ring_with_wrong_offsets_moves_the_same_bytes_so_only_the_proof_finds_it() -> None:
    """STYLE, habit 4: measured in a prototype, for more than two ranks."""
    right = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 4096.0)
    scatter, gather = right.phases
    off_by_one = replace(gather, moves=lambda step: gather.moves(step + 1))
    wrong = replace(right, phases=(scatter, off_by_one))
    assert (wrong.num_steps, wrong.num_messages) == (right.num_steps, right.num_messages)
    np.testing.assert_array_equal(wrong.sent_bytes(), right.sent_bytes())
    with pytest.raises(AssertionError, match="all_reduce/ring on 4 ranks: chunk 0 on rank"):
        check(wrong)


def test_reading_what_a_rank_does_not_hold_is_found() -> None:
    """A broadcast started from the wrong rank sends nonsense."""
    schedule = make_schedule("broadcast", "tree", Layout(num_ranks=4, root=1), 64.0)
    with pytest.raises(AssertionError):
        check(replace(schedule, root=0))
    with pytest.raises(AssertionError, match="nan"):
        check_data(replace(schedule, root=0), random_data(schedule))


# ------------------------------------------------------------------------------- the lectures' data, in numbers

FOUR = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]], dtype=np.float64)


def ended(op: str, algorithm: str, data: np.ndarray, root: int = 0) -> np.ndarray:
    """Play on ``data``, one row per rank, spread over the schedule's chunks; the final state as one row per rank.

    Where there are more chunks than values, each value stands for several chunks.
    """
    layout = Layout(num_ranks=len(data), root=root, pieces=1)
    schedule = make_schedule(op, algorithm, layout, float(data[0].nbytes))
    copies = max(1, schedule.num_chunks // data.shape[1])
    state = np.repeat(data, copies, axis=1).reshape(len(data), schedule.num_chunks, -1)
    for _ in play(schedule, state):
        pass
    return state.reshape(*data.shape, copies)[:, :, 0]


@pytest.mark.parametrize("algorithm", algorithms_of("all_reduce"))
def test_all_reduce_of_the_lectures_four_ranks(algorithm: str) -> None:
    """REQUIREMENTS 5: [1..4], [5..8], [9..12], [13..16] -> everyone [28, 32, 36, 40]."""
    np.testing.assert_array_equal(ended("all_reduce", algorithm, FOUR), [[28, 32, 36, 40]] * 4)


@pytest.mark.parametrize("algorithm", algorithms_of("reduce_scatter"))
def test_reduce_scatter_of_the_lectures_four_ranks(algorithm: str) -> None:
    """REQUIREMENTS 5: 28 | 32 | 36 | 40."""
    assert np.diag(ended("reduce_scatter", algorithm, FOUR)).tolist() == [28, 32, 36, 40]


@pytest.mark.parametrize("algorithm", algorithms_of("all_gather"))
def test_all_gather_of_the_reduce_scatter_is_the_all_reduce(algorithm: str) -> None:
    """REQUIREMENTS 5 and 6: in data."""
    scattered = np.full((4, 4), np.nan)
    np.fill_diagonal(scattered, np.diag(ended("reduce_scatter", "ring", FOUR)))
    np.testing.assert_array_equal(ended("all_gather", algorithm, scattered), [[28, 32, 36, 40]] * 4)


@pytest.mark.parametrize("algorithm", algorithms_of("all_to_all"))
def test_all_to_all_is_the_transpose(algorithm: str) -> None:
    """REQUIREMENTS 5. Chunk ``r * p + q`` is what rank r has for rank q."""
    schedule = make_schedule("all_to_all", algorithm, Layout(num_ranks=4), 32.0)
    state = np.full((4, 16), np.nan)
    for rank in range(4):
        state[rank, 4 * rank : 4 * rank + 4] = FOUR[rank]
    for _ in play(schedule, state):
        pass
    received = [[state[rank, 4 * sender + rank] for sender in range(4)] for rank in range(4)]
    np.testing.assert_array_equal(received, FOUR.T)


def test_the_ring_step_by_step() -> None:
    """REQUIREMENTS 7: rank r holds [0, 1, 2, 3] + r; after step 3 each rank holds one full sum, after 6 all."""
    state = np.arange(4.0)[None, :] + np.arange(4.0)[:, None]
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 32.0)
    seen = [step.copy() for step in play(schedule, state)]
    assert len(seen) == 6
    np.testing.assert_array_equal(seen[2], [[0, 10, 11, 9], [1, 2, 14, 13], [3, 5, 4, 18], [6, 9, 9, 6]])
    np.testing.assert_array_equal(seen[5], [[6, 10, 14, 18]] * 4)


@pytest.mark.parametrize("algorithm", sorted(set(algorithms_of("reduce_scatter")) & set(algorithms_of("all_reduce"))))
@pytest.mark.parametrize("p", [2, 3, 4, 7, 8, 12])
def test_all_reduce_is_reduce_scatter_plus_all_gather_in_bytes(algorithm: str, p: int) -> None:
    """REQUIREMENTS 6. Where p is no power of two, halving-doubling saves a detour when it runs both as one."""
    layout = Layout(num_ranks=p)
    whole, *halves = (
        make_schedule(op, algorithm, layout, 64.0 * p).sent_bytes()
        for op in ("all_reduce", "reduce_scatter", "all_gather")
    )
    both_halves = {"ring", "torus", "direct", "hierarchical", "nvls"}
    if algorithm in both_halves or (algorithm == "halving_doubling" and p & (p - 1) == 0):
        np.testing.assert_allclose(whole, halves[0] + halves[1], rtol=1e-12)
    else:
        assert whole.sum() <= halves[0].sum() + halves[1].sum()


# --------------------------------------------------------------------------------------------- bytes and sizes


@pytest.mark.parametrize("p", [2, 3, 4, 8, 64, 1000])
def test_a_ring_rank_sends_two_p_minus_one_over_p_of_the_buffer(p: int) -> None:
    """REQUIREMENTS 8: nearly independent of p."""
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=p), 1e6)
    np.testing.assert_allclose(schedule.sent_bytes(), 2 * (p - 1) / p * 1e6, rtol=1e-12)
    np.testing.assert_allclose(schedule.received_bytes(), 2 * (p - 1) / p * 1e6, rtol=1e-12)


@pytest.mark.parametrize("p", [2, 3, 4, 8, 64])
def test_the_naive_root_receives_and_sends_p_minus_one_buffers(p: int) -> None:
    """REQUIREMENTS 8."""
    schedule = make_schedule("all_reduce", "naive", Layout(num_ranks=p), 1e6)
    assert schedule.sent_bytes()[0] == schedule.received_bytes()[0] == (p - 1) * 1e6
    assert schedule.sent_bytes()[1:].tolist() == [1e6] * (p - 1)


def test_sixteen_thousand_ranks_exchange_537_million_messages_in_one_pattern() -> None:
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=16384), 2.0**30)
    assert schedule.num_messages == 2 * 16383 * 16384 == 536_838_144
    assert [(len(pattern), steps) for pattern, steps in schedule.runs()] == [(16384, 32766)]


@pytest.mark.parametrize("p", [2, 8, 1000])
def test_bus_bandwidth_is_algorithm_bandwidth_times_the_factor_of_nccl_tests(p: int) -> None:
    """nccl-tests, doc/PERFORMANCE.md: what makes it the rate of the slowest link, whatever the number of ranks."""
    rest = (p - 1) / p
    factors = dict.fromkeys(OPERATIONS, rest) | {"all_reduce": 2 * rest, "broadcast": 1, "reduce": 1, "send_recv": 1}
    assert {op: bus_factor(op, p) for op in OPERATIONS} == factors


#: Least bytes that all ranks together must send, as a multiple of the size, for any algorithm: everyone who lacks
#: n bytes receives n, and a sum of p buffers at one place takes p - 1 of them on the way.
LEAST_TOTAL: dict[str, Callable[[int], float]] = {
    "broadcast": lambda p: p - 1,
    "reduce": lambda p: p - 1,
    "all_gather": lambda p: p - 1,
    "reduce_scatter": lambda p: p - 1,
    "all_to_all": lambda p: p - 1,
    "all_reduce": lambda p: 2 * (p - 1),
    "scatter": lambda p: (p - 1) / p,
    "gather": lambda p: (p - 1) / p,
    "send_recv": lambda p: p if p > 1 else 0,
}


@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_bytes_sent_are_bytes_received_and_no_fewer_than_needed(op: str, algorithm: str) -> None:
    for p in NUM_RANKS:
        for layout in layouts(p, algorithm):
            schedule = make_schedule(op, algorithm, layout, 48.0 * p)
            if schedule.num_switches:
                continue  # what a switch sends is not what it receives: tests/test_collectives_in_switches.py
            sent, received = schedule.sent_bytes().sum(), schedule.received_bytes().sum()
            assert sent == pytest.approx(received, rel=1e-12)
            assert sent >= LEAST_TOTAL[op](p) * 48.0 * p * (1 - 1e-12)


@pytest.mark.parametrize("size_bytes", [0.0, 1.0, 1000.0, 1_000_003.0, 2.0**20])
@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_chunks_make_up_the_size_and_the_stated_padding(op: str, algorithm: str, size_bytes: float) -> None:
    """REQUIREMENTS 5: all-reduce takes any size, reduce-scatter and even all-to-all are padded to equal slices."""
    for p in NUM_RANKS[1:]:
        schedule = make_schedule(op, algorithm, Layout(num_ranks=p, channels=2), size_bytes)
        missing = -size_bytes % p
        assert schedule.padding_bytes == (missing if op in PADDED else 0.0)
        assert schedule.chunk_bytes * per_buffer(schedule) == pytest.approx(size_bytes + schedule.padding_bytes)
        assert schedule.size_bytes == size_bytes


@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_a_resized_schedule_is_the_schedule_of_that_size(op: str, algorithm: str) -> None:
    for p in (1, 2, 7, 8):
        layout = Layout(num_ranks=p, channels=2)
        resized = make_schedule(op, algorithm, layout, 64.0).resized(1001.0)
        made = make_schedule(op, algorithm, layout, 1001.0)
        assert (resized.size_bytes, resized.padding_bytes) == (made.size_bytes, made.padding_bytes)
        assert resized.chunk_bytes == made.chunk_bytes
        assert resized.num_messages == made.num_messages


@pytest.mark.parametrize("size_bytes", [0.0, 0.5, 1.0, 7.25, 1000.5, 2.0**40 + 1])
@pytest.mark.parametrize("p", [2, 3, 8, 1000])
def test_padding_fills_up_to_whole_slices_and_is_never_negative(size_bytes: float, p: int) -> None:
    padding = slice_padding(size_bytes, p)
    assert 0 <= padding < p
    assert (size_bytes + padding) % p == 0


# ---------------------------------------------------------------------------------------------- names and errors


def test_an_unknown_algorithm_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"'halving-doubling' is not known for all_reduce.*mean 'halving_doubling'"):
        make_schedule("all_reduce", "halving-doubling", Layout(num_ranks=2), 1.0)


def test_an_unknown_operation_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"'allreduce' is unknown.*mean 'all_reduce'"):
        make_schedule("allreduce", "ring", Layout(num_ranks=2), 1.0)
