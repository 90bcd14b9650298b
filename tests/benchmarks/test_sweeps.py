"""Points of a sweep on one core: load, plan, simulate and measure the 16-GPU scenario, again and again.

pytest tests/benchmarks/test_sweeps.py -o addopts= --benchmark-columns=min,median,ops
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from sweep_rows import SHIPPED

from simulator.sweeps.parcel import make_parcel, simulate_parcel
from simulator.sweeps.points import make_sweep
from simulator.sweeps.rows import Batch, simulate_points

SWEEP = make_sweep(
    SHIPPED,
    ["parallel.bucket_cap=1 MiB,9 MiB,25 MiB,33 MiB", "train.micro_batch=1,2,4,7", "train.seq_len=1024,2048,3072,4096"],
)
#: About a chunk of a local process.
CHUNKS = [SWEEP.points[start : start + 8] for start in range(0, len(SWEEP.points), 8)]


def by_process() -> Batch:
    batches = [simulate_points(SWEEP.base, chunk) for chunk in CHUNKS]
    return Batch(rows=tuple(row for batch in batches for row in batch.rows), seconds=0.0)


def by_parcel() -> Batch:
    """As a worker of a cluster does it, what travels pickled and unpickled."""
    parcel = pickle.dumps(make_parcel(SWEEP))
    batches = [pickle.loads(pickle.dumps(simulate_parcel(pickle.loads(parcel), chunk))) for chunk in CHUNKS]
    return Batch(rows=tuple(row for batch in batches for row in batch.rows), seconds=0.0)


@pytest.mark.parametrize("way", [by_process, by_parcel])
def test_points_on_one_core(benchmark: BenchmarkFixture, way: Callable[[], Batch]) -> None:
    """The warm-up wires the network, which later points share."""
    batch = benchmark.pedantic(way, rounds=3, warmup_rounds=1)
    benchmark.extra_info["points_per_s"] = round(len(batch.rows) / benchmark.stats.stats.min, 1)
    assert [row["error"] for row in batch.rows] == [None] * 64
