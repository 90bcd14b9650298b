"""Times on devices: the roofline, the fitted efficiencies against published tables, and whole steps against runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from published import FMS_7B_A100, INTERNLM_7B_A100, Published

from simulator import shipped
from simulator.device import DeviceSpec
from simulator.errors import UnsupportedError
from simulator.load import load_device
from simulator.model_spec import ArchitectureModel, PresetModel
from simulator.training.compute import matmul_efficiency, operation_time, optimizer_time_s
from simulator.training.operations import Operation, TrainingModel
from simulator.training.precision import PRECISIONS
from simulator.training.presets import ModelSpec, build_model

TABLES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "data" / "gemm_efficiency.yaml").read_text())
DEVICES = shipped.names("device")
sizes = st.integers(min_value=1, max_value=200_000)


def relative_errors(table: dict[str, Any]) -> np.ndarray:
    device = load_device(table["device"])
    predicted = [
        matmul_efficiency(device.efficiency.matmul, device.sm_count, (m, n, k)) for m, n, k, _ in table["rows"]
    ]
    return np.abs(np.array(predicted) / np.array([row[3] for row in table["rows"]]) - 1)


@pytest.mark.parametrize("table", TABLES["matmul"], ids=lambda table: table["device"])
def test_matmul_efficiency_fits_the_published_shapes(table: dict[str, Any]) -> None:
    errors = relative_errors(table)
    assert np.median(errors) <= table["max_median"]
    assert np.quantile(errors, 0.9) <= table["max_p90"]


@pytest.mark.parametrize("table", TABLES["grouped_matmul"], ids=lambda table: table["device"])
def test_products_of_experts_reach_what_was_measured_with_the_constants_of_single_products(
    table: dict[str, Any],
) -> None:
    """Nothing is fitted to these rows: the tiles of all groups share the waves, each group pays its own edges."""
    device = load_device(table["device"])
    errors = [
        abs(matmul_efficiency(device.efficiency.matmul, device.sm_count, (m, n, k), groups) / measured - 1)
        for groups, m, n, k, measured in table["rows"]
    ]
    assert np.median(errors) <= table["max_median"]
    assert np.quantile(errors, 0.9) <= table["max_p90"]


@given(st.integers(1, 300), sizes, sizes, sizes)
def test_a_group_of_one_is_a_product_and_many_small_ones_fill_a_device_better(
    groups: int, m: int, n: int, k: int
) -> None:
    constants = load_device("h100-sxm5-80gb").efficiency.matmul
    one = matmul_efficiency(constants, 132, (m, n, k))
    assert matmul_efficiency(constants, 132, (m, n, k), 1) == one
    assert matmul_efficiency(constants, 132, (m, n, k), groups) >= one * (1 - 1e-9)


@pytest.mark.parametrize("table", TABLES["matmul"], ids=lambda table: table["device"])
def test_the_shape_explains_more_than_one_constant_would(table: dict[str, Any]) -> None:
    """A model that ignores the shape (its best constant: the geometric mean) has the larger squared error."""
    device = load_device(table["device"])
    measured = np.log([row[3] for row in table["rows"]])
    constants = device.efficiency.matmul
    predicted = np.log([matmul_efficiency(constants, device.sm_count, (m, n, k)) for m, n, k, _ in table["rows"]])
    assert np.mean((predicted - measured) ** 2) < 0.85 * np.var(measured)


@pytest.mark.parametrize("row", TABLES["best_matmul"]["rows"], ids=lambda row: row[0])
def test_no_device_beats_its_best_published_matmul(row: list[Any]) -> None:
    """ml-engineering's search over shapes is an upper bound for the layers of a model."""
    name, *shape, best = row
    device = load_device(name)
    found = matmul_efficiency(device.efficiency.matmul, device.sm_count, (shape[0], shape[1], shape[2]))
    assert 0.6 * best < found < 1.03 * best


@pytest.mark.parametrize("table", TABLES["attention"], ids=lambda table: table["device"])
def test_flash_attention_reaches_the_published_rate(table: dict[str, Any]) -> None:
    """FlashAttention-2, causal, forward and backward: FLOP of the half matrix, backward 2.5 times forward."""
    device = load_device(table["device"])
    for head_dim, seq, batch, heads, tflops in table["rows"]:
        forward = 2.0 * batch * heads * seq * seq * head_dim
        operation = Operation(
            name="core", layer="", kind="attention", forward_flop=forward, backward_flop=2.5 * forward,
            head_dim=head_dim, seq_len=seq, forward_kernels=0, backward_kernels=0,
        )  # fmt: skip
        rate = 3.5 * forward / sum(operation_time(operation, device, PRECISIONS["bf16-mixed"]))
        assert rate == pytest.approx(tflops * 1e12, rel=0.10)


@pytest.mark.parametrize("name", DEVICES)
@given(m=sizes, n=sizes, k=sizes)
def test_efficiency_lies_between_zero_and_its_ceiling(name: str, m: int, n: int, k: int) -> None:
    device = load_device_once(name)
    assert (
        0 < matmul_efficiency(device.efficiency.matmul, device.sm_count, (m, n, k)) <= device.efficiency.matmul.ceiling
    )


_LOADED = {name: load_device(name) for name in DEVICES}


def load_device_once(name: str) -> DeviceSpec:
    return _LOADED[name]


@pytest.mark.parametrize("name", DEVICES)
def test_device_files_are_named_sourced_and_dense(name: str) -> None:
    """The roof of a dense half-precision product: 16-bit units are at least as fast as tf32 and as plain fp32."""
    device = load_device_once(name)
    assert device.name == name
    half = device.peak.get("bf16", device.peak.get("fp16", 0.0))
    assert half >= max(device.peak.get("tf32", 0.0), device.peak.get("fp32", 0.0))
    assert device.peak.get("fp8", half) <= 2.1 * half


