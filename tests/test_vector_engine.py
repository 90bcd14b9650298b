"""The vector engine against the message engine: the same finish times, or a refusal that says why. Never in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import ALPHA_S, BETA_BYTES_PER_S, graph, link, shipped, uniform, wired
from strategies import ON_ANY_NETWORK, by_hand, schedules, start_times, tree_networks

from simulator.collectives import ALGORITHMS, make_schedule
from simulator.collectives.layout import Layout
from simulator.engine import message, vector
from simulator.engine.collective import simulate_collective
from simulator.engine.conditions import least_shares, uncontended
from simulator.engine.layouts import layout_of
from simulator.engine.vector import NotExactError
from simulator.engine.wires import Wires
from simulator.errors import UnsupportedError
from simulator.load import load_topology
from simulator.network.builders import build_network
from simulator.network.graph import Network
from simulator.schedule import Schedule, pattern
from simulator.topology import RailFatTreeSpec

TABLE = ON_ANY_NETWORK


def assert_same_times(schedule: Schedule, wires: Wires, starts_s: np.ndarray | None = None) -> bool:
    """Hold both engines against each other; returns whether the vector engine played the schedule itself."""
    auto = simulate_collective(schedule, wires, starts_s=starts_s)
    oracle = simulate_collective(schedule, wires, starts_s=starts_s, fidelity="message")
    np.testing.assert_allclose(auto.finish_s, oracle.finish_s, rtol=1e-9, atol=0)
    np.testing.assert_allclose(auto.link_bytes, oracle.link_bytes)
    assert auto.time_s == pytest.approx(oracle.time_s, rel=1e-9)
    assert (auto.fidelity == "vector") == (auto.handed_over == "")
    return auto.fidelity == "vector"


def skews(p: int) -> list[np.ndarray]:
    """Starts apart by less than a message takes, by about as long, and by much longer than the whole collective."""
    random = np.random.default_rng(p)
    return [random.random(p) * spread_s for spread_s in (1e-7, 1e-4, 10.0)]


def several_at_once(schedule: Schedule) -> bool:
    """Some rank has two messages of one step on its link, and more steps follow: what waits for what is not regular."""
    most = max((max(np.bincount(p.src).max(), np.bincount(p.dst).max()) for p, _ in schedule.runs()), default=0)
    return bool(most > 1 and schedule.num_steps > 1)


# ------------------------------------------------------------------------------------------------ same finish times


@pytest.mark.parametrize(
    "num_ranks", [(1, 2, 3, 6), pytest.param((8, 13), marks=pytest.mark.slow)], ids=["to 6 ranks", "more ranks"]
)
@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_on_a_uniform_network_both_engines_agree(op: str, algorithm: str, num_ranks: tuple[int, ...]) -> None:
    for p in num_ranks:
        wires = wired(uniform(p))
        for size in (0.0, 1.0, 1e6):
            schedule = make_schedule(op, algorithm, Layout(num_ranks=p, root=p // 2), size)
            for starts in (None, *skews(p)):
                assert assert_same_times(schedule, wires, starts) or several_at_once(schedule)


MACHINES: dict[str, Network] = {
    "one NVSwitch node": shipped("dgx-h100", nodes=1),
    "two nodes": shipped("dgx-h100", nodes=2),
    "three nodes of four": shipped("dgx-h100", nodes=3, gpus_per_node=4),
    "NICs shared by two GPUs": shipped("aws-p4d", nodes=2, gpus_per_node=4),
    "PCIe": shipped("l40s-pcie"),
    "PCIe without peers": shipped("rtx4090-pcie"),
    "NVLink bridges over PCIe": shipped("a100-bridged"),
    "full mesh": shipped("mi300x", nodes=1),
    "workstations": shipped("workstations-10gbe"),
    "trays of a rack": shipped("gb200-nvl72", nodes=2),
    "torus 4x4": shipped("tpu-v4", shape=(4, 4)),
    "mesh 2x3": shipped("tpu-v5e", shape=(2, 3)),
    "torus 2x2x2": shipped("tpu-v5p", shape=(2, 2, 2)),
}


ON_NVSWITCHES = {"one NVSwitch node", "two nodes", "three nodes of four", "NICs shared by two GPUs", "trays of a rack"}


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_on_real_machines_both_engines_agree(machine: str) -> None:
    network = MACHINES[machine]
    layout = layout_of(network, np.arange(network.num_gpus))
    played = {}
    for op, algorithm in sorted(ALGORITHMS):
        schedule = make_schedule(op, algorithm, layout, 2.0**22)
        if schedule.num_switches and machine not in ON_NVSWITCHES:
            with pytest.raises(UnsupportedError, match="hang on no NVSwitch"):
                simulate_collective(schedule, wired(network))
            continue
        played[op, algorithm] = assert_same_times(schedule, wired(network))
    assert all(played[op, "ring"] for op in ("all_reduce", "reduce_scatter", "all_gather"))
    assert all(ok for (_, algorithm), ok in played.items() if algorithm in ("naive", "tree"))


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["two nodes", "NVLink bridges over PCIe", "torus 4x4", "mesh 2x3"])
def test_on_real_machines_both_engines_agree_for_any_starts(machine: str) -> None:
    network = MACHINES[machine]
    layout = layout_of(network, np.arange(network.num_gpus))
    for op, algorithm in sorted(ALGORITHMS) if machine in ON_NVSWITCHES else TABLE:
        schedule = make_schedule(op, algorithm, layout, 2.0**20)
        assert_same_times(schedule, wired(network), np.random.default_rng(3).random(network.num_gpus) * 3e-5)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150)
def test_on_any_tree_both_engines_agree(data: st.DataObject) -> None:
    """Any algorithm, ranks on any GPUs, any starts, links that are truly shared."""
    network = data.draw(tree_networks())
    gpus = data.draw(st.permutations(range(network.num_gpus)))
    schedule, starts = data.draw(schedules(network.num_gpus)), data.draw(start_times(network.num_gpus))
    assert_same_times(schedule, wired(network, gpus), starts)


# --------------------------------------------------------------------- shared links that are never what is waited for


def in_pods_of(nodes_per_pod: int, nodes: int) -> Network:
    """DGX H100s in small pods: the ring's hops between pods pay the spine's latency too, so ranks drift apart."""
    spec = load_topology("dgx-h100")
    assert isinstance(spec, RailFatTreeSpec)
    return build_network(
        spec.model_copy(update={"network": spec.network.model_copy(update={"nodes_per_pod": nodes_per_pod})}),
        nodes=nodes,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("nodes_per_pod", "nodes"), [(1, 2), (3, 4), (3, 5)])
def test_a_ring_over_pods_is_exact_since_its_nics_are_slower_than_any_share_of_nvlink(
    nodes_per_pod: int, nodes: int
) -> None:
    """Seven of a rank's eight channels share its NVSwitch port, at 369 / 7 = 52 GB/s at worst; its NIC runs at 47."""
    network = in_pods_of(nodes_per_pod, nodes)
    layout = layout_of(network, np.arange(network.num_gpus))
    for op in ("all_reduce", "reduce_scatter", "all_gather"):
        for size in (0.0, 1e5, 1e9):
            schedule = make_schedule(op, "ring", layout, size)
            assert not uncontended(schedule, wired(network))
            assert assert_same_times(schedule, wired(network))


