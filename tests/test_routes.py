"""Routes: connected, as short as networkx finds, the same every time, and fast."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_network import EXAMPLES, explicit, gpus, torus

from simulator.load import load_topology
from simulator.network.builders import BUILDERS, build_network
from simulator.network.graph import Network
from simulator.network.routes import Routes
from simulator.network.routing.wiring import mix

#: Every kind with the shortest routes only: PXN has tests of its own.
SHORTEST = {kind: replace(network, pxn=False) for kind, network in EXAMPLES.items()}


def pairs(network: Network, count: int) -> list[tuple[int, int]]:
    draws = np.random.default_rng(7).integers(0, network.num_gpus, (count, 2))
    return [(int(a), int(b)) for a, b in draws if a != b]


def shortest(network: Network, src: int, dst: int) -> int:
    """networkx's hop count, with only the ends' GPUs kept unless GPUs are the routers (torus)."""
    ends = (network.gpus[src], network.gpus[dst])
    graph = network.graph
    if network.routing != "dimension-order":
        kind = graph.nodes(data="kind")
        graph = nx.subgraph_view(graph, filter_node=lambda name: kind[name] != "gpu" or name in ends)
    return int(nx.shortest_path_length(graph, *ends))


def places_on(network: Network, route: tuple[int, ...]) -> list[str]:
    return [network.link_names[route[0]][0], *(network.link_names[link][1] for link in route)]


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_route_is_a_shortest_chain_of_links(kind: str) -> None:
    network = SHORTEST[kind]
    routes = Routes(network)
    for src, dst in pairs(network, 60):
        route = routes.route(src, dst)
        names = [network.link_names[link] for link in route]
        assert names[0][0] == network.gpus[src]
        assert names[-1][1] == network.gpus[dst]
        assert all(before[1] == after[0] for before, after in pairwise(names))
        assert len(route) == shortest(network, src, dst)


@pytest.mark.parametrize("kind", [kind for kind in BUILDERS if kind != "torus"])
def test_gpus_do_not_forward_for_others(kind: str) -> None:
    network = SHORTEST[kind]
    routes = Routes(network)
    for src, dst in pairs(network, 60):
        between = places_on(network, routes.route(src, dst))[1:-1]
        assert not [name for name in between if network.graph.nodes[name]["kind"] == "gpu"]


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_table_is_its_routes_one_by_one(kind: str) -> None:
    """CSR rows equal ``route``; latency is the sum of the links' plus the library's; rate is the slowest link's."""
    network = EXAMPLES[kind]
    routes = Routes(network)
    chosen = pairs(network, 40)
    table = routes.table(np.array([a for a, _ in chosen]), np.array([b for _, b in chosen]))
    for i, (src, dst) in enumerate(chosen):
        links = table.links[table.offsets[i] : table.offsets[i + 1]]
        assert tuple(links) == Routes(network).route(src, dst)
        expected = network.latency_s[links].sum() + network.message_overhead_s
        assert table.latency_s[i] == pytest.approx(expected, rel=1e-12)
        assert table.solo_bytes_per_s[i] == network.capacity_bytes_per_s[links].min()


def test_a_uniform_route_costs_exactly_alpha() -> None:
    network = build_network(load_topology("uniform"), nodes=64)
    everyone = np.arange(64)
    table = Routes(network).table(everyone, (everyone + 1) % 64)
    assert set(table.latency_s) == {5e-6}
    assert set(table.solo_bytes_per_s) == {50e9}


def without_pxn(nodes: int) -> Network:
    return replace(build_network(load_topology("dgx-h100"), nodes=nodes), pxn=False)


def test_same_rail_stays_on_its_leaf_and_another_rail_crosses_a_spine() -> None:
    network = without_pxn(2)
    routes = Routes(network)
    same = places_on(network, routes.route(0, 8))
    assert same == ["node0.gpu0", "node0.nic0", "pod0.leaf0", "node1.nic0", "node1.gpu0"]
    other = places_on(network, routes.route(0, 9))
    assert [network.graph.nodes[name]["role"] for name in other] == [
        "gpu",
        "nic",
        "leaf",
        "spine",
        "leaf",
        "nic",
        "gpu",
    ]


@pytest.mark.parametrize("name", ["dgx-h100", "aws-p4d", "mi300x", "l40s-pcie", "a100-bridged", "rtx4090-pcie"])
def test_traffic_inside_a_node_never_leaves_it(name: str) -> None:
    """Not even through a NIC that two GPUs share (p4d)."""
    network = build_network(load_topology(name), nodes=2)
    routes = Routes(network)
    for src in range(8):
        for dst in range(8):
            if src != dst:
                kinds = {network.graph.nodes[place]["kind"] for place in places_on(network, routes.route(src, dst))}
                assert kinds <= {"gpu", "switch", "host"}


