"""``simulator import``: what a file says is what its scenario says, nothing is lost in silence, and all of it runs."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import simulator
from hypothesis import given, settings
from hypothesis import strategies as st
from imports import CONFIGS, FILES, FOLDER, damaged, from_text, imported, kind_of, values, written

from simulator import shipped
from simulator.answer import answer_step
from simulator.cli.import_ import KINDS as OFFERED
from simulator.errors import ScenarioError
from simulator.importing.draft import Draft, Extras
from simulator.importing.kinds import KINDS, checked_text, import_file
from simulator.importing.shell import UNKNOWN, flags_of
from simulator.importing.writer import scalar
from simulator.load import load_scenario, load_topology
from simulator.model_spec import ArchitectureModel, HfModel
from simulator.parallel_spec import KEYS, Parallel
from simulator.scenario import Cluster, Train
from simulator.spellings import _ELSEWHERE
from simulator.yaml_source import parse

DEGREES = ("tp", "pp", "cp", "ep")
#: Of 2,048 hidden units, which "auto" of the HF Trainer goes by.
DEFAULT_MODEL = "llama-3.2-1b"


def from_json(tmp_path: Path, options: dict[str, Any], **extras: Any) -> Draft:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(options), encoding="utf-8")
    return imported("deepspeed", path, **extras)


def from_yaml(tmp_path: Path, options: dict[str, Any], **extras: Any) -> Draft:
    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump(options), encoding="utf-8")
    return imported("accelerate", path, **extras)


# ---- files that people have ------------------------------------------------------------------------------------------

#: File -> what it says, by the keys of a scenario. Read off the files by hand.
SAYS: dict[str, dict[str, Any]] = {
    "transformers-zero3-offload.json": {
        "parallel.strategy": "zero3", "parallel.overlap_comm": True, "parallel.reduce_bucket_size": 1,
        "parallel.prefetch_bucket_size": 0, "parallel.param_persistence_threshold": 0,
        "parallel.max_live_parameters": 10**9, "parallel.max_reuse_distance": 10**9, "train.optimizer": "adamw",
    },
    "transformers-zero2-auto.json": {
        "parallel.strategy": "zero2", "parallel.overlap_comm": True, "parallel.reduce_bucket_size": 200_000_000,
        "train.clip_grad_norm": True,
    },
    "deepspeed-megatron-zero2.json": {
        "parallel.strategy": "zero2", "parallel.implementation": "deepspeed", "cluster.nodes": 2,
        "train.micro_batch": 1, "train.grad_accumulation": 1, "train.optimizer": "adam", "train.clip_grad_norm": True,
        "train.precision": "bf16-master",
    },
    "deepspeed-megatron-zero3.json": {
        "parallel.strategy": "zero3", "train.micro_batch": 8, "train.grad_accumulation": 1,
        "parallel.reduce_bucket_size": 67_108_860, "parallel.prefetch_bucket_size": 60_397_980,
        "parallel.param_persistence_threshold": None, "train.clip_grad_norm": True,
    },
    "deepspeed-zero-infinity.json": {
        "parallel.strategy": "zero3", "train.micro_batch": 4, "parallel.reduce_bucket_size": 90_000_000,
        "parallel.max_reuse_distance": 100_000_000, "parallel.overlap_comm": True,
    },
    "deepspeed-bert-lamb.json": {
        "parallel.strategy": "ddp", "parallel.overlap": "none", "train.micro_batch": 64, "cluster.nodes": 2,
        "train.grad_accumulation": 64, "train.optimizer": "adamw",
    },
    "accelerate-zero1.json": {
        "parallel.strategy": "zero1", "parallel.overlap_comm": True, "parallel.reduce_bucket_size": 2048 * 2048,
        "train.grad_accumulation": 1,
    },
    "accelerate-zero3.json": {
        "parallel.strategy": "zero3", "parallel.reduce_bucket_size": 2048 * 2048,
        "parallel.prefetch_bucket_size": int(0.9 * 2048 * 2048), "parallel.param_persistence_threshold": 20_480,
    },
    "accelerate-fsdp1.yaml": {
        "parallel.strategy": "fsdp", "parallel.implementation": "fsdp1", "parallel.backward_prefetch": "pre",
        "parallel.forward_prefetch": 0, "parallel.reshard_after_forward": True, "parallel.wrap": "block",
        "parallel.reduce_dtype": "bf16", "train.precision": "bf16-mixed", "train.recompute": "none",
        "cluster.nodes": 1, "cluster.gpus_per_node": 2,
    },
    "accelerate-fsdp2.yaml": {
        "parallel.strategy": "fsdp", "parallel.implementation": "fsdp2", "train.precision": "fp32",
        "cluster.nodes": 1, "cluster.gpus_per_node": 2,
    },
    "accelerate-fsdp2-hsdp-tp.yaml": {
        "parallel.strategy": "hsdp", "parallel.implementation": "fsdp2", "parallel.shard_size": 2, "parallel.tp": 2,
        "cluster.nodes": 1,
    },
    "accelerate-multi-node.yaml": {
        "parallel.strategy": "ddp", "cluster.nodes": 2, "cluster.gpus_per_node": 4, "train.precision": "fp32",
    },
    "accelerate-deepspeed-file.yaml": {
        "parallel.strategy": "zero1", "parallel.implementation": "deepspeed", "cluster.gpus_per_node": 2,
    },
    "trl-deepspeed-zero3.yaml": {
        "parallel.strategy": "zero3", "train.grad_accumulation": 1, "train.precision": "bf16-master",
        "cluster.nodes": 1,
    },
    "torchtitan-llama3-8b-2024.toml": {
        "model.preset": "llama-3-8b", "parallel.strategy": "fsdp", "parallel.reshard_after_forward": "not-last",
        "train.micro_batch": 1, "train.seq_len": 8192, "train.recompute": "selective-op", "train.kernels": "eager",
        "train.clip_grad_norm": True, "train.optimizer": "adamw",
    },
    "torchtitan-llama2-7b-2024.toml": {
        "model.preset": "llama-2-7b", "parallel.strategy": "fsdp", "train.micro_batch": 8, "train.seq_len": 2048,
    },
    "torchtitan-llama3-405b-2025.toml": {
        "model.preset": "llama-3.1-405b", "parallel.tp": 8, "train.micro_batch": 2, "train.kernels": "fused",
        "train.recompute": "full",
    },
    "torchtitan-qwen3-0.6b-2025.toml": {
        "model.preset": "qwen3-0.6b", "train.micro_batch": 4, "train.seq_len": 4096, "train.kernels": "eager",
    },
    "torchtitan-deepseek-v3-671b-2025.toml": {"train.micro_batch": 4, "train.kernels": "fused"},
    "torchtitan-flags.sh": {
        "model.preset": "llama-3-8b", "parallel.strategy": "hsdp", "parallel.shard_size": 8, "cluster.nodes": 2,
        "train.micro_batch": 1, "train.grad_accumulation": 4, "train.recompute": "full", "train.kernels": "fused",
    },
    "megatron-llama3-8b-fp8.sh": {
        "model.family": "llama", "model.num_layers": 32, "model.hidden_size": 4096, "model.num_key_value_heads": 8,
        "model.intermediate_size": 14336, "model.vocab_size": 128256, "model.tie_word_embeddings": False,
        "parallel.strategy": "zero1", "parallel.implementation": "megatron", "parallel.overlap_grad_reduce": True,
        "parallel.overlap_param_gather": True, "train.seq_len": 8192, "train.micro_batch": 1, "cluster.nodes": 1,
        "train.grad_accumulation": 16, "train.precision": "bf16-master", "train.clip_grad_norm": True,
    },
    "megatron-gpt3-175b.sh": {
        "model.family": "gpt2", "model.num_layers": 96, "model.hidden_size": 12288, "model.vocab_size": 50304,
        "model.max_position_embeddings": 2048, "parallel.tp": 8, "parallel.pp": 16, "parallel.strategy": "ddp",
        "train.grad_accumulation": 1536, "cluster.nodes": 16,
    },
    "accelerate-cp.yaml": {
        "parallel.cp": 8, "parallel.cp_method": "all_gather", "parallel.strategy": "fsdp", "train.recompute": "full",
    },
    "accelerate-ulysses.yaml": {
        "parallel.cp": 2, "parallel.cp_method": "ulysses", "parallel.strategy": "zero3", "cluster.gpus_per_node": 4,
    },
    "deepspeed-pipeline.json": {
        "parallel.pp": 4, "parallel.schedule": "1f1b", "parallel.strategy": "zero1", "train.micro_batch": 2,
        "train.grad_accumulation": 16, "train.recompute": "full", "cluster.nodes": 4,
    },
    "deepspeed-ulysses.json": {
        "parallel.cp": 4, "parallel.cp_method": "ulysses", "parallel.strategy": "zero3", "train.grad_accumulation": 2,
    },
    "deepspeed-autotp.json": {
        "parallel.tp": 4, "parallel.sequence_parallel": False, "parallel.strategy": "zero2", "cluster.nodes": 2,
        "train.grad_accumulation": 4,
    },
    "torchtitan-llama3-70b-4d-2024.toml": {
        "parallel.tp": 8, "parallel.pp": 2, "parallel.cp": 2, "parallel.schedule": "1f1b", "parallel.strategy": "fsdp",
        "parallel.cp_method": "all_gather", "parallel.reshard_after_forward": False, "train.micro_batch": 8,
        "train.grad_accumulation": 2, "parallel.embedding_as_layer": None, "parallel.stages": None,
    },
    "torchtitan-qwen3-30b-a3b-pp-ep-2025.toml": {
        "model.preset": "qwen3-30b-a3b", "parallel.tp": 2, "parallel.pp": 2, "parallel.ep": 8, "parallel.etp": 1,
        "parallel.schedule": "interleaved-1f1b", "parallel.chunks": 2, "parallel.stages": [12, 13, 13, 10],
        "parallel.async_tp": True, "parallel.deduplicate": True, "parallel.reshard_after_forward": False,
        "train.micro_batch": 2, "train.grad_accumulation": 8, "cluster.nodes": 2,
    },
    "torchtitan-tokens-flags.sh": {
        "parallel.tp": 2, "parallel.pp": 4, "parallel.schedule": "zbv", "parallel.sequence_parallel": False,
        "parallel.embedding_as_layer": True, "train.seq_len": 8192, "train.micro_batch": 1,
        "train.grad_accumulation": 32, "cluster.nodes": 2,
    },
    "megatron-mixtral-8x7b.sh": {
        "model.num_experts": 8, "model.num_experts_per_tok": 2, "model.moe_intermediate_size": 14336,
        "parallel.pp": 4, "parallel.ep": 8, "parallel.etp": None, "parallel.overlap_p2p": False,
        "train.grad_accumulation": 32, "cluster.nodes": 4,
    },
    "megatron-145b-interleaved.sh": {
        "parallel.tp": 8, "parallel.pp": 8, "parallel.schedule": "interleaved-1f1b", "parallel.chunks": 2,
        "parallel.overlap_p2p": True, "train.micro_batch": 2, "train.grad_accumulation": 576, "cluster.nodes": 16,
    },
    "megatron-qwen3-235b-a22b.sh": {
        "parallel.tp": 2, "parallel.pp": 8, "parallel.ep": 16, "parallel.etp": 1, "parallel.chunks": 2,
        "parallel.embedding_as_layer": True, "parallel.async_tp": True, "parallel.expert_nodes": 1,
        "parallel.deduplicate": True, "parallel.capacity_factor": 1.25, "train.grad_accumulation": 32,
    },
    "megatron-llama3-8b-cp-uneven.sh": {
        "parallel.pp": 4, "parallel.cp": 4, "parallel.cp_method": "ulysses", "parallel.stages": [7, 9, 9, 7],
        "parallel.order": "tp-cp-ep-pp-dp", "train.grad_accumulation": 16,
    },
    "megatron-llama2-branches.sh": {
        "model.num_layers": 32, "model.intermediate_size": 11008, "model.num_key_value_heads": 32,
        "train.micro_batch": 2, "train.grad_accumulation": 4, "train.recompute": "none", "train.optimizer": "adam",
        "parallel.strategy": "zero1",
    },
}  # fmt: skip


def test_every_file_has_its_line_above_and_each_kind_several_files() -> None:
    assert {path.name for path in FILES} == set(SAYS)
    kinds = [kind_of(path) for path in FILES]
    least = {"deepspeed": 4, "accelerate": 3, "torchtitan": 3, "megatron": 2}
    assert all(kinds.count(kind) >= count for kind, count in least.items())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_a_file_says_is_what_its_scenario_says(path: Path) -> None:
    draft = imported(kind_of(path), path)
    said = SAYS[path.name]
    assert {place: draft.value(place) for place in said} == said


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "drop", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "without model parallelism"]
)
def test_every_option_is_behind_a_value_or_among_the_ignored(path: Path, drop: bool) -> None:
    options = KINDS[kind_of(path)].read(path.read_text(encoding="utf-8"), path)
    draft = imported(kind_of(path), path, drop_model_parallel=drop)
    behind = " ".join(entry.comment for entry in draft.entries)
    ignored = {item.option for item in draft.ignored}
    assert {name for name in options if name not in behind} <= ignored <= set(options)
    assert all(item.reason for item in draft.ignored)
    unknown = {item.option for item in draft.ignored if item.reason.startswith("unknown")}
    assert unknown <= {  # DeepSpeed's own examples misspell it, in two ways
        "zero_optimization.stage3_param_persitence_threshold", "zero_optimization.stage3_param_persitance_threshold",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_its_yaml_holds_the_same_values_as_the_draft(path: Path) -> None:
    draft = imported(kind_of(path), path)
    tree = parse(checked_text(draft, "f"), "f").value
    assert {f"{block}.{key}": value for block, keys in tree.items() for key, value in keys.items()} == {
        entry.place: entry.value for entry in draft.entries
    }


#: Micro-batches of jobs that take long to simulate with all of theirs.
FEWER = {"megatron-gpt3-175b.sh": 32, "megatron-145b-interleaved.sh": 16}


@pytest.mark.slow
@pytest.mark.parametrize("drop", [False, True], ids=["whole", "without model parallelism"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_runs_as_it_is_imported(path: Path, drop: bool, tmp_path: Path) -> None:
    """With its model parallelism, and without. Tokens of a step are those of all data-parallel ranks."""
    extras = {"grad_accumulation": FEWER[path.name]} if path.name in FEWER else {}
    draft = imported(kind_of(path), path, drop_model_parallel=drop, **extras)
    assert not [warning for warning in draft.warnings if "refuses" in warning]
    scenario = load_scenario(written(tmp_path, draft))
    answer = answer_step(scenario)
    assert answer.report.step_time_s > 0
    train, parallel = scenario.train, scenario.parallel
    assert train is not None
    assert parallel.splits_model == (not drop and any(SAYS[path.name].get(f"parallel.{key}") for key in DEGREES))
    tokens = train.seq_len * train.micro_batch * train.grad_accumulation
    replicas = answer.network.num_gpus // (parallel.tp * parallel.pp * parallel.cp)
    assert answer.report.tokens_per_step == tokens * replicas


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_model_config_is_imported_and_runs(path: Path, tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, imported("hf", path)))
    assert answer_step(scenario).report.step_time_s > 0


def test_the_command_prints_a_scenario_that_run_takes(tmp_path: Path) -> None:
    source = FOLDER / "deepspeed-megatron-zero2.json"
    made = simulator("import", "deepspeed", str(source), "--model", "gpt2", "--seq-len", "256")
    assert made.code == 0
    assert made.err == f"9 options of {source} are ignored (listed at the end), 2 values are guesses\n"
    path = tmp_path / "made.yaml"
    path.write_text(made.out, encoding="utf-8")
    ran = simulator("run", str(path), "--json")
    assert ran.code == 0
    assert simulator("import", "deepspeed", str(source), "--model", "gpt2", "--seq-len", "256").out == made.out
    assert "  micro_batch: 1                          # train_batch_size / (16 ranks x accumulation 1)" in made.out
    assert "#   gradient_clipping" not in made.out


# ---- DeepSpeed -------------------------------------------------------------------------------------------------------

SIZES = {
    "reduce_bucket_size": "reduce_bucket_size", "stage3_prefetch_bucket_size": "prefetch_bucket_size",
    "stage3_param_persistence_threshold": "param_persistence_threshold",
    "stage3_max_live_parameters": "max_live_parameters", "stage3_max_reuse_distance": "max_reuse_distance",
}  # fmt: skip
size = st.integers(1, 10**12)
spelt = st.one_of(size, size.map(float), size.map(str))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    stage=st.integers(0, 3), overlap=st.booleans() | st.none(),
    sizes=st.fixed_dictionaries({}, optional=dict.fromkeys(SIZES, spelt)),
    micro=st.integers(1, 64), steps=st.integers(1, 64), nodes=st.integers(1, 9), bf16=st.booleans(),
    clip=st.floats(0, 10), kind=st.sampled_from(["Adam", "AdamW", "FusedAdam", "SGD"]),
    rest=st.dictionaries(st.sampled_from(["steps_per_print", "zero_allow_untested_optimizer"]), st.booleans()),
)  # fmt: skip
def test_a_deepspeed_json_says_the_same_in_a_scenario(
    tmp_path_factory: pytest.TempPathFactory, stage: int, overlap: bool | None, sizes: dict[str, Any], micro: int,
    steps: int, nodes: int, bf16: bool, clip: float, kind: str, rest: dict[str, bool],
) -> None:  # fmt: skip
    zero = {"stage": stage, **sizes, **({} if overlap is None else {"overlap_comm": overlap})}
    options = {
        "zero_optimization": zero, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps,
        "train_batch_size": micro * steps * nodes * 8, "bf16": {"enabled": bf16}, "gradient_clipping": clip,
        "optimizer": {"type": kind, "params": {"lr": 1e-4}}, **rest,
    }  # fmt: skip
    draft = from_json(tmp_path_factory.mktemp("ds"), options)
    scenario = parse(checked_text(draft, "f"), "f").value
    parallel, train = scenario["parallel"], scenario["train"]
    assert parallel["strategy"] == ("ddp" if stage == 0 else f"zero{stage}")
    readable = KEYS[parallel["strategy"], parallel.get("implementation", "torch")].split()
    for theirs, ours in SIZES.items():
        wanted = int(float(sizes[theirs])) if theirs in sizes and ours in readable else None
        assert parallel.get(ours) == wanted
    assert parallel.get("overlap_comm") == (overlap if stage else None)
    assert (train["micro_batch"], train["grad_accumulation"]) == (micro, steps)
    assert scenario["cluster"]["nodes"] == nodes
    assert train["precision"] == ("bf16-master" if bf16 else "fp32")
    assert train["clip_grad_norm"] == (clip > 0)
    assert train["optimizer"] == {"Adam": "adam", "AdamW": "adamw", "FusedAdam": "adam", "SGD": "sgd"}[kind]
    assert {item.option for item in draft.ignored} >= set(rest)


@pytest.mark.slow
@given(
    micro=st.none() | st.integers(1, 16), steps=st.none() | st.integers(1, 16), extra=st.integers(0, 3),
    nodes=st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_batch_sizes_agree_or_are_refused_in_deepspeeds_words(
    tmp_path_factory: pytest.TempPathFactory, micro: int | None, steps: int | None, extra: int, nodes: int
) -> None:
    """train = micro x accumulation x ranks, whichever of the three the file leaves out; ``extra`` too many are told."""
    total = (micro or 3) * (steps or 2) * nodes * 8 + extra
    options: dict[str, Any] = {"train_batch_size": total}
    options |= {"train_micro_batch_size_per_gpu": micro} if micro else {}
    options |= {"gradient_accumulation_steps": steps} if steps else {}
    folder = tmp_path_factory.mktemp("ds")
    if total % ((micro or 1) * (steps or 1) * nodes * 8):
        with pytest.raises(ScenarioError, match=rf"train_batch_size is not equal to .*: {total} != \d+ \* \d+ \* "):
            from_json(folder, options, nodes=nodes)
        return
    draft = from_json(folder, options, nodes=nodes)
    made, added = values(draft, "train.micro_batch", "train.grad_accumulation")
    assert made * added * nodes * 8 == total
    assert made == (micro or made)
    assert added == (steps or added)


def test_ranks_follow_from_the_three_batch_sizes(tmp_path: Path) -> None:
    options = {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    assert values(from_json(tmp_path, options), "cluster.nodes", "cluster.gpus_per_node") == [2, 6]
    with pytest.raises(
        ScenarioError, match=r"ds.json: check batch related .*: 96 != 2 \* 4 \* 16; change one, or --gpus"
    ):
        from_json(tmp_path, options, gpus=16)
    with pytest.raises(ScenarioError, match=r"97 != 2 \* 4 \* a whole number of ranks"):
        from_json(tmp_path, options | {"train_batch_size": 97})


def test_offload_and_zero_plus_plus_are_warned_of_by_name(tmp_path: Path) -> None:
    zero = {
        "stage": 3, "offload_param": {"device": "nvme"}, "zero_hpz_partition_size": 8, "mics_shard_size": 4,
        "zero_quantized_weights": True, "zero_quantized_gradients": False,
    }  # fmt: skip
    warnings = "\n".join(from_json(tmp_path, {"zero_optimization": zero}).warnings)
    for name in (
        "offload_param.device: 'nvme'",
        "zero_hpz_partition_size: 8",
        "mics_shard_size: 4",
        "quantized_weights",
    ):
        assert name in warnings
    assert "zero_quantized_gradients" not in warnings


def test_a_misspelt_option_is_warned_of_with_the_nearest(tmp_path: Path) -> None:
    draft = from_json(tmp_path, {"zero_optimization": {"stage": 2, "reduce_bucket_sise": 5}, "xyzzy": 1})
    (warning,) = draft.warnings
    told = "zero_optimization.reduce_bucket_sise: unknown option; did you mean 'zero_optimization.reduce_bucket_size'?"
    assert warning == told
    assert [item.reason for item in draft.ignored if item.option == "xyzzy"] == ["unknown option"]


# ---- accelerate ------------------------------------------------------------------------------------------------------

NAMES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    sharding=st.integers(0, 4), spelling=st.sampled_from(["name", "lower", "number"]),
    back=st.sampled_from(["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"]), ahead=st.booleans(),
    recompute=st.booleans(), mixed=st.sampled_from(["no", "bf16", "fp16"]), machines=st.integers(1, 5),
    each=st.integers(1, 8), steps=st.integers(1, 9),
)  # fmt: skip
def test_an_accelerate_yaml_of_fsdp_1_says_the_same_in_a_scenario(
    tmp_path_factory: pytest.TempPathFactory, sharding: int, spelling: str, back: str, ahead: bool, recompute: bool,
    mixed: str, machines: int, each: int, steps: int,
) -> None:  # fmt: skip
    name = NAMES[sharding]
    said = {"name": name, "lower": name.lower(), "number": sharding + 1}[spelling]
    options = {
        "distributed_type": "FSDP", "mixed_precision": mixed, "num_machines": machines,
        "num_processes": machines * each, "gradient_accumulation_steps": steps,
        "fsdp_config": {
            "fsdp_sharding_strategy": said, "fsdp_backward_prefetch": back, "fsdp_forward_prefetch": ahead,
            "fsdp_activation_checkpointing": recompute,
        },
    }  # fmt: skip
    draft = from_yaml(tmp_path_factory.mktemp("a"), options)
    checked_text(draft, "f")
    alone = name == "NO_SHARD" or (name.startswith("HYBRID") and each == 1)
    strategy = "ddp" if alone else "hsdp" if name.startswith("HYBRID") else "fsdp"
    assert draft.value("parallel.strategy") == strategy
    assert draft.value("cluster.nodes") == machines
    assert draft.value("cluster.gpus_per_node") in (each, None if each == 8 else each)
    assert draft.value("train.grad_accumulation") == steps
    assert draft.value("train.precision") == {"no": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed"}[mixed]
    if not alone:
        assert draft.value("parallel.reshard_after_forward") == (name not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"))
        assert draft.value("parallel.backward_prefetch") == {"BACKWARD_PRE": "pre", "BACKWARD_POST": "post"}.get(
            back, 0
        )
        assert draft.value("parallel.forward_prefetch") == int(ahead)
        assert draft.value("parallel.reduce_dtype") == (mixed if mixed != "no" else None)
        assert draft.value("train.recompute") == ("full" if recompute else "none")


@pytest.mark.parametrize(
    ("said", "expected"),
    [(True, True), (False, False), ("FULL_SHARD", True), ("SHARD_GRAD_OP", False), (None, True)],
)
def test_fsdp_2_reshards_as_it_is_told(tmp_path: Path, said: object, expected: bool) -> None:
    inner = {"fsdp_version": 2, "fsdp_reshard_after_forward": said, "fsdp_backward_prefetch": "BACKWARD_PRE"}
    draft = from_yaml(tmp_path, {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": inner})
    assert values(draft, "parallel.implementation", "parallel.reshard_after_forward") == ["fsdp2", expected]
    assert draft.value("parallel.backward_prefetch") is None
    assert "FSDP 2 does not read it" in {item.reason for item in draft.ignored}


def test_replicas_and_shards_of_fsdp_2_make_hsdp(tmp_path: Path) -> None:
    sizes = {"parallelism_config_dp_replicate_size": 4, "parallelism_config_dp_shard_size": 8}
    options = {"distributed_type": "FSDP", "num_processes": 32, "fsdp_config": {"fsdp_version": 2},
               "parallelism_config": sizes}  # fmt: skip
    assert values(from_yaml(tmp_path, options), "parallel.strategy", "parallel.shard_size") == ["hsdp", 8]
    options["num_processes"] = 30
    with pytest.raises(ScenarioError, match=r"dp_replicate_size = 4: does not divide the 30 data-parallel ranks"):
        from_yaml(tmp_path, options)


def test_fsdp_options_of_another_type_are_ignored_and_not_called_misspelt(tmp_path: Path) -> None:
    config = {"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_forward_prefetch": False}
    draft = from_yaml(tmp_path, {"distributed_type": "MULTI_GPU", "num_processes": 16, "fsdp_config": config})
    assert (draft.value("parallel.strategy"), draft.warnings) == ("ddp", ())
    reasons = {item.reason for item in draft.ignored if item.option.startswith("fsdp_config")}
    assert reasons == {"accelerate reads it for distributed_type FSDP alone, here MULTI_GPU"}


def test_an_unquoted_no_means_no(tmp_path: Path) -> None:
    text = "distributed_type: MULTI_GPU\nmixed_precision: no\nnum_processes: 8\n"
    assert from_text(tmp_path, "accelerate", text).value("train.precision") == "fp32"


def test_megatron_inside_accelerate_is_refused_with_the_way_to_go(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"MEGATRON_LM'?: not in this version; import the flags .* import megatron"):
        from_yaml(tmp_path, {"distributed_type": "MEGATRON_LM"})


def test_a_deepspeed_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "gone.json"}}
    with pytest.raises(ScenarioError, match=r"deepspeed_config_file = 'gone.json': no such file, beside the YAML"):
        from_yaml(tmp_path, options)


# ---- torchtitan and Megatron-LM --------------------------------------------------------------------------------------

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
{}
[parallelism]
{}
"""


