"""Thousands of ranks, against closed forms: what a collective costs there, not how long it takes to say so.

The two-level reference: 8 GPUs a node at 450 GiB/s and 0.5 us, N nodes at 50 GiB/s per GPU and 5 us.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from networks import ALPHA_S, BETA_BYTES_PER_S, shipped, uniform, wired

from simulator.collectives import make_schedule
from simulator.collectives.layout import Layout
from simulator.engine.collective import simulate_collective
from simulator.engine.layouts import layout_of
from simulator.engine.wires import make_wires
from simulator.library import AlphaBetaLibrary
from simulator.load import load_topology
from simulator.network.builders import build_network
from simulator.network.graph import Network
from simulator.topology import LinkSpec, NvSwitchIntra, RailFatTreeSpec

GIB = 2.0**30


def link_spec(bandwidth: str, latency: str) -> LinkSpec:
    return LinkSpec.model_validate(
        {"bandwidth": bandwidth, "latency": latency, "efficiency": "100%", "source": "the two-level reference"}
    )


@cache
def two_levels(num_nodes: int) -> Network:
    """Rails of one leaf each: half a message's latency on the way up, half on the way down; PCIe never limits."""
    spec = load_topology("dgx-h100")
    assert isinstance(spec, RailFatTreeSpec)
    assert isinstance(spec.intra, NvSwitchIntra)
    fabric = spec.network.model_copy(
        update={"nic": link_spec("50 GiB/s", "2.5 us"), "pcie": link_spec("1000 GB/s", "0 s"), "nodes_per_pod": 65_536}
    )
    intra = spec.intra.model_copy(update={"link": link_spec("450 GiB/s", "0.25 us")})
    update = {"intra": intra, "network": fabric, "library": AlphaBetaLibrary()}
    return build_network(spec.model_copy(update=update), nodes=num_nodes)


def in_closed_form_s(num_nodes: int, size_bytes: float) -> float:
    """Reduce-scatter and all-gather in the node, a ring all-reduce of an eighth across the nodes."""
    inside = 2 * 7 * (0.5e-6 + size_bytes / 8 / (450 * GIB))
    return inside + 2 * (num_nodes - 1) * (5e-6 + size_bytes / 8 / num_nodes / (50 * GIB))


@pytest.mark.parametrize(
    ("num_ranks", "milliseconds"),
    [(64, 8.3409), (512, 9.4478), (4096, 13.9961), pytest.param(16384, 29.3634, marks=pytest.mark.slow)],
)
def test_the_two_level_reference(num_ranks: int, milliseconds: float) -> None:
    """1 GiB, to four decimals, with every transfer of every rank accounted for."""
    network = two_levels(num_ranks // 8)
    layout = layout_of(network, np.arange(num_ranks))
    outcome = simulate_collective(make_schedule("all_reduce", "hierarchical", layout, GIB), wired(network))
    assert (outcome.fidelity, outcome.handed_over) == ("vector", "")
    assert round(outcome.time_s * 1e3, 4) == milliseconds
    assert outcome.time_s == pytest.approx(in_closed_form_s(num_ranks // 8, GIB), rel=1e-9)


@pytest.mark.slow
def test_a_ring_of_131072_ranks_takes_the_closed_form() -> None:
    """34 billion messages: the steps are alike from the second on, so the exact answer does not look at each."""
    p = 131_072
    schedule = make_schedule("all_reduce", "ring", Layout(num_ranks=p), GIB)
    outcome = simulate_collective(schedule, wired(uniform(p)))
    assert outcome.fidelity == "vector"
    assert outcome.num_messages == 2 * (p - 1) * p
    assert outcome.time_s == pytest.approx(2 * (p - 1) * (ALPHA_S + GIB / (p * BETA_BYTES_PER_S)), rel=1e-9)


def hashed(name: str, nodes: int) -> Network:
    """A shipped topology whose spines are chosen by a hash of the pair, as on Ethernet."""
    return replace(shipped(name, nodes=nodes), routing="up-down")


@pytest.mark.slow
def test_a_tree_of_4096_ranks_is_exact_where_its_messages_meet_on_spines() -> None:
    """8,190 messages that share leaf uplinks by hash: played one by one, each with the few that it meets.

    Sharing links as if all ranks were in step would make it a sixth longer: what the estimate costs that this avoids.
    """
    network = hashed("dgx-h100", 512)
    schedule = make_schedule("all_reduce", "tree", layout_of(network, np.arange(4096)), 2.0**28)
    outcome = simulate_collective(schedule, wired(network))
    assert outcome.fidelity == "message"
    estimate = simulate_collective(schedule, wired(network), fidelity="lockstep")
    assert estimate.lower_s <= outcome.time_s <= estimate.upper_s
    assert estimate.time_s > 1.1 * outcome.time_s


@pytest.mark.parametrize("num_ranks", [8, 512])
def test_all_at_once_takes_its_closed_form_on_a_uniform_network(num_ranks: int) -> None:
    """Direct: p - 1 messages share a rank's port, so the bytes take as long as one after the other; one latency."""
    schedule = make_schedule("all_to_all", "direct", Layout(num_ranks=num_ranks), GIB)
    outcome = simulate_collective(schedule, wired(uniform(num_ranks)))
    sent = (num_ranks - 1) * schedule.chunk_bytes
    assert outcome.fidelity == "vector"
    assert outcome.time_s == pytest.approx(ALPHA_S + sent / BETA_BYTES_PER_S, rel=1e-9)


@pytest.mark.slow
def test_where_hashes_pile_up_on_spines_an_all_to_all_is_known_within_a_thousandth() -> None:
    """512 GPUs in two pods, 261,632 messages at once: NICs are busy to the end, so only latencies are uncertain."""
    network = hashed("dgx-h100", 64)
    schedule = make_schedule("all_to_all", "direct", layout_of(network, np.arange(512)), 2.0**28)
    outcome = simulate_collective(schedule, make_wires(network, np.arange(512)))
    assert outcome.fidelity == "lockstep"
    assert "shared by too many transfers at once" in outcome.handed_over
    assert outcome.lower_s <= outcome.time_s <= outcome.upper_s
    assert outcome.upper_s / outcome.lower_s < 1.001