def test_a_bridged_pair_uses_its_bridge_and_strangers_use_pcie() -> None:
    network = EXAMPLES["bridged_pairs"]
    tier = network.graph.edges
    routes = Routes(network)
    for first in range(0, 8, 2):
        bridge = [tier[network.link_names[link]]["tier"] for link in routes.route(first, first + 1)]
        assert bridge == ["nvlink-bridge"]
    across = [tier[network.link_names[link]]["tier"] for link in routes.route(1, 6)]
    assert across == ["pcie", "pcie-up", "socket", "pcie-up", "pcie"]


def test_pxn_changes_rails_inside_the_node_and_needs_no_spine_inside_a_pod() -> None:
    """NCCL 2.12's PXN: over NVSwitch to the local GPU of the destination's rail, out by its NIC, up to one leaf."""
    network = build_network(load_topology("dgx-h100"), nodes=40)
    assert network.pxn
    routes = Routes(network)
    assert places_on(network, routes.route(0, 9)) == [
        "node0.gpu0", "node0.nvswitch", "node0.gpu1", "node0.nic1", "pod0.leaf1", "node1.nic1", "node1.gpu1",
    ]  # fmt: skip
    assert places_on(network, routes.route(0, 8))[1] == "node0.nic0", "the same rail takes its own NIC"
    far = places_on(network, routes.route(3, 8 * 35 + 6))
    assert far[:4] == ["node0.gpu3", "node0.nvswitch", "node0.gpu6", "node0.nic6"]
    assert [name for name in far if name.startswith("pod")] == ["pod0.leaf6", "pod1.leaf6"]
    assert sum(name.startswith("spine") for name in far) == 1


@pytest.mark.parametrize("nodes", [2, 5, 32])
def test_direct_all_to_all_inside_a_pod_loads_no_spine_with_pxn(nodes: int) -> None:
    network = build_network(load_topology("dgx-h100"), nodes=nodes)
    src, dst = (ends.ravel() for ends in np.nonzero(~np.eye(network.num_gpus, dtype=bool)))
    spines = {link for link, ends in enumerate(network.link_names) if any(e.startswith("spine") for e in ends)}
    assert spines
    assert not spines & set(Routes(network).table(src, dst).links.tolist())
    assert spines & set(Routes(without_pxn(nodes)).table(src, dst).links.tolist())


@pytest.mark.parametrize(("name", "nodes"), [("dgx-h100", 40), ("gb200-nvl72", 40), ("hgx-h200", 3)])
def test_with_pxn_a_route_is_a_chain_that_leaves_by_the_rail_it_arrives_on(name: str, nodes: int) -> None:
    """Also: the GPU in the middle is on the source's host; both NICs and both leaves have the same number."""
    network = build_network(load_topology(name), nodes=nodes)
    routes, attribute = Routes(network), network.graph.nodes
    for src, dst in pairs(network, 200):
        names = places_on(network, routes.route(src, dst))
        ends = [network.link_names[link] for link in routes.route(src, dst)]
        assert all(before[1] == after[0] for before, after in pairwise(ends))
        assert (names[0], names[-1]) == (network.gpus[src], network.gpus[dst])
        assert len(set(names)) == len(names)
        for gpu in [name for name in names[1:-1] if attribute[name]["kind"] == "gpu"]:
            assert attribute[gpu]["node"] == network.node_of_gpu[src]
        switches = [name for name in names if attribute[name]["role"] in {"nic", "leaf"}]
        assert len({name.partition(".")[2].lstrip("nicleaf") for name in switches}) <= 1


def test_pxn_is_on_where_rails_meet_an_nvswitch_and_can_be_switched() -> None:
    built = {name: build_network(load_topology(name), nodes=2).pxn for name in ("dgx-h100", "dgx-a100")}
    assert all(built.values())
    for name in ("aws-p4d", "mi300x", "l40s-pcie", "a100-bridged", "workstations-10gbe", "dgx2-v100"):
        assert not build_network(load_topology(name), nodes=2).pxn, name
    spec = load_topology("dgx-h100")
    off = spec.model_copy(update={"network": spec.network.model_copy(update={"pxn": False})})  # type: ignore[attr-defined]
    assert not build_network(off, nodes=2).pxn


@pytest.mark.parametrize("shift", [5, 16, 32, 33, 64, 95])
def test_by_destination_no_shift_of_nodes_loads_a_cable_beyond_its_rate(shift: int) -> None:
    """D-mod-K is free of contention for shifts (Zahavi, CCIT 776, 2010): 4 pods of 32 nodes, 16 spines, all rails. A
    cable of two network cards' rate carries at most two flows; by a hash of the pair up to ten share one.
    """
    most = {}
    for choice, routing in (("destination", "up-down-by-destination"), ("hash", "up-down")):
        network = replace(build_network(load_topology("dgx-h100"), nodes=128), routing=routing)
        src = np.arange(network.num_gpus)
        links = Routes(network).table(src, (src + 8 * shift) % network.num_gpus).links
        up = [number for number, ends in enumerate(network.link_names) if any(end.startswith("spine") for end in ends)]
        most[choice] = int(np.bincount(links, minlength=len(network.link_names))[up].max())
    assert most["destination"] <= 2 < most["hash"]


