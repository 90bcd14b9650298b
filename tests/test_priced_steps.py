"""What a library runs costs the same in a training step as by itself, also where groups share links; and the terms of
NCCL's formulas one by one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import shipped
from test_tuning import GIB, KIB, MIB, choice, nccl, shape

from simulator.collective_rows import make_field, rows_of
from simulator.engine.composite import make_composite
from simulator.engine.maker import CoflowMaker
from simulator.network.graph import Network
from simulator.network.placement import split
from simulator.tuning.belief import bandwidth, believed_steps, graph_of
from simulator.tuning.latency import latency_s
from simulator.tuning.measured import measured_cost

CLUSTERS: dict[str, tuple[Network, int, str]] = {
    "rails of DGX H100": (shipped("dgx-h100", nodes=4), 4, "rail"),
    "rails over two NICs": (shipped("polaris", nodes=4), 4, "rail"),
    "pairs on PCIe": (shipped("l40s-pcie", nodes=1), 2, "stride"),
}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("size", [64.0 * KIB, 1.0 * MIB, 256.0 * MIB])
def test_groups_that_share_links_cost_the_same_in_a_step_as_by_themselves(name: str, size: float) -> None:
    network, each, by = CLUSTERS[name]
    groups = split(network, np.arange(network.num_gpus), each, by)
    coflow = CoflowMaker(network).coflow("all_reduce", "auto", size, tuple(map(tuple, groups.tolist())))
    row = next(
        row for row in rows_of(make_field("all_reduce", each, network, ["auto"], groups=groups), [size]) if row.picked
    )
    assert (coflow.cost.algorithm, coflow.cost.protocol) == (row.algorithm, row.protocol)
    assert coflow.cost.alone_s == pytest.approx(row.time_s, rel=1e-9)


def test_groups_on_one_link_take_longer_than_one_of_them() -> None:
    network, each, by = CLUSTERS["rails over two NICs"]
    groups = tuple(map(tuple, split(network, np.arange(network.num_gpus), each, by).tolist()))
    alone, together = (
        CoflowMaker(network).coflow("all_reduce", "ring", GIB, held).cost for held in (groups[:1], groups)
    )
    assert together.alone_s > 1.8 * alone.alone_s  # two GPUs of a node share each NIC


def test_a_coflow_asks_for_the_flags_of_its_protocol_too() -> None:
    """LL sends as many bytes of flags as of data; work_s seconds of it put both on the link."""
    network = shipped("dgx-h100", nodes=1)
    group = (tuple(range(8)),)
    coflow = CoflowMaker(network).coflow("all_reduce", "ring", 256.0 * KIB, group)
    assert coflow.cost.protocol == "LL"
    assert coflow.asked_bytes_per_s * coflow.work_s == pytest.approx(2 * coflow.link_bytes)


def test_hierarchical_in_a_step_is_the_library_calls() -> None:
    network = shipped("dgx-h100", nodes=4)
    composite = make_composite("all_reduce", network, np.arange(32)[None, :])
    assert composite is not None
    coflow = CoflowMaker(network).coflow("all_reduce", "hierarchical", 64.0 * MIB, (tuple(range(32)),))
    assert coflow.cost.alone_s == pytest.approx(composite.option(64.0 * MIB).cost.time_s, rel=1e-12)
    assert coflow.cost.fidelity == "library"


@pytest.mark.parametrize(
    ("op", "calls"),
    [
        ("all_reduce", [("reduce_scatter", 8, 1.0), ("all_reduce", 4, 1 / 8), ("all_gather", 8, 1.0)]),
        ("reduce_scatter", [("reduce_scatter", 8, 1.0), ("reduce_scatter", 4, 1 / 8)]),
        ("all_gather", [("all_gather", 4, 1 / 8), ("all_gather", 8, 1.0)]),
    ],
)
def test_the_calls_of_a_hierarchical_collective(op: str, calls: list[tuple[str, int, float]]) -> None:
    composite = make_composite(op, shipped("dgx-h100", nodes=4), np.arange(32)[None, :])
    assert composite is not None
    assert [(pricer.op, pricer.shapes[0].num_ranks, share) for pricer, share in composite.stages] == calls
    protocols = set()
    for size in (float(2**k) for k in range(10, 31)):
        options = [pricer.picked(size * share) for pricer, share in composite.stages]
        longest = max(options, key=lambda one: one.cost.time_s)
        assert composite.option(size).protocol == longest.protocol
        protocols |= {one.protocol for one in options if one.protocol != longest.protocol}
    assert protocols, "at some size the calls use different protocols"


def test_of_groups_at_once_the_one_on_a_slow_card_is_the_slowest() -> None:
    network = shipped("dgx-h100", nodes=2)
    slow = [pair[0] == "node1.nic3" or pair[1] == "node1.nic3" for pair in network.link_names]
    halved = replace(network, capacity_bytes_per_s=np.where(slow, 0.5, 1.0) * network.capacity_bytes_per_s)
    groups = split(halved, np.arange(16), 2, "rail")
    (row,) = rows_of(make_field("all_reduce", 2, halved, ["ring"], groups=groups), [1.0 * GIB])
    (even,) = rows_of(make_field("all_reduce", 2, network, ["ring"], groups=groups), [1.0 * GIB])
    assert row.fastest_group_s == pytest.approx(even.time_s, rel=1e-9)
    assert row.time_s == pytest.approx(2 * even.time_s, rel=0.02)


# ------------------------------------------------------------------------------------- the terms of NCCL's formulas


def test_a_ring_over_nodes_steps_no_faster_than_the_proxy() -> None:
    """o = 1 us (2 with an AMD host), three times that with Simple (NVIDIA/nccl src/graph/tuning.cc)."""
    at = shape(4, 8)
    for cpu, overhead in (("intel", 1e-6), ("amd", 2e-6)):
        steps = believed_steps(replace(at, cpu=cpu), choice())  # type: ignore[arg-type]
        ll = latency_s("all_gather", "ring", "LL", at, steps)
        assert ll == pytest.approx(6.6e-6 + 28 * overhead + 3 * 2.7e-6)
        simple = latency_s("all_gather", "ring", "Simple", at, steps)
        assert simple == pytest.approx(8.4e-6 + 28 * max(3.4e-6, 3 * overhead) + 3 * 14e-6)


def test_latency_of_a_chain_and_of_pat() -> None:
    """Broadcast: a step per rank and one per node; PAT: 8 + floor(log2 N) net / 3.5 + 2.8 n."""
    steps = believed_steps(shape(4, 8), choice())
    assert latency_s("broadcast", "ring", "LL", shape(4, 8), steps) == pytest.approx((6.6 + 32 * 0.6 + 4 * 2.7) * 1e-6)
    flat = shape(16, 1)
    pat = latency_s("all_gather", "pat", "Simple", flat, believed_steps(flat, choice()))
    assert pat == pytest.approx((8 + 4 * 14 / 3.5 + 2.8 * 16) * 1e-6)


def test_bandwidths_that_only_some_groups_see() -> None:
    """PAT 0.75 of the bus; NVLS all-gather (ppn - 1) / ppn; one GPU a node: trees x 0.85."""
    flat = shape(16, 1)
    assert bandwidth("all_gather", "pat", "Simple", flat, choice()) == pytest.approx(0.75 * 48e9)
    per_channel = 40e9 * 0.85 * 7 / 8
    assert bandwidth("all_gather", "nvls", "Simple", shape(1, 8), choice()) == pytest.approx(per_channel * 7 / 8 * 8)
    tree = min(0.92 * 48e9, 36e9)
    assert bandwidth("all_reduce", "double_tree", "Simple", flat, choice()) == pytest.approx(tree * 0.85 / 2)


@pytest.mark.parametrize(
    ("gpus", "channels", "speed"), [(4, 4, 60), (8, 8, 40), (16, 16, 20), (32, 32, 11), (72, 32, 11)]
)
def test_every_gpu_of_a_node_pulls_an_nvls_channel(gpus: int, channels: int, speed: int) -> None:
    """8 x 40 GB/s on 8 H100 (graph dump of NVIDIA/nccl issue 1197), at most 32 (NCCL_MAX_NVLS_ARITY, device.h). The
    link of a GPU, 0.824 x 450 GB/s, carries each channel and its own twice (search.cc, ncclTopoSearchTryNvls).
    """
    graph = graph_of(shape(1, gpus), choice())
    assert (graph.nvls_channels, graph.nvls_bytes_per_s) == (channels, speed * 1e9)
    assert (channels + 1) * speed <= 0.824 * 450


@pytest.mark.parametrize("first", ["near", "far"])
def test_pairs_of_stages_in_a_rack_and_across_racks_take_what_the_slowest_takes(first: str) -> None:
    """Each kind of pair is priced for itself, whichever comes first: NVLink's rate is none for a network card."""
    maker = CoflowMaker(shipped("gb200-nvl72", nodes=36))
    near, far = (0, 16), (64, 80)
    pairs = (near, far) if first == "near" else (far, near)
    alone = {pair: maker.coflow("send", "auto", 64.0 * MIB, (pair,)).cost.alone_s for pair in pairs}
    assert alone[far] > 5 * alone[near]
    both = maker.coflow("send", "auto", 64.0 * MIB, pairs)
    assert both.cost.alone_s == pytest.approx(alone[far], rel=1e-12)
    assert both.link_bytes.sum() == pytest.approx(
        sum(maker.coflow("send", "auto", 64.0 * MIB, (pair,)).link_bytes.sum() for pair in pairs), rel=1e-12
    )


