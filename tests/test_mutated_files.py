"""Every shipped YAML with a key dropped, doubled, retyped, out of range or misspelt: an answer, or one clear error.

The draws are fixed: 20 for each scenario that is quick to simulate, 6 for each topology, device, library and model.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import ROOT, Result, simulator

pytestmark = pytest.mark.slow

#: Those of thousands of ranks, of hundreds of micro-batches and of tori take seconds each.
LONG = ("16384", "8192", "2048", "512x", "384x", "tpu")
SCENARIOS = [
    path for path in sorted((ROOT / "scenarios").glob("*.yaml")) if not any(word in path.name for word in LONG)
]  # fmt: skip
TOPOLOGIES = sorted((ROOT / "topologies").glob("*.yaml"))
DEVICES, LIBRARIES, PRESETS = (
    sorted((ROOT / "simulator" / folder).glob("*.yaml")) for folder in ("devices", "libraries", "presets")
)
VALUES: tuple[Any, ...] = (
    None, -1, 0, 1, 2, 3, 7, 10**9, 1.5, "x", "", "25 MiB", "10%", "5 us", "$2/h", True, False, [], {}, [1], {"a": 1},
    "auto", "1e400", ".nan",
)  # fmt: skip
KINDS = ("drop", "retype", "retype", "misspell", "scale", "double")
Place = tuple[Any, ...]
SMALL = """
cluster: {{topology: {topology}, nodes: 1}}
model: {model}
train: {{seq_len: 128, micro_batch: 1, precision: {precision}}}
"""


def plain(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def places(tree: Any, above: Place = ()) -> Iterator[Place]:
    """All keys and items, as paths."""
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield (*above, key)
            yield from places(tree[key], (*above, key))


def mutated(tree: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], Place, str]:
    """A copy with one thing changed, where, and how."""
    tree = copy.deepcopy(tree)
    place, kind = draw.choice(list(places(tree))), draw.choice(KINDS)
    home: Any = tree
    for key in place[:-1]:
        home = home[key]
    key = place[-1]
    if kind == "drop":
        del home[key]
    elif kind == "misspell" and isinstance(key, str):
        spot = draw.randrange(len(key))
        home[key[:spot] + draw.choice("abcxyz_") + key[spot + 1 :]] = home.pop(key)
    elif kind == "scale" and isinstance(home[key], int) and not isinstance(home[key], bool):
        home[key] *= draw.choice([2, 3, 10, -1])
    elif kind == "double":
        home[key] = [home[key], home[key]]
    else:
        home[key] = draw.choice(VALUES)
    return tree, place, kind


def mutations(path: Path, tree: dict[str, Any], draws: int) -> Iterator[tuple[str, Place, str]]:
    """As YAML, each with where and how."""
    draw = random.Random(path.stem)
    for _ in range(draws):
        changed, place, kind = mutated(tree, draw)
        yield yaml.safe_dump(changed, sort_keys=False), place, kind


def judge(result: Result, text: str, place: Place, kind: str, file: str) -> None:
    """Exit code 0, 1 or 2, never a traceback; a refusal has no output, names the file, and the key or what it holds."""
    told = f"{kind} {place}: {result.code}\n{result.err}\n{text}"
    assert result.code in (0, 1, 2), told
    assert "Traceback" not in result.err, told
    if result.code == 2:
        assert result.out == "", told
        assert all(line.startswith("error: ") for line in result.err.splitlines()), told
        assert file in result.err, told
        named = [str(part) for part in place if isinstance(part, str)]
        assert any(part[:3] in result.err for part in named) or kind == "drop", told


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_mutated_scenario_is_answered_or_refused_by_name(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "mutated.yaml"
    for text, place, kind in mutations(path, plain(path), 20):
        written.write_text(text, encoding="utf-8")
        judge(simulator("run", str(written)), text, place, kind, "mutated.yaml")


@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.stem)
def test_a_mutated_topology_is_drawn_or_refused_by_name(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "mutated.yaml"
    for text, place, kind in mutations(path, plain(path), 6):
        written.write_text(text, encoding="utf-8")
        judge(simulator("topology", str(written)), text, place, kind, "mutated.yaml")


@pytest.mark.parametrize("path", DEVICES, ids=lambda path: path.stem)
def test_a_mutated_device_is_used_or_refused_by_name(path: Path, tmp_path: Path) -> None:
    topology, written, scenario = plain(ROOT / "topologies/uniform.yaml"), tmp_path / "own.yaml", tmp_path / "s.yaml"
    precision = "bf16-mixed" if "bf16" in plain(path)["peak"] else "fp16-mixed"
    scenario.write_text(SMALL.format(topology="own.yaml", model="{preset: gpt2}", precision=precision))
    for text, place, kind in mutations(path, plain(path), 6):
        written.write_text(yaml.safe_dump(topology | {"device": yaml.safe_load(text)}), encoding="utf-8")
        judge(simulator("run", str(scenario)), text, place, kind, "own.yaml")


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.stem)
def test_a_mutated_library_is_used_or_refused_by_name(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "mutated.yaml"
    topology = "uniform" if path.stem == "gloo" else "dgx-a100"  # gloo goes through the hosts
    for text, place, kind in mutations(path, plain(path), 20):
        written.write_text(text, encoding="utf-8")
        result = simulator("collective", "all_reduce", "--topology", topology, "-p", "8", "--library", str(written))
        judge(result, text, place, kind, "mutated.yaml")


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_mutated_model_is_used_or_refused_by_name(path: Path, tmp_path: Path) -> None:
    """Presets hold what a config.json holds, which users have."""
    config = plain(path).get("config")
    if config is None:
        config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 128}
    scenario = tmp_path / "s.yaml"
    scenario.write_text(SMALL.format(topology="dgx-h100", model="{hf: config.json}", precision="bf16-mixed"))
    for text, place, kind in mutations(path, config, 6):
        (tmp_path / "config.json").write_text(json.dumps(yaml.safe_load(text)), encoding="utf-8")
        judge(simulator("run", str(scenario)), text, place, kind, "config.json")