@pytest.mark.slow
def test_two_thousand_nodes_of_eight_are_exact_too() -> None:
    """16,384 GPUs in 64 pods: a ring of 8 channels, 4.3 billion messages, none of them waiting for a shared link."""
    network = shipped("dgx-h100", nodes=2048)
    schedule = make_schedule("all_reduce", "ring", layout_of(network, np.arange(16384)), 2.0**30)
    outcome = simulate_collective(schedule, wired(network))
    assert (outcome.fidelity, outcome.handed_over) == ("vector", "")
    assert outcome.num_messages == 8 * 536_838_144
    nic_s = 2 * 16383 * schedule.chunk_bytes / 47e9
    assert nic_s < outcome.time_s < nic_s + 2 * 16383 * 10e-6


def test_a_shared_port_that_is_what_a_rank_waits_for_is_exact_too() -> None:
    """One node's NVLink at half its rate: a seventh of it is slower than a NIC, so its ranks fall behind by sharing.

    What leaves by one port together takes its bytes at the port's rate, and no share can make it later than that.
    """
    network = shipped("dgx-h100", nodes=3)
    rates = network.capacity_bytes_per_s.copy()
    for a, b, tier in network.graph.edges(data="tier"):
        if tier == "nvlink" and a.startswith("node1"):
            rates[link(network, a, b)] /= 2
    schedule = make_schedule("all_reduce", "ring", layout_of(network, np.arange(24)), 1e8)
    for slow in (network, replace(network, capacity_bytes_per_s=rates)):
        assert not uncontended(schedule, wired(slow))
        assert assert_same_times(schedule, wired(slow))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60)
