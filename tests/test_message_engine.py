"""The message engine, by systems small enough to work out by hand, by an oracle without events, and by its laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import ALPHA_S, BETA_BYTES_PER_S, graph, link, shipped, uniform, wired
from strategies import ON_ANY_NETWORK, by_hand, examples, flows, schedules, start_times, tree_networks

from simulator.collectives import make_schedule
from simulator.collectives.layout import Layout
from simulator.engine import message
from simulator.engine.collective import simulate_collective
from simulator.engine.fabric import Fabric, TooMuchWorkError
from simulator.engine.fairshare import max_min
from simulator.engine.inflight import InFlight
from simulator.engine.message import Player
from simulator.engine.outcome import Outcome
from simulator.engine.wires import Wires
from simulator.errors import UnsupportedError
from simulator.library import AlphaBetaLibrary
from simulator.network.graph import Cable, Network, Place, Wire, assemble
from simulator.schedule import Schedule


def played(schedule: Schedule, network: Network, starts_s: list[float] | None = None) -> Outcome:
    starts = np.zeros(schedule.num_ranks) if starts_s is None else np.array(starts_s)
    return message.play(schedule, wired(network), starts)


def star(num_gpus: int, bytes_per_s: float = 1.0, latency_s: float = 0.0) -> Network:
    return graph([(f"gpu{i}", "switch", bytes_per_s, latency_s / 2) for i in range(num_gpus)])


# ------------------------------------------------------------------------------------------- worked out by hand


def test_a_message_pays_its_route_s_latency_and_then_its_bytes() -> None:
    """T = alpha + n / beta; alpha sums the links, beta is the slowest of them."""
    network = graph([("gpu0", "a", 8.0, 0.5), ("a", "b", 2.0, 0.25), ("b", "gpu1", 4.0, 1.0)])
    assert played(by_hand(2, [(0, 1, 10)]), network).finish_s.tolist() == [6.75, 6.75]


def test_the_library_s_overhead_is_paid_per_message_and_its_launch_once() -> None:
    network = replace(
        star(2), library=AlphaBetaLibrary.model_validate({"message_overhead": "500 ms", "collective_launch": "100 s"})
    )
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=2), 6.0)
    outcome = simulate_collective(schedule, wired(network), fidelity="message")
    assert outcome.time_s == pytest.approx(100 + 2 * (0.5 + 3.0))


def test_two_messages_into_one_rank_halve_its_link() -> None:
    assert played(by_hand(3, [(0, 2, 4), (1, 2, 4)]), star(3)).finish_s.tolist() == [8.0, 8.0, 8.0]


def test_the_two_directions_of_a_link_do_not_disturb_each_other() -> None:
    assert played(by_hand(2, [(0, 1, 4), (1, 0, 4)]), star(2)).finish_s.tolist() == [4.0, 4.0]


def test_the_longer_message_speeds_up_when_the_shorter_is_through() -> None:
    """Both at 1/2 until 4 bytes are through at 8 s; the other's last 6 bytes then flow at 1."""
    assert played(by_hand(3, [(0, 2, 4), (1, 2, 10)]), star(3)).finish_s.tolist() == [8.0, 14.0, 14.0]


def test_a_message_that_comes_later_slows_the_one_in_flight() -> None:
    """Alone for 3 s (3 of 5 bytes), then halves: the first ends at 7, the second has 3 left and ends at 10."""
    first, second = by_hand(3, [(0, 2, 5), (1, 2, 5)]), [0.0, 3.0, 0.0]
    assert played(first, star(3), second).finish_s.tolist() == [7.0, 10.0, 10.0]


def test_bytes_flow_only_after_the_latency_so_a_message_in_its_latency_slows_nobody() -> None:
    """Rank 1 is 4 s of latency away: rank 0's 4 bytes are through when rank 1's begin to flow."""
    network = graph([("gpu0", "switch", 1.0, 0.0), ("gpu1", "switch", 1.0, 4.0), ("gpu2", "switch", 1.0, 0.0)])
    assert played(by_hand(3, [(0, 2, 4), (1, 2, 4)]), network).finish_s.tolist() == [4.0, 8.0, 8.0]


