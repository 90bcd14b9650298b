"""Pictures: everything labelled when small, counted when large, inside the frame, readable, the same bytes twice."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from test_network import EXAMPLES

from simulator import shipped
from simulator.load import load_topology
from simulator.network.builders import build_network
from simulator.network.graph import Network
from simulator.network.tiers import tiers
from simulator.report.topology_svg import topology_svg

SVG = "{http://www.w3.org/2000/svg}"
OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"}
LARGE: dict[str, dict[str, Any]] = {
    "dgx-h100": {"nodes": 128}, "mi300x": {"nodes": 128}, "uniform": {"nodes": 1024}, "aws-p4d": {"nodes": 128},
    "workstations-10gbe": {"nodes": 1024}, "workstations-1gbe": {"nodes": 1024},
    "gb200-nvl72": {"nodes": 252}, "tpu-v5p": {"shape": (8, 8, 16)},
}  # fmt: skip


def draw(network: Network) -> str:
    return topology_svg(network, tiers(network, None))


def words(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}text")]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_is_drawn_within_its_frame(kind: str) -> None:
    root = ET.fromstring(draw(EXAMPLES[kind]))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for element in root.iter():
        for key, limit in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height), ("y2", height)):
            if key in element.attrib:
                assert 0 <= float(element.attrib[key]) <= limit, ET.tostring(element)


#: Topologies that are what they are: fewer than 16 GPUs.
FIXED = {"h100-pcie-bridged", "lab-two-level"}


@pytest.mark.parametrize("name", [n for n in shipped.names("topology") if not n.startswith("tpu") and n not in FIXED])
def test_at_16_gpus_every_part_has_its_label(name: str) -> None:
    spec = load_topology(name)
    per_node = getattr(spec, "gpus_per_node", 1)
    network = build_network(spec, nodes=16 // per_node)
    assert network.num_gpus == 16
    shown = words(draw(network))
    if name == "gb200-nvl72":
        assert {str(i) for i in range(16)} <= set(shown)
        return
    assert {f"GPU {i}" for i in range(16)} <= set(shown)
    roles = [role for _, role in network.graph.nodes(data="role")]
    for role, label in (("nic", "NIC "), ("leaf", "leaf "), ("spine", "spine "), ("nvswitch", "NVSwitch")):
        named = [word for word in shown if re.fullmatch(rf"{label}\d*", word)]
        if spec.kind != "workstations" or role != "leaf":
            assert len(named) == roles.count(role)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_at_1024_gpus_the_picture_counts_instead_of_crowding(name: str) -> None:
    network = build_network(load_topology(name), **LARGE[name])
    picture = draw(network)
    assert any(re.match(r"\.\.\.( [\d,]+)?$", word) for word in words(picture))
    assert len(list(ET.fromstring(picture).iter())) < 1000
    assert len(picture) < 150_000


@pytest.mark.slow
def test_the_pods_that_are_not_drawn_are_counted() -> None:
    shown = words(draw(build_network(load_topology("dgx-h100"), nodes=2048)))
    assert "16,384 GPUs in 2,048 nodes" in " ".join(shown)
    assert "... 61" in shown  # of 64 pods three are drawn
    assert "more pods" in shown
    assert shown.count("... 30") == 3  # of 32 nodes two are drawn in each
    assert shown.count("8 leaf switches") == 3
    assert "node 2,047" in shown  # the last one is always there


@pytest.mark.parametrize("name", shipped.names("topology"))
def test_text_is_never_small_on_a_screen(name: str) -> None:
    """At least 9 pixels high at the width that the file asks for."""
    root = ET.fromstring(draw(build_network(load_topology(name))))
    scale = float(root.attrib["width"]) / float(root.attrib["viewBox"].split()[2])
    for element in root.iter(f"{SVG}text"):
        assert float(element.attrib["font-size"]) * scale >= 9, element.text


@pytest.mark.parametrize("name", shipped.names("topology"))
def test_each_tier_has_its_colour_its_rate_and_a_line_in_the_legend(name: str) -> None:
    network = build_network(load_topology(name))
    picture = draw(network)
    strokes = {element.attrib["stroke"] for element in ET.fromstring(picture).iter(f"{SVG}line")}
    assert strokes <= OKABE_ITO
    for tier in tiers(network, None):
        assert any(word.startswith(f"{tier.title}: ") for word in words(picture))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_same_network_gives_the_same_bytes(kind: str) -> None:
    assert draw(EXAMPLES[kind]) == draw(EXAMPLES[kind])


@pytest.mark.parametrize("name", [n for n in shipped.names("topology") if n != "lab-two-level"])
def test_one_gpu_is_drawn_too(name: str) -> None:
    """With no other GPU there may be no link at all."""
    spec = load_topology(name)
    network = build_network(spec, shape=(1,)) if spec.kind == "torus" else build_network(spec, nodes=1, gpus_per_node=1)
    assert "GPU 0" in words(draw(network))


def test_a_title_with_markup_is_text() -> None:
    network = EXAMPLES["uniform"]
    picture = topology_svg(network, tiers(network, None), "a < b & c")
    assert "a < b & c" in words(picture)
