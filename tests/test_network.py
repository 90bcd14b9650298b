"""Networks: what each builder makes, in formulas, and every way in which parts can be wrong."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import NetworkError
from simulator.library import AlphaBetaLibrary
from simulator.load import load_topology
from simulator.network.builders import BUILDERS, SIZES, build_network
from simulator.network.graph import Cable, Network, Place, Wire, assemble
from simulator.network.tiers import bisection_bytes_per_s, tiers
from simulator.topology import SPECS, ExplicitSpec, TopologySpec, TorusSpec

LINK = {"bandwidth": "10 GB/s", "latency": "1 us", "source": "made up for a test"}
WIRE = Wire("test", 1e9, 1e9, 1e-6, "made up for a test")


def torus(shape: tuple[int, ...], *wrap: str) -> Network:
    spec = {"name": "t", "kind": "torus", "shape": shape, "wrap": wrap or ("always",), "link": LINK}
    return build_network(TorusSpec.model_validate(spec))


def explicit(nodes: list[dict[str, Any]], ends: list[tuple[str, str]], wire: str = "cable") -> Network:
    links = [{"ends": pair, "wire": wire} for pair in ends]
    spec = {"name": "mine", "kind": "explicit", "wires": {"cable": LINK}, "nodes": nodes, "links": links}
    return build_network(ExplicitSpec.model_validate(spec))


def gpus(count: int) -> list[dict[str, Any]]:
    return [{"name": f"g{i}", "kind": "gpu"} for i in range(count)]


NVSWITCH = SPECS["nvswitch"].model_validate(
    {"name": "one", "kind": "nvswitch", "gpus_per_node": 8, "intra": {"kind": "nvswitch", "link": LINK}}
)
SWITCH = [*gpus(3), {"name": "s", "kind": "switch"}]
STAR = [("g0", "s"), ("g1", "s"), ("g2", "s")]
EXAMPLES: dict[str, Network] = {
    "uniform": build_network(load_topology("uniform"), nodes=5),
    "nvswitch": build_network(NVSWITCH),
    "rail_fat_tree": build_network(load_topology("dgx-h100"), nodes=33),
    "bridged_pairs": build_network(load_topology("a100-bridged"), nodes=2),
    "full_mesh": build_network(load_topology("mi300x"), nodes=2),
    "workstations": build_network(load_topology("workstations-10gbe"), nodes=4),
    "nvl72": build_network(load_topology("gb200-nvl72"), nodes=19),
    "torus": torus((4, 3, 5), "always", "never", "always"),
    "explicit": explicit(SWITCH, STAR),
}


def test_every_kind_has_a_spec_a_builder_and_an_example() -> None:
    assert set(BUILDERS) == set(SPECS) == set(SIZES) == set(EXAMPLES)


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_built_network_is_sound(kind: str) -> None:
    """Strongly connected, no self loop, both directions of each cable alike, arrays equal to the graph, frozen."""
    network = EXAMPLES[kind]
    graph = network.graph
    assert nx.is_frozen(graph)
    assert nx.is_strongly_connected(graph)
    assert nx.number_of_selfloops(graph) == 0
    assert len(network.link_names) == graph.number_of_edges() == len(set(network.link_names))
    assert np.all(network.capacity_bytes_per_s > 0)
    assert np.all(network.latency_s >= 0)
    for link, (a, b) in enumerate(network.link_names):
        assert network.link_names[link ^ 1] == (b, a)
        assert graph[a][b] == graph[b][a]
        assert graph[a][b]["bytes_per_s"] == network.capacity_bytes_per_s[link]
        assert graph[a][b]["latency_s"] == network.latency_s[link]
        assert graph[a][b]["bytes_per_s"] <= graph[a][b]["nominal_bytes_per_s"]
        assert graph[a][b]["source"]
    ranks = [name for name, what in graph.nodes(data="kind") if what == "gpu"]
    assert sorted(ranks) == sorted(network.gpus)
    with pytest.raises(ValueError, match="read-only"):
        network.capacity_bytes_per_s[0] = 1.0


@pytest.mark.parametrize("kind", BUILDERS)
def test_bisection_is_the_minimum_cut_of_the_whole_graph(kind: str) -> None:
    """The merged graph must give what networkx finds on the full one."""
    network = EXAMPLES[kind]
    flow = nx.DiGraph()
    for a, b, data in network.graph.edges(data=True):
        flow.add_edge(a, b, capacity=round(data["bytes_per_s"]))
    for rank, gpu in enumerate(network.gpus):
        flow.add_edge(*(("first", gpu) if rank < network.num_gpus // 2 else (gpu, "second")))
    assert bisection_bytes_per_s(network) == pytest.approx(nx.maximum_flow_value(flow, "first", "second"), rel=1e-9)


def test_uniform_has_one_switch_and_half_of_alpha_on_each_link() -> None:
    network = build_network(load_topology("uniform"), nodes=100)
    assert network.num_gpus == 100
    assert len(network.link_names) == 2 * 100
    assert set(network.latency_s) == {2.5e-6}
    assert set(network.capacity_bytes_per_s) == {50e9}
    assert bisection_bytes_per_s(network) == 50 * 50e9


@pytest.mark.parametrize(("nodes", "leaves", "spines"), [(2, 8, 16), (32, 8, 16), (33, 16, 16), (128, 32, 16)])
def test_dgx_superpod_counts_of_switches_and_cables(nodes: int, leaves: int, spines: int) -> None:
    """NVIDIA's SuperPOD: 32 nodes a scalable unit, 8 leaves each, 16 spines for 4 units; a NIC per GPU."""
    network = build_network(load_topology("dgx-h100"), nodes=nodes)
    roles = [role for _, role in network.graph.nodes(data="role")]
    assert (roles.count("leaf"), roles.count("spine"), roles.count("nic")) == (leaves, spines, 8 * nodes)
    assert len(network.link_names) == 2 * (3 * 8 * nodes + leaves * spines)
    assert (network.rails, network.gpus_per_node, network.num_nodes) == (8, 8, nodes)


