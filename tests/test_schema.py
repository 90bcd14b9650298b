"""The JSON Schema that editors use: draft-07, and in agreement with what the loader accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from simulator import shipped
from simulator.cli.schema import schema
from simulator.schema import SCHEMAS
from simulator.yaml_source import parse, read

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = [(kind, name) for kind in ("scenario", "topology", "device", "preset") for name in shipped.names(kind)]


def shipped_file(kind: str, name: str) -> Path:
    finders = {
        "scenario": shipped.scenario_file,
        "topology": shipped.topology_file,
        "device": shipped.device_file,
        "preset": shipped.preset_file,
    }
    return finders[kind](name)


def blocks(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from blocks(inner)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schema_is_draft_07_to_the_last_key(kind: str) -> None:
    made = SCHEMAS[kind]()
    assert made["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(made)
    for block in blocks(made):
        assert not {"$defs", "prefixItems"} & set(block)
        if "$ref" in block:
            assert set(block) == {"$ref"}  # draft-07 ignores what stands beside it
            assert block["$ref"].removeprefix("#/definitions/") in made["definitions"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_shipped_file_fits_its_schema_and_says_so_to_editors(kind: str, name: str) -> None:
    path = shipped_file(kind, name)
    jsonschema.Draft7Validator(SCHEMAS[kind]()).validate(read(path).value)
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    prefix = "# yaml-language-server: $schema="
    assert first.startswith(prefix)
    assert (path.parent / first.removeprefix(prefix)).resolve() == ROOT / "schemas" / f"{kind}.schema.json"


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_stored_schema_is_what_the_command_prints(kind: str) -> None:
    result = CliRunner().invoke(schema, [kind])
    assert result.exit_code == 0
    assert (ROOT / "schemas" / f"{kind}.schema.json").read_text(encoding="utf-8") == result.output


def test_the_scenario_is_the_default_and_a_wrong_kind_is_refused() -> None:
    assert json.loads(CliRunner().invoke(schema, []).output) == SCHEMAS["scenario"]()
    assert CliRunner().invoke(schema, ["senario"]).exit_code == 2


GOOD = "cluster: {topology: dgx-h100}\nmodel: {preset: gpt2}\ntrain: {seq_len: 8, micro_batch: 1}\n"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (GOOD, True),
        (GOOD + "parallel: {bucket_cap: 1 MiB, overlap: none}\nlimits: {exposed: 10%, memory: 0.9}\n", True),
        (GOOD.replace("dgx-h100", "{name: x, kind: uniform, alpha: 5 us, bandwidth: 1 GB/s, source: test}"), True),
        (GOOD.replace("preset: gpt2", "layers: [{name: a, params: [4], forward: 5 ms, backward: 1 s}]"), True),
        (GOOD.replace("preset: gpt2", "prest: gpt2"), False),
        (GOOD.replace("micro_batch: 1", "micro_batch: 0"), False),
        (GOOD.replace("micro_batch: 1", "micro_batch: 1.5"), False),
        (GOOD.replace("seq_len", "seqlen"), False),
        (GOOD + "parallel: {bucket_cap: 25}\n", False),
        (GOOD + "parallel: {strategy: zero4}\n", False),
        (GOOD + "parallel: {overlap: always}\n", False),
        (GOOD + "cluster2: {}\n", False),
        (GOOD.replace("topology: dgx-h100", "topology: x, shape: [1, 2, 3, 4]"), False),
    ],
)
def test_scenario_schema_draws_the_line_where_the_loader_does(text: str, fits: bool) -> None:
    assert jsonschema.Draft7Validator(SCHEMAS["scenario"]()).is_valid(parse(text, "f.yaml").value) is fits


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_key_of_a_scenario_is_explained(kind: str) -> None:
    made = SCHEMAS[kind]()
    ours = ("Cluster", "Parallel", "Train", "Limits", "Engine", "Collective", "PresetModel", "HfModel", "LayersModel",
            "MeasuredLayer", "ArchitectureModel")  # fmt: skip
    named = {name: made["definitions"][name] for name in ours if kind == "scenario"}
    silent = [
        f"{n}.{key}"
        for n, block in named.items()
        for key, value in block["properties"].items()
        if "description" not in value
    ]
    assert silent == []
