"""Hugging Face configurations: spellings, family defaults, and messages that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import ScenarioError, UnsupportedError
from simulator.model_spec import HfModel
from simulator.training.architecture import Architecture, num_parameters
from simulator.training.hf_config import architecture_from_config, read_config
from simulator.training.presets import build_model

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip


def architecture(config: dict[str, Any], **changes: Any) -> Architecture:
    return architecture_from_config(config | changes, where="config.json")


def test_old_and_new_files_of_the_same_model_are_one_architecture() -> None:
    """Old files have rope_theta and no head_dim; new ones rope_parameters and many more keys."""
    new = architecture(LLAMA, head_dim=128, rope_parameters={"rope_theta": 5e5}, torch_dtype="bfloat16", attn_extra=[1])
    assert architecture(LLAMA, rope_theta=500000.0) == new


def test_heads_share_keys_only_when_the_file_says_so() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert architecture(config).num_kv_heads == 32


@pytest.mark.parametrize(
    ("model_type", "qkv_bias", "qk_norm"),
    [("llama", False, False), ("mistral", False, False), ("qwen2", True, False), ("qwen3", False, True)],
)
def test_families_differ_in_biases_and_norms(model_type: str, qkv_bias: bool, qk_norm: bool) -> None:
    arch = architecture(LLAMA, model_type=model_type)
    assert (arch.qkv_bias, arch.qk_norm, arch.tie_word_embeddings) == (qkv_bias, qk_norm, False)


def test_gpt2_is_tied_and_has_a_position_table_by_default() -> None:
    arch = architecture(GPT2)
    assert arch.tie_word_embeddings
    assert num_parameters(arch) == 124_439_808
    assert num_parameters(architecture(GPT2, tie_word_embeddings=False)) == 124_439_808 + 50257 * 768


def test_qwen3_heads_are_wider_than_hidden_over_heads() -> None:
    """Qwen3-0.6B: 16 heads of 128 on a hidden size of 1024."""
    arch = architecture(LLAMA, model_type="qwen3", hidden_size=1024, num_attention_heads=16)
    assert arch.head_dim == 128
    assert arch.query_size == 2048


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, "key 'model_type' is missing; accepted are llama, mistral, qwen2, qwen3, .*, gpt2"),
        ({"model_type": None}, ".*its sizes look like those of llama: if its layers are too, write model_type 'llama'"),
        ({"model_type": "lama"}, "model_type 'lama' is unknown; accepted are .*did you mean 'llama'"),
        ({"model_type": "aurora"}, "model_type 'aurora' is unknown; .*its sizes look like those of llama: if"),
        (
            {"model_type": "aurora", "intermediate_size": None, "vocab_size": None},
            "model_type 'aurora' .*like those of llama, but 'vocab_size' and 'intermediate_size' are missing",
        ),
        ({"model_type": "aurora_moe", "num_experts": 8}, "model_type 'aurora_moe' is unknown; .*like those of mixtral"),
        ({"num_experts": 8}, "num_experts = 8, but model_type 'llama' has no experts; types that have are mixtral, "),
        ({"hidden_size": None}, "key 'hidden_size' is missing; model_type 'llama' needs it"),
        ({"hidden_size": "4096"}, "hidden_size = '4096': expected a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0: expected a positive integer"),
        ({"vocab_size": True}, "vocab_size = True: expected a positive integer"),
        ({"num_key_value_heads": 5}, "num_attention_heads = 32 is not a multiple of num_key_value_heads = 5"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no': expected true or false"),
    ],
)
def test_a_wrong_key_is_named_with_what_is_accepted(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=f"config.json: {message}"):
        architecture(LLAMA, **changes)


MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK: dict[str, Any] = LLAMA | {
    "model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MIXTRAL | {"num_local_experts": None}, "key 'num_local_experts' is missing; model_type 'mixtral' needs it"),
        (
            MIXTRAL | {"num_experts_per_tok": None},
            "key 'num_experts_per_tok' is missing; model_type 'mixtral' needs it",
        ),
        (MIXTRAL | {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is more than num_local_experts = 8"),
        (MIXTRAL | {"num_local_experts": -8}, "num_local_experts = -8: expected a positive integer"),
        (DEEPSEEK | {"kv_lora_rank": None}, "key 'kv_lora_rank' is missing; model_type 'deepseek_v3' needs it"),
        (DEEPSEEK | {"moe_layer_freq": [1, 0]}, "moe_layer_freq: expected 32 numbers, one for each layer"),
        (DEEPSEEK | {"first_k_dense_replace": -1}, "first_k_dense_replace = -1: expected an integer of at least 0"),
        (LLAMA | {"model_type": "gemma2", "layer_types": ["mamba"] * 32}, "layer_types: 'mamba' is not modelled"),
        (LLAMA | {"model_type": "gemma2", "layer_types": "full"}, "layer_types: expected a list of 32 kinds"),
        ({"model_type": "llava", "text_config": LLAMA}, "model_type 'llava' .*its language model is in 'text_config'"),
    ],
)
def test_what_a_newer_family_needs_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=f"config.json: {message}"):
        architecture_from_config(config, where="config.json")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "opt", "hidden_size": 1024, "num_attention_heads": 16, "word_embed_proj_dim": 512},
            "350M alone",
        ),
        ({"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4, "alibi": True}, "Falcon with alibi"),
    ],
)
def test_variants_that_are_built_otherwise_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        architecture_from_config(config, where="config.json")


def test_windows_are_read_where_the_family_uses_them() -> None:
    """Mistral 7B v0.1 in all layers, Qwen 2 only when it says so and from a layer on, Gemma 3 in five of six."""
    assert set(architecture(LLAMA, model_type="mistral", sliding_window=4096).windows) == {4096}
    assert architecture(LLAMA, model_type="mistral", sliding_window=None).windows == ()
    qwen = {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 30}
    assert architecture(LLAMA, **qwen).windows == ()
    assert architecture(LLAMA, **qwen, use_sliding_window=True).windows == (0,) * 30 + (4096,) * 2
    gemma = architecture(LLAMA, model_type="gemma3_text", sliding_window=512)
    assert [layer for layer in range(32) if not gemma.windows[layer]] == [5, 11, 17, 23, 29]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "not JSON"),
        (b"{'model_type': 'llama'}", "not JSON"),
        (b"[1, 2]", "expected a JSON object"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_config_gets_one_clear_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ScenarioError, match=message) as error:
        read_config(path)
    assert str(path) in str(error.value)


def test_a_relative_path_starts_at_the_scenarios_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for path in ("my-llama/config.json", "my-llama"):
        model = build_model(
            HfModel(hf=path), seq_len=16, micro_batch=1, precision="bf16", attention="flash", base_dir=tmp_path
        )
        assert model.num_parameters == 8_030_261_248
        assert model.name == "my-llama"