def test_rail_optimised_means_that_nic_i_of_every_node_shares_a_leaf() -> None:
    network = build_network(load_topology("dgx-h100"), nodes=3)
    for rail in range(8):
        leaf = {b for a, b in network.graph.edges if a.endswith(f".nic{rail}") and "leaf" in b}
        assert leaf == {f"pod0.leaf{rail}"}


def test_oversubscription_divides_the_uplinks() -> None:
    spec = load_topology("dgx-h100")
    assert spec.network is not None
    thin = spec.model_copy(update={"network": spec.network.model_copy(update={"oversubscription": 4.0})})
    full = bisection_bytes_per_s(build_network(spec, nodes=64))
    assert full == pytest.approx(256 * 47e9)  # every NIC of 32 nodes at its usable 47 GB/s
    assert bisection_bytes_per_s(build_network(thin, nodes=64)) == pytest.approx(full / 4)


def test_one_node_has_no_nic() -> None:
    network = build_network(load_topology("dgx-h100"), nodes=1)
    assert network.rails == 0
    assert {kind for _, kind in network.graph.nodes(data="kind")} == {"gpu", "switch"}


def test_on_p4d_two_gpus_share_one_of_four_nics() -> None:
    network = build_network(load_topology("aws-p4d"), nodes=2)
    assert network.rails == 4
    users = [sorted(network.graph[f"node0.nic{i}"]) for i in range(4)]
    assert users == [["leaf0", f"node0.gpu{2 * i}", f"node0.gpu{2 * i + 1}"] for i in range(4)]
    half = build_network(load_topology("aws-p4d"), nodes=2, gpus_per_node=4)
    assert half.rails == 2  # the GPUs that are there keep their own NIC