def test_a_flow_held_elsewhere_leaves_its_share_to_the_others() -> None:
    """Max-min, not halves: gpu0 cannot send above 1, so gpu1 gets 9 of the receiver's 10."""
    network = graph([("gpu0", "switch", 1.0, 0.0), ("gpu1", "switch", 10.0, 0.0), ("gpu2", "switch", 10.0, 0.0)])
    assert played(by_hand(3, [(0, 2, 10), (1, 2, 90)]), network).finish_s.tolist() == [10.0, 10.0, 10.0]


def test_there_is_no_barrier_between_steps() -> None:
    """Ranks 0 and 1 finish two steps while 2 and 3 are still in their first."""
    two_pairs = by_hand(4, [(0, 1, 1), (2, 3, 9)], [(1, 0, 1), (3, 2, 9)])
    assert played(two_pairs, star(4)).finish_s.tolist() == [2.0, 2.0, 18.0, 18.0]


def test_a_rank_starts_its_next_step_only_when_all_its_transfers_of_this_one_are_done() -> None:
    """Rank 1 sends 1 byte and receives 5 in the first step: its message of the second step starts at 5."""
    busy = by_hand(4, [(0, 1, 5), (1, 2, 1)], [(1, 3, 1)])
    assert played(busy, star(4)).finish_s.tolist() == [5.0, 6.0, 1.0, 6.0]


def test_a_message_waits_for_its_receiver() -> None:
    """As rendezvous does: rank 1 calls at 3 s, so the message takes until 4 s."""
    assert played(by_hand(2, [(0, 1, 1)]), star(2), [0.0, 3.0]).finish_s.tolist() == [4.0, 4.0]


def test_a_rank_without_transfers_is_done_when_it_calls() -> None:
    assert played(by_hand(3, [(0, 1, 1)]), star(3), [0.0, 0.0, 7.0]).finish_s.tolist() == [1.0, 1.0, 7.0]


def test_messages_of_no_bytes_cost_their_latency() -> None:
    assert played(by_hand(2, [(0, 1, 0)], [(1, 0, 0)]), star(2, latency_s=1.5)).finish_s.tolist() == [3.0, 3.0]


def test_ranks_sit_where_they_are_put() -> None:
    """Rank 0 on gpu2, rank 1 on gpu0: only these two links carry bytes."""
    outcome = message.play(by_hand(2, [(0, 1, 5)]), wired(star(3), [2, 0]), np.zeros(2))
    carried = set(np.flatnonzero(outcome.link_bytes).tolist())
    assert carried == {link(star(3), "gpu2", "switch"), link(star(3), "switch", "gpu0")}


# --------------------------------------------------------------------------------------------- whom a change concerns


@given(st.data())
@settings(max_examples=examples(100))
def test_flows_that_are_not_shared_anew_keep_the_rate_that_sharing_everything_would_give(data: st.DataObject) -> None:
    """Starts and ends in any order: after each, all rates are the max-min rates of all flows, though few are set."""
    capacity, routes = data.draw(flows(max_links=8, max_flows=12))
    table, rates, held = InFlight(np.append(capacity, np.inf)), dict[int, float](), dict[int, list[int]]()
    for route in routes:
        if held and data.draw(st.booleans()):
            over = data.draw(st.sampled_from(sorted(held)))
            table.release(np.array([over]))
            del held[over], rates[over]
        filled = route + [len(capacity)] * (len(capacity) - len(route))
        (slot,) = table.admit(np.array([filled])).tolist()
        held[slot], rates[slot] = filled, table.solo(np.array([slot]))[0]
        slots, shared = table.reshare()
        rates.update(zip(slots.tolist(), shared.tolist(), strict=True))
        everyone = sorted(held)
        expected = max_min(np.array([held[s] for s in everyone]), np.append(capacity, np.inf))
        np.testing.assert_allclose([rates[s] for s in everyone], expected, rtol=1e-8)