def test_a_large_product_is_bound_by_arithmetic_and_a_thin_one_by_memory() -> None:
    """H100: 989 TFLOP/s over 3.35 TB/s is 295 FLOP per byte; a product with 8 rows has 8."""
    device, precision = load_device_once("h100-sxm5-80gb"), PRECISIONS["bf16-mixed"]
    large = product(8192, 8192, 8192)
    efficiency = matmul_efficiency(device.efficiency.matmul, device.sm_count, (8192, 8192, 8192))
    launch, sustained = device.efficiency.launch, device.efficiency.sustained.share
    forward, backward = operation_time(large, device, precision)
    assert forward == pytest.approx(2 * 8192**3 / (989.4e12 * sustained * efficiency) + launch, rel=1e-9)
    assert backward == pytest.approx(2 * (forward - launch) + 2 * launch, rel=1e-9)
    thin = product(8, 8192, 8192)
    assert operation_time(thin, device, precision)[0] == pytest.approx(thin.forward_bytes / (3350e9 * 0.88) + launch)


def product(m: int, n: int, k: int) -> Operation:
    traffic = 2.0 * (m * k + k * n + m * n)
    return Operation(
        name="p", layer="", kind="gemm", gemm=((m, n, k),), forward_flop=2.0 * m * n * k, backward_flop=4.0 * m * n * k,
        forward_bytes=traffic, backward_bytes=2 * traffic,
    )  # fmt: skip


def test_measured_times_replace_the_roofline() -> None:
    layer = Operation(name="a", layer="a", kind="measured", forward_s=0.05, backward_s=0.1)
    assert operation_time(layer, load_device_once("a10"), PRECISIONS["fp32"]) == (0.05, 0.1)


def test_a_device_without_the_dtype_says_what_it_has() -> None:
    with pytest.raises(UnsupportedError, match="v100-sxm2-32gb has no bf16 matrix units; it has fp16, fp32"):
        operation_time(product(64, 64, 64), load_device_once("v100-sxm2-32gb"), PRECISIONS["bf16-mixed"])


def test_optimizer_step_is_its_traffic_over_the_memory_rate() -> None:
    """AdamW over 1e9 parameters: 28 GB at 88% of 3.35 TB/s."""
    device = load_device_once("h100-sxm5-80gb")
    found = optimizer_time_s(1e9, device, PRECISIONS["fp32"], "adamw")
    assert found == pytest.approx(28e9 / (3350e9 * 0.88) + device.efficiency.launch)


def tokens_per_s(spec: ModelSpec, device: DeviceSpec, *, seq_len: int, micro_batch: int, attention: str) -> float:
    model = build_model(
        spec, seq_len=seq_len, micro_batch=micro_batch, precision="bf16-master", attention=attention, kernels="fused"
    )
    return model.tokens / step_s(model, device)


def step_s(model: TrainingModel, device: DeviceSpec) -> float:
    return sum(sum(operation_time(o, device, PRECISIONS["bf16-mixed"])) for o in model.operations)


def test_compute_alone_is_faster_than_eager_attention() -> None:
    spec, device = PresetModel(preset="llama-3.2-1b"), load_device_once("h100-sxm5-80gb")
    models = [
        build_model(spec, seq_len=4096, micro_batch=1, precision="bf16-mixed", attention=kind)
        for kind in ("flash", "eager")
    ]
    assert step_s(models[0], device) < 0.8 * step_s(models[1], device)


INTERNLM = ArchitectureModel(
    num_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=32, intermediate_size=11008,
    vocab_size=103_168,
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "published", "seq_len", "attention"),
    [
        (PresetModel(preset="llama-2-7b"), FMS_7B_A100, 4096, "flash"),
        (INTERNLM, INTERNLM_7B_A100, 2048, "flash-1"),
    ],
    ids=["fms-fsdp", "internevo"],
)
def test_compute_bound_runs_on_a100_are_within_their_tolerance(
    spec: ModelSpec, published: Published, seq_len: int, attention: str
) -> None:
    """Not fitted to these (see ``test_accuracy`` for all runs).

    Compute alone must be no slower than the run, which also communicates, by more than 5%.
    """
    found = tokens_per_s(spec, load_device_once("a100-sxm4-80gb"), seq_len=seq_len, micro_batch=2, attention=attention)
    assert found == pytest.approx(published.value, rel=published.tolerance)
    assert found > 0.95 * published.value


def test_backward_multiplies_by_the_transposed_shapes() -> None:
    """C = A B (m, n, k) gives dA of (m, k, n) and dB of (n, k, m): a short m is a shallow, slower weight gradient."""
    device = load_device_once("a100-sxm4-80gb")
    m, n, k = 512, 16384, 4096
    shares = [matmul_efficiency(device.efficiency.matmul, device.sm_count, shape) for shape in ((m, k, n), (n, k, m))]
    peak = 312e12 * device.efficiency.sustained.share
    expected = sum(2.0 * m * n * k / (peak * share) for share in shares) + 2 * device.efficiency.launch
    assert operation_time(product(m, n, k), device, PRECISIONS["bf16-mixed"])[1] == pytest.approx(expected, rel=1e-9)


def test_a_thin_product_is_not_charged_for_a_whole_tile() -> None:
    """16 rows fill a 16-row tile: with whole waves of tiles they are as efficient as 256 rows of a 256-row tile."""
    device = load_device_once("h100-sxm5-80gb")
    thin, full = (matmul_efficiency(device.efficiency.matmul, device.sm_count, (m, 67584, 4096)) for m in (16, 256))
    assert thin == pytest.approx(full, rel=1e-9)