def test_a_model_of_torchtitan_that_is_not_shipped_is_asked_for(tmp_path: Path) -> None:
    other = TITAN.replace('"8B"', '"71B"').format("seq_len = 2048", "")
    with pytest.raises(ScenarioError, match="'llama3 71B' is no shipped model; give --model PRESET"):
        from_text(tmp_path, "torchtitan", other)


@pytest.mark.parametrize(
    ("degrees", "gpus", "expected"),
    [
        ("data_parallel_shard_degree = -1", 16, ["fsdp", None]),
        ("data_parallel_shard_degree = 64", None, ["fsdp", None]),
        ("data_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 8", None, ["hsdp", 8]),
        ("data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = -1", 16, ["hsdp", 8]),
        ("data_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1", None, ["ddp", None]),
    ],
)
def test_degrees_of_torchtitan_choose_the_strategy(
    tmp_path: Path, degrees: str, gpus: int | None, expected: list[object]
) -> None:
    draft = from_text(tmp_path, "torchtitan", TITAN.format("seq_len = 2048", degrees), gpus=gpus)
    assert values(draft, "parallel.strategy", "parallel.shard_size") == expected
    counted = tomllib.loads(degrees)
    wanted = gpus or counted.get("data_parallel_replicate_degree", 1) * counted["data_parallel_shard_degree"]
    assert (draft.value("cluster.nodes") or 1) * (draft.value("cluster.gpus_per_node") or 8) == wanted


