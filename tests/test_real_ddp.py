"""The gradient buckets we plan are those that a real DistributedDataParallel run reduces, element by element.

Two processes on gloo over loopback, torch 2.13.0 (extra ``real``; .ci/run installs it in an environment of its own).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.strategies.buckets import ReadyTensor, assign
from simulator.training.operations import ParameterTensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'clustersim[real]'"),
]
SCRIPT = Path(__file__).with_name("real_ddp.py")
WORLD = 2
MIB = 2**20


def real_buckets(folder: Path, model: str, cap: str) -> dict[str, list[dict[str, Any]]]:
    """What rank 0 prints. Generous time: the machine may be busy."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(SCRIPT), str(rank), str(WORLD), str(folder / "meet"), model, cap],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=240) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks), printed
    found: dict[str, list[dict[str, Any]]] = json.loads(printed[0][0].splitlines()[-1])
    return found


def linear(name: str, outputs: int, inputs: int) -> list[tuple[str, int]]:
    return [(f"{name}.weight", outputs * inputs), (f"{name}.bias", outputs)]


def norm(name: str, width: int) -> list[tuple[str, int]]:
    return [(f"{name}.weight", width), (f"{name}.bias", width)]


def mlp(width: int = 320, depth: int = 8) -> list[list[tuple[str, int]]]:
    """Tensors of each operation, in forward order."""
    operations = []
    for block in range(depth):
        operations += [linear(f"blocks.{block}.linear", width, width), norm(f"blocks.{block}.norm", width)]
    return [*operations, linear("head", 10, width)]


def gpt(vocab: int = 3000, width: int = 128, depth: int = 3, positions: int = 64) -> list[list[tuple[str, int]]]:
    """The tied head owns no tensor: its gradient is part of the embedding's, which is ready last of all."""
    operations = [[("wte.weight", vocab * width), ("wpe.weight", positions * width)]]
    for block in range(depth):
        h = f"h.{block}"
        operations += [
            norm(f"{h}.ln_1", width), linear(f"{h}.c_attn", 3 * width, width), linear(f"{h}.c_proj", width, width),
            norm(f"{h}.ln_2", width), linear(f"{h}.c_fc", 4 * width, width), linear(f"{h}.mlp_proj", width, 4 * width),
        ]  # fmt: skip
    return [*operations, norm("ln_f", width)]


def planned(operations: list[list[tuple[str, int]]], first_cap: float, cap: float) -> list[tuple[int, list[str]]]:
    """(bytes, tensors) of our buckets for fp32 gradients."""
    ready = [
        ReadyTensor(tensor=ParameterTensor(name=name, numel=numel), operation=str(number), size_bytes=4.0 * numel)
        for number, tensors in reversed(list(enumerate(operations)))
        for name, numel in reversed(tensors)
    ]
    buckets = assign(ready, first_cap_bytes=first_cap, cap_bytes=cap)
    return [(int(b.size_bytes), sorted(t.tensor.name for t in b.tensors)) for b in buckets]


@pytest.mark.parametrize("model", ["mlp", "gpt"])
@pytest.mark.parametrize(
    ("cap", "first_mib", "cap_mib"), [("default", 1.0, 25.0), ("1", 1.0, 1.0), ("0.25", 0.25, 0.25)]
)
def test_planned_buckets_are_those_of_a_real_run(
    tmp_path: Path, model: str, cap: str, first_mib: float, cap_mib: float
) -> None:
    """Passing bucket_cap_mb removes the first bucket's own cap, which ``first_bucket`` equal to ``bucket_cap`` says."""
    found = real_buckets(tmp_path, model, cap)
    real = [(bucket["bytes"], sorted(bucket["tensors"])) for bucket in found["steady"]]
    assert real == planned({"mlp": mlp, "gpt": gpt}[model](), first_mib * MIB, cap_mib * MIB)


def test_iteration_zero_is_one_bucket(tmp_path: Path) -> None:
    """What we leave out of a steady step: before the buckets are rebuilt, nothing overlaps."""
    found = real_buckets(tmp_path, "mlp", "default")
    assert len(found["first"]) == 1
    assert found["first"][0]["bytes"] == sum(bucket["bytes"] for bucket in found["steady"])
