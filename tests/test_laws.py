"""Laws that hold for every algorithm, network and start: scaling, symmetry, lower bounds, skew, and same bytes out."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import ALPHA_S, BETA_BYTES_PER_S, faster, shipped, uniform, wired, without_latency
from strategies import ON_ANY_NETWORK, collectives, examples, schedules, sizes, start_times, tree_networks

from simulator.collectives import make_schedule
from simulator.collectives.layout import Layout
from simulator.engine.collective import simulate_collective
from simulator.schedule import Schedule

TABLE = ON_ANY_NETWORK
#: Two messages of one rank never meet on a link of a uniform network.
ONE_AT_A_TIME = [(op, algorithm) for op, algorithm in TABLE if algorithm not in ("direct", "torus")]


# ---------------------------------------------------------------------------------------------------- scaling


@given(st.data(), st.sampled_from([0.5, 2.0, 3.0, 1000.0]))
@settings(max_examples=examples(60))
def test_without_latency_time_is_inverse_to_bandwidth(data: st.DataObject, factor: float) -> None:
    """Doubling every bandwidth halves it. With latency, or a mix of other work, no such law exists (Graham, 1969)."""
    network = without_latency(data.draw(tree_networks()))
    schedule = data.draw(schedules(network.num_gpus))
    for fidelity in ("auto", "message"):
        slow = simulate_collective(schedule, wired(network), fidelity=fidelity)
        fast = simulate_collective(schedule, wired(faster(network, factor)), fidelity=fidelity)
        np.testing.assert_allclose(fast.finish_s * factor, slow.finish_s, rtol=1e-9)


@given(st.data())
@settings(max_examples=examples(30))
def test_without_latency_time_is_proportional_to_the_bytes(data: st.DataObject) -> None:
    network = without_latency(data.draw(tree_networks()))
    op, algorithm = data.draw(collectives)
    p = network.num_gpus
    one, three = (
        simulate_collective(make_schedule(op, algorithm, Layout(num_ranks=p), size), wired(network)).time_s
        for size in (840.0, 3 * 840.0)  # 840 = lcm(1..8): no padding
    )
    assert three == pytest.approx(3 * one, rel=1e-9)


# --------------------------------------------------------------------------------------------------- symmetry


@given(st.data())
@settings(max_examples=examples(60))
def test_relabelling_the_ranks_of_a_uniform_network_changes_nothing(data: st.DataObject) -> None:
    p = data.draw(st.integers(1, 12))
    schedule, starts = data.draw(schedules(p)), data.draw(start_times(p))
    places = data.draw(st.permutations(range(p)))
    there = simulate_collective(schedule, wired(uniform(p), places), starts_s=starts)
    here = simulate_collective(schedule, wired(uniform(p)), starts_s=starts)
    np.testing.assert_array_equal(there.finish_s, here.finish_s)


@pytest.mark.parametrize(("op", "algorithm"), TABLE)
def test_relabelling_the_nodes_of_one_pod_changes_nothing(op: str, algorithm: str) -> None:
    network = shipped("dgx-h100", nodes=3, gpus_per_node=4)
    layout = Layout(num_ranks=12, ranks_per_node=4, channels=4)
    schedule = make_schedule(op, algorithm, layout, 2.0**24)
    places = [node * 4 + gpu for node in (2, 0, 1) for gpu in range(4)]
    moved = simulate_collective(schedule, wired(network, places))
    here = simulate_collective(schedule, wired(network))
    np.testing.assert_allclose(moved.finish_s, here.finish_s, rtol=1e-12)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_torus_looks_the_same_from_each_of_its_chips(op: str) -> None:
    network = shipped("tpu-v4", shape=(4, 4))
    schedule = make_schedule(op, "torus", Layout(num_ranks=16, torus_shape=(4, 4)), 2.0**24)
    here = simulate_collective(schedule, wired(network)).time_s
    for down, right in ((1, 0), (0, 3), (2, 1)):
        places = [((row + down) % 4) * 4 + (column + right) % 4 for row in range(4) for column in range(4)]
        assert simulate_collective(schedule, wired(network, places)).time_s == pytest.approx(here, rel=1e-12)


# ------------------------------------------------------------------------------------------------ lower bounds

#: n / b that a rank's one link must carry, whatever the algorithm.
MUST_CARRY = {
    "broadcast": lambda p: 1,
    "reduce": lambda p: 1,
    "scatter": lambda p: (p - 1) / p,
    "gather": lambda p: (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "send_recv": lambda p: 1,
    "all_reduce": lambda p: 2 * (p - 1) / p,
}


@given(collectives, st.integers(2, 16), sizes, st.integers(0, 15))
@settings(max_examples=examples(150))
def test_time_is_never_below_the_latency_and_bandwidth_bounds(
    collective: tuple[str, str], p: int, size_bytes: float, root: int
) -> None:
    """A rank that hears k at once knows (k+1)**s ranks after s steps, log2 p for k = 1; the busiest link's bytes."""
    op, algorithm = collective
    schedule = make_schedule(op, algorithm, Layout(num_ranks=p, root=root % p), size_bytes)
    time_s = simulate_collective(schedule, wired(uniform(p))).time_s
    ports = max(max(np.bincount(one.src).max(), np.bincount(one.dst).max()) for one, _ in schedule.runs())
    latencies = 1 if op == "send_recv" else math.ceil(round(math.log(p) / math.log(ports + 1), 9))
    assert time_s >= latencies * ALPHA_S * (1 - 1e-9)
    assert time_s >= MUST_CARRY[op](p) * size_bytes / BETA_BYTES_PER_S * (1 - 1e-9)