def test_torchruns_ranks_are_used_where_degrees_leave_them_open_and_compared_where_not(tmp_path: Path) -> None:
    launch = "torchrun --nnodes 4 --nproc_per_node=8 -m train --training.batch_size 1 --model.name llama3"
    assert from_text(tmp_path, "torchtitan", launch).value("cluster.nodes") == 4
    draft = from_text(tmp_path, "torchtitan", f"{launch} --parallelism.data_parallel_shard_degree 16")
    assert draft.value("cluster.nodes") == 2
    assert any("32 ranks are launched, the degrees need 16" in warning for warning in draft.warnings)


def test_the_length_of_a_run_becomes_its_goal(tmp_path: Path) -> None:
    text = TITAN.format("seq_len = 2048\nlocal_batch_size = 2\nsteps = 500", "data_parallel_shard_degree = 16")
    assert from_text(tmp_path, "torchtitan", text).value("goal.tokens") == 500 * 2 * 16 * 2048
    flags = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --micro-batch-size 1"
    by_steps = f"{flags} --global-batch-size 32 --train-iters 100 --nproc-per-node 8"
    assert from_text(tmp_path, "megatron", by_steps).value("goal.tokens") == 100 * 32 * 128
    assert from_text(tmp_path, "megatron", f"{flags} --train-samples 7777").value("goal.tokens") == 7777 * 128


