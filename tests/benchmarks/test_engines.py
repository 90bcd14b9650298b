"""How fast the engines are, on one core. Seconds never pass or fail; each benchmark asserts that it did the work.

pytest tests/benchmarks -o addopts= --benchmark-columns=min,median,ops
"""

from __future__ import annotations

import numpy as np
import pytest
from networks import shipped, uniform, wired
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.collectives import make_schedule
from simulator.collectives.layout import Layout
from simulator.engine.collective import simulate_collective, times_by_size
from simulator.engine.fairshare import max_min
from simulator.engine.interference import Interference
from simulator.engine.maker import CoflowMaker
from simulator.engine.run import simulate
from simulator.plan import Communicate, Compute, Plan, RankClass


def skew(num_ranks: int) -> np.ndarray:
    """Rank r calls at (r + 1) us."""
    return np.arange(1, num_ranks + 1) * 1e-6


@pytest.mark.parametrize("skewed", [False, True], ids=["together", "skewed"])
def test_messages_one_by_one(benchmark: BenchmarkFixture, skewed: bool) -> None:
    """A 256-rank ring, 130,560 messages; skewed, hardly two of them start at the same instant."""
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=256), 2.0**30)
    starts = skew(256) if skewed else np.zeros(256)
    wires = wired(uniform(256))
    outcome = benchmark.pedantic(
        simulate_collective, (schedule, wires), {"starts_s": starts, "fidelity": "message"}, rounds=2
    )
    benchmark.extra_info["messages_per_s"] = round(outcome.num_messages / benchmark.stats.stats.min)
    assert outcome.num_messages == 130_560


def test_messages_that_share_links(benchmark: BenchmarkFixture) -> None:
    """Pairwise all-to-all over 4 nodes: hash collisions on the spines, max-min sharing at every instant."""
    network = shipped("dgx-h100", nodes=4)
    schedule = make_schedule("all_to_all", "pairwise", Layout(num_ranks=32), 2.0**26)
    outcome = benchmark(simulate_collective, schedule, wired(network), fidelity="message")
    assert outcome.num_messages == 31 * 32


@pytest.mark.parametrize("num_ranks", [512, 4096, 16384])
@pytest.mark.parametrize("skewed", [False, True], ids=["together", "skewed"])
def test_whole_steps(benchmark: BenchmarkFixture, num_ranks: int, skewed: bool) -> None:
    """The ring of the README's comparison with other simulators, routes included."""
    network = uniform(num_ranks)
    starts = skew(num_ranks) if skewed else np.zeros(num_ranks)

    def from_nothing() -> int:
        schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=num_ranks), 2.0**30)
        return simulate_collective(schedule, wired(network), starts_s=starts, fidelity="vector").num_messages

    assert benchmark.pedantic(from_nothing, rounds=2) == 2 * (num_ranks - 1) * num_ranks


@pytest.mark.parametrize("algorithm", ["ring", "tree", "naive"])
def test_a_sweep_s_largest_row(benchmark: BenchmarkFixture, algorithm: str) -> None:
    """21 sizes at once on 4,096 ranks."""
    network, sizes = uniform(4096), 2.0 ** np.arange(10, 31)

    def row() -> int:
        schedule = make_schedule("all_reduce", algorithm, Layout(num_ranks=4096), 1.0)
        return len(times_by_size(schedule, wired(network), sizes)[0])

    assert benchmark.pedantic(row, rounds=2) == 21


def test_max_min_of_ten_thousand_flows(benchmark: BenchmarkFixture) -> None:
    random = np.random.default_rng(1)
    routes, capacity = random.integers(0, 2000, (10_000, 4)), random.choice([25e9, 50e9, 450e9], 2000)
    rates = benchmark(max_min, routes, capacity)
    assert (rates > 0).all()


def test_a_step_of_two_hundred_buckets_on_sixteen_thousand_gpus(benchmark: BenchmarkFixture) -> None:
    """Ten distinct bucket sizes, as a model of equal layers has."""
    network = shipped("dgx-h100", nodes=2048)
    everyone = tuple(range(network.num_gpus))
    tasks: list[Compute | Communicate] = []
    for i in range(200):
        tasks.append(Compute(name=f"c{i}", kind="backward", classes=("all",), seconds=1e-3))
        tasks.append(
            Communicate(
                name=f"x{i}", op="all_reduce", axis="dp", algorithm="ring", message_bytes=25e6 + i % 10,
                classes=("all",), after=(f"c{i}",),
            )
        )  # fmt: skip
    plan = Plan(
        title="", classes=(RankClass(name="all", ranks=everyone),), axes={"dp": (everyone,)}, tasks=tuple(tasks)
    )
    slowed = Interference(core_share=0.1)
    timeline = benchmark.pedantic(
        lambda: simulate(plan, network, interference=slowed, maker=CoflowMaker(network)), rounds=1
    )
    assert len(timeline.spans) == 400


def test_a_step_of_many_groups_on_sixteen_thousand_gpus(benchmark: BenchmarkFixture) -> None:
    """Shards of 64 GPUs, replicas of 256, tensor groups of 8: 2,368 groups in 3 axes, simulated by class."""
    network = shipped("dgx-h100", nodes=2048)
    gpus = np.arange(network.num_gpus)
    shards = gpus.reshape(-1, 64)
    axes = {
        name: tuple(tuple(group) for group in groups.tolist())
        for name, groups in (("shard", shards), ("replica", shards.T), ("tensor", gpus.reshape(-1, 8)))
    }
    calls = [("all_gather", "shard"), ("all_reduce", "tensor"), ("reduce_scatter", "shard"), ("all_reduce", "replica")]
    tasks = [
        Communicate(
            name=f"{op}-{axis}-{layer}", op=op, axis=axis, algorithm="ring", message_bytes=25e6, classes=("all",)
        )
        for layer in range(32) for op, axis in calls
    ]  # fmt: skip
    plan = Plan(title="", classes=(RankClass(name="all", ranks=tuple(gpus.tolist())),), axes=axes, tasks=tuple(tasks))
    timeline = benchmark.pedantic(lambda: simulate(plan, network, maker=CoflowMaker(network)), rounds=1)
    assert len(timeline.spans) == len(tasks)