def test_no_transfer_ever_runs_below_the_least_share_of_its_links(data: st.DataObject) -> None:
    """What the upper bound rests on: messages played one by one are never later than at their least shares."""
    network = data.draw(tree_networks())
    schedule, starts = data.draw(schedules(network.num_gpus)), data.draw(start_times(network.num_gpus))
    wires = wired(network)
    chunk = np.array([schedule.chunk_bytes])
    latest = vector.at_rates(schedule, wires, starts, chunk, least_shares(schedule, wires))[0]
    earliest = vector.at_rates(schedule, wires, starts, chunk)[0]
    played = message.play(schedule, wires, starts).finish_s
    assert (earliest <= played * (1 + 1e-9)).all()
    assert (played <= latest * (1 + 1e-9)).all()


# -------------------------------------------------------------------------------------------------------- refusals


def two_on_one_uplink() -> Network:
    """A ring of four: gpu1 and gpu2 sit behind one narrow uplink, which 0 -> 1 and 2 -> 3 cross in no common way."""
    return graph([
        ("gpu0", "core", 10e9, 1e-6),
        ("gpu3", "core", 10e9, 1e-6),
        ("gpu1", "leaf", 10e9, 1e-6),
        ("gpu2", "leaf", 10e9, 1e-6),
        ("leaf", "core", 6e9, 1e-6),
    ])  # fmt: skip


def interleaved() -> Network:
    """gpu0 and gpu2 behind one uplink, 1 and 3 not: 0 -> 1 and 2 -> 3 share it, 1 -> 2 and 3 -> 0 its other way."""
    return graph([
        ("gpu0", "leaf", 10e9, 1e-6),
        ("gpu2", "leaf", 10e9, 1e-6),
        ("leaf", "core", 10e9, 0.0),
        ("gpu1", "core", 10e9, 3e-6),
        ("gpu3", "core", 10e9, 1e-6),
    ])  # fmt: skip


def test_links_shared_while_ranks_drift_apart_are_handed_over_with_the_reason() -> None:
    """gpu1 is farther away than gpu3, so 0 -> 1 and 2 -> 3 overlap on the uplink for a part of their time only."""
    network = interleaved()
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 4e6)
    with pytest.raises(NotExactError, match=r"shared while ranks drift apart \(phase 1 of all_reduce/ring\)"):
        simulate_collective(schedule, wired(network), fidelity="vector")
    outcome = simulate_collective(schedule, wired(network))
    assert outcome.fidelity == "message"
    assert outcome.handed_over == "links are shared while ranks drift apart (phase 1 of all_reduce/ring)"
    assert not assert_same_times(schedule, wired(network))


def test_links_shared_by_transfers_of_different_steps_are_handed_over_with_the_reason() -> None:
    """2 -> 3 is through early and sends again while 0 -> 1 still holds its half of the uplink."""
    schedule = by_hand(4, [(0, 1, 9), (2, 3, 1)], [(2, 3, 1)], chunk_bytes=1e6)
    wires, starts = wired(interleaved()), np.zeros(4)
    with pytest.raises(NotExactError, match=r"shared by transfers of different steps \(phase 2 of broadcast/by hand\)"):
        vector.play(schedule, wires, starts)
    one_step_each = by_hand(4, [(0, 1, 9), (2, 3, 1)], chunk_bytes=1e6)
    ours, oracle = (engine.play(one_step_each, wires, starts).finish_s for engine in (vector, message))
    np.testing.assert_allclose(ours, oracle, rtol=1e-9)


def test_sharing_that_would_be_wrong_to_ignore_is_what_gets_handed_over() -> None:
    """The refusal is needed: at solo rates the ring would be a third faster than it is."""
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 4e8)
    shared = simulate_collective(schedule, wired(interleaved())).time_s
    at_solo_rates = 6 * 1e8 / 10e9
    assert shared > 1.3 * at_solo_rates


