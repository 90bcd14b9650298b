"""Numbers of the lectures on parallel training (Stanford CS336, lecture 7) that come out of the product's own commands.

Those of collectives, buckets and overlap stand in test_collectives.py, test_bounds.py, test_ddp.py, test_scenarios.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from command_line import simulator

from simulator.training.flop import training_flop, training_time_s

YEAR_S = 365.25 * 86400


def answer(*arguments: str) -> dict[str, Any]:
    """What a command prints with ``--json``; exit code 1 says infeasible, which some of these are."""
    result = simulator(*arguments, "--json")
    assert result.code in (0, 1), result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def tier(topology: str, name: str, *sizes: str) -> dict[str, Any]:
    return next(t for t in answer("topology", topology, *sizes)["tiers"] if t["name"] == name)


@pytest.mark.parametrize(("precision", "bytes_per_parameter"), [("bf16-master", 16), ("bf16-moments", 12)])
def test_adamw_keeps_16_bytes_per_parameter_or_12_when_only_the_master_is_fp32(
    precision: str, bytes_per_parameter: int
) -> None:
    """Of two micro-batches: all gradients are alive when the second backward starts, which is the peak.

    In a single micro-batch gradients come to life while activations go, so at its peak there are none yet.
    """
    found = answer("run", "ddp-llama-1b-16xh100", f"train.precision={precision}", "train.grad_accumulation=2")
    states = sum(found["memory"]["by_kind_bytes"][kind] for kind in ("params", "grads", "optimizer"))
    assert states == bytes_per_parameter * found["num_parameters"]


def test_a_405b_model_takes_one_h100_three_thousand_years() -> None:
    """3.8e25 FLOP = 6 N D at 989 TFLOP/s and 40 % MFU."""
    assert training_flop(405e9, 15.6e12) == pytest.approx(3.8e25, rel=0.01)
    assert training_time_s(3.8e25, 989e12, 0.4) / YEAR_S == pytest.approx(3044, rel=0.001)


@pytest.mark.parametrize(
    ("topology", "name", "per_gpu"),
    [
        ("dgx-h100", "hbm", 3.35e12), ("dgx-h100", "nvlink", 450e9), ("dgx-b200", "nvlink", 900e9),
        ("dgx-h100", "nic", 50e9), ("workstations-1gbe", "nic", 0.125e9),
    ],
)  # fmt: skip
def test_hierarchy_of_bandwidths_one_direction(topology: str, name: str, per_gpu: float) -> None:
    assert tier(topology, name)["gpu_bytes_per_s"] == pytest.approx(per_gpu, rel=1e-6)


def test_pcie_5_x16_is_63_gb_per_s_once_its_line_code_is_counted() -> None:
    """The lectures say 64: 16 lanes x 32 GT/s; 128 of 130 bits carry data."""
    assert tier("dgx-h100", "pcie-nic")["nominal_bytes_per_s"] == pytest.approx(64e9 * 128 / 130, rel=1e-3)


def test_flop_per_byte_of_an_h100() -> None:
    """The communication roofline: 295 for HBM, about 19,800 for InfiniBand."""
    flop = {name: tier("dgx-h100", name)["flop_per_byte"] for name in ("hbm", "nvlink", "pcie-nic", "nic")}
    assert flop["hbm"] == pytest.approx(295, abs=1)
    assert flop["nic"] == pytest.approx(19_800, rel=0.002)
    assert flop["hbm"] < flop["nvlink"] < flop["pcie-nic"] < flop["nic"]


def test_an_nvl72_is_one_nvlink_domain_and_big_clusters_cross_spines() -> None:
    assert answer("topology", "gb200-nvl72")["gpus"] == 72
    assert {t["name"] for t in answer("topology", "gb200-nvl72")["tiers"]} == {"hbm", "nvlink"}
    assert "leaf-spine" in {t["name"] for t in answer("topology", "dgx-h100", "--nodes", "64")["tiers"]}


def test_all_reduce_of_a_7b_model_on_8_ranks_takes_half_a_second_at_50_gb_per_s() -> None:
    """14 GB in bf16: 24.5 GB sent per rank, 0.49 s."""
    (row,) = answer("collective", "all_reduce", "-p", "8", "-b", "14 GB", "--algo", "ring", "--alpha", "0us",
                    "--bandwidth", "50 GB/s")["rows"]  # fmt: skip
    assert row["wire_bytes_per_rank"] == pytest.approx(24.5e9)
    assert row["time_s"] == pytest.approx(0.49)
