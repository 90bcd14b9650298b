"""How the fitted constants of the device files come about: ``python tests/fit_efficiency.py`` prints them again.

* matmul: ``depth_half`` and ``quantisation`` minimise the mean absolute log error over a table of measured shapes; the
  ceiling is what is left over. Two thirds of the shapes, drawn with a fixed seed, are fitted, the rest held out.
* sustained: the factor on the matmul rate that makes a run's compute time the measured one, median over the
  calibration runs that matrix products decide (attention below ``ATTENTION`` of the step).
* flash-1, flash-3: geometric mean of measured rates over those of FlashAttention-2.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import runs
import yaml

from simulator.device import DeviceSpec, MatmulEfficiency
from simulator.training.compute import matmul_efficiency

TABLES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "data" / "gemm_efficiency.yaml").read_text())
DEPTHS = (0, 50, 100, 150, 200, 250, 300, 400)
QUANTISATIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
ATTENTION = 0.35
SEED = 0
Rows = list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants from two thirds of a table, and the errors on both parts (median, 90th percentile)."""

    ceiling: float
    depth_half: float
    quantisation: float
    fitted: tuple[float, float]
    held_out: tuple[float, float]


def log_errors(constants: MatmulEfficiency, sm_count: int, rows: Rows) -> np.ndarray:
    """Log of predicted over measured efficiency, row by row."""
    predicted = [matmul_efficiency(constants, sm_count, (int(m), int(n), int(k))) for m, n, k, _ in rows]
    return np.log(np.array(predicted) / np.array([row[3] for row in rows]))


def split(rows: Rows) -> tuple[Rows, Rows]:
    """Two thirds and one third of the distinct shapes: the layouts of one shape stay together."""
    shapes = sorted({tuple(row[:3]) for row in rows})
    order = np.random.default_rng(SEED).permutation(len(shapes))
    kept = {shapes[i] for i in order[: 2 * len(shapes) // 3]}
    return [row for row in rows if tuple(row[:3]) in kept], [row for row in rows if tuple(row[:3]) not in kept]


def _summary(errors: np.ndarray) -> tuple[float, float]:
    relative = np.abs(np.expm1(errors))
    return float(np.median(relative)), float(np.quantile(relative, 0.9))


def fit_matmul(device: DeviceSpec, rows: Rows) -> Fit:
    """The best constants on a grid, for the tile of the device file."""
    part, rest = split(rows)
    best: tuple[float, MatmulEfficiency] | None = None
    for depth, quantisation in product(DEPTHS, QUANTISATIONS):
        shape = {"depth_half": float(depth), "quantisation": quantisation, "ceiling": 1.0}
        tried = device.efficiency.matmul.model_copy(update=shape)
        errors = log_errors(tried, device.sm_count, part)
        ceiling = float(np.exp(-np.median(errors)))
        loss = float(np.mean(np.abs(errors + np.log(ceiling))))
        if best is None or loss < best[0]:
            best = loss, tried.model_copy(update={"ceiling": ceiling})
    assert best is not None
    found = best[1]
    return Fit(
        ceiling=found.ceiling, depth_half=found.depth_half, quantisation=found.quantisation,
        fitted=_summary(log_errors(found, device.sm_count, part)),
        held_out=_summary(log_errors(found, device.sm_count, rest)),
    )  # fmt: skip


def sustained_shares() -> list[float]:
    """One share per calibration run: its matmul time at the benchmarked rate over what the measured step leaves."""
    shares = []
    for run in runs.runs():
        if run.use != "calibration" or not runs.hidden(run):
            continue
        parts = runs.parts_s(run)
        total = sum(parts.values())
        if parts.get("attention", 0.0) < ATTENTION * total:
            unthrottled = parts["gemm"] * runs.device_named(run.device).efficiency.sustained.share
            shares.append(unthrottled / (run.micro_step_s - total + parts["gemm"]))
    return shares


def relative_rate(device: str, kernel: str) -> float:
    """Geometric mean over sequence lengths of a kernel's rate over FlashAttention-2's, causal, head size 128."""
    table = next(t for t in TABLES["other_attention"] if (t["device"], t["kernel"]) == (device, kernel))
    return float(np.exp(np.mean([np.log(other / flash) for _, other, flash in table["rows"]])))


def main() -> None:
    """Print every fit."""
    for table in TABLES["matmul"]:
        if len(table["rows"]) > 100:
            print(table["device"], fit_matmul(runs.device_named(table["device"]), table["rows"]))
    shares = sustained_shares()
    print("sustained", len(shares), "runs, median and deciles", np.quantile(shares, [0.5, 0.1, 0.9]).round(3))
    for table in TABLES["other_attention"]:
        print(table["device"], table["kernel"], round(relative_rate(table["device"], table["kernel"]), 3))


if __name__ == "__main__":
    main()