def test_a_narrow_uplink_that_each_step_crosses_once_each_way_is_no_sharing() -> None:
    """0 -> 1 enters the leaf, 2 -> 3 leaves it: no link ever carries two messages, so nothing is handed over."""
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 4e6)
    assert assert_same_times(schedule, wired(two_on_one_uplink()), np.array([0.0, 3e-5, 1e-6, 2e-4]))


def test_skewed_starts_on_shared_links_are_handed_over_and_even_starts_are_not() -> None:
    schedule = make_schedule("all_reduce", "direct", Layout(num_ranks=4), 4e6)
    assert assert_same_times(schedule, wired(uniform(4)))
    assert not assert_same_times(schedule, wired(uniform(4)), np.array([0.0, 1e-5, 0.0, 0.0]))


def test_an_insisted_engine_is_the_one_that_runs() -> None:
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 4e6)
    for fidelity in ("vector", "message"):
        assert simulate_collective(schedule, wired(uniform(4)), fidelity=fidelity).fidelity == fidelity


# ---------------------------------------------------------------------------------------------------- the estimate


def test_too_many_messages_for_the_oracle_are_estimated_in_lockstep_and_the_outcome_says_so() -> None:
    """24 messages; the budget is in flows that shared links anew, at least one for each."""
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 4e6)
    exact = simulate_collective(schedule, wired(interleaved()), fidelity="message")
    assert simulate_collective(schedule, wired(interleaved()), max_work=10_000).fidelity == "message"
    for max_work in (23, 100):  # refused at once, and given up on the way
        outcome = simulate_collective(schedule, wired(interleaved()), max_work=max_work)
        assert outcome.fidelity == "lockstep"
        assert "shared while ranks drift apart" in outcome.handed_over
        assert "24 messages are too many" in outcome.handed_over
        assert outcome.time_s == pytest.approx(exact.time_s, rel=0.25)
        assert outcome.lower_s <= exact.time_s <= outcome.upper_s
    assert simulate_collective(schedule, wired(uniform(4)), max_work=23).fidelity == "vector"


@given(st.data())
@settings(max_examples=80)
def test_the_bracket_of_an_estimate_holds_the_truth(data: st.DataObject) -> None:
    """Lockstep is no bound by itself; what it reports beside is one, on any tree, for any starts."""
    network = data.draw(tree_networks())
    schedule, starts = data.draw(schedules(network.num_gpus)), data.draw(start_times(network.num_gpus))
    wires = wired(network)
    exact = simulate_collective(schedule, wires, starts_s=starts, fidelity="message")
    estimate = simulate_collective(schedule, wires, starts_s=starts, fidelity="lockstep")
    assert exact.lower_s == exact.time_s == exact.upper_s
    assert estimate.lower_s <= exact.time_s * (1 + 1e-9)
    assert estimate.upper_s >= exact.time_s * (1 - 1e-9)
    assert estimate.lower_s <= estimate.time_s <= estimate.upper_s


@pytest.mark.slow
@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_the_estimate_is_exact_where_nothing_is_shared_and_for_a_single_step(op: str, algorithm: str) -> None:
    """What it estimates is sharing between steps. Where steps do share, here only a rank's own port, it is close."""
    for p in (2, 3, 6, 8):
        for starts in (np.zeros(p), *skews(p)):
            schedule = make_schedule(op, algorithm, Layout(num_ranks=p, root=p - 1), 1e6)
            exact, estimate = (
                simulate_collective(schedule, wired(uniform(p)), starts_s=starts, fidelity=fidelity)
                for fidelity in ("auto", "lockstep")
            )
            if several_at_once(schedule) or (len(schedule.phases) == 1 and starts.any()):
                assert estimate.lower_s <= exact.time_s * (1 + 1e-9) <= estimate.upper_s * (1 + 2e-9)
            else:
                np.testing.assert_allclose(estimate.finish_s, exact.finish_s, rtol=1e-9)


# ----------------------------------------------------------------------------------------------------------- scale

RING_16384_S = 2 * 16383 * (ALPHA_S + 2.0**30 / (16384 * BETA_BYTES_PER_S))


