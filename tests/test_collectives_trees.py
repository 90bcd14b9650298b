"""Double binary trees: NCCL's shapes, pipelining in few patterns, traffic by node and rail, and building at scale."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.collectives import make_schedule
from simulator.collectives.double_tree import Tree, parents, trees
from simulator.collectives.layout import Layout
from simulator.collectives.pipeline import edges, pipelined
from simulator.schedule import Schedule


def children(tree: Tree) -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for child, parent in zip(tree.child.tolist(), tree.parent.tolist(), strict=True):
        below.setdefault(parent, []).append(child)
    return {parent: sorted(nodes) for parent, nodes in below.items()}


# ------------------------------------------------------------------------------------------------------- shapes


def test_the_first_tree_of_fourteen_nodes_is_the_one_drawn_in_nccl() -> None:
    """NCCL, src/graph/trees.cc: 0 above 8; 8 above 4 and 12; 12 above 10 and 13; odd nodes are leaves."""
    first, _ = trees(14, 0)
    assert children(first) == {0: [8], 8: [4, 12], 4: [2, 6], 12: [10, 13], 2: [1, 3], 6: [5, 7], 10: [9, 11]}


def test_an_even_number_of_nodes_mirrors_the_second_tree() -> None:
    """NCCL, src/graph/trees.cc, 12 nodes: root 11 above 3; 3 above 1 and 7."""
    first, second = trees(12, 0)
    assert children(second) == {11: [3], 3: [1, 7], 1: [0, 2], 7: [5, 9], 5: [4, 6], 9: [8, 10]}
    mirrored = {11 - parent: sorted(11 - c for c in nodes) for parent, nodes in children(first).items()}
    assert children(second) == mirrored


def test_an_odd_number_of_nodes_shifts_the_second_tree_by_one() -> None:
    """NCCL, src/graph/trees.cc, 13 nodes: root 1 above 9; 9 above 5 and 0."""
    _, second = trees(13, 0)
    assert children(second) == {1: [9], 9: [0, 5], 5: [3, 7], 0: [11], 3: [2, 4], 7: [6, 8], 11: [10, 12]}


@given(st.integers(2, 300).map(lambda half: 2 * half))
def test_a_node_inside_one_tree_is_a_leaf_of_the_other(num_nodes: int) -> None:
    """Sanders, Speck and Traeff 2009, section 3: this is what lets both use the full bandwidth."""
    first, second = (set(children(tree)) for tree in trees(num_nodes, 0))
    assert not first & second


@given(st.integers(2, 600))
def test_a_tree_is_binary_and_its_root_is_log2_deep(num_nodes: int) -> None:
    above = parents(num_nodes)
    assert above[0] == -1
    assert np.bincount(above[1:], minlength=num_nodes).max() <= 2
    place, depth = np.arange(num_nodes), 0
    while (place > 0).any():
        place, depth = np.where(place > 0, above[place], 0), depth + 1
    assert depth <= math.ceil(math.log2(num_nodes))


# --------------------------------------------------------------------------------------------------- pipelining


def test_a_phase_lasts_as_long_as_the_same_edges_are_at_work() -> None:
    """Three hops, 100 pieces: two patterns to fill the pipeline, 98 steps of one pattern, two to empty it."""
    chain = edges(np.arange(3), np.arange(1, 4), np.arange(3), 0, reduce=False)
    phases = pipelined(chain, 100)
    assert [(len(phase.pattern), phase.steps) for phase in phases] == [(1, 1), (2, 1), (3, 98), (2, 1), (1, 1)]
    assert phases[2].moves(10).tolist() == [12, 11, 10]


def test_phases_are_slices_of_the_same_arrays() -> None:
    schedule = make_schedule("all_reduce", "double_tree", Layout(num_ranks=64, ranks_per_node=8, channels=8), 1.0)
    first, second = (phase.pattern for phase in schedule.phases[4:6])
    assert np.shares_memory(first.src, second.src)
    assert np.shares_memory(first.dst, second.dst)


@pytest.mark.parametrize("pieces", [1, 2, 16, 1000])
def test_many_pieces_need_no_more_patterns_than_the_tree_has_hops(pieces: int) -> None:
    schedule = make_schedule("all_reduce", "double_tree", Layout(num_ranks=64, pieces=pieces), 1.0)
    depth = schedule.num_steps - pieces + 1
    assert depth <= 2 * 6
    assert len(schedule.phases) <= 2 * depth
    assert schedule.num_messages == 4 * 63 * pieces


def test_sixteen_thousand_ranks_on_eight_channels_are_51_phases_over_one_set_of_edges() -> None:
    """2,048 nodes of 8: up the chain of a node in 7 steps, 11 levels up and down, and down the chain; 16 pieces."""
    layout = Layout(num_ranks=16384, ranks_per_node=8, channels=8)
    schedule = make_schedule("all_reduce", "double_tree", layout, 2.0**30)
    assert schedule.num_steps == 16 + 2 * (7 + 11) - 1 == len(schedule.phases)
    assert schedule.num_messages == 4 * 16383 * 8 * 16
    shared = schedule.phases[0].pattern.src.base
    assert shared is not None
    assert all(phase.pattern.src.base is shared for phase in schedule.phases)


# ------------------------------------------------------------------------------------------------------ traffic


def between_nodes(schedule: Schedule, per_node: int) -> np.ndarray:
    """Bytes that each rank sends to other nodes, (num_ranks,)."""
    chunks = np.zeros(schedule.num_ranks)
    for transfers, steps in schedule.runs():
        ranks_only = np.maximum(transfers.src, transfers.dst) < schedule.num_ranks
        leaves = ranks_only & (transfers.src // per_node != transfers.dst // per_node)
        np.add.at(chunks, transfers.src[leaves], transfers.chunks[leaves] * float(steps))
    return chunks * schedule.chunk_bytes


@pytest.mark.parametrize("nodes", [2, 4, 8, 16, 30])
@pytest.mark.parametrize("algorithm", ["double_tree", "nvls_tree"])
def test_a_nic_carries_at_most_twice_its_share_of_the_buffer(algorithm: str, nodes: int) -> None:
    """An inner node of one tree is a leaf of the other, so a node sends at most 2 n; its 8 NICs share that."""
    layout = Layout(num_ranks=8 * nodes, ranks_per_node=8, channels=8)
    sent = between_nodes(make_schedule("all_reduce", algorithm, layout, 8.0), 8)
    assert sent.max() <= 2.0 * (1 + 1e-12)
    assert sent.sum() == pytest.approx(2 * 8.0 * (nodes - 1), rel=1e-12)


@pytest.mark.parametrize("nodes", [3, 5, 9, 33])
def test_with_an_odd_number_of_nodes_it_is_never_more_than_two_and_a_half_shares(nodes: int) -> None:
    layout = Layout(num_ranks=nodes)
    assert make_schedule("all_reduce", "double_tree", layout, 1.0).sent_bytes().max() <= 2.5


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("algorithm", ["hierarchical", "nvls"])
def test_two_levels_cross_a_nic_with_the_bytes_of_a_ring_striped_over_the_rails(op: str, algorithm: str) -> None:
    """2 (N-1)/N n / NICs for all-reduce, half of it for the others."""
    nodes, per_node, size = 4, 8, 64.0
    layout = Layout(num_ranks=nodes * per_node, ranks_per_node=per_node)
    sent = between_nodes(make_schedule(op, algorithm, layout, size), per_node)
    rounds = 2 if op == "all_reduce" else 1
    np.testing.assert_allclose(sent, rounds * (nodes - 1) / nodes * size / per_node, rtol=1e-12)


def test_two_levels_of_broadcast_send_each_part_once_to_each_node_on_its_own_rail() -> None:
    layout = Layout(num_ranks=32, ranks_per_node=8, root=13)
    for op in ("broadcast", "reduce"):
        schedule = make_schedule(op, "hierarchical", layout, 64.0)
        sent = between_nodes(schedule, 8).reshape(4, 8)
        np.testing.assert_allclose(sent.sum(axis=0), 3 * 64.0 / 8)
        assert all(
            (p.src % 8 == p.dst % 8)[p.src // 8 != p.dst // 8].all() for p, _ in schedule.runs()
        )  # fmt: skip


def test_a_rail_all_to_all_talks_to_other_nodes_on_its_rail_only_in_messages_g_times_larger() -> None:
    layout = Layout(num_ranks=32, ranks_per_node=8)
    rail, direct = (make_schedule("all_to_all", a, layout, 32.0) for a in ("rail", "direct"))
    np.testing.assert_allclose(between_nodes(rail, 8), between_nodes(direct, 8))
    inside, across = (p for p, _ in rail.runs())
    assert (inside.src // 8 == inside.dst // 8).all()
    assert (across.src % 8 == across.dst % 8).all()
    assert set(across.chunks.tolist()) == {8}
    assert len(across) == 32 * 3


def test_channels_enter_and_leave_a_node_at_their_own_rank() -> None:
    layout = Layout(num_ranks=32, ranks_per_node=8, channels=4)
    for algorithm in ("double_tree", "ring"):
        schedule = make_schedule("all_reduce", algorithm, layout, 32.0)
        used = np.flatnonzero(between_nodes(schedule, 8).reshape(4, 8).sum(axis=0))
        assert len(used) >= 4, algorithm
    one = make_schedule("all_reduce", "double_tree", replace(layout, channels=1), 32.0)
    assert np.flatnonzero(between_nodes(one, 8).reshape(4, 8).sum(axis=0)).tolist() == [0]


# ------------------------------------------------------------------------------------------------ pairs that fold


@pytest.mark.parametrize("p", [3, 5, 6, 7, 12, 33])
def test_ranks_beyond_a_power_of_two_fold_in_halves(p: int) -> None:
    """Rabenseifner, ICCS 2004: three steps more than the power of two, and at most 4 n bytes a rank on the way."""
    schedule = make_schedule("all_reduce", "halving_doubling", Layout(num_ranks=p), 1e6)
    power = 1 << (p.bit_length() - 1)
    assert schedule.num_steps == 2 * int(math.log2(power)) + 3
    exchange, back = schedule.phases[:2]
    assert len(exchange.pattern) == 2 * (p - power)
    assert set(exchange.pattern.chunks.tolist()) <= {p // 2, p - p // 2}
    assert (back.pattern.src % 2 == 1).all()
    ends = sum(float(phase.pattern.chunks.max()) for phase in schedule.phases) * schedule.chunk_bytes
    assert ends <= 4 * 1e6 * (1 + 2 / p)  # halves of an odd number of slices, and pairs that stand for two