def test_a_start_concerns_only_those_that_full_links_join_to_it() -> None:
    """0 and 1 share a link, 2 and 3 another; a fifth flow beside 2 changes 2 and 3, and leaves 0 and 1 alone."""
    table = InFlight(np.array([1.0, 1.0, 9.0, np.inf]))
    pairs = table.admit(np.array([[0, 2], [0, 2], [1, 2], [1, 2]]))
    assert table.reshare()[0].tolist() == sorted(pairs.tolist())
    fifth = table.admit(np.array([[1, 3]]))
    concerned, rates = table.reshare()
    assert concerned.tolist() == sorted([*pairs[2:].tolist(), *fifth.tolist()])
    np.testing.assert_allclose(rates, 1 / 3)
    table.release(fifth)
    assert table.reshare()[0].tolist() == sorted(pairs[2:].tolist())


def test_a_budget_of_work_stops_the_clock() -> None:
    schedule = make_schedule("all_to_all", "direct", Layout(num_ranks=8), 1e6)
    with pytest.raises(TooMuchWorkError):
        message.finish_times(schedule, wired(uniform(8)), np.zeros(8), max_work=50)


# ------------------------------------------------------------------------------------------------------ switches


def one_switch(name: str, latency_s: float = 0.5e-6) -> Network:
    """Two GPUs of 1 B/s per direction on a switch of that name."""
    places = [Place(f"gpu{i}", "gpu", "gpu", 0, 0) for i in range(2)] + [Place(name, "switch", name, 1, 0)]
    cables = [Cable(f"gpu{i}", name, Wire("nvlink", 1.0, 1.0, latency_s, "a test")) for i in range(2)]
    library = AlphaBetaLibrary.model_validate({"message_overhead": "2 s"})
    return assemble(name="one", kind="explicit", routing="up-down", places=places, cables=cables, library=library)


def through_the_switch(*steps: list[tuple[int, int, int]]) -> Schedule:
    """Ranks 0 and 1, and the switch as 2."""
    return replace(by_hand(2, *steps), num_switches=1)


def test_what_a_rank_sends_to_a_switch_crosses_its_port_up_and_what_comes_back_its_port_down() -> None:
    """3 B up after 2 s of software and the link's 1 s; 5 B down after 1 s: no software runs in a switch."""
    network = one_switch("nvswitch", latency_s=1.0)
    outcome = played(through_the_switch([(0, 2, 3)], [(2, 1, 5)]), network)
    assert outcome.finish_s.tolist() == [6.0, 12.0]
    carried = dict(zip(network.link_names, outcome.link_bytes.tolist(), strict=True))
    assert carried == {
        ("gpu0", "nvswitch"): 3.0, ("nvswitch", "gpu0"): 0.0, ("gpu1", "nvswitch"): 0.0, ("nvswitch", "gpu1"): 5.0,
    }  # fmt: skip


def test_a_multicast_takes_as_long_as_one_copy_since_each_receiver_has_its_own_port() -> None:
    network = one_switch("nvswitch", latency_s=0.0)
    one, both = (
        played(through_the_switch(step), network).finish_s.max() for step in ([(2, 0, 7)], [(2, 0, 7), (2, 1, 7)])
    )
    assert one == both == 7.0


def test_a_switch_waits_for_all_that_it_adds_before_it_passes_the_sum_on() -> None:
    outcome = played(through_the_switch([(0, 2, 1), (1, 2, 9)], [(2, 0, 1)]), one_switch("nvswitch", 0.0), [0.0, 100.0])
    assert outcome.finish_s.tolist() == [112.0, 111.0]


@pytest.mark.parametrize("fidelity", ["auto", "vector", "message", "lockstep"])
def test_a_network_whose_switches_are_no_nvswitches_refuses_by_name(fidelity: str) -> None:
    with pytest.raises(UnsupportedError, match=r"'one': its GPUs hang on no NVSwitch.*DGX H100"):
        simulate_collective(through_the_switch([(0, 2, 3)]), wired(one_switch("leaf")), fidelity=fidelity)