@pytest.mark.parametrize(
    ("batch", "policy", "expected"),
    [
        ("batch_size", "default", "not-last"), ("batch_size", None, "not-last"), ("local_batch_size", None, True),
        ("local_batch_size", "default", True), ("batch_size", "always", True), ("local_batch_size", "never", False),
    ],
)  # fmt: skip
def test_resharding_of_torchtitan(tmp_path: Path, batch: str, policy: str | None, expected: object) -> None:
    """By default the last block stayed gathered as long as the batch was called batch_size, norm and output later."""
    said = f'fsdp_reshard_after_forward = "{policy}"' if policy else ""
    draft = from_text(tmp_path, "torchtitan", TITAN.format(f"{batch} = 1", said))
    assert draft.value("parallel.reshard_after_forward") == expected


def test_old_and_new_spellings_of_torchtitan_say_the_same(tmp_path: Path) -> None:
    old = TITAN.format("batch_size = 3\ndata_parallel_shard_degree = 8\ntensor_parallel_degree = 1\ncompile = true", "")
    new = TITAN.format("local_batch_size = 3", "data_parallel_shard_degree = 8") + "[compile]\nenable = true\n"
    places = ("train.micro_batch", "train.kernels", "parallel.strategy", "cluster.nodes")
    assert values(from_text(tmp_path, "torchtitan", old), *places) == [3, "fused", "fsdp", 1]
    assert values(from_text(tmp_path, "torchtitan", new), *places) == [3, "fused", "fsdp", 1]


