"""Real configurations of the families that are read: every parameter counted, and a step of each simulated."""

from __future__ import annotations

import json
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from simulator.cli.run import run
from simulator.training.architecture import (
    num_active_parameters,
    num_embedding_parameters,
    num_parameters,
    parameter_tensors,
)
from simulator.training.batch import Batch
from simulator.training.families import READERS
from simulator.training.hf_config import architecture_from_config, read_config
from simulator.training.precision import PRECISIONS
from simulator.training.transformer import transformer

FILES = Path(__file__).parent / "data" / "hf_configs"
REGISTERED = json.loads((Path(__file__).parent / "data" / "hf_registered.json").read_text(encoding="utf-8"))
"""Small models of every family: their configuration, and name and shape of each parameter in the order in which
transformers 5.24 registers it (``named_parameters`` of ``AutoModelForCausalLM.from_config`` on the meta device)."""

COUNTS = {
    "bloom-7b1": 7_069_016_064, "deepseek-v2": 235_741_434_880, "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352, "falcon-40b": 41_303_293_952, "falcon-7b": 6_921_720_704,
    "gemma-2-9b": 9_241_705_984, "gemma-2b": 2_506_172_416, "gemma-3-4b-it": 3_880_263_168,
    "gemma-7b": 8_537_680_896, "glm-4.7": 352_796_472_320, "gpt-oss-20b": 20_914_757_184, "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200, "kimi-k2-instruct": 1_026_408_209_408, "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616, "llama-3-8b": 8_030_261_248, "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b-instruct": 70_553_706_496, "mistral-7b-instruct-v0.3": 7_248_023_552,
    "mixtral-8x22b": 140_620_634_112, "mixtral-8x7b": 46_702_792_704, "olmo-2-7b": 7_298_617_344,
    "olmo-3.1-32b-instruct": 32_233_522_176, "olmoe-1b-7b": 6_919_161_856, "opt-6.7b": 6_658_473_984,
    "phi-3-mini-4k": 3_821_079_552, "phi-4": 14_659_507_200, "pythia-6.9b": 6_857_302_016,
    "qwen1.5-moe-a2.7b": 14_315_784_192, "qwen2-72b": 72_706_203_648, "qwen2-7b": 7_615_616_512,
    "qwen2.5-3b": 3_085_938_688, "qwen3-235b-a22b-instruct-2507": 235_093_634_560, "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360,
}  # fmt: skip
"""Source: transformers 5.24, the models it builds from these files. The safetensors files on the hub have as many:
DeepSeek-V3 58 x 256 more, the biases that balance its experts, which are no trained parameters."""

ACTIVE_IN_BILLIONS = {
    "mixtral-8x7b": (46.7, 12.9, "mistral.ai/news/mixtral-of-experts; arXiv:2401.04088, table 1"),
    "mixtral-8x22b": (141, 39, "mistral.ai/news/mixtral-8x22b"),
    "deepseek-v3": (671, 37, "arXiv:2412.19437, abstract"),
    "deepseek-v2": (236, 21, "arXiv:2405.04434, abstract"),
    "deepseek-v2-lite": (15.7, 2.4, "arXiv:2405.04434, appendix B"),
    "qwen3-30b-a3b": (30.5, 3.3, "arXiv:2505.09388, table 2 and model card"),
    "qwen3-235b-a22b-instruct-2507": (235, 22, "arXiv:2505.09388, table 2"),
    "qwen1.5-moe-a2.7b": (14.3, 2.7, "qwenlm.github.io/blog/qwen-moe"),
    "gpt-oss-20b": (20.9, 3.61, "arXiv:2508.10925, table 1"),
    "olmoe-1b-7b": (6.9, 1.3, "arXiv:2409.02060, abstract"),
    "kimi-k2-instruct": (1000, 32, "arXiv:2507.20534, abstract (1.04T with multi-token prediction)"),
}  # fmt: skip


def config_of(name: str) -> dict[str, Any]:
    return dict(read_config(FILES / f"{name}.json"))


