"""Sums and multicasts inside switches: NVLS on one node and several, what crosses which link, and when."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.collectives import make_schedule
from simulator.collectives.check import check, check_data, play
from simulator.collectives.layout import Layout
from simulator.schedule import Ints, Phase, Schedule, pattern

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather")


def nvls(op: str, layout: Layout, size: float = 1.0) -> Schedule:
    return make_schedule(op, "nvls", layout, size)


@pytest.mark.parametrize("p", [2, 3, 4, 8, 72])
def test_a_rank_of_one_node_sends_and_receives_p_plus_one_over_p_of_the_buffer(p: int) -> None:
    """Its data out and its slice's sum out again; a ring sends 2 (p-1)/p, nearly twice as much."""
    schedule = nvls("all_reduce", Layout(num_ranks=p))
    np.testing.assert_allclose(schedule.sent_bytes(), (p + 1) / p, rtol=1e-12)
    np.testing.assert_allclose(schedule.received_bytes(), (p + 1) / p, rtol=1e-12)


@pytest.mark.parametrize("p", [2, 3, 8])
def test_reduce_scatter_brings_a_rank_its_slice_only_and_all_gather_takes_one_from_it(p: int) -> None:
    scatter, gather = (nvls(op, Layout(num_ranks=p), 1.0 * p) for op in ("reduce_scatter", "all_gather"))
    for out, into in ((scatter.sent_bytes(), scatter.received_bytes()), (gather.received_bytes(), gather.sent_bytes())):
        np.testing.assert_allclose(out, p, rtol=1e-12)
        np.testing.assert_allclose(into, 1.0, rtol=1e-12)


@pytest.mark.parametrize("pieces", [1, 16, 500])
def test_pieces_follow_each_other_through_four_hops(pieces: int) -> None:
    """Push, deliver, push back, multicast; reduce-scatter and all-gather are the first and the last two."""
    layout = Layout(num_ranks=8, pieces=pieces)
    assert nvls("all_reduce", layout).num_steps == pieces + 3
    assert nvls("reduce_scatter", layout).num_steps == nvls("all_gather", layout).num_steps == pieces + 1
    assert len(nvls("all_reduce", layout).phases) <= 7


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_transfer_in_a_node_has_the_nodes_switch_at_one_end(op: str) -> None:
    layout = Layout(num_ranks=12, ranks_per_node=4)
    schedule = nvls(op, layout)
    assert schedule.num_switches == 3
    assert schedule.num_participants == 15
    for transfers, _ in schedule.runs():
        low, high = np.minimum(transfers.src, transfers.dst), np.maximum(transfers.src, transfers.dst)
        at_switch = high >= 12
        assert (high[at_switch] - 12 == low[at_switch] // 4).all()
        assert (low[~at_switch] % 4 == high[~at_switch] % 4).all()
        assert (low[~at_switch] // 4 != high[~at_switch] // 4).all()


@pytest.mark.parametrize(("per_node", "switches"), [(None, 1), (12, 1), (6, 2), (2, 6), (1, 0)])
@pytest.mark.parametrize(("op", "algorithm"), [*((op, "nvls") for op in OPERATIONS), ("all_reduce", "nvls_tree")])
def test_there_is_a_switch_for_every_node_with_several_ranks(
    op: str, algorithm: str, per_node: int | None, switches: int
) -> None:
    schedule = make_schedule(op, algorithm, Layout(num_ranks=12, ranks_per_node=per_node), 12.0)
    assert schedule.num_switches == switches
    assert schedule.sent_bytes().shape == schedule.received_bytes().shape == (12,)


def test_on_one_node_the_tree_is_plain_nvls() -> None:
    layout = Layout(num_ranks=8, ranks_per_node=8, pieces=4)
    tree, plain = (make_schedule("all_reduce", a, layout, 64.0) for a in ("nvls_tree", "nvls"))
    assert tree.num_steps == plain.num_steps
    for one, other in zip(tree.phases, plain.phases, strict=True):
        np.testing.assert_array_equal(one.pattern.src, other.pattern.src)
        np.testing.assert_array_equal(one.moves(0), other.moves(0))


@given(st.integers(2, 6), st.integers(2, 5))
def test_the_nvls_tree_adds_two_hops_per_level_to_the_four_in_the_node(nodes: int, pieces: int) -> None:
    layout = Layout(num_ranks=2 * nodes, ranks_per_node=2, pieces=pieces)
    levels = (nodes - 1).bit_length()
    assert make_schedule("all_reduce", "nvls_tree", layout, 1.0).num_steps <= pieces + 3 + 2 * levels


def _zeros(count: int, _step: int) -> Ints:
    return np.zeros(count, dtype=np.int64)


def two_pushes(at_once: bool) -> Schedule:
    """Ranks 0 and 1 push their buffer to a switch, in one step or one after the other; it sends both what it has."""
    both = pattern(np.array([0, 1]), np.array([2, 2]))
    back = pattern(np.array([2, 2]), np.array([0, 1]))
    one_by_one = [pattern(np.array([r]), np.array([2])) for r in (0, 1)]
    phases = [
        Phase(pattern=push, steps=1, moves=partial(_zeros, len(push)), reduce=True)
        for push in ([both] if at_once else one_by_one)
    ]
    phases.append(Phase(pattern=back, steps=1, moves=partial(_zeros, 2), reduce=False))
    return Schedule(
        op="all_reduce", algorithm="by hand", num_ranks=2, root=0, size_bytes=8.0, padding_bytes=0.0, num_chunks=1,
        chunk_bytes=8.0, phases=tuple(phases), num_switches=1,
    )  # fmt: skip


def test_a_switch_adds_what_arrives_in_one_step_and_keeps_nothing_for_the_next() -> None:
    check(two_pushes(at_once=True))
    check_data(two_pushes(at_once=True), np.array([[[3.0]], [[4.0]]]))
    with pytest.raises(AssertionError, match="chunk 0 on rank 0 holds rank 0's data 0 times instead of 1"):
        check(two_pushes(at_once=False))


def test_what_a_switch_was_never_sent_is_found_when_it_is_sent_on() -> None:
    """The multicast alone: the switch has nothing to give."""
    whole = nvls("all_gather", Layout(num_ranks=4, pieces=1))
    broken = replace(whole, phases=whole.phases[1:])
    with pytest.raises(AssertionError, match="holds rank"):
        check(broken)
    with pytest.raises(AssertionError, match="nan"):
        check_data(broken, np.ones((4, 4, 1)))


def test_playing_leaves_ranks_rows_only() -> None:
    """What a lecture prints: the switch is no rank, and has no row."""
    schedule = nvls("all_reduce", Layout(num_ranks=3, pieces=1), 24.0)
    state = np.arange(9.0).reshape(3, 3)
    shapes = {after.shape for after in play(schedule, state)}
    assert shapes == {(3, 3)}
    np.testing.assert_array_equal(state, [[9.0, 12.0, 15.0]] * 3)
