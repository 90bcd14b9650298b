"""``simulator explain``: every key that a command prints is explained, and nothing else is.

The commands run here as a user runs them, and every key of their JSON is looked up in
``simulator/explanations/outputs.yaml``. A key that is new fails with its path: add a line there. An entry that no
command prints fails as well, so the file never tells of what is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, simulator

from simulator.cli import COMMANDS as ACCEPTED
from simulator.explanations.finding import everything, find, plain
from simulator.explanations.outputs import Explanation, outputs
from simulator.explanations.scenario_keys import FILES, scenario_keys
from simulator.lab.fabric import two_level
from simulator.lab.measuring import Numbers
from simulator.lab.model import Way
from simulator.lab_answer import Compared, LabAnswer, simulate_lab
from simulator.lab_text import lab_json
from simulator.load import load_scenario

FILE = "simulator/explanations/outputs.yaml"
KNOWN = {output.name: {one.key: one for one in output.keys} for output in outputs()}


# ---- what the commands print -----------------------------------------------------------------------------------------

LOG = str(ROOT / "tests/data/nccl_logs/b200-2x8-all-reduce.log")
#: output -> commands that print it, which together show every key. Their JSON is looked at key by key.
COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "run": [
        ("run", "llama-8b-does-not-fit"), ("demo",), ("run", "mlp-naive", "--range", "limits.exposed=97.5%"),
        ("run", "gpt2-8xa100", "parallel.pp=2", "train.grad_accumulation=2"),
    ],
    "check": [(
        "check", "gpt2-8xa100", "cost={gpu_hour: $2.50/h, as_of: 2026-11}", "goal.tokens=1B", "--fail-if",
        "memory>15 GiB",
    ), ("check", "mlp-naive", "--no-search", "limits.exposed=97.5%")],
    "compare": [(
        "compare", "gpt2-8xa100", "--vs", "cluster.host.kernel_launch=2 ms", "goal.tokens=1B",
        "cost={gpu_hour: $2.50/h, as_of: 2026-11}",
    )],
    "collective": [
        ("collective", "all_reduce", "--topology", "dgx-h100", "-p", "16", "-b", "1M", "-e", "1G", "-f", "8",
         "--algo", "ring,double_tree", "--explain"),
        ("run", "all-reduce-tpu-v5p-torus"),
    ],
    "sweep": [
        ("sweep", "mlp-bucketed", "train.micro_batch=32", "--jobs", "1"),
        ("sweep", "all-reduce-tpu-v5p-torus", "collective.size='1 MiB'", "--jobs", "1"),
    ],
    "tornado": [("tornado", "mlp-naive")],
    "pipeline": [("pipeline", "dualpipe-v", "-p", "2", "-m", "4")],
    "pipeline all": [("pipeline", "all", "-p", "2", "-m", "3")],
    "topology": [("topology", "dgx-h100"), ("topology", "tpu-v4")],
    "topology --list": [("topology", "--list")],
    "validate": [("validate", "collectives")],
    "calibrate": [("calibrate", LOG, "--topology", "aws-p6-b200")],
    "explain": [("explain",)],
}  # fmt: skip
#: Commands that take more than a second; validate predicts a thousand rows, check simulates dozens of changes.
SLOW = {"validate", "check", "topology --list", "sweep", "calibrate", "tornado"}


@cache
def printed(output: str, folder: Path) -> tuple[Any, ...]:
    """The JSON of the commands of an output."""
    if output == "lab":
        return (json.loads(json.dumps(lab_json(lab_answer()))),)
    results = []
    for arguments in COMMANDS[output]:
        extra = ("--out", str(folder / f"{arguments[1]}.jsonl")) if arguments[0] == "sweep" else ()
        result = simulator(*arguments, *extra, "--json")
        assert result.code in (0, 1), result.err
        results.append(json.loads(result.out))
    return tuple(results)


def lab_answer() -> LabAnswer:
    """An answer without a lab: the same numbers that a real run would fill in."""
    near, across = Way(alpha_s=50e-6, bytes_per_s=5e7), Way(alpha_s=90e-6, bytes_per_s=2e7)
    tiny = {"all_reduce": 1e-3, "all_gather": 1.2e-3, "reduce_scatter": 1.3e-3, "broadcast": 0.6e-3}
    numbers, fabric = Numbers(near=near, across=across, tiny_s=tiny), two_level(2, 400e6, 200e6)
    span = Compared(
        name="x", kind="forward", real_start_s=0.0, real_end_s=1.0, simulated_start_s=0.0, simulated_end_s=1.0
    )
    return LabAnswer(
        fabric=fabric, numbers=numbers, simulated=simulate_lab(load_scenario("lab-hsdp"), fabric, numbers),
        real_s=(0.4,), spans=(span,), real_time=True, unmatched="",
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def entry_of(known: Mapping[str, Explanation], path: str, name: str) -> str | None:
    """The entry that explains key ``name`` below ``path``: its own, or one that stands for any name."""
    own = f"{path}.{name}" if path else name
    if own in known:
        return own
    any_name = [key for key in known if key.startswith(f"{path}.<") and "." not in key[len(path) + 1 :]]
    return any_name[0] if any_name else None


def walk(known: Mapping[str, Explanation], value: Any, path: str = "") -> Iterator[tuple[str, str | None]]:
    """(path as printed, the entry that explains it or None) of every key below a value."""
    if isinstance(value, list):
        for item in value:
            yield from walk(known, item, f"{path}[]")
    if isinstance(value, dict):
        for name, inner in value.items():
            entry = entry_of(known, path, name)
            yield f"{path}.{name}" if path else name, entry
            yield from walk(known, inner, entry or f"{path}.{name}".lstrip("."))


def param(name: str) -> object:
    return pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.mark.parametrize("name", [param(name) for name in [*COMMANDS, "lab"]])
def test_every_key_that_is_printed_is_explained_and_every_explanation_is_of_a_key(name: str, folder: Path) -> None:
    found = [pair for value in printed(name, folder) for pair in walk(KNOWN[name], value)]
    silent = sorted({path for path, entry in found if entry is None})
    assert not silent, (
        f"'simulator {name} --json' prints keys that nothing explains: {', '.join(silent)}. "
        f"Add each to '{name}: keys:' in {FILE}, with 'unit' and 'means' (its first lines say how)"
    )
    unused = sorted(set(KNOWN[name]) - {entry for _, entry in found})
    assert not unused, (
        f"{FILE} explains keys of '{name}' that 'simulator {name} --json' does not print: {', '.join(unused)}. "
        "Remove them, or add a command to COMMANDS in this test that prints them"
    )


def test_every_output_is_looked_at() -> None:
    assert set(KNOWN) == {*COMMANDS, "lab"}


def test_every_command_that_prints_json_has_an_output_in_the_registry() -> None:
    """Demo prints what run prints."""
    with_json = {
        name for name, command in ACCEPTED.items() if any("--json" in option.opts for option in command.params)
    }
    missing = with_json - set(KNOWN) - {"demo"}
    assert not missing, f"'--json' of these commands is not explained; add them to {FILE} and here: {missing}"


def test_walking_finds_a_key_that_is_missing_and_one_that_is_too_many() -> None:
    known = {key: KNOWN["check"][key] for key in ("feasible", "verdicts", "verdicts[].what", "verdicts[].ok")}
    value = {"feasible": True, "range": {"low": 1}, "verdicts": [{"what": "memory"}, {"what": "x", "limit": 2}]}
    found = list(walk(known, value))
    assert {path for path, entry in found if entry is None} == {"range", "range.low", "verdicts[].limit"}
    assert set(known) - {entry for _, entry in found} == {"verdicts[].ok"}


# ---- scenarios -------------------------------------------------------------------------------------------------------


def test_every_key_of_a_scenario_has_a_description() -> None:
    silent = [key.key for key in scenario_keys() if not key.means]
    assert not silent, f"give these keys of a scenario a Field(description=...): {', '.join(silent)}"


def test_every_key_of_a_scenario_says_what_it_accepts() -> None:
    assert not [key.key for key in scenario_keys() if not key.accepts]


def flat(value: Any, path: str = "") -> Iterator[str]:
    for name, inner in value.items() if isinstance(value, dict) else ():
        key = f"{path}.{name}" if path else name
        yield key
        if key not in FILES:
            yield from flat(inner, key)
            for item in inner if isinstance(inner, list) else ():
                yield from flat(item, f"{key}[]")


def test_every_key_that_a_scenario_holds_when_it_is_loaded_is_explained() -> None:
    """Among them those that nobody writes: what pydantic knows and the JSON Schema does not would be missing."""
    known = {key.key for key in scenario_keys()}
    for name in ("gpt2-8xa100", "fsdp-straggler-32xh100", "lab-ddp", "all-reduce-16384-ranks"):
        assert not set(flat(load_scenario(name).model_dump(mode="json"))) - known


# ---- finding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("exposed_s", ["collectives[].exposed_s", "buckets[].exposed_s"]),
        ("memory.by_kind_bytes.grads", ["memory.by_kind_bytes.grads"]),
        ("collectives[3].time_s", ["collectives[].time_s"]),
        ("run.collectives.time_s", ["collectives[].time_s"]),
        ("mfu", ["mfu", "rows[].mfu"]),
        ("MFU", ["mfu", "rows[].mfu"]),
        ("memory.timeline.by_kind_bytes.grads", ["memory.timeline.by_kind_bytes.<kind>"]),
        ("rows[0].train.micro_batch", ["rows[].<setting>"]),
        ("run.range.step_time_s.low", ["range.<quantity>.low"]),
        ("same time at", ["crossovers[].size_bytes"]),
        ("tokens/s/GPU", ["tokens_per_s_per_gpu", "tokens_per_s_per_gpu", "rows[].tokens_per_s_per_gpu"]),
    ],
)
def test_a_word_finds_its_keys(word: str, keys: Sequence[str]) -> None:
    found = find(word)
    assert [one.key for one in found.outputs if one.key != "quantities.tokens/s per GPU"] == keys
    assert [key.key for key in found.scenario] == []


def test_scenario_keys_are_found_by_path_and_by_end() -> None:
    assert [key.key for key in find("train.micro_batch").scenario] == ["train.micro_batch"]
    assert [key.key for key in find("micro_batch").scenario] == ["train.micro_batch", "train.uneven[].micro_batch"]
    assert find("scenario").scenario == scenario_keys()


def test_every_key_finds_itself() -> None:
    every = everything()
    for one in every.outputs:
        assert one in find(f"{one.of}.{one.key}").outputs
    for key in every.scenario:
        assert key in find(plain(key.key)).scenario


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("exposd_s", "exposed_s"), ("memory.peak_byte", "memory.peak_bytes"), ("micro_bacth", "micro_batch"),
     ("busbandwidth", "bandwidth"), ("train.micro_bach", "train.micro_batch")],
)  # fmt: skip
def test_a_misspelt_word_is_refused_with_the_nearest(wrong: str, nearest: str) -> None:
    result = simulator("explain", wrong)
    assert (result.code, result.out) == (2, "")
    assert f"did you mean '{nearest}'" in result.err
    assert len(result.err.splitlines()) == 1


# ---- printing --------------------------------------------------------------------------------------------------------


def test_one_key_is_told_with_unit_meaning_and_origin() -> None:
    lines = simulator("explain", "exposed_share").out.splitlines()
    assert lines[0].startswith("exposed_share of run; ")
    assert ": share; 'exposed' in the text output" in " ".join(line.strip() for line in lines)
    assert "  share of the step that waits for communication" in [line.rstrip() for line in lines]
    assert any(line.startswith("  from: breakdown_s.exposed_comm / step_time_s") for line in lines)


def test_a_scenario_key_is_told_with_what_it_accepts_and_its_default() -> None:
    assert simulator("explain", "parallel.bucket_cap").out.startswith(
        "parallel.bucket_cap of a scenario: such as 25 MiB; 25 MiB when left out\n"
    )
    assert "; must be given\n" in simulator("explain", "train.micro_batch").out
    assert "simulator schema topology" in simulator("explain", "cluster.topology").out


def test_without_a_word_all_keys_are_listed() -> None:
    out, every = simulator("explain").out, everything()
    keys = [*(one.key for one in every.outputs), *(one.key for one in every.scenario)]
    assert all(key.split("[]")[-1][:30] in out for key in keys)


def test_json_holds_what_the_text_says() -> None:
    told = json.loads(simulator("explain", "mfu", "--json").out)
    assert [(one["of"], one["key"]) for one in told["outputs"]] == [("run", "mfu"), ("sweep", "rows[].mfu")]
    assert told["outputs"][0]["unit"] == "share"
    assert told["scenario"] == []
    assert [one["key"] for one in json.loads(simulator("explain", "seq_len", "--json").out)["scenario"]] == [
        "train.seq_len"
    ]