def test_ranks_of_one_switch_must_hang_on_one() -> None:
    """The first eight ranks of the schedule are its first node; here they sit on two."""
    network = shipped("dgx-h100", nodes=2)
    schedule = make_schedule("all_reduce", "nvls", Layout(num_ranks=16, ranks_per_node=8), 1e6)
    simulate_collective(schedule, wired(network))
    with pytest.raises(UnsupportedError, match="sit on several NVSwitches"):
        simulate_collective(schedule, wired(network, [*range(4), *range(8, 16), *range(4, 8)]))


def test_adding_in_the_switch_halves_what_a_port_carries() -> None:
    """(p+1)/p n a rank and direction instead of the ring's 2 (p-1)/p n (Klenk et al., ISCA 2020)."""
    network, size = shipped("dgx-h100", nodes=1), 8.0 * 2**20
    for algorithm, share in (("nvls", 9 / 8), ("ring", 14 / 8)):
        schedule = make_schedule("all_reduce", algorithm, Layout(num_ranks=8, pieces=4), size)
        outcome = simulate_collective(schedule, wired(network))
        for gpu in range(8):
            up = link(network, f"node0.gpu{gpu}", "node0.nvswitch")
            np.testing.assert_allclose(outcome.link_bytes[[up, up ^ 1]], share * size, rtol=1e-12)


# ---------------------------------------------------------------------------------- an oracle without any events


def finish_by_recursion(schedule: Schedule, starts_s: np.ndarray, alpha_s: float, bytes_per_s: float) -> list[float]:
    """The step rule in plain Python, for networks on which no two messages share a link."""
    ready = list(starts_s)
    for transfers_of_step, steps in schedule.runs():
        for _ in range(steps):
            ends: dict[int, float] = {}
            moved = zip(transfers_of_step.src, transfers_of_step.dst, transfers_of_step.chunks, strict=True)
            for src, dst, chunks in moved:
                end = max(ready[src], ready[dst]) + alpha_s + chunks * schedule.chunk_bytes / bytes_per_s
                for rank in (src, dst):
                    ends[rank] = max(end, ends.get(rank, 0.0))
            for rank, end in ends.items():
                ready[rank] = end
    return ready


def one_at_a_time(schedule: Schedule) -> bool:
    """No rank sends two messages in a step, or receives two: on a uniform network none then meets another."""
    return all(max(np.bincount(p.src).max(), np.bincount(p.dst).max()) == 1 for p, _ in schedule.runs())


@pytest.mark.slow
@pytest.mark.parametrize(("op", "algorithm"), ON_ANY_NETWORK)
def test_any_start_times_give_what_the_step_rule_gives(op: str, algorithm: str) -> None:
    random = np.random.default_rng(1)
    for p in (2, 3, 6, 8, 13):
        schedule = make_schedule(op, algorithm, Layout(num_ranks=p, root=p - 1), 1e6)
        if not one_at_a_time(schedule):
            continue
        for spread_s in (1e-6, 1e-4, 1.0):
            starts = random.random(p) * spread_s
            expected = finish_by_recursion(schedule, starts, ALPHA_S, BETA_BYTES_PER_S)
            outcome = message.play(schedule, wired(uniform(p)), starts)
            np.testing.assert_allclose(outcome.finish_s, expected, rtol=1e-9)


# --------------------------------------------------------------------------------------------------------- laws


