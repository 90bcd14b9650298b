"""Reads a Hugging Face ``config.json`` as plain JSON: the architectures whose layers we know, and nothing else.

Old and new spellings are read (``n_embd`` and ``hidden_size``; missing ``num_key_value_heads``, ``head_dim``). Keys we
do not need are ignored, as the files carry many; what we do need and miss is named. Defaults per family are those of
``transformers``: tied embeddings for GPT-2 only, biases on q, k, v for Qwen 2 only, norms of q and k for Qwen 3 only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError, UnsupportedError
from simulator.model_spec import MAX_LAYERS
from simulator.problems import nearest
from simulator.training.architecture import Architecture

LLAMA_TYPES = ("llama", "mistral", "qwen2", "qwen3")
ACCEPTED_TYPES = (*LLAMA_TYPES, "gpt2")
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
MAX_CONFIG_BYTES = 10_000_000


def read_config(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file. Raises ScenarioError for a missing file, a directory, not JSON, or not an object."""
    if path.is_dir():
        path = path / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ScenarioError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes; expected a Hugging Face config.json")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: not UTF-8 text; expected a Hugging Face config.json") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror}); expected a Hugging Face config.json") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path}: not JSON ({error}); expected a Hugging Face config.json") from None
    if not isinstance(value, dict):
        raise ScenarioError(f"{path}: expected a JSON object with 'model_type', found a {type(value).__name__}")
    return value


def architecture_from_config(config: Mapping[str, Any], *, where: str) -> Architecture:
    """The shape that a configuration describes. ``where`` names its origin in errors.

    Raises ScenarioError (missing or wrong key, unknown model_type) or UnsupportedError (mixtures of experts).
    """
    model_type = config.get("model_type")
    if model_type is None:
        raise ScenarioError(f"{where}: key 'model_type' is missing; accepted are {', '.join(ACCEPTED_TYPES)}")
    experts = [key for key in EXPERT_KEYS if isinstance(config.get(key), int) and config[key] > 1]
    if experts or "moe" in str(model_type).lower():
        found = f"{experts[0]} = {config[experts[0]]}" if experts else f"model_type '{model_type}'"
        raise UnsupportedError(f"{where}: {found}: mixtures of experts are not in this version; use a dense model")
    if model_type not in ACCEPTED_TYPES:
        hint = nearest(str(model_type), ACCEPTED_TYPES)
        raise ScenarioError(
            f"{where}: model_type '{model_type}' is unknown; accepted are {', '.join(ACCEPTED_TYPES)}{hint}"
            " (or describe the model by its own sizes, or by measured layers)"
        )
    architecture = _gpt2(config, where) if model_type == "gpt2" else _llama(config, where, str(model_type))
    _check(architecture, where)
    return architecture


#: As for models written in a scenario: above it (or above MAX_LAYERS) a typing error is likelier than a model.
MAX_SIZE = 100_000_000


def _integer(config: Mapping[str, Any], where: str, *keys: str, default: int | None = None) -> int:
    """The first of ``keys`` that is set, a positive integer; ``default`` when none is."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ScenarioError(f"{where}: {key} = {value!r}: expected a positive integer")
        most = MAX_LAYERS if "layer" in key else MAX_SIZE
        if value > most:
            raise ScenarioError(f"{where}: {key} = {value}: at most {most:,} is accepted")
        return value
    if default is None:
        raise ScenarioError(f"{where}: key '{keys[0]}' is missing; model_type '{config['model_type']}' needs it")
    return default


def _flag(config: Mapping[str, Any], where: str, key: str, default: bool) -> bool:
    value = config.get(key, default)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ScenarioError(f"{where}: {key} = {value!r}: expected true or false")
    return value


def _llama(config: Mapping[str, Any], where: str, model_type: str) -> Architecture:
    hidden = _integer(config, where, "hidden_size")
    heads = _integer(config, where, "num_attention_heads")
    attention_bias = _flag(config, where, "attention_bias", False)
    return Architecture(
        name=str(config.get("name") or config.get("_name_or_path") or model_type),
        family="llama",
        num_layers=_integer(config, where, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_integer(config, where, "num_key_value_heads", default=heads),
        head_dim=_integer(config, where, "head_dim", default=128 if model_type == "qwen3" else max(hidden // heads, 1)),
        intermediate_size=_integer(config, where, "intermediate_size"),
        vocab_size=_integer(config, where, "vocab_size"),
        tie_word_embeddings=_flag(config, where, "tie_word_embeddings", False),
        qkv_bias=model_type == "qwen2" or attention_bias,
        output_bias=model_type != "qwen2" and attention_bias,
        mlp_bias=_flag(config, where, "mlp_bias", False),
        qk_norm=model_type == "qwen3",
    )


def _gpt2(config: Mapping[str, Any], where: str) -> Architecture:
    hidden = _integer(config, where, "n_embd", "hidden_size")
    heads = _integer(config, where, "n_head", "num_attention_heads")
    return Architecture(
        name=str(config.get("name") or config.get("_name_or_path") or "gpt2"),
        family="gpt2",
        num_layers=_integer(config, where, "n_layer", "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        intermediate_size=_integer(config, where, "n_inner", "intermediate_size", default=4 * hidden),
        vocab_size=_integer(config, where, "vocab_size"),
        max_positions=_integer(config, where, "n_positions", "n_ctx", "max_position_embeddings"),
        tie_word_embeddings=_flag(config, where, "tie_word_embeddings", True),
        dropout=any(_positive_rate(config, key, 0.1) for key in ("resid_pdrop", "attn_pdrop")),
    )


def _positive_rate(config: Mapping[str, Any], key: str, default: float) -> bool:
    value = config.get(key, default)
    return isinstance(value, int | float) and value > 0


def _check(arch: Architecture, where: str) -> None:
    """Heads must divide what they split."""
    if arch.num_heads % arch.num_kv_heads:
        raise ScenarioError(
            f"{where}: num_attention_heads = {arch.num_heads} is not a multiple"
            f" of num_key_value_heads = {arch.num_kv_heads}"
        )
    if arch.family == "gpt2" and arch.hidden_size % arch.num_heads:
        raise ScenarioError(f"{where}: n_embd = {arch.hidden_size} is not a multiple of n_head = {arch.num_heads}")