def test_nvl72_domain_is_the_rack_and_node_the_tray() -> None:
    network = build_network(load_topology("gb200-nvl72"), nodes=36)
    assert np.bincount(network.domain_of_gpu).tolist() == [72, 72]
    assert np.bincount(network.node_of_gpu).tolist() == [4] * 36


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_torus_counts_and_degrees(shape: list[int], wrapped: bool) -> None:
    """An axis of n chips has n cables a line when it wraps and n > 2, else n - 1; nobody has more than 2 an axis."""
    count = int(np.prod(shape))
    network = torus(tuple(shape), "always" if wrapped else "never")
    cables = sum(count // n * (n if wrapped and n > 2 else n - 1) for n in shape)
    assert network.num_gpus == count
    assert len(network.link_names) == 2 * cables
    degrees = [degree for _, degree in network.graph.out_degree()]
    assert max(degrees) <= 2 * len(shape)
    if wrapped:
        assert set(degrees) == {sum(min(n - 1, 2) for n in shape)}


def test_bisection_of_a_torus_is_two_cuts_of_one_plane() -> None:
    assert bisection_bytes_per_s(torus((8, 4, 4))) == 2 * 16 * 10e9
    assert bisection_bytes_per_s(torus((8, 4, 4), "never")) == 16 * 10e9


@pytest.mark.parametrize(
    ("name", "shape", "wrap"),
    [
        ("tpu-v4", (4, 4, 8), (True, True, True)),
        ("tpu-v4", (2, 2, 4), (False, False, False)),
        ("tpu-v5e", (16, 16), (True, True)),
        ("tpu-v5e", (8, 16), (False, True)),
        ("tpu-v5e", (4, 4), (False, False)),
        ("tpu-v5p", (4, 4, 4), (True, True, True)),
    ],
)
def test_a_tpu_slice_wraps_where_google_says(name: str, shape: tuple[int, ...], wrap: tuple[bool, ...]) -> None:
    """v4, v5p: when every axis is a multiple of 4. v5e: an axis of full length 16 only (docs.cloud.google.com/tpu)."""
    assert build_network(load_topology(name), shape=shape).torus_wrap == wrap


def test_relabelling_the_nodes_of_an_explicit_graph_keeps_its_bisection() -> None:
    """g0 and g1 differ only in name, so swapping them in the list of links changes nothing."""
    swapped = [("g1", "s"), ("g0", "s"), ("g2", "s")]
    assert bisection_bytes_per_s(explicit(SWITCH, STAR)) == bisection_bytes_per_s(explicit(SWITCH, swapped)) == 10e9


@pytest.mark.parametrize(
    ("nodes", "ends", "wire", "message"),
    [
        (gpus(2), [], "cable", "not connected: no path from 'g0' to g1"),
        ([*gpus(4)], [("g0", "g1"), ("g2", "g3")], "cable", "no path from 'g0' to g2, g3"),
        (gpus(2), [("g0", "g1"), ("g1", "g1")], "cable", "'g1' is linked to itself"),
        ([*gpus(2), *gpus(1)], [("g0", "g1")], "cable", "the name 'g0' is used twice"),
        (gpus(2), [("g0", "g1"), ("g1", "g0")], "cable", "'g1' and 'g0' are linked twice"),
        (gpus(2), [("g0", "g_1")], "cable", "no node is named 'g_1'; did you mean 'g1'?"),
        (gpus(2), [("g0", "switch")], "cable", "no node is named 'switch'; nodes are g0, g1"),
        (gpus(2), [("g0", "g1")], "cabel", "wire 'cabel': expected one of cable; did you mean 'cable'?"),
        ([{"name": "s", "kind": "switch"}], [], "cable", "no GPU among 1 nodes; switches, NICs and hosts hold no rank"),
    ],
)  # fmt: skip
def test_a_bad_graph_is_refused_with_names(
    nodes: list[dict[str, Any]], ends: list[tuple[str, str]], wire: str, message: str
) -> None:
    with pytest.raises(NetworkError) as caught:
        explicit(nodes, ends, wire)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("dgx-h100", {"gpus_per_node": 9}, "gpus_per_node: 9: a node of 'dgx-h100' holds 8"),
        ("dgx-h100", {"nodes": 0}, "nodes: 0: must be at least 1"),
        ("dgx-h100", {"shape": (4, 4)}, "shape: 'dgx-h100' (rail_fat_tree) is sized by nodes and gpus_per_node"),
        ("tpu-v4", {"nodes": 2}, "nodes: 'tpu-v4' (torus) is sized by shape"),
        ("tpu-v4", {"shape": (4, 0, 4)}, "expected one to three lengths"),
        ("tpu-v5e", {"shape": (4, 4, 4, 4)}, "expected one to three lengths"),
        ("dgx-h100", {"nodes": 10**6}, "at most 131,072"),
    ],
)
def test_a_bad_size_is_refused(name: str, size: dict[str, Any], message: str) -> None:
    with pytest.raises(NetworkError) as caught:
        build_network(load_topology(name), **size)
    assert message in str(caught.value)