def test_a_global_batch_must_divide_in_megatrons_words(tmp_path: Path) -> None:
    flags = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --micro-batch-size 3 --bf16"
    told = r"global batch size \(100\) is not divisible by micro batch size \(3\) times data parallel size \(8\)"
    with pytest.raises(ScenarioError, match=told):
        from_text(tmp_path, "megatron", f"{flags} --global-batch-size 100", gpus=8)
    draft = from_text(tmp_path, "megatron", f"{flags} --global-batch-size 96", gpus=8)
    assert draft.value("train.grad_accumulation") == 4


@pytest.mark.parametrize(
    "path", [p for p in FILES if any(SAYS[p.name].get(f"parallel.{key}") for key in DEGREES)], ids=lambda p: p.name
)
def test_model_parallelism_can_be_left_out(path: Path, tmp_path: Path) -> None:
    dropped = imported(kind_of(path), path, drop_model_parallel=True)
    assert values(dropped, *(f"parallel.{key}" for key in DEGREES)) == [None] * len(DEGREES)
    assert any("left out (--drop-model-parallel)" in warning for warning in dropped.warnings)
    load_scenario(written(tmp_path, dropped))


def test_a_model_in_parallel_runs_by_the_command(tmp_path: Path) -> None:
    path = FOLDER / "torchtitan-llama3-405b-2025.toml"
    ran = simulator("run", str(written(tmp_path, imported("torchtitan", path))))
    assert ran.code in (0, 1), ran.err
    assert "tp 8" in ran.out


