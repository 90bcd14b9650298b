"""How near predicted compute times come to published training runs, source by source, misses included.

The table in ``data/accuracy.yaml`` is what the documentation quotes; it must be what the code says today.
To renew it after a deliberate change: ``python tests/test_accuracy.py > tests/data/accuracy.yaml``.

Read it with two grains of salt. The held-out sources were not fitted, but the model's structure was settled with them
in view; and 57 of the 62 held-out runs with little communication are one code base, which on A100 is the calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fit_efficiency
import numpy as np
import pytest
import runs
import yaml

from simulator.model_spec import ArchitectureModel, PresetModel
from simulator.training.presets import build_model

TABLE = Path(__file__).parent / "data" / "accuracy.yaml"
ALL = tuple(runs.runs())


def _row(name: str, chosen: list[runs.Run], found: Callable[[runs.Run], float] = runs.ratio) -> dict[str, Any]:
    ratios = np.array([found(run) for run in chosen])
    errors = np.abs(ratios - 1)
    return {
        "group": name, "runs": len(chosen), "median_ratio": round(float(np.median(ratios)), 2),
        "median_error": round(float(np.median(errors)), 3), "p90_error": round(float(np.quantile(errors, 0.9)), 3),
        "max_error": round(float(errors.max()), 3),
    }  # fmt: skip


def table() -> list[dict[str, Any]]:
    """One row per source, apart for runs whose communication is not small, and the two totals."""
    rows = []
    for name in dict.fromkeys(run.source for run in ALL):
        for small in (True, False):
            chosen = [run for run in ALL if run.source == name and runs.hidden(run) is small]
            if chosen:
                shown = chosen[0].use.startswith("shown")
                use = chosen[0].use if small or shown else "not used: communication above 10%"
                rows.append(_row(f"{name} ({use})", chosen))
    held_out = [run for run in ALL if run.use == "held out"]
    rows.append(_row("all held out, communication up to 10%", [run for run in held_out if runs.hidden(run)]))
    rows.append(_row("all held out, whatever their communication", held_out))
    return rows


#: Runs whose whole step is simulated.
WHOLE = tuple(run for run in ALL if run.step != "null")


def step_table() -> list[dict[str, Any]]:
    """One row per source, whole steps; see ``test_field_training``."""
    sources = dict.fromkeys(run.source for run in WHOLE)
    return [_row(name, [run for run in WHOLE if run.source == name], runs.step_ratio) for name in sources]


def errors(use: str) -> np.ndarray:
    return np.abs(np.array([runs.ratio(run) - 1 for run in ALL if run.use == use and runs.hidden(run)]))


@pytest.mark.slow
def test_the_table_in_the_documentation_is_what_the_code_says() -> None:
    assert yaml.safe_load(TABLE.read_text())["rows"] == table()


@pytest.mark.slow
def test_held_out_runs_are_predicted_within_twelve_percent_at_the_median() -> None:
    found = errors("held out")
    print(f"{len(found)} runs, median {np.median(found):.1%}, 90th percentile {np.quantile(found, 0.9):.1%}")
    assert len(found) > 60
    assert np.median(found) <= 0.12
    assert np.quantile(found, 0.9) <= 0.20


@pytest.mark.slow
def test_no_held_out_source_is_off_by_more_than_twelve_percent() -> None:
    """So that the 57 runs of one source do not hide the others."""
    for name in {run.source for run in ALL if run.use == "held out"}:
        ratios = [runs.ratio(run) for run in ALL if run.source == name and runs.hidden(run)]
        if ratios:
            assert np.median(ratios) == pytest.approx(1, abs=0.12), name


@pytest.mark.slow
def test_the_sustained_share_is_the_median_of_the_calibration_runs() -> None:
    shares = fit_efficiency.sustained_shares()
    share = runs.device_named("a100-sxm4-40gb").efficiency.sustained.share
    assert np.median(shares) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("device", ["a100-pcie-80gb", "b200-sxm-180gb"])
def test_matmul_constants_hold_on_the_third_of_shapes_not_fitted(device: str) -> None:
    """Fitted again on two thirds: errors on the rest are at most a fifth larger, the shipped ceiling is near."""
    rows = next(t["rows"] for t in fit_efficiency.TABLES["matmul"] if t["device"] == device)
    shipped = runs.device_named(device)
    fit = fit_efficiency.fit_matmul(shipped, rows)
    print(device, fit)
    assert fit.held_out[0] <= 1.2 * fit.fitted[0] <= 0.06
    assert fit.held_out[1] <= 1.2 * fit.fitted[1]
    assert shipped.efficiency.matmul.ceiling == pytest.approx(fit.ceiling, rel=0.02)
    assert shipped.efficiency.matmul.depth_half == pytest.approx(fit.depth_half, abs=50)
    assert shipped.efficiency.matmul.quantisation == pytest.approx(fit.quantisation, abs=0.2)


@pytest.mark.parametrize("table", fit_efficiency.TABLES["other_attention"], ids=lambda t: t["device"] + t["kernel"])
def test_other_attention_kernels_have_their_measured_speed(table: dict[str, Any]) -> None:
    found = runs.device_named(table["device"]).efficiency.attention.relative[table["kernel"]]
    assert found == pytest.approx(fit_efficiency.relative_rate(table["device"], table["kernel"]), abs=0.03)


@pytest.mark.parametrize("row", runs.DATA["compiled"], ids=lambda row: row["name"])
def test_compiling_gains_what_was_measured(row: dict[str, Any]) -> None:
    """Same machine, same run, eager against torch.compile. The ratio tests the count of memory traffic alone."""
    device = runs.device_named(row["device"])
    seconds = {
        kernels: sum(runs.compute_s(build_model(
            PresetModel(preset=row["preset"]), seq_len=row["seq_len"], micro_batch=row["micro_batch"],
            precision=runs.PRECISION.name, attention="flash", kernels=kernels,
        ), device).values())
        for kernels in ("eager", "fused")
    }  # fmt: skip
    assert seconds["eager"] / seconds["fused"] == pytest.approx(row["fused"] / row["eager"], rel=0.08)


def test_a_llama_70b_stage_on_b200_takes_its_measured_time() -> None:
    """Six layers and the head, 4,096 tokens. Pipeline of two stages: 24 more micro-batches took 5,436.5 - 1,476.8 ms.

    MooreThreads/SimuMax@4dcaae5, Llama-3-70B cut to 12 layers, tp 1 pp 2 dp 4, 8 and 32 micro-batches. Not blind:
    with the benchmarked rate (a share of 100%) it was 10% too fast, which is why B200 has the A100's share.
    """
    spec = ArchitectureModel(
        num_layers=6, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8, intermediate_size=28672,
        vocab_size=128_256,
    )  # fmt: skip
    stage = build_model(spec, seq_len=4096, micro_batch=1, precision="bf16-master", attention="flash", kernels="fused")
    parts = runs.compute_s(stage, runs.device_named("b200-sxm-180gb"))
    assert sum(parts.values()) - parts["embedding"] == pytest.approx((5.4365 - 1.4768) / 24, rel=0.06)


if __name__ == "__main__":
    print("# Predicted over measured tokens per second of published runs: above 1 is too fast. By test_accuracy.py.")
    print(yaml.safe_dump({"rows": table(), "steps": step_table()}, sort_keys=False), end="")