def peak_share(schedule: Schedule, wires: Wires, starts_s: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> float:
    """The highest load that any link had at any moment, as a share of its capacity."""
    fabrics: list[Fabric] = []
    make = Fabric.__init__

    def tracked(self: Fabric, *args: object) -> None:
        make(self, *args)  # type: ignore[arg-type]
        self.track_load = True
        fabrics.append(self)

    with monkeypatch.context() as patched:
        patched.setattr(Fabric, "__init__", tracked)
        message.play(schedule, wires, starts_s)
    return float((fabrics[0].peak_load / wires.capacity).max())


@given(st.data())
@settings(max_examples=examples(60))
def test_no_link_ever_carries_more_than_its_capacity(data: st.DataObject) -> None:
    network = data.draw(tree_networks())
    schedule = data.draw(schedules(network.num_gpus))
    starts = data.draw(start_times(network.num_gpus))
    share = peak_share(schedule, wired(network), starts, pytest.MonkeyPatch())
    assert share <= 1 + 1e-9
    if schedule.chunk_bytes:
        assert share == pytest.approx(1)


@given(st.data())
@settings(max_examples=examples(60))
def test_bytes_on_links_are_the_bytes_of_messages(data: st.DataObject) -> None:
    """What the GPUs' outgoing links carry is what ranks send, what their incoming ones carry what ranks receive."""
    network = data.draw(tree_networks())
    schedule = data.draw(schedules(network.num_gpus))
    outcome = message.play(schedule, wired(network), np.zeros(network.num_gpus))
    for rank, gpu in enumerate(network.gpus):
        out = [i for i, (a, _) in enumerate(network.link_names) if a == gpu]
        into = [i for i, (_, b) in enumerate(network.link_names) if b == gpu]
        assert outcome.link_bytes[out].sum() == pytest.approx(outcome.sent_bytes[rank])
        assert outcome.link_bytes[into].sum() == pytest.approx(outcome.received_bytes[rank])
    assert outcome.sent_bytes.sum() == pytest.approx(outcome.received_bytes.sum())


def test_every_switch_passes_on_what_it_gets() -> None:
    network = shipped("dgx-h100", nodes=2)
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=16, ranks_per_node=8, channels=8), 1e8)
    outcome = simulate_collective(schedule, wired(network), fidelity="message")
    for place, kind in network.graph.nodes(data="kind"):
        if kind != "gpu":
            out = sum(outcome.link_bytes[i] for i, (a, _) in enumerate(network.link_names) if a == place)
            into = sum(outcome.link_bytes[i] for i, (_, b) in enumerate(network.link_names) if b == place)
            assert out == pytest.approx(into)


def test_what_happens_at_one_instant_is_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 64-rank ring that starts together hands 126 batches of 64 messages to the fabric, not 8,064 messages."""
    batches: list[int] = []
    send = Fabric.send

    def counted(self: Fabric, links: np.ndarray, *rest: np.ndarray) -> None:
        batches.append(len(links))
        send(self, links, *rest)

    monkeypatch.setattr(Fabric, "send", counted)
    message.play(make_schedule("all_reduce", "ring", Layout(num_ranks=64), 1e6), wired(uniform(64)), np.zeros(64))
    assert batches == [64] * 126


# ------------------------------------------------------------------------------------------------- what it refuses


def test_more_messages_than_a_person_would_wait_for_are_refused() -> None:
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4096), 1e9)
    with pytest.raises(UnsupportedError, match=r"33,546,240 messages; the message engine takes at most 20,000,000"):
        message.play(schedule, wired(uniform(4096)), np.zeros(4096))


def test_a_rank_that_never_calls_leaves_the_others_waiting_by_name() -> None:
    """REQUIREMENTS 31: rank 3 stays out of a four-rank ring, so all that wait for it, directly or not, are named."""
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=4), 4e6)
    env, over = simpy.Environment(), list[int]()
    player: Player
    fabric = Fabric(env, wired(uniform(4)).capacity, lambda tags: player.done(tags))
    player = Player(env, fabric, wired(uniform(4)), schedule, 0, lambda ranks: over.extend(ranks.tolist()))
    player.enter(np.array([0, 1, 2]))
    env.run()
    assert over == []
    stuck = [line.split(" (")[0] for line in player.waiting()]
    assert stuck == ["rank 0 in step 0", "rank 1 in step 1", "rank 2 in step 0"]