def test_equal_cost_spines_are_all_used_about_equally() -> None:
    """One destination pod, 8 rails x 32 nodes: no spine takes more than three times its share of the flows."""
    network = replace(without_pxn(64), routing="up-down")
    src = np.repeat(np.arange(256), 8)
    dst = 256 + (src * 5 + np.tile(np.arange(8), 256)) % 256
    table = Routes(network).table(src, dst)
    names = [network.link_names[link][1] for link in table.links if network.link_names[link][1].startswith("spine")]
    counts = np.array([names.count(f"spine{i}") for i in range(16)])
    assert counts.min() > 0
    assert counts.max() < 3 * len(names) / 16


def test_the_hash_of_a_pair_is_pinned() -> None:
    """splitmix64's finaliser; other values would move every ECMP choice, and with it published results."""
    got = mix(np.array([0, 0, 1, 16383]), np.array([1, 2, 0, 0])).tolist()
    assert got == [reference(0, 1), reference(0, 2), reference(1, 0), reference(16383, 0)]


def reference(src: int, dst: int) -> int:
    mask = (1 << 64) - 1
    x = (((src << 32) ^ dst) + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) >> 1


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_torus_routes_are_dimension_ordered_and_shortest(shape: list[int], wrapped: bool, random: object) -> None:
    """Hops = sum over axes of the short way round; axes are finished one after the other."""
    network = torus(tuple(shape), "always" if wrapped else "never")
    if network.num_gpus == 1:
        return
    routes, everyone = Routes(network), np.array(list(np.ndindex(*shape)))
    for src, dst in pairs(network, 12):
        gap = np.abs(everyone[src] - everyone[dst])
        ways = np.where(np.array(network.torus_wrap), np.minimum(gap, np.array(shape) - gap), gap)
        names = places_on(network, routes.route(src, dst))
        visited = everyone[[network.gpus.index(name) for name in names]]
        moved = [int(np.flatnonzero(step)[0]) for step in np.diff(visited, axis=0)]
        assert len(moved) == ways.sum()
        assert moved == sorted(moved)


def test_half_way_round_a_ring_even_chips_go_up_and_odd_ones_down() -> None:
    network = torus((4,))
    routes = Routes(network)
    assert places_on(network, routes.route(0, 2))[1] == "chip1"
    assert places_on(network, routes.route(1, 3))[1] == "chip0"


def test_a_gpu_forwards_in_an_explicit_chain_only_because_nothing_else_leads_there() -> None:
    chain = explicit(gpus(3), [("g0", "g1"), ("g1", "g2")])
    assert places_on(chain, Routes(chain).route(0, 2)) == ["g0", "g1", "g2"]
    nodes = [*gpus(3), {"name": "s", "kind": "switch"}, {"name": "t", "kind": "switch"}]
    detour = explicit(nodes, [("g0", "g1"), ("g1", "g2"), ("g0", "s"), ("s", "t"), ("t", "g2")])
    assert places_on(detour, Routes(detour).route(0, 2)) == ["g0", "s", "t", "g2"]


@given(st.integers(2, 40), st.data())
@settings(max_examples=40, deadline=None)
def test_routes_in_random_connected_graphs_are_shortest(size: int, data: st.DataObject) -> None:
    """A random tree of switches with extra links, a GPU on each switch."""
    nodes = [*gpus(size), *({"name": f"s{i}", "kind": "switch"} for i in range(size))]
    ends = {(f"s{data.draw(st.integers(0, i - 1))}", f"s{i}") for i in range(1, size)}
    extra = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=10))
    ends |= {(f"s{min(a, b)}", f"s{max(a, b)}") for a, b in extra if a != b}
    network = explicit(nodes, [*sorted(ends), *((f"g{i}", f"s{i}") for i in range(size))])
    routes = Routes(network)
    for src, dst in pairs(network, 10):
        assert len(routes.route(src, dst)) == shortest(network, src, dst)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uniform", "dgx-h100"])
def test_16384_gpus_are_built_in_seconds_and_routed_in_less_than_one(name: str) -> None:
    """Measured 0.1 to 0.4 s and under 0.1 s on one core; CPU time, with room for a slow machine."""
    spec = load_topology(name)
    start = time.process_time()
    network = build_network(spec, nodes=16384 if name == "uniform" else 2048)
    built = time.process_time()
    everyone = np.arange(network.num_gpus)
    table = Routes(network).table(everyone, (everyone + 1) % network.num_gpus)
    routed = time.process_time()
    assert network.num_gpus == table.latency_s.size == 16384
    assert built - start < 4.0
    assert routed - built < 1.0
