"""Which model an imported job trains, and on sequences of which length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator import shipped
from simulator.errors import ScenarioError
from simulator.importing.sheet import CHANGE_ME, MOST, Option, Sheet
from simulator.load import load_preset
from simulator.training.hf_config import architecture_from_config, read_config

DEFAULT_MODEL: Final = "llama-3.2-1b"
DEFAULT_SEQ_LEN: Final = 4096
#: Keys of a config.json that name the longest sequence.
POSITIONS: Final = ("max_position_embeddings", "n_positions", "n_ctx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What other options need to know of the model. None: unknown. ``sequences``: whether it reads sequences.

    ``learned_positions`` bound its sequences, ``positions`` are what it is meant for. ``layers``: blocks; ``experts``:
    routed ones in a layer, 0 where there are none.
    """

    name: str = ""
    hidden_size: int | None = None
    layers: int | None = None
    experts: int = 0
    learned_positions: int | None = None
    positions: int | None = None
    sequences: bool = True


def put_model(sheet: Sheet, why: str = f"{CHANGE_ME} (--model)", preset: str = DEFAULT_MODEL) -> Model:
    """Writes ``model``: as ``--model`` says, a shipped one by name or a config.json, else ``preset`` as a guess."""
    asked = sheet.extras.model
    if asked is None:
        sheet.guess("model.preset", preset, why)
        return _of_preset(preset)
    if not is_config(asked):
        sheet.put("model.preset", asked, "--model")
        return _of_preset(asked)
    config = read_config(Path(asked))
    model = of_config(config, asked)
    sheet.put("model.hf", asked, "--model")
    return model


def is_config(ref: str) -> bool:
    """Whether ``--model`` means a config.json, or a folder with one, rather than the name of a shipped model."""
    return ref not in shipped.names("preset") and (ref.endswith(".json") or "/" in ref or Path(ref).exists())


def _of_preset(name: str) -> Model:
    try:
        config = load_preset(name).config
    except ScenarioError as error:
        raise ScenarioError(f"--model {name}: {error}; or the path of a config.json") from None
    return Model(sequences=False) if config is None else of_config(config, f"preset {name}")


def of_config(config: Mapping[str, Any], where: str) -> Model:
    """Raises ScenarioError for a model that cannot be built."""
    architecture = architecture_from_config(config, where=where)
    return Model(
        name=where, hidden_size=architecture.hidden_size, positions=positions_of(config),
        learned_positions=architecture.max_positions or None, layers=architecture.num_layers,
        experts=architecture.experts.count if architecture.experts else 0,
    )  # fmt: skip


def positions_of(config: Mapping[str, Any]) -> int | None:
    """The longest sequence that a configuration names."""
    text = config.get("text_config")
    places = (config, text) if isinstance(text, dict) else (config,)
    found = [place[key] for place in places for key in POSITIONS if type(place.get(key)) is int and place[key] > 0]
    return found[0] if found else None


def put_seq_len(sheet: Sheet, model: Model, option: Option | None = None) -> None:
    """Writes ``train.seq_len``; nothing for a model that reads no sequences."""
    asked = sheet.extras.seq_len
    if asked is not None:
        sheet.put_extra("train.seq_len", asked, "--seq-len", option)
    elif option is not None:
        sheet.put("train.seq_len", sheet.whole(option, most=1_000 * MOST), option.said)
    elif model.sequences:
        longest = model.positions or DEFAULT_SEQ_LEN
        short = " (as long as the model's positions)" if longest < DEFAULT_SEQ_LEN else ""
        sheet.guess("train.seq_len", min(longest, DEFAULT_SEQ_LEN), f"{CHANGE_ME} (--seq-len){short}")
    length = sheet.value("train.seq_len")
    if model.learned_positions is not None and length is not None and length > model.learned_positions:
        raise ScenarioError(f"{sheet.file}: sequences of {length} tokens are longer than the {model.learned_positions} "
                            f"learned positions of {model.name}; change --seq-len or --model")  # fmt: skip