def test_a_model_by_name_takes_the_place_of_the_sizes_in_flags() -> None:
    draft = imported("megatron", FOLDER / "megatron-llama3-8b-fp8.sh", model="mixtral-8x7b")
    assert values(draft, "model.preset", "model.num_layers", "train.seq_len") == ["mixtral-8x7b", None, 8192]
    reasons = {item.option: item.reason for item in draft.ignored}
    assert reasons["--ffn-hidden-size"] == reasons["--swiglu"] == "the model is that of model.preset or model.hf"
    assert not [reason for reason in reasons.values() if reason.startswith("unknown")]


SCRIPT = r"""
#!/bin/sh
A=3; B="${B:-7}"   # a comment --not-a-flag
C=$((A * $B + 1))
X='single $A'
LIST=(
    --three $A  # behind --a comment
    "--seven ${B}"
    --sum=$C --alone --quoted "two words"
)
MORE="--text $X \
  --next 1"
if [ "$A" -eq 3 ] && [[ $B != "8" ]]; then
    Y=1
    LIST+=(--taken $Y)
elif [ $A = 3 ]; then LIST+=(--never 1)
else
    LIST+=(--never 2)
fi
if [ -n "$FROM_OUTSIDE" ]; then LIST+=(--perhaps 1); Y=2; else LIST+=(--perhaps 2); fi
echo "--echoed 1"
run --three 4 ${LIST[@]} $MORE \
  --outside $FROM_OUTSIDE --date $(date) --y $Y --port 6000 train.py --last -1 -m x --is=1 more
"""


