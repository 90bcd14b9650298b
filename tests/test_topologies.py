"""The shipped topology files: each loads, is built, names its sources, and holds the numbers of its data sheet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from simulator import shipped
from simulator.cli.topology import topology
from simulator.load import load_topology
from simulator.network.builders import build_network
from simulator.network.tiers import bisection_bytes_per_s, tiers

NAMES = shipped.names("topology")
REQUIRED = {
    "uniform", "dgx-a100", "dgx-h100", "hgx-h200", "dgx-b200", "gb200-nvl72", "aws-p4d", "aws-p5", "l40s-pcie",
    "rtx4090-pcie", "a100-bridged", "mi300x", "dgx2-v100", "tpu-v4", "tpu-v5e", "tpu-v5p", "workstations-10gbe",
}  # fmt: skip
NUMBERS = {"bandwidth", "latency", "efficiency", "alpha", "message_overhead", "collective_launch", "oversubscription"}


def blocks(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
        for key, below in value.items():
            yield from blocks(below, f"{path}.{key}")


def test_the_promised_topologies_are_shipped() -> None:
    assert set(NAMES) >= REQUIRED


@pytest.mark.parametrize("name", NAMES)
def test_every_block_with_a_number_has_a_source(name: str) -> None:
    text = shipped.topology_file(name).read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=../schemas/topology.schema.json\n")
    holding = [(path, block) for path, block in blocks(yaml.safe_load(text)) if NUMBERS & set(block)]
    assert holding
    for path, block in holding:
        assert len(block.get("source", "")) > 20, f"{path}: {sorted(NUMBERS & set(block))} without a source"


@pytest.mark.parametrize("name", NAMES)
def test_a_latency_that_no_vendor_states_says_that_it_is_an_estimate(name: str) -> None:
    for path, block in blocks(yaml.safe_load(shipped.topology_file(name).read_text(encoding="utf-8"))):
        if block.get("latency") and name not in {"tpu-v4", "tpu-v5e", "tpu-v5p"}:
            assert "estimate" in block["source"] or "a quarter of a ping-pong" in block["source"], path


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_topology_is_built_as_it_stands(name: str) -> None:
    spec = load_topology(name)
    network = build_network(spec)
    assert spec.name == name
    assert spec.title
    assert not isinstance(spec.device, str), "the device profile must be found"
    assert bisection_bytes_per_s(network) > 0
    found = tiers(network, spec.device)
    assert (found[0].name == "hbm") == (spec.device is not None), "hosts of the lab have no device"
    wires = found if spec.device is None else found[1:]
    assert all(tier.usable_bytes_per_s <= tier.nominal_bytes_per_s and tier.source for tier in found)
    assert sum(tier.links for tier in wires) == len(network.link_names)


@pytest.mark.parametrize(
    ("name", "tier", "nominal_gb_per_s"),
    [
        ("dgx-a100", "nvlink", 300), ("dgx-h100", "nvlink", 450), ("hgx-h200", "nvlink", 450),
        ("dgx-b200", "nvlink", 900), ("gb200-nvl72", "nvlink", 900), ("mi300x", "xgmi", 64),
        ("dgx2-v100", "nvlink", 150), ("dgx2-v100", "nic", 12.5), ("dgx-a100", "nic", 25), ("dgx-h100", "nic", 50),
        ("aws-p4d", "nic", 12.5), ("aws-p5", "nic", 50),
        ("tpu-v4", "ici", 47), ("tpu-v5e", "ici", 50), ("tpu-v5p", "ici", 100), ("workstations-10gbe", "nic", 1.25),
        ("dgx-h100", "pcie-nic", 63), ("l40s-pcie", "pcie", 31.5), ("a100-bridged", "nvlink-bridge", 300),
    ],
)  # fmt: skip
def test_rates_are_the_data_sheets_in_one_direction(name: str, tier: str, nominal_gb_per_s: float) -> None:
    found = {t.name: t for t in tiers(build_network(load_topology(name)), None)}
    assert found[tier].nominal_bytes_per_s == pytest.approx(nominal_gb_per_s * 1e9)


def test_an_h100_reaches_the_measured_nvlink_and_nic_rates() -> None:
    """8x H100 ring all-reduce 367 GB/s; 46-48 GB/s per NDR NIC (nccl-tests issue 290)."""
    found = {t.name: t for t in tiers(build_network(load_topology("dgx-h100")), None)}
    assert found["nvlink"].usable_bytes_per_s == pytest.approx(367e9, rel=0.01)
    assert 46e9 <= found["nic"].usable_bytes_per_s <= 48e9


def test_tpu_v4_full_machine_has_googles_24_tb_per_s_bisection() -> None:
    """16 x 16 x 16: two cuts of 256 links at 47 GB/s = 24 TB/s (docs.cloud.google.com/tpu/docs/v4)."""
    network = build_network(load_topology("tpu-v4"), shape=(16, 16, 16))
    spec = load_topology("tpu-v4")
    assert bisection_bytes_per_s(network) / spec.link.efficiency == pytest.approx(24e12, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_every_tier_and_its_source(name: str) -> None:
    result = CliRunner().invoke(topology, [name])
    assert result.exit_code == 0, result.output
    spec = load_topology(name)
    for tier in tiers(build_network(spec), spec.device):
        if tier.flop_per_byte is not None:
            assert f"{tier.flop_per_byte:,.0f}" in result.output
        assert tier.source.split()[0] in result.output
    assert "bisection bandwidth" in result.output


def test_the_command_lists_all_and_sizes_a_torus() -> None:
    listed = CliRunner().invoke(topology, [])
    assert all(name in listed.output for name in NAMES)
    sized = CliRunner().invoke(topology, ["tpu-v5e", "--shape", "8x16", "--json"])
    assert yaml.safe_load(sized.output)["torus_wrap"] == [False, True]
    wrong = CliRunner().invoke(topology, ["tpu-v5e", "--shape", "8*16"])
    assert "expected one to three lengths" in str(wrong.exception)
