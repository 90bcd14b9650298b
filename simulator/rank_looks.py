"""Scenario and network -> how each rank looks: its speed over the nominal one, and its samples over the nominal number.

Slow ranks and jitter (``cluster``) make speeds, uneven batches (``train``) make work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.errors import ScenarioError
from simulator.network.graph import Network
from simulator.problems import Loc
from simulator.rank_classes import Look, jitter_speed
from simulator.ranks_spec import SomeRanks
from simulator.scenario import Scenario, Train


def looks_of(scenario: Scenario, train: Train, network: Network) -> list[Look]:
    """(speed, work) of ranks 0, 1, ...

    Raises ScenarioError naming file, line and key of a rank or node that the job does not have, or of a rank whose
    micro-batch is given twice.
    """
    cluster, count = scenario.cluster, network.num_gpus
    speeds, work = [1.0] * count, [1.0] * count
    for number, straggler in enumerate(cluster.stragglers):
        for rank in _ranks(scenario, network, straggler, ("cluster", "stragglers", number)):
            speeds[rank] *= straggler.speed
    given: set[int] = set()
    for number, uneven in enumerate(train.uneven):
        place: Loc = ("train", "uneven", number)
        for rank in _ranks(scenario, network, uneven, place):
            if rank in given:
                raise ScenarioError(scenario.describe(place, f"rank {rank} has a micro_batch already; name it once"))
            given.add(rank)
            work[rank] = uneven.micro_batch / train.micro_batch
    if cluster.jitter is not None:
        share, seed = cluster.jitter.share, cluster.jitter.seed
        speeds = [speed * jitter_speed(share, seed, rank) for rank, speed in enumerate(speeds)]
    return list(zip(speeds, work, strict=True))


def _ranks(scenario: Scenario, network: Network, some: SomeRanks, place: Loc) -> Iterator[int]:
    """The ranks that are meant, each once."""
    if some.node is not None:
        if some.node >= network.num_nodes:
            told = f"no node {some.node}: '{network.name}' has {_numbers(network.num_nodes)}"
            raise ScenarioError(scenario.describe((*place, "node"), told))
        yield from np.flatnonzero(network.node_of_gpu == some.node).tolist()
        return
    for rank in dict.fromkeys(some.ranks or ()):
        if rank >= network.num_gpus:
            told = f"no rank {rank}: the job has {_numbers(network.num_gpus)}"
            raise ScenarioError(scenario.describe((*place, "ranks"), told))
        yield rank


def _numbers(count: int) -> str:
    return f"0 to {count - 1}" if count > 1 else "only 0"