def test_flags_of_a_script_are_read_with_its_variables_and_branches() -> None:
    flags = flags_of(SCRIPT)
    assert flags.values == {
        "three": "4", "seven": "7", "sum": "22", "alone": True, "quoted": "two words", "text": "single $A", "next": "1",
        "taken": "1", "outside": UNKNOWN, "date": UNKNOWN, "y": "1", "port": "6000", "last": "-1", "is": "1",
    }  # fmt: skip
    assert flags.undecided == {"perhaps": "2"}


@pytest.mark.parametrize("rest", ["2>&1 | tee log.txt", "> log", ">>log", "&> log", "| tee log", "&& echo", "&"])
def test_where_output_goes_and_what_runs_next_is_no_part_of_a_value(rest: str) -> None:
    assert flags_of(f"run.py --lr 3e-4 --data $DATA {rest}").values == {"lr": "3e-4", "data": UNKNOWN}


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="A=$({[\"'\\ \n})]#;&|-f`i1 "))
def test_no_text_upsets_the_reader_of_scripts(text: str) -> None:
    flags_of(text)


# ---- models ----------------------------------------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1000,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "rope_theta": 5e5, "transformers_version": "5.0",
}  # fmt: skip


def model(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    return path


def test_a_model_config_gives_model_length_and_type(tmp_path: Path) -> None:
    path = model(tmp_path)
    draft = imported("hf", path)
    assert values(draft, "model.hf", "train.seq_len", "train.precision") == [str(path), 8192, "bf16-mixed"]
    assert "at most 8,192 taken" in checked_text(draft, "f")
    assert {item.option for item in draft.ignored} == {"bos_token_id", "rope_theta", "transformers_version"}
    assert imported("hf", tmp_path).value("train.seq_len") == 8192
    assert imported("hf", model(tmp_path, max_position_embeddings=300)).value("train.seq_len") == 300


def test_sizes_written_inline_are_the_same_model(tmp_path: Path) -> None:
    path = model(tmp_path)
    by_path = load_scenario(written(tmp_path, imported("hf", path, seq_len=128)))
    by_size = load_scenario(written(tmp_path, imported("hf", path, seq_len=128, inline=True)))
    assert answer_step(by_path).job.model.num_parameters == answer_step(by_size).job.model.num_parameters
    with pytest.raises(ScenarioError, match=r"--inline: the sizes of a scenario cannot say all of model_type 'qwen3'"):
        imported("hf", model(tmp_path, model_type="qwen3"), inline=True)
    with pytest.raises(ScenarioError, match=r"--inline: the sizes of a scenario cannot say all of model_type 'llama'"):
        imported("hf", model(tmp_path, attention_bias=True), inline=True)


def test_sequences_longer_than_learned_positions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"2048 tokens are longer than the 1024 learned positions of preset gpt2"):
        imported("torchtitan", FOLDER / "torchtitan-llama2-7b-2024.toml", model="gpt2")


def test_the_model_of_a_launch_config_comes_by_name_or_by_file(tmp_path: Path) -> None:
    source = FOLDER / "accelerate-zero1.json"
    assert imported("deepspeed", source).value("model.preset") == DEFAULT_MODEL
    own = imported("deepspeed", source, model=str(model(tmp_path)))
    assert values(own, "model.hf", "parallel.reduce_bucket_size") == [str(tmp_path / "config.json"), 64 * 64]
    with pytest.raises(ScenarioError, match=r"--model lama-3-8b: .*did you mean 'llama-3-8b'\?; or the path"):
        imported("deepspeed", source, model="lama-3-8b")


# ---- the command line's own settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extras", "expected"),
    [
        ({"gpus": 4}, [1, 4]), ({"gpus": 64}, [8, None]), ({"gpus": 12}, [2, 6]), ({"nodes": 4}, [4, None]),
        ({"nodes": 4, "gpus": 8}, [4, 2]), ({"topology": "gb200-nvl72", "gpus": 72}, [18, None]), ({}, [2, None]),
    ],
)  # fmt: skip
def test_gpus_and_nodes_size_the_cluster(extras: dict[str, Any], expected: list[int | None]) -> None:
    draft = imported("deepspeed", FOLDER / "accelerate-zero1.json", **extras)
    assert values(draft, "cluster.nodes", "cluster.gpus_per_node") == expected


def test_the_command_line_wins_over_the_file_and_says_so() -> None:
    draft = imported("torchtitan", FOLDER / "torchtitan-llama3-8b-2024.toml", micro_batch=3, seq_len=1024, gpus=8)
    assert values(draft, "train.micro_batch", "train.seq_len", "cluster.nodes") == [3, 1024, 1]
    text = checked_text(draft, "f")
    assert "# --micro-batch (the file says training.batch_size: 1)" in text
    assert "# --seq-len (the file says training.seq_len: 8192)" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped.names("topology"))
def test_a_file_runs_on_every_topology_with_a_device(name: str, tmp_path: Path) -> None:
    source = FOLDER / "accelerate-fsdp1.yaml"
    if load_topology(name).device is None:
        with pytest.raises(ScenarioError, match="names no device"):
            imported("accelerate", source, topology=name)
        return
    draft = imported("accelerate", source, topology=name, model="gpt2", seq_len=128)
    assert answer_step(load_scenario(written(tmp_path, draft))).report.step_time_s > 0


# ---- what is refused, and how ----------------------------------------------------------------------------------------