def test_groups_that_lie_differently_run_what_the_library_picks_for_each() -> None:
    """24 ranks each: two groups in a rack of 72, one over two racks; the one that leaves its rack is the slowest."""
    maker = CoflowMaker(shipped("gb200-nvl72", nodes=36))
    inside, across = tuple(range(24)), tuple(range(60, 84))
    groups = (inside, tuple(range(24, 48)), across)
    alone = maker.coflow("all_gather", "auto", 64.0 * MIB, (across,))
    both = maker.coflow("all_gather", "auto", 64.0 * MIB, groups)
    assert both.cost.alone_s == pytest.approx(alone.cost.alone_s, rel=1e-12)
    assert both.cost.alone_s > 1.2 * maker.coflow("all_gather", "auto", 64.0 * MIB, (inside,)).cost.alone_s


def test_a_tree_is_corrected_only_at_the_sizes_of_the_table() -> None:
    """Indices 0 to 23 from 64 B: 512 MiB is the last; NVLS trees of Blackwell on x86 hosts are corrected alike."""
    from simulator.tuning.belief import believed_s

    at = shape(4, 8)

    def rate(size: float, where: object = at, algorithm: str = "double_tree") -> float:
        long, short = (believed_s("all_reduce", algorithm, "Simple", s, where, choice()) for s in (size, size * 1.5))  # type: ignore[arg-type]
        return 0.5 * size / (short - long)

    whole = bandwidth("all_reduce", "double_tree", "Simple", at, choice())
    assert rate(512 * MIB) == pytest.approx(0.9 * whole, rel=1e-6)
    assert rate(1 * GIB) == pytest.approx(whole, rel=1e-6)
    x86 = shape(4, 8, generation="blackwell", gpu_bytes_per_s=900e9)
    grace = replace(x86, cpu="arm")
    half = rate(4 * MIB, x86, "nvls_tree") / rate(4 * MIB, grace, "nvls_tree")
    assert half == pytest.approx(0.7, rel=1e-6)


def test_send_and_receive_wait_for_one_peer_near_or_far() -> None:
    measured = nccl().measured
    near, far = (measured_cost("send_recv", "direct", "Simple", 8.0, 1e-9, at, measured).latency_s
                 for at in (shape(1, 8), shape(8, 1)))  # fmt: skip
    assert near == pytest.approx(20e-6 + 2.5e-6)
    assert far == pytest.approx(20e-6 + 2e-6)


def test_a_ring_sends_its_messages_one_after_the_other() -> None:
    """2 (n - 1) messages of 2 us at least on InfiniBand, whatever their size; Simple hides them behind its bytes."""
    at, measured = shape(512, 8), nccl().measured
    for protocol in ("LL", "Simple"):
        cost = measured_cost("all_reduce", "ring", protocol, 8.0, 1e-9, at, measured)  # type: ignore[arg-type]
        assert cost.time_s >= 2 * 4095 * 2e-6
    many = shape(540, 4, generation="ampere", nvswitch=False, nics=2, fabric="slingshot_rdzv")
    gathered = measured_cost("all_gather", "ring", "Simple", 8.0, 1e-9, many, measured)
    assert gathered.latency_s < 2159 * 8.5e-6 == pytest.approx(gathered.time_s)
