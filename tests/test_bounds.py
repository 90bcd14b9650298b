"""Closed forms that simulated times must reproduce on a uniform network, and bounds that none may go below."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from networks import ALPHA_S, BETA_BYTES_PER_S, shipped, uniform, wired
from strategies import IN_SWITCHES, ON_ANY_NETWORK

from simulator.collectives import bounds, make_schedule
from simulator.collectives.bounds import CLOSED_FORMS, best_pieces, double_tree_bound_s, ring_tree_crossover_bytes
from simulator.collectives.layout import Layout
from simulator.engine import message
from simulator.engine.collective import hold_to_bounds, simulate_collective, times_by_size
from simulator.engine.wires import Wires
from simulator.errors import InternalError
from simulator.load import load_topology
from simulator.network.builders import build_network
from simulator.schedule import Floats, Schedule
from simulator.topology import TorusSpec

NUM_RANKS = (1, 2, 3, 4, 5, 8, 13, 16, 33)
SIZES = (0.0, 1.0, 1000.0, 1e6, 1e9)


def simulated_s(op: str, algorithm: str, p: int, size_bytes: float, fidelity: str = "vector") -> float:
    schedule = make_schedule(op, algorithm, Layout(num_ranks=p), size_bytes)
    return simulate_collective(schedule, uniform_wires(p), fidelity=fidelity).time_s


@cache
def uniform_wires(p: int) -> Wires:
    """Of p ranks: routes that are looked up once serve all sizes and algorithms."""
    return wired(uniform(p))


def levels(p: int) -> int:
    return math.ceil(math.log2(p))


#: Typed here from the papers, apart from the product's table. p ranks, n bytes, alpha a, bandwidth b.
FORMS: dict[tuple[str, str], Callable[[int, float, float, float], float]] = {
    # DESIGN, section 4
    ("all_reduce", "ring"): lambda p, n, a, b: 2 * (p - 1) * (a + n / (p * b)),
    ("reduce_scatter", "ring"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    ("all_gather", "ring"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    ("all_reduce", "tree"): lambda p, n, a, b: 2 * levels(p) * (a + n / b),
    ("all_reduce", "naive"): lambda p, n, a, b: 2 * (p - 1) * (a + n / b),
    # one after the other through the root
    ("broadcast", "naive"): lambda p, n, a, b: (p - 1) * (a + n / b),
    ("reduce", "naive"): lambda p, n, a, b: (p - 1) * (a + n / b),
    ("scatter", "naive"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    ("gather", "naive"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    ("all_gather", "naive"): lambda p, n, a, b: (p - 1) * (2 * a + n / (p * b) + n / b),
    ("reduce_scatter", "naive"): lambda p, n, a, b: (p - 1) * (2 * a + n / (p * b) + n / b),
    ("all_to_all", "naive"): lambda p, n, a, b: 2 * (p - 1) * (a + n / b),
    # Thakur, Rabenseifner and Gropp, IJHPCA 2005
    ("broadcast", "tree"): lambda p, n, a, b: levels(p) * (a + n / b),
    ("reduce", "tree"): lambda p, n, a, b: levels(p) * (a + n / b),
    ("all_to_all", "pairwise"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    # everything at once: latency once, and p - 1 slices through each rank's link
    ("all_to_all", "direct"): lambda p, n, a, b: a + (p - 1) * n / (p * b),
    ("reduce_scatter", "direct"): lambda p, n, a, b: a + (p - 1) * n / (p * b),
    ("all_gather", "direct"): lambda p, n, a, b: a + (p - 1) * n / (p * b),
    ("all_reduce", "direct"): lambda p, n, a, b: 2 * (a + (p - 1) * n / (p * b)),
    ("scatter", "direct"): lambda p, n, a, b: a + (p - 1) * n / (p * b),
    ("gather", "direct"): lambda p, n, a, b: a + (p - 1) * n / (p * b),
    ("send_recv", "direct"): lambda p, n, a, b: a + n / b,
    # a chain of p - 1 hops, 16 pieces one step apart
    ("broadcast", "ring"): lambda p, n, a, b: (p - 1 + 15) * (a + n / (16 * b)),
    ("reduce", "ring"): lambda p, n, a, b: (p - 1 + 15) * (a + n / (16 * b)),
    # Jeaugey, arXiv 2506.20252
    ("all_gather", "pat"): lambda p, n, a, b: levels(p) * a + (p - 1) / p * n / b,
    ("reduce_scatter", "pat"): lambda p, n, a, b: levels(p) * a + (p - 1) / p * n / b,
    # Bruck et al., TPDS 1997: a block moves once for each bit of its distance
    ("all_to_all", "bruck"): lambda p, n, a, b: levels(p) * a + sum(map(int.bit_count, range(p))) * n / (p * b),
    # on one node: one level, and van de Geijn's broadcast as scatter and ring all-gather
    ("all_to_all", "rail"): lambda p, n, a, b: a + (p - 1) * n / (p * b),
    ("all_reduce", "hierarchical"): lambda p, n, a, b: 2 * (p - 1) * (a + n / (p * b)),
    ("reduce_scatter", "hierarchical"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    ("all_gather", "hierarchical"): lambda p, n, a, b: (p - 1) * (a + n / (p * b)),
    ("broadcast", "hierarchical"): lambda p, n, a, b: p * a + 2 * (p - 1) / p * n / b,
    ("reduce", "hierarchical"): lambda p, n, a, b: p * a + 2 * (p - 1) / p * n / b,
}

#: The same, where p is a power of two.
POWER_OF_TWO_FORMS: dict[tuple[str, str], Callable[[int, float, float, float], float]] = {
    ("scatter", "tree"): lambda p, n, a, b: levels(p) * a + (p - 1) / p * n / b,
    ("gather", "tree"): lambda p, n, a, b: levels(p) * a + (p - 1) / p * n / b,
    ("all_reduce", "halving_doubling"): lambda p, n, a, b: 2 * levels(p) * a + 2 * (p - 1) / p * n / b,
    ("reduce_scatter", "halving_doubling"): lambda p, n, a, b: levels(p) * a + (p - 1) / p * n / b,
    ("all_gather", "halving_doubling"): lambda p, n, a, b: levels(p) * a + (p - 1) / p * n / b,
}


@pytest.mark.parametrize(
    ("fidelity", "num_ranks"),
    [
        ("vector", NUM_RANKS[1:]), ("message", NUM_RANKS[1:-3]),
        pytest.param("message", NUM_RANKS[-3:], marks=pytest.mark.slow),
    ],
    ids=["vector", "message", "message, many ranks"],
)  # fmt: skip
@pytest.mark.parametrize(("op", "algorithm"), sorted(FORMS))
def test_simulated_times_equal_the_closed_form(
    op: str, algorithm: str, fidelity: str, num_ranks: tuple[int, ...]
) -> None:  # fmt: skip
    for p in num_ranks:
        for size in SIZES:
            padded = make_schedule(op, algorithm, Layout(num_ranks=p), size)
            expected = FORMS[op, algorithm](p, size + padded.padding_bytes, ALPHA_S, BETA_BYTES_PER_S)
            assert simulated_s(op, algorithm, p, size, fidelity) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("fidelity", ["vector", "message"])
@pytest.mark.parametrize(("op", "algorithm"), sorted(POWER_OF_TWO_FORMS))
def test_recursive_algorithms_equal_their_closed_form_on_powers_of_two(op: str, algorithm: str, fidelity: str) -> None:
    for p in (2, 4, 8, 16, 32):
        for size in (0.0, 32.0, 3.2e6):
            expected = POWER_OF_TWO_FORMS[op, algorithm](p, size, ALPHA_S, BETA_BYTES_PER_S)
            assert simulated_s(op, algorithm, p, size, fidelity) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("op", "algorithm"), sorted(CLOSED_FORMS))
def test_the_products_table_of_closed_forms_is_what_the_engine_gives(op: str, algorithm: str) -> None:
    for p in NUM_RANKS:
        for size in (0.0, 64.0 * 13 * 33 * 45, 1e9):
            padded = make_schedule(op, algorithm, Layout(num_ranks=p), size)
            expected = CLOSED_FORMS[op, algorithm](p, size + padded.padding_bytes, ALPHA_S, BETA_BYTES_PER_S)
            assert simulated_s(op, algorithm, p, size) == pytest.approx(expected, rel=1e-9)


def test_in_an_eager_tree_a_child_waits_for_its_parent_and_shares_its_link_with_its_siblings() -> None:
    """A child has the message a + c n/b after its parent of c children. The root's last child leads no deep subtree,
    its first does: 4 ranks take 2 a + 3 n/b, 8 take 3 a + 6 n/b, 2^k take k a + k (k+1)/2 n/b.
    """
    for p in (2, 3, 4, 5, 6, 8, 13, 16):
        there = {0: 0.0}
        for parent in range(p):
            children = [child for child in range(parent + 1, p) if child - (1 << child.bit_length() >> 1) == parent]
            there |= {c: there[parent] + ALPHA_S + len(children) * 3.2e6 / BETA_BYTES_PER_S for c in children}
        simulated = simulated_s("broadcast", "eager_tree", p, 3.2e6, "message")
        assert simulated == pytest.approx(max(there.values()), rel=1e-9)
    for k in (1, 2, 3, 4):
        expected = k * ALPHA_S + k * (k + 1) / 2 * 3.2e6 / BETA_BYTES_PER_S
        assert simulated_s("broadcast", "eager_tree", 2**k, 3.2e6, "auto") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("shape", [(4, 4), (8, 8), (4, 4, 4)])
def test_a_torus_with_d_equal_axes_is_2d_times_faster_than_one_ring_of_its_bytes(shape: tuple[int, ...]) -> None:
    """Reduce-scatter on D axes of length d: D (d-1) steps, (p-1)/p n bytes over the 2 D links of each chip.

    jax-ml/scaling-book, sharding.md: all axes at once, each in both directions.
    """
    network = shipped("tpu-v4", shape=shape)
    p, axes = math.prod(shape), len(shape)
    alpha, beta = network.latency_s[0] + network.message_overhead_s, network.capacity_bytes_per_s[0]
    layout = Layout(num_ranks=p, torus_shape=shape, torus_wrap=network.torus_wrap)
    size = 64e6 * axes
    expected = axes * (shape[0] - 1) * alpha + (p - 1) / p * size / (2 * axes * beta)
    for op, rounds in (("reduce_scatter", 1), ("all_gather", 1), ("all_reduce", 2)):
        time_s = simulate_collective(make_schedule(op, "torus", layout, size), wired(network)).time_s
        assert time_s - network.collective_launch_s == pytest.approx(rounds * expected, rel=1e-9)


@pytest.mark.parametrize("shape", [(2,), (5,), (2, 2), (3, 3), (8, 8), (2, 2, 2), (3, 3, 3)])
def test_a_mesh_takes_a_rings_steps_with_neighbours_only_and_the_bytes_of_the_link_at_its_corner(
    shape: tuple[int, ...],
) -> None:
    """A corner chip has D links, and (p-1)/p n must leave it. A ring closed over the line pays d - 1 hops a step."""
    spec = load_topology("tpu-v4")
    assert isinstance(spec, TorusSpec)
    network = build_network(spec.model_copy(update={"wrap": ("never",)}), shape=shape)
    p, axes = math.prod(shape), len(shape)
    alpha, beta = network.latency_s[0] + network.message_overhead_s, network.capacity_bytes_per_s[0]
    layout = Layout(num_ranks=p, torus_shape=shape, torus_wrap=network.torus_wrap)
    size = 64e6 * axes * p
    expected = axes * (shape[0] - 1) * alpha + (p - 1) / p * size / (axes * beta)
    for op, rounds in (("reduce_scatter", 1), ("all_gather", 1), ("all_reduce", 2)):
        time_s = simulate_collective(make_schedule(op, "torus", layout, size), wired(network)).time_s
        assert time_s - network.collective_launch_s == pytest.approx(rounds * expected, rel=1e-9)


@pytest.mark.parametrize("p", [2, 3, 4, 7, 8, 16, 21])
@pytest.mark.parametrize("pieces", [1, 4, 16])
def test_a_double_tree_takes_at_least_the_bytes_of_its_busiest_rank_and_at_most_full_steps(p: int, pieces: int) -> None:
    """Sanders, Speck and Traeff 2009: nearly full bandwidth in a number of steps that grows with log2 p only."""
    for size in (0.0, 1e5, 1e8):
        schedule = make_schedule("all_reduce", "double_tree", Layout(num_ranks=p, pieces=pieces), size)
        time_s = simulate_collective(schedule, wired(uniform(p)), fidelity="message").time_s
        most = double_tree_bound_s(p, size, ALPHA_S, BETA_BYTES_PER_S, pieces)
        least = max(schedule.sent_bytes().max() / BETA_BYTES_PER_S, 2 * levels(p) * ALPHA_S / 2)
        assert least <= time_s <= most * (1 + 1e-9)
        assert schedule.num_steps <= pieces + 2 * levels(p) - 1


def test_for_large_buffers_a_finely_cut_double_tree_reaches_a_ring() -> None:
    """2 n / b against 2 (p-1)/p n / b."""
    p, size = 16, 1e9
    schedule = make_schedule("all_reduce", "double_tree", Layout(num_ranks=p, pieces=256), size)
    time_s = simulate_collective(schedule, wired(uniform(p)), fidelity="lockstep").time_s
    assert simulated_s("all_reduce", "ring", p, size) == pytest.approx(time_s, rel=0.12)


@pytest.mark.parametrize("hops", [2, 12, 100])
@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
def test_the_best_number_of_pieces_beats_its_neighbours(hops: int, size: float) -> None:
    def chain_s(pieces: int) -> float:
        return (hops + pieces - 1) * (ALPHA_S + size / (pieces * BETA_BYTES_PER_S))

    best = best_pieces(hops, size, ALPHA_S, BETA_BYTES_PER_S)
    assert chain_s(best) <= min(chain_s(max(1, best // 2)), chain_s(2 * best + 1)) * (1 + 1e-12)


def test_one_piece_is_best_where_nothing_is_lost_by_waiting() -> None:
    assert best_pieces(1, 1e9, ALPHA_S, BETA_BYTES_PER_S) == 1
    assert best_pieces(12, 0.0, ALPHA_S, BETA_BYTES_PER_S) == 1


# ------------------------------------------------------------------------------------ the lectures' crossover


def test_ring_and_tree_meet_at_2_84_megabytes_on_64_ranks() -> None:
    """REQUIREMENTS 9: 57 a b / (6 - 63/64) with a = 5 us, b = 50 GB/s, found from simulated times."""
    crossover = 57 * ALPHA_S * BETA_BYTES_PER_S / (6 - 63 / 64)
    assert crossover == pytest.approx(2.84e6, rel=1e-3)
    ring, tree = (simulated_s("all_reduce", a, 64, crossover) for a in ("ring", "tree"))
    assert ring == pytest.approx(tree, rel=1e-9)
    for share, faster, slower in ((0.99, "tree", "ring"), (1.01, "ring", "tree")):
        quick, slow = (simulated_s("all_reduce", a, 64, share * crossover) for a in (faster, slower))
        assert quick < slow * (1 - 1e-4)


@pytest.mark.parametrize("p", [4, 5, 16, 100, 256, 1000])
def test_the_stated_crossover_is_where_simulated_ring_and_tree_meet(p: int) -> None:
    size = ring_tree_crossover_bytes(p, ALPHA_S, BETA_BYTES_PER_S)
    assert size is not None
    ring, tree = (simulated_s("all_reduce", a, p, size) for a in ("ring", "tree"))
    assert ring == pytest.approx(tree, rel=1e-9)


@pytest.mark.parametrize("p", [2, 3])
def test_two_or_three_ranks_have_no_crossover_since_the_ring_has_no_more_steps(p: int) -> None:
    assert ring_tree_crossover_bytes(p, ALPHA_S, BETA_BYTES_PER_S) is None
    for size in (1.0, 1e3, 1e9):
        assert simulated_s("all_reduce", "ring", p, size) <= simulated_s("all_reduce", "tree", p, size)


@pytest.mark.parametrize("p", [8, 64, 256])
def test_naive_never_beats_ring_or_tree(p: int) -> None:
    """REQUIREMENTS 9: ring, tree, naive over p and n. A ring has as many steps, so it only wins by its bytes."""
    for size in (8.0, 1e5, 1e8):
        ring, tree, naive = (simulated_s("all_reduce", a, p, size) for a in ("ring", "tree", "naive"))
        assert naive > tree
        assert naive > ring
        assert naive / ring < (1 + 1e-3 if size == 8.0 else p)


@pytest.mark.parametrize(("op", "algorithm"), ON_ANY_NETWORK)
def test_many_sizes_at_once_take_what_each_takes_alone(op: str, algorithm: str) -> None:
    wires = wired(uniform(6))
    schedule = make_schedule(op, algorithm, Layout(num_ranks=6), 1.0)
    times, fidelity, why = times_by_size(schedule, wires, np.array(SIZES))
    assert (fidelity, why) == ("vector", "")
    np.testing.assert_allclose(times, [simulated_s(op, algorithm, 6, size) for size in SIZES], rtol=1e-12)


# ------------------------------------------------------------------------------------------------ lower bounds


def test_latency_needs_log2_p_steps_when_a_rank_talks_to_one_at_a_time() -> None:
    tree = make_schedule("broadcast", "tree", Layout(num_ranks=33), 1.0)
    assert bounds.latency_steps(tree) == 6
    assert bounds.latency_steps(make_schedule("all_reduce", "ring", Layout(num_ranks=32), 1.0)) == 5


def test_latency_needs_one_step_where_a_rank_waits_for_one_other_only() -> None:
    assert bounds.latency_steps(make_schedule("send_recv", "direct", Layout(num_ranks=32), 1.0)) == 1


def test_latency_needs_one_step_when_a_rank_talks_to_all() -> None:
    assert bounds.latency_steps(make_schedule("all_to_all", "direct", Layout(num_ranks=33), 1.0)) == 1


@pytest.mark.parametrize(
    ("op", "algorithm", "expected"),
    [
        ("broadcast", "tree", 1.0),
        ("reduce", "tree", 1.0),
        ("all_gather", "ring", 7 / 8),
        ("reduce_scatter", "ring", 7 / 8),
        ("all_to_all", "direct", 7 / 8),
        ("scatter", "tree", 7 / 8),
        ("gather", "tree", 7 / 8),
        ("all_reduce", "ring", 2 * 7 / 8),
        ("send_recv", "direct", 1.0),
        # adding in the switch, a rank need not carry others' sums: only its data out and the result in
        ("all_reduce", "nvls", 1.0),
        ("reduce_scatter", "nvls", 7 / 8),
        ("all_gather", "nvls", 7 / 8),
    ],
)
def test_bandwidth_bound_of_each_collective(op: str, algorithm: str, expected: float) -> None:
    """In units of n / b, 8 ranks with one link each: Chan et al., CCPE 2007, section 3; all-to-all by counting."""
    schedule = make_schedule(op, algorithm, Layout(num_ranks=8, root=0), 8e9)
    rate = np.full(8, 1e9)
    assert bounds.bandwidth_s(schedule, rate, rate) == pytest.approx(expected * 8, rel=1e-12)


def test_the_slowest_rank_sets_the_bandwidth_bound() -> None:
    schedule = make_schedule("all_gather", "ring", Layout(num_ranks=4), 4e9)
    fast, one_slow = np.full(4, 1e9), np.array([1e9, 1e9, 1e8, 1e9])
    assert bounds.bandwidth_s(schedule, fast, one_slow) == pytest.approx(30.0)
    assert bounds.bandwidth_s(schedule, one_slow, fast) == pytest.approx(10.0)


@pytest.mark.parametrize(("op", "algorithm"), ON_ANY_NETWORK)
def test_a_time_below_the_bound_is_an_internal_error(op: str, algorithm: str) -> None:
    wires = wired(uniform(8))
    schedule = make_schedule(op, algorithm, Layout(num_ranks=8, root=3), 8e6)
    rate = np.full(8, BETA_BYTES_PER_S)
    busiest = max(schedule.sent_bytes().max(), schedule.received_bytes().max()) / BETA_BYTES_PER_S
    floor = max(bounds.latency_steps(schedule) * ALPHA_S, bounds.bandwidth_s(schedule, rate, rate), ALPHA_S + busiest)
    hold_to_bounds(schedule, wires, floor)
    with pytest.raises(InternalError, match=f"{op}/{algorithm} on 8 ranks, 8000000 B: .* below the physical bound"):
        hold_to_bounds(schedule, wires, floor * (1 - 1e-6))


@pytest.mark.parametrize(("op", "algorithm"), sorted(IN_SWITCHES))
def test_a_time_below_what_a_port_of_the_switch_needs_is_an_internal_error(op: str, algorithm: str) -> None:
    network = shipped("dgx-h100", nodes=1)
    schedule = make_schedule(op, algorithm, Layout(num_ranks=8), 8e8)
    time_s = simulate_collective(schedule, wired(network)).time_s
    with pytest.raises(InternalError, match=f"{op}/{algorithm} on 8 ranks, .* below the physical bound"):
        hold_to_bounds(schedule, wired(network), time_s / 2)


def test_a_nic_that_is_forgotten_to_be_shared_is_caught_on_a_real_cluster() -> None:
    """NVLink makes a rank's own links wide; the busiest link, here a NIC, is what a direct all-reduce cannot beat."""
    network = shipped("aws-p4d", nodes=4)
    schedule = make_schedule("all_reduce", "direct", Layout(num_ranks=32), 1e9)
    time_s = simulate_collective(schedule, wired(network)).time_s
    with pytest.raises(InternalError, match="below the physical bound"):
        hold_to_bounds(schedule, wired(network), time_s / 2)


def test_a_time_that_is_no_number_is_an_internal_error() -> None:
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 1e6)
    with pytest.raises(InternalError, match="nan s is below"):
        simulate_collective(schedule, wired(uniform(4)), starts_s=np.full(4, np.nan), fidelity="vector")


def test_a_direct_all_reduce_that_forgets_the_nic_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 2: a rival predicts 512 ranks 450 times too fast, as if a NIC could send 511 messages at full speed."""

    def each_message_alone(sent: Schedule, _wires: object, starts_s: Floats) -> Floats:
        return starts_s + 2 * (ALPHA_S + sent.chunk_bytes / BETA_BYTES_PER_S)

    schedule = make_schedule("all_reduce", "direct", Layout(num_ranks=16), 1e9)
    simulate_collective(schedule, wired(uniform(16)), fidelity="message")
    monkeypatch.setattr(message, "finish_times", each_message_alone)
    with pytest.raises(InternalError, match="below the physical bound"):
        simulate_collective(schedule, wired(uniform(16)), fidelity="message")