REFUSED = [
    ("hf", '{"zero_optimization": {}}', "looks like a DeepSpeed JSON: use 'simulator import deepspeed'"),
    ("deepspeed", '{"model_type": "llama"}', "looks like a Hugging Face config.json: use 'simulator import hf'"),
    ("megatron", "[training]\nseq_len = 1", "looks like a torchtitan configuration: use 'simulator import torchtitan'"),
    ("torchtitan", "x --num-layers 3", "looks like a list of Megatron-LM flags: use 'simulator import megatron'"),
    ("deepspeed", "distributed_type: FSDP", "looks like an accelerate YAML: use 'simulator import accelerate'"),
    ("accelerate", "cluster: {topology: x}", "looks like a scenario already"),
    ("deepspeed", '{"steps_per_print": 1,}', "file:1: not valid JSON: "),
    ("deepspeed", '{"steps_per_print": 1, "steps_per_print": 2}', "'steps_per_print' stands in one object twice"),
    ("deepspeed", '["train_batch_size" : 3]', "not valid JSON"),
    ("deepspeed", "[" * 5000 + '"train_batch_size":', "nested too deep"),
    ("deepspeed", '{"zero_optimization": {"stage": 4}}', "zero_optimization.stage = 4: expected a whole number from 0"),
    ("deepspeed", '{"train_batch_size": "many"}', "train_batch_size = 'many': expected a whole number from 1 to"),
    ("deepspeed", '{"bf16": {"enabled": 3}, "steps_per_print": 1}', "bf16.enabled = 3: expected true or false"),
    ("deepspeed", '{"gradient_clipping": "x", "steps_per_print": 1}', "gradient_clipping = 'x': expected a number"),
    ("deepspeed", '{"a": 1}', "holds no option that is known; is it of another kind?"),
    ("torchtitan", "[training]\nseq_len = ", "not valid TOML: "),
    ("torchtitan", '[training]\nmixed_precision_param = "bf16"', "did you mean 'bfloat16'?"),
    ("accelerate", "distributed_type: FSPD", "accepted: NO, MULTI_GPU"),
    ("accelerate", "distributed_type: FSDP\ndistributed_type: FSDP", "file:2: distributed_type: duplicate key"),
    ("accelerate", "distributed_type: FSDP\nfsdp_config: {sharding_strategy: FULL_SHRD}", "did you mean 'FULL_SHARD'?"),
    ("accelerate", "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 6}", "whole number from 1 to 5"),
    ("accelerate", "distributed_type: 'no\n", "not valid YAML"),
    ("megatron", "--num-layers x --hidden-size 4 --num-attention-heads 2", "--num-layers = 'x': expected a whole"),
    ("megatron", "--num-layers 1 --hidden-size 5 --num-attention-heads 2", "a multiple of --num-attention-heads 2"),
    ("megatron", "--micro-batch-size 1 --use-distributed-optimizer --overlap-param-gather", "overlap-grad-reduce only"),
    ("megatron", "nothing here", "holds no flags"),
    ("hf", '{"model_type": "lama"}', "lama"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "told"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_imported_gets_one_clear_error(kind: str, text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    result = simulator("import", kind, str(path))
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert str(path) in line
    assert told in line


def test_kinds_that_the_command_offers_are_those_of_the_table() -> None:
    assert tuple(KINDS) == OFFERED
    with pytest.raises(ScenarioError, match=r"unknown kind 'deepsped'; accepted: hf, .*did you mean 'deepspeed'"):
        import_file("deepsped", "x", Extras())
    assert "'hf', 'deepspeed', 'torchtitan', 'megatron', 'accelerate'" in simulator("import", "yaml", "x").err
    assert "gone.json: no such file" in simulator("import", "hf", "gone.json").err


@pytest.mark.parametrize(
    "text", ["a: b", "no", "1e9", "25 MiB", "#", "", " x", "x ", "é", "a\nb", "'", '"', "- a", "null", "1:30"]
)
def test_any_text_is_written_as_yaml_reads_it_back(text: str) -> None:
    assert yaml.safe_load(f"k: {scalar(text)}") == {"k": text}
    assert parse(f"k: {scalar(text)}", "f").value == {"k": text}


@pytest.mark.slow
@pytest.mark.parametrize("path", [*FILES, *CONFIGS], ids=lambda path: path.name)
def test_a_damaged_file_is_imported_and_runs_or_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    """Never a traceback, exit code 0 or 2; what is imported is a scenario that can be simulated."""
    draw, kind = random.Random(path.name), kind_of(path) if path in FILES else "hf"
    text, broken = path.read_text(encoding="utf-8"), tmp_path / path.name
    for _ in range(25):
        broken.write_bytes(damaged(text, draw).encode("utf-8", "surrogatepass"))
        result = simulator("import", kind, str(broken), "--drop-model-parallel")
        assert result.code in (0, 2), result.err
        assert "Traceback" not in result.err
        if result.code == 2:
            assert result.out == ""
            assert all(line.startswith("error: ") for line in result.err.splitlines())
            assert path.name in result.err or "accelerate-zero1.json" in result.err
            continue
        made = tmp_path / "made.yaml"
        made.write_text(result.out, encoding="utf-8")
        load_scenario(made)


# ---- spellings of other frameworks in a scenario ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("train.per_device_train_batch_size=4", "did you mean 'micro_batch'?"),
        ("train.gradient-accumulation-steps=4", "did you mean 'grad_accumulation'?"),
        ("parallel.tensor_model_parallel_size=2", "did you mean 'tp'?"),
        ("parallel.gradient_checkpointing=true", "did you mean 'train.recompute'?"),
        ("nnodes=2", "did you mean 'cluster.nodes'?"),
        ("train.micro_bach=4", "did you mean 'micro_batch'?"),
    ],
)
def test_a_spelling_from_elsewhere_is_answered_with_ours(override: str, told: str) -> None:
    result = simulator("run", "gpt2-8xa100", override)
    assert result.code == 2
    assert told in result.err


def test_every_key_that_spellings_lead_to_exists_and_no_spelling_is_a_key_of_ours() -> None:
    blocks = {"cluster": [Cluster], "model": [ArchitectureModel, HfModel], "parallel": [Parallel], "train": [Train]}
    keys = {f"{block}.{key}" for block, kinds in blocks.items() for kind in kinds for key in kind.model_fields}
    assert set(_ELSEWHERE) <= keys
    names = [name for names in _ELSEWHERE.values() for name in names.split()]
    assert len(names) == len(set(names))
    assert (
        not {f"{ours.partition('.')[0]}.{name}" for ours, named in _ELSEWHERE.items() for name in named.split()} & keys
    )