def test_explicit_has_no_size_and_a_machine_without_network_is_one_node() -> None:
    spec = {"name": "mine", "kind": "explicit", "wires": {"cable": LINK}, "nodes": gpus(2),
            "links": [{"ends": ("g0", "g1"), "wire": "cable"}]}  # fmt: skip
    with pytest.raises(NetworkError, match="lists its nodes one by one"):
        build_network(ExplicitSpec.model_validate(spec), nodes=2)
    with pytest.raises(NetworkError, match="no 'network' block"):
        build_network(NVSWITCH, nodes=2)


def test_a_pcie_switch_cannot_lie_under_two_sockets() -> None:
    spec = load_topology("l40s-pcie")
    wide: TopologySpec = spec.model_copy(update={"intra": spec.intra.model_copy(update={"gpus_per_switch": 3})})
    with pytest.raises(NetworkError, match="gpus_per_switch: 3"):
        build_network(wide)


def test_an_empty_list_of_cables_joins_a_single_gpu() -> None:
    network = assemble(
        name="one", kind="explicit", routing="shortest", places=[Place("g", "gpu", "gpu", 0, 0)], cables=[],
        library=AlphaBetaLibrary(),
    )  # fmt: skip
    assert network.num_gpus == 1
    assert bisection_bytes_per_s(network) == 0.0


def test_two_cables_between_the_same_places_are_refused_whatever_their_direction() -> None:
    places = [Place("a", "gpu", "gpu", 0, 0), Place("b", "gpu", "gpu", 0, 0)]
    with pytest.raises(NetworkError, match="linked twice"):
        assemble(name="x", kind="explicit", routing="shortest", places=places,
                 cables=[Cable("a", "b", WIRE), Cable("b", "a", WIRE)], library=AlphaBetaLibrary())  # fmt: skip


def test_flop_per_byte_of_an_h100_is_the_lectures_ladder() -> None:
    """989 TFLOP/s over 3.35 TB/s, 450, 63 and 50 GB/s: HBM 295, InfiniBand about 19,800 (CS336 lecture 7)."""
    spec = load_topology("dgx-h100")
    ladder = {tier.name: tier.flop_per_byte for tier in tiers(build_network(spec), spec.device)}  # type: ignore[arg-type]
    assert ladder["hbm"] == pytest.approx(295, abs=0.5)
    assert ladder["nic"] == pytest.approx(19_800, rel=2e-3)
    assert ladder["nvlink"] == pytest.approx(989e12 / 450e9, rel=1e-3)
    assert ladder["pcie-nic"] == pytest.approx(989e12 / 63e9, rel=1e-3)


def test_a_gpu_has_all_seven_xgmi_links_and_half_of_a_shared_nic() -> None:
    mesh = {tier.name: tier for tier in tiers(build_network(load_topology("mi300x")), None)}
    assert mesh["xgmi"].gpu_bytes_per_s == 7 * 64e9
    assert mesh["xgmi"].links == 2 * 28
    p4d = {tier.name: tier for tier in tiers(build_network(load_topology("aws-p4d")), None)}
    assert p4d["nic"].gpu_bytes_per_s == 6.25e9
    assert p4d["nic"].flop_per_byte is None
