"""Hypothesis strategies: networks, layouts, collectives and start times that the laws must hold for."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from networks import graph
from numpy.typing import NDArray

from simulator.collectives import ALGORITHMS, make_schedule
from simulator.collectives.layout import Layout
from simulator.network.graph import Network
from simulator.schedule import Ints, Phase, Schedule, pattern

RATES = (1e9, 2e9, 2.5e9, 4e9, 1e10)
LATENCIES = (0.0, 1e-6, 5e-6)
SIZES = (0.0, 1.0, 1000.0, 1e6, 3.7e7)

#: (op, algorithm) whose schedules put data through NVSwitches, so that they only run where there are some.
IN_SWITCHES = {key for key in ALGORITHMS if make_schedule(*key, Layout(num_ranks=4), 1.0).num_switches}
ON_ANY_NETWORK = sorted(set(ALGORITHMS) - IN_SWITCHES)

collectives = st.sampled_from(ON_ANY_NETWORK)


def examples(count: int) -> int:
    """So many; in the fast tier at most half as many as where a test does not say how many (see ``conftest``)."""
    usual = settings().max_examples
    return count if usual >= 100 else min(count, usual // 2)


sizes = st.sampled_from(SIZES)


@st.composite
def tree_networks(draw: st.DrawFn, max_ranks: int = 8) -> Network:
    """2 .. max_ranks GPUs on a random tree of 1 to 4 switches; half of them with equal GPU links.

    Links between switches may be slower than what meets on them, so flows really share.
    """
    cable = st.tuples(st.sampled_from(RATES), st.sampled_from(LATENCIES))
    num_switches, num_gpus = draw(st.integers(1, 4)), draw(st.integers(2, max_ranks))
    alike = draw(st.none() | cable)
    cables = [(f"switch{i}", f"switch{draw(st.integers(0, i - 1))}", *draw(cable)) for i in range(1, num_switches)]
    for gpu in range(num_gpus):
        cables.append((f"gpu{gpu}", f"switch{draw(st.integers(0, num_switches - 1))}", *(alike or draw(cable))))
    return graph(cables)


@st.composite
def layouts(draw: st.DrawFn, num_ranks: int) -> Layout:
    """Any root; one to three channels, with and without nodes; one or two torus axes."""
    p = num_ranks
    per_node = draw(st.sampled_from([None, *(d for d in range(2, p) if p % d == 0)]))
    shapes = [(p,), *((d, p // d) for d in range(2, p) if p % d == 0)]
    return Layout(
        num_ranks=p, root=draw(st.integers(0, p - 1)), ranks_per_node=per_node, channels=draw(st.integers(1, 3)),
        torus_shape=draw(st.sampled_from([None, *shapes])),
    )  # fmt: skip


@st.composite
def schedules(draw: st.DrawFn, num_ranks: int) -> Schedule:
    """Any algorithm of the table that needs no NVSwitch, on any layout and size."""
    op, algorithm = draw(collectives)
    return make_schedule(op, algorithm, draw(layouts(num_ranks)), draw(sizes))


def start_times(num_ranks: int) -> st.SearchStrategy[NDArray[np.float64]]:
    """When each rank calls: together, microseconds apart, or much longer apart than the collective takes."""
    one = st.sampled_from([0.0, 1e-6]) | st.floats(0, 1e-5) | st.floats(0, 1e-2)
    apart = st.lists(one, min_size=num_ranks, max_size=num_ranks).map(np.array)
    return st.just(np.zeros(num_ranks)) | apart


def flows(max_links: int = 6, max_flows: int = 8) -> st.SearchStrategy[tuple[list[float], list[list[int]]]]:
    """(capacities, routes): each route a set of distinct links, in any order."""
    capacities = st.lists(st.sampled_from(RATES) | st.floats(1e6, 1e11), min_size=1, max_size=max_links)
    return capacities.flatmap(
        lambda c: st.tuples(
            st.just(c),
            st.lists(st.lists(st.integers(0, len(c) - 1), min_size=1, unique=True), min_size=1, max_size=max_flows),
        )
    )


def torus_shapes(num_ranks: int) -> list[tuple[int, ...]]:
    """Every shape of two or three axes with that many ranks, axes of length one included."""
    divisors = [d for d in range(1, num_ranks + 1) if num_ranks % d == 0]
    flat = [(d, num_ranks // d) for d in divisors]
    deep = [(a, b, num_ranks // (a * b)) for a in divisors for b in divisors if num_ranks % (a * b) == 0 and a * b > 1]
    return [shape for shape in flat + deep if math.prod(shape) == num_ranks]


def _no_chunks(_step: int) -> Ints:
    return np.zeros(0, dtype=np.int64)


def by_hand(num_ranks: int, *steps: list[tuple[int, int, int]], chunk_bytes: float = 1.0) -> Schedule:
    """A schedule written out: steps of (from, to, chunks). Its data means nothing; only its times are asked for."""
    phases = []
    for step in steps:
        src, dst, chunks = np.array(step, dtype=np.int64).T
        phases.append(Phase(pattern=pattern(src, dst, chunks), steps=1, moves=_no_chunks, reduce=False))
    return Schedule(
        op="broadcast", algorithm="by hand", num_ranks=num_ranks, root=0, size_bytes=0.0, padding_bytes=0.0,
        num_chunks=1, chunk_bytes=chunk_bytes, phases=tuple(phases),
    )  # fmt: skip
