"""Reads a Hugging Face ``config.json`` as plain JSON: the families whose layers we know, and nothing else.

Old and new spellings are read (``n_embd`` and ``hidden_size``; missing ``num_key_value_heads``, ``head_dim``; three of
the number of experts). Keys we do not need are ignored, as the files carry many; what we do need and miss is named.
Defaults per family are those of ``transformers`` (``training.families``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError
from simulator.problems import nearest
from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families import MIXTURES, READERS
from simulator.training.families.experts import COUNT_KEYS

ACCEPTED_TYPES = tuple(READERS)
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

    Raises ScenarioError (missing or wrong key, unknown model_type) or UnsupportedError (a variant we do not model).
    """
    model_type = config.get("model_type")
    if model_type is None:
        told = f"{where}: key 'model_type' is missing; accepted are {', '.join(ACCEPTED_TYPES)}"
        raise ScenarioError(told + _as_llama(config, where))
    reader = READERS.get(str(model_type))
    if reader is None:
        raise ScenarioError(_unknown(str(model_type), config, where))
    architecture = reader(Config(config, where))
    _check(architecture, config, where)
    return architecture


def _unknown(model_type: str, config: Mapping[str, Any], where: str) -> str:
    """What is wrong with a model_type, the nearest known ones, and whether the sizes would do as Llama's."""
    hint = nearest(model_type, ACCEPTED_TYPES)
    told = f"{where}: model_type '{model_type}' is unknown; accepted are {', '.join(ACCEPTED_TYPES)}{hint}"
    return f"{told}{_as_llama(config, where)} (or describe the model by its own sizes, or by measured layers)"


def _as_llama(config: Mapping[str, Any], where: str) -> str:
    """What a file whose keys look like Llama's lacks to be read as one, if anything; '' for other files."""
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and not any(key in config for key in needed):
        return "; its language model is in 'text_config': put that into a file of its own"
    lacking = [key for key in needed if config.get(key) is None]
    if len(lacking) > 2:
        return ""
    kind = "mixtral" if any(_many(config.get(key)) for key in COUNT_KEYS) else "llama"
    if lacking:
        names = " and ".join(f"'{key}'" for key in lacking)
        return f"; its sizes look like those of {kind}, but {names} {'is' if len(lacking) == 1 else 'are'} missing"
    return f"; its sizes look like those of {kind}: if its layers are too, write model_type '{kind}'"


def _many(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count > 1


def _check(arch: Architecture, config: Mapping[str, Any], where: str) -> None:
    """Heads must divide what they split, and a family without experts must not have any."""
    if arch.num_heads % arch.num_kv_heads:
        raise ScenarioError(
            f"{where}: num_attention_heads = {arch.num_heads} is not a multiple"
            f" of num_key_value_heads = {arch.num_kv_heads}"
        )
    counted = [key for key in COUNT_KEYS if _many(config.get(key))]
    if counted and arch.experts is None:
        raise ScenarioError(
            f"{where}: {counted[0]} = {config[counted[0]]}, but model_type '{config['model_type']}' has no experts;"
            f" types that have are {', '.join(MIXTURES)}"
        )