@given(st.data())
@settings(max_examples=examples(60))
def test_time_is_never_below_what_the_busiest_link_needs_for_its_bytes(data: st.DataObject) -> None:
    network = data.draw(tree_networks())
    schedule, starts = data.draw(schedules(network.num_gpus)), data.draw(start_times(network.num_gpus))
    outcome = simulate_collective(schedule, wired(network), starts_s=starts)
    assert outcome.time_s >= (outcome.link_bytes / network.capacity_bytes_per_s).max() * (1 - 1e-9)


# ---------------------------------------------------------------------------------------------------- late starts


@given(st.data(), st.sampled_from(ONE_AT_A_TIME), st.integers(2, 12))
@settings(max_examples=examples(80))
def test_late_starts_delay_the_end_by_no_more_than_the_last_start(
    data: st.DataObject, collective: tuple[str, str], p: int
) -> None:
    """Without sharing, ends grow with starts: between everyone at 0 and everyone at the last start."""
    op, algorithm = collective
    schedule, starts = make_schedule(op, algorithm, Layout(num_ranks=p), data.draw(sizes)), data.draw(start_times(p))
    together = simulate_collective(schedule, wired(uniform(p))).finish_s
    apart = simulate_collective(schedule, wired(uniform(p)), starts_s=starts).finish_s
    assert (apart >= together * (1 - 1e-9)).all()
    assert (apart <= (starts.max() + together) * (1 + 1e-9)).all()


@given(st.data())
@settings(max_examples=examples(60))
def test_nobody_has_the_sum_before_the_last_rank_has_called_and_its_data_has_come(data: st.DataObject) -> None:
    network = data.draw(tree_networks())
    p = network.num_gpus
    algorithm = data.draw(st.sampled_from([algorithm for op, algorithm in TABLE if op == "all_reduce"]))
    schedule = make_schedule("all_reduce", algorithm, Layout(num_ranks=p), data.draw(sizes))
    starts = data.draw(start_times(p))
    finish = simulate_collective(schedule, wired(network), starts_s=starts).finish_s
    assert finish.min() >= starts.max() * (1 - 1e-12)


# ------------------------------------------------------------------------------------------- same input, same bytes

PROGRAM = """
import hashlib
import numpy as np
from networks import shipped, uniform, wired
from strategies import ON_ANY_NETWORK
from simulator.collectives import make_schedule
from simulator.engine.layouts import layout_of
from simulator.engine.collective import simulate_collective
from simulator.engine.interference import Interference
from simulator.engine.run import simulate
from simulator.plan import Communicate, Compute, Plan, RankClass

digest = hashlib.sha256()
for network in (uniform(6), shipped("dgx-h100", nodes=2, gpus_per_node=4), shipped("a100-bridged")):
    layout = layout_of(network, np.arange(network.num_gpus))
    starts = np.random.default_rng(5).random(network.num_gpus) * 1e-5
    for op, algorithm in ON_ANY_NETWORK:
        for fidelity in ("auto", "message"):
            schedule = make_schedule(op, algorithm, layout, 1e6)
            outcome = simulate_collective(schedule, wired(network), starts_s=starts, fidelity=fidelity)
            digest.update(outcome.finish_s.tobytes() + outcome.link_bytes.tobytes() + outcome.handed_over.encode())
    everyone = tuple(range(network.num_gpus))
    tasks = [Compute(name=f"c{i}", kind="forward", classes=("all",), seconds=1e-3 / (i + 1)) for i in range(5)]
    for i in range(5):
        tasks.append(Communicate(name=f"x{i}", op="all_reduce", axis="ab"[i % 2], algorithm="ring",
                                 message_bytes=1e7 / (i + 1), classes=("all",), after=(f"c{i}",)))
    plan = Plan(title="", classes=(RankClass(name="all", ranks=everyone),), tasks=tuple(tasks),
                axes={"a": (everyone,), "b": (everyone,)})
    for fidelity in ("coflow", "message"):
        ran = simulate(plan, network, interference=Interference(core_share=0.1), fidelity=fidelity)
        digest.update(repr(ran.spans).encode())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_two_processes_with_different_hash_seeds_give_the_same_bytes() -> None:
    """Ties are FIFO and nothing iterates a set: finish times, link bytes and spans, bit for bit."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)},
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    digests = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert digests[0] == digests[1]
    assert len(digests[0].strip()) == 64


def test_the_same_collective_twice_gives_the_same_bytes() -> None:
    def once(schedule: Schedule) -> bytes:
        return simulate_collective(schedule, wired(shipped("dgx-h100", nodes=2)), fidelity="message").finish_s.tobytes()

    schedule = make_schedule("all_to_all", "pairwise", Layout(num_ranks=16), 1e7)
    assert once(schedule) == once(schedule)