def test_every_file_is_counted_and_every_count_has_a_file() -> None:
    assert {path.stem for path in FILES.glob("*.json")} == set(COUNTS)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_a_real_file_has_as_many_parameters_as_transformers_builds_of_it(name: str) -> None:
    assert num_parameters(architecture_from_config(config_of(name), where=name)) == COUNTS[name]


@pytest.mark.parametrize("name", sorted(ACTIVE_IN_BILLIONS))
def test_active_parameters_are_the_published_ones(name: str) -> None:
    """Publishers count active parameters with the input table (Mistral, Qwen) or without it (DeepSeek, OpenAI)."""
    total, active, _ = ACTIVE_IN_BILLIONS[name]
    arch = architecture_from_config(config_of(name), where=name)
    assert num_parameters(arch) / 1e9 == pytest.approx(total, rel=0.03 if name == "kimi-k2-instruct" else 0.005)
    with_table = num_active_parameters(arch)
    found = [with_table / 1e9, (with_table - num_embedding_parameters(arch)) / 1e9]
    assert min(abs(count / active - 1) for count in found) < 0.025


def test_every_family_is_held_against_transformers() -> None:
    """``kimi_k2`` is read as DeepSeek-V3; ``gemma3`` holds a ``gemma3_text``."""
    held = {row["config"]["model_type"] for row in REGISTERED.values()}
    assert set(READERS) - held == {"kimi_k2", "gemma3"}


@pytest.mark.parametrize("name", sorted(REGISTERED))
def test_parameters_have_the_names_shapes_and_order_of_transformers(name: str) -> None:
    arch = architecture_from_config(REGISTERED[name]["config"], where=name)
    ours = [(tensor.name, tensor.numel, tensor.rows) for tensor in parameter_tensors(arch)]
    assert ours == [(found, prod(shape), shape[0]) for found, shape in REGISTERED[name]["parameters"]]


@pytest.mark.parametrize("recompute", ["none", "selective", "selective-op", "full"])
@pytest.mark.parametrize("name", sorted(REGISTERED))
def test_every_parameter_belongs_to_one_operation_whatever_is_recomputed(name: str, recompute: str) -> None:
    arch = architecture_from_config(REGISTERED[name]["config"], where=name)
    for attention in ("flash", "eager"):
        batch = Batch(
            seq_len=64, micro_batch=2, precision=PRECISIONS["bf16-mixed"], attention=attention, recompute=recompute
        )
        model = transformer(arch, batch)
        owned = [tensor.name for operation in model.operations for tensor in operation.parameters]
        assert sorted(owned) == sorted(tensor.name for tensor in model.parameters)
        assert len({operation.name for operation in model.operations}) == len(model.operations)
        assert min(operation.saved_bytes for operation in model.operations) >= 0
        again = [other.saved_bytes for operation in model.operations for other in operation.replayed]
        assert min(again, default=0) >= 0


def run_fsdp(name: str, tmp_path: Path) -> tuple[int, str]:
    """A step on as many DGX H100 as hold the states in a quarter of their memory."""
    nodes = max(1, ceil(COUNTS[name] * 16 / 20e9 / 8))
    text = (
        f"cluster: {{topology: dgx-h100, nodes: {nodes}}}\nmodel: {{hf: {FILES / name}.json}}\n"
        "parallel: {strategy: fsdp}\n"
        "train: {seq_len: 1024, micro_batch: 1, precision: bf16-mixed, kernels: fused, recompute: full}\n"
    )
    path = tmp_path / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(run, [str(path), "--json"])
    return result.exit_code, result.output


QUICK = "qwen2.5-3b"
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(COUNTS) if name != QUICK]


@pytest.mark.parametrize("name", [QUICK, *SLOW])
def test_a_step_of_every_real_file_is_simulated_under_fsdp(name: str, tmp_path: Path) -> None:
    """Exit code 1 where gathered layers do not fit: 11 billion parameters in one layer of DeepSeek-V3."""
    code, output = run_fsdp(name, tmp_path)
    report = json.loads(output)
    assert code in (0, 1), output
    assert report["num_parameters"] == COUNTS[name]
    assert report["step_time_s"] > 0
    assert code == 0 or not report["memory"]["fits"]