def test_patterns_that_are_slices_of_one_array_have_the_paths_of_their_own_transfers() -> None:
    """A pipeline's phases share their arrays: routes are looked up once for all, far fewer than transfers."""
    network = shipped("dgx-h100", nodes=4)
    for algorithm in ("double_tree", "nvls_tree", "nvls"):
        schedule = make_schedule("all_reduce", algorithm, layout_of(network, np.arange(32)), 1e6)
        patterns = [p for p, _ in schedule.runs()]
        together, apart = wired(network), wired(network)
        together.find(patterns)
        for one in patterns:
            alone = apart.paths(pattern(one.src.copy(), one.dst.copy(), one.chunks))
            found = together.paths(one)
            assert len(found.links) == len(one)
            for links, expected in zip(found.links, alone.links, strict=True):
                assert [k for k in links if k != together.filler] == [k for k in expected if k != apart.filler]
            np.testing.assert_array_equal(found.latency_s, alone.latency_s)
            np.testing.assert_array_equal(found.solo_bytes_per_s, alone.solo_bytes_per_s)


def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects one entry per numpy pass over a step: what the vector engine's work is counted in."""
    counted: list[int] = []
    make: Any = vector._latest_of

    def counting(pattern: object) -> Any:
        latest = make(pattern)
        return lambda ends: (counted.append(ends.shape[1]), latest(ends))[1]

    monkeypatch.setattr(vector, "_latest_of", counting)
    return counted


def test_sixteen_thousand_ranks_take_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of 536,838,144 messages accounted for, in a handful of passes: 32,766 equal steps are one jump."""
    counted = passes(monkeypatch)
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=16384), 2.0**30)
    outcome = simulate_collective(schedule, wired(uniform(16384)))
    assert outcome.num_messages == 536_838_144
    assert outcome.fidelity == "vector"
    assert outcome.time_s == pytest.approx(RING_16384_S, rel=1e-9)
    np.testing.assert_allclose(outcome.finish_s, RING_16384_S, rtol=1e-9)
    assert outcome.link_bytes.sum() == pytest.approx(2 * 2 * 16383 * 2.0**30)
    assert len(counted) <= 4


@pytest.mark.slow
def test_sixteen_thousand_ranks_with_one_late_finish_the_closed_form_after_it() -> None:
    """Everybody needs the last one's data, and by the time it calls all others wait: max start + closed form."""
    starts = np.zeros(16384)
    starts[5000] = 0.25
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=16384), 2.0**30)
    outcome = simulate_collective(schedule, wired(uniform(16384)), starts_s=starts)
    np.testing.assert_allclose(outcome.finish_s.max(), 0.25 + RING_16384_S, rtol=1e-9)


def test_a_skewed_ring_finishes_at_its_last_start_plus_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 2: rank r starts at (r + 1) us. Once the last rank's start has gone round, all steps are equal again."""
    counted = passes(monkeypatch)
    p = 1024
    starts = np.arange(1, p + 1) * 1e-6
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=p), 2.0**30)
    outcome = simulate_collective(schedule, wired(uniform(p)), starts_s=starts)
    expected = p * 1e-6 + 2 * (p - 1) * (ALPHA_S + 2.0**30 / (p * BETA_BYTES_PER_S))
    np.testing.assert_allclose(outcome.finish_s.max(), expected, rtol=1e-9)
    assert outcome.num_messages == 2 * (p - 1) * p
    assert len(counted) <= 2 * (p - 1)


def test_skew_costs_no_more_passes_than_there_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, not messages, and not the cube of ranks as elsewhere: at most one pass a step, whatever the skew."""
    counted = passes(monkeypatch)
    for p in (64, 256):
        schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=p), 2.0**30)
        for starts in skews(p):
            counted.clear()
            simulate_collective(schedule, wired(uniform(p)), starts_s=starts, fidelity="vector")
            assert len(counted) <= schedule.num_steps


def test_the_clock_at_which_a_collective_starts_does_not_change_how_long_it_takes() -> None:
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=64), 1e6)
    starts = skews(64)[1]
    early = simulate_collective(schedule, wired(uniform(64)), starts_s=starts).time_s
    late = simulate_collective(schedule, wired(uniform(64)), starts_s=starts + 1000.0).time_s
    assert late == pytest.approx(early, rel=1e-7)
