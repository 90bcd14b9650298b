"""The kinds of files that are imported: how each is read, what it looks like, and its function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.errors import ScenarioError
from simulator.importing.accelerate import import_accelerate
from simulator.importing.deepspeed import import_deepspeed
from simulator.importing.draft import Draft, Extras
from simulator.importing.files import flattened, json_options, text_of, toml_options, yaml_options
from simulator.importing.hf import import_hf
from simulator.importing.megatron import IN_AN_IF, import_megatron
from simulator.importing.sheet import UNSET, Sheet
from simulator.importing.shell import UNKNOWN, flags_of
from simulator.importing.torchtitan import import_torchtitan
from simulator.importing.trial import tried
from simulator.importing.writer import scenario_text
from simulator.problems import nearest
from simulator.scenario import Scenario
from simulator.text_file import read_text
from simulator.yaml_source import parse, validate

Options = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file, called ``title``; one where the pattern ``marks`` is found in the text."""

    title: str
    marks: re.Pattern[str]
    read: Callable[[str, Path], Options]
    make: Callable[[Sheet], Draft]


def _deepspeed(text: str, path: Path) -> Options:
    return flattened(json_options(text, str(path)), str(path))


def _hf(text: str, path: Path) -> Options:
    return json_options(text, str(path))


def _torchtitan(text: str, path: Path) -> Options:
    """TOML, or a launch script with ``--section.option`` flags."""
    if _DOTTED.search(text) and not _TABLE.search(text):
        flags = flags_of(text)
        return dict(_switched(name.replace("-", "_"), value) for name, value in _told(flags.values).items())
    return flattened(toml_options(text, str(path)), str(path))


def _switched(name: str, value: Any) -> tuple[str, Any]:
    """``--section.no-enable`` as what it says of ``section.enable``."""
    section, _, key = name.rpartition(".")
    return (f"{section}.{key[3:]}", False) if section and key.startswith("no_") and value is True else (name, value)


def _megatron(text: str, path: Path) -> Options:
    flags = flags_of(text)
    if not flags.values:
        raise ScenarioError(f"{path}: holds no flags (--name value); expected those of Megatron-LM")
    named = {f"--{name.replace('_', '-')}": value for name, value in _told(flags.values).items()}
    unsure = {f"--{name.replace('_', '-')}{IN_AN_IF}": value for name, value in _told(flags.undecided).items()}
    return {**named, **unsure}


def _told(values: Mapping[str, str | bool]) -> Options:
    return {name: value.replace(UNKNOWN, UNSET) if isinstance(value, str) else value for name, value in values.items()}


def _accelerate(text: str, path: Path) -> Options:
    """The YAML, together with the options of the DeepSpeed JSON that it names, if any."""
    options = flattened(yaml_options(text, str(path)), str(path))
    if str(options.get("distributed_type")).upper() != "DEEPSPEED":
        return options
    named = options.get("deepspeed_config.deepspeed_config_file")
    found = _json_beside(str(named), path) if named not in (None, "none", "None") else {}
    return {**found, **options}


def _json_beside(name: str, path: Path) -> Options:
    """A file named in a YAML: beside it, or from the working directory, as accelerate itself finds it."""
    places = [place for place in (path.parent / name, Path(name)) if place.is_file()]
    if not places:
        told = "no such file, beside the YAML or in the working directory"
        raise ScenarioError(f"{path}: deepspeed_config.deepspeed_config_file = {name!r}: {told}")
    return _deepspeed(read_text(places[0]), places[0])


_DOTTED = re.compile(r"--(?:training|parallelism|model|activation_checkpoint|job)\.[a-z_]+")
_TABLE = re.compile(r"^\s*\[(?:training|model|parallelism|job|optimizer|activation_checkpoint)\]", re.MULTILINE)

KINDS: Final[dict[str, Kind]] = {
    "hf": Kind(
        title="a Hugging Face config.json",
        marks=re.compile(r'"(?:model_type|num_hidden_layers|n_embd|hidden_size)"\s*:'), read=_hf, make=import_hf,
    ),
    "deepspeed": Kind(
        title="a DeepSpeed JSON",
        marks=re.compile(r'"(?:zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|steps_per_print)"\s*:'),
        read=_deepspeed, make=import_deepspeed,
    ),
    "torchtitan": Kind(
        title="a torchtitan configuration", marks=re.compile(f"{_DOTTED.pattern}|{_TABLE.pattern}", re.MULTILINE),
        read=_torchtitan, make=import_torchtitan,
    ),
    "megatron": Kind(
        title="a list of Megatron-LM flags",
        marks=re.compile(r"--(?:num-layers|micro-batch-size|global-batch-size|tensor-model-parallel-size|hidden-size)\b"),
        read=_megatron, make=import_megatron,
    ),
    "accelerate": Kind(
        title="an accelerate YAML",
        marks=re.compile(r"^(?:distributed_type|compute_environment|fsdp_config|deepspeed_config)\s*:", re.MULTILINE),
        read=_accelerate, make=import_accelerate,
    ),
}  # fmt: skip
_SCENARIO = re.compile(r"^cluster\s*:", re.MULTILINE)


def import_file(kind: str, file: str, extras: Extras) -> Draft:
    """What FILE, of one of KINDS, says as a scenario; a warning names what the simulator refuses of it.

    Raises ScenarioError: unreadable, another kind, contradictory.
    """
    if kind not in KINDS:
        raise ScenarioError(f"unknown kind {kind!r}; accepted: {', '.join(KINDS)}{nearest(kind, KINDS)}")
    path = Path(file)
    text = text_of(path)
    _check_kind(kind, text, file)
    return tried(KINDS[kind].make(Sheet(file, KINDS[kind].read(text, path), extras)))


def _check_kind(kind: str, text: str, file: str) -> None:
    """A file that bears the marks of other kinds only is one of those."""
    fits = [name for name, one in KINDS.items() if one.marks.search(text)]
    if kind in fits:
        return
    if fits:
        raise ScenarioError(f"{file}: looks like {KINDS[fits[0]].title}: use 'simulator import {fits[0]}'")
    if _SCENARIO.search(text) and kind == "accelerate":
        raise ScenarioError(f"{file}: looks like a scenario already: use 'simulator run'")


def checked_text(draft: Draft, file: str) -> str:
    """The draft as YAML that a scenario loader accepts. Raises ScenarioError."""
    text = scenario_text(draft)
    try:
        validate(parse(text, "the scenario"), Scenario)
    except ScenarioError as error:
        lines = [line.partition(": ")[2] for line in str(error).splitlines()]
        raise ScenarioError("\n".join(f"{file}: makes no scenario: {line}" for line in lines)) from None
    return text
