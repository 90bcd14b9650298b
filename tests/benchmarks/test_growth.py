"""How simulating each algorithm grows with the number of ranks: the slope of log time over log p, printed.

Expected from what is looked at, each a numpy pass: a ring or hierarchical schedule has patterns of p transfers, whose
steps become periodic, so 1; a tree has 2 (p - 1) transfers, 1; halving and doubling p log p; all-to-all p (p - 1), 2.
Played message by message (on spines whose uplinks hash collisions share): trees 2 (p - 1) messages, each with those
that it meets; a ring 2 p (p - 1). At small p the cost of a numpy call hides the slope, so sizes start where it does
not.

pytest tests/benchmarks/test_growth.py -o addopts= -s --benchmark-disable
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from networks import shipped, uniform, wired
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.collectives import make_schedule
from simulator.engine.collective import simulate_collective
from simulator.engine.layouts import layout_of
from simulator.network.graph import Network

#: (operation, algorithm, topology, engine, smallest and largest p)
GROWING = [
    ("all_reduce", "ring", "uniform", "auto", 4096, 65536),
    ("all_reduce", "ring", "dgx-h100", "auto", 2048, 16384),
    ("all_reduce", "tree", "uniform", "auto", 4096, 65536),
    ("all_reduce", "tree", "dgx-h100", "auto", 1024, 8192),
    ("all_reduce", "double_tree", "uniform", "auto", 1024, 8192),
    ("all_reduce", "hierarchical", "dgx-h100", "auto", 4096, 16384),
    ("all_reduce", "nvls", "dgx-h100", "auto", 4096, 16384),
    ("all_reduce", "halving_doubling", "uniform", "auto", 8192, 65536),
    ("all_to_all", "direct", "uniform", "auto", 128, 1024),
    ("all_to_all", "pairwise", "uniform", "auto", 256, 2048),
    ("all_to_all", "rail", "dgx-h100", "lockstep", 256, 2048),
    ("all_reduce", "ring", "uniform", "message", 32, 256),
    ("all_to_all", "pairwise", "dgx-h100", "message", 64, 256),
]


def network_of(topology: str, num_ranks: int) -> Network:
    return uniform(num_ranks) if topology == "uniform" else shipped(topology, nodes=num_ranks // 8)


def cpu_s(op: str, algorithm: str, network: Network, fidelity: str) -> float:
    """Least of three runs, schedule and routes included."""
    spent = []
    for _ in range(3):
        start = time.process_time()
        schedule = make_schedule(op, algorithm, layout_of(network, np.arange(network.num_gpus)), 2.0**28)
        simulate_collective(schedule, wired(network), fidelity=fidelity)
        spent.append(time.process_time() - start)
    return min(spent)


@pytest.mark.parametrize(("op", "algorithm", "topology", "fidelity", "least", "most"), GROWING)
def test_growth(
    benchmark: BenchmarkFixture, op: str, algorithm: str, topology: str, fidelity: str, least: int, most: int
) -> None:
    ranks = [least * 2**k for k in range((most // least).bit_length())]
    networks = [network_of(topology, p) for p in ranks]

    def measure() -> list[float]:
        return [cpu_s(op, algorithm, network, fidelity) for network in networks]

    seconds = benchmark.pedantic(measure, rounds=1)
    exponent = float(np.polyfit(np.log(ranks), np.log(seconds), 1)[0])
    benchmark.extra_info["exponent"] = round(exponent, 2)
    shown = ", ".join(f"{p}: {s * 1e3:.1f} ms" for p, s in zip(ranks, seconds, strict=True))
    print(f"\n{op}/{algorithm} on {topology}, {fidelity}: time ~ p^{exponent:.2f} ({shown})")
    assert len(seconds) == len(ranks)
