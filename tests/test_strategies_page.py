"""docs/strategies.md is true: its commands print what it shows, its tables are what our plans and real runs give.

``UPDATE_GOLDENS=1 pytest tests/test_strategies_page.py`` writes tables, outputs and pictures anew.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import deepspeed_traces as deepspeed
import pytest
from command_line import ROOT, simulator
from pages import call, stripped
from real_steps import Launched, layers, needs_torch, steady

from simulator.answer import answer_step
from simulator.load import load_scenario
from simulator.plan import Communicate
from simulator.strategies import STRATEGIES
from simulator.units import format_gib, format_percent, format_time

DOCS = ROOT / "docs"
FILE = DOCS / "strategies.md"
UPDATE = bool(os.environ.get("UPDATE_GOLDENS"))
SCENARIO = ("ddp-llama-1b-16xh100", "limits.exposed=null")
BLOCK = [[256, 64], 256, [64, 256], 64]
#: The page's toy.yaml, as the program of real runs wants it, and which of its layers FSDP wraps.
TOY = layers([[1000, 64]], BLOCK, BLOCK, BLOCK, [64, 64, [1000, 64]])
WRAP, UNITS = "parallel.wrap=[block.*]", [[1], [2], [3]]


@dataclass(frozen=True)
class Traced:
    """How the toy model is trained: our overrides, and the real strategy with its options."""

    overrides: tuple[str, ...]
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)


TRACED = {
    ("ddp", "torch"): Traced((), "ddp"),
    ("zero1", "torch"): Traced((), "zero1_torch"),
    ("zero1", "textbook"): Traced((), "zero1"),
    ("zero2", "textbook"): Traced((), "zero2"),
    ("zero3", "textbook"): Traced(("parallel.forward_prefetch=1",), "zero3", {"prefetch": 1}),
    ("fsdp", "fsdp2"): Traced((WRAP,), "fsdp2", {"units": UNITS}),
    ("fsdp", "fsdp1"): Traced((WRAP,), "fsdp1", {"units": UNITS}),
    ("hsdp", "fsdp2"): Traced((WRAP, "parallel.shard_size=2"), "fsdp2", {"units": UNITS, "mesh": [2, 2]}),
    ("hsdp", "fsdp1"): Traced(
        (WRAP, "parallel.shard_size=2"), "fsdp1", {"units": UNITS, "sharding": "hybrid_shard", "mesh": [2, 2]}
    ),
}
#: Which of the traces of DeepSpeed the page shows.
DEEPSPEED = {("zero1", "deepspeed"): 28, ("zero2", "deepspeed"): 31, ("zero3", "deepspeed"): 10}
KEYS = sorted(STRATEGIES)
KEY_NAMES = ["-".join(key) for key in KEYS]
TRACED_NAMES = ["-".join(key) for key in TRACED]


def page() -> str:
    return FILE.read_text(encoding="utf-8")


def chosen(key: tuple[str, str]) -> tuple[str, str]:
    return f"parallel.strategy={key[0]}", f"parallel.implementation={key[1]}"


def section_of(key: tuple[str, str]) -> str:
    """From the anchor of a strategy to the next."""
    start = rf'^<a id="{key[0]}-{key[1]}"></a>\n+## '
    (section,) = re.findall(rf"{start}.*?(?=^<a id=|\Z)", page(), re.MULTILINE | re.DOTALL)
    return str(section)


def picture_of(key: tuple[str, str]) -> str:
    return f"img/strategies-{key[0]}-{key[1]}.png"


def command_of(key: tuple[str, str]) -> str:
    """As a reader may type it, in lines that a page shows whole."""
    lines = ("simulator run " + " ".join(SCENARIO), " ".join(chosen(key)), f"--plot docs/{picture_of(key)}")
    return " \\\n    ".join(lines)


# ------------------------------------------------------------------------------------------------------------- tables


def table_after(marker: str) -> list[str]:
    """Lines of the table below ``<!-- marker -->``."""
    lines = page().split(f"<!-- {marker} -->\n", 1)[1].splitlines()
    return lines[: next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))]


def checked_table(marker: str, expected: list[str]) -> None:
    """Compare a table of the page, or write it."""
    if UPDATE:
        before, after = page().split(f"<!-- {marker} -->\n", 1)
        rest = after.splitlines(keepends=True)[len(table_after(marker)) :]
        FILE.write_text(f"{before}<!-- {marker} -->\n" + "\n".join(expected) + "\n" + "".join(rest), encoding="utf-8")
    assert table_after(marker) == expected


def toy(folder: Path) -> str:
    """The page's toy.yaml as a file."""
    (text,) = re.findall(r"^```yaml\n# toy\.yaml\n(.*?)^```$", page(), flags=re.MULTILINE | re.DOTALL)
    (folder / "toy.yaml").write_text(text, encoding="utf-8")
    return str(folder / "toy.yaml")


def planned(key: tuple[str, str], folder: Path) -> list[Launched]:
    """Our collectives of the toy's step, in issue order."""
    job = answer_step(load_scenario(toy(folder), (*chosen(key), *TRACED[key].overrides))).job
    return [
        (task.op, round(task.message_bytes), len(job.step.axes[task.axis][0]))
        for task in job.step.tasks
        if isinstance(task, Communicate)
    ]


def as_table(launched: list[Launched]) -> list[str]:
    """Equal neighbours on one line. Of a plan and of a trace alike: each test holds the table against one of them."""
    lines = ["| times | operation | ranks of a group | bytes, planned | bytes, traced |", "|---:|---|---:|---:|---:|"]
    for (op, size, group), equal in groupby(launched):
        lines.append(f"| {len(list(equal))} | {op} | {group} | {size:,} | {size:,} |")
    return lines


@pytest.mark.parametrize("key", TRACED, ids=TRACED_NAMES)
def test_table_is_what_we_plan(key: tuple[str, str], tmp_path: Path) -> None:
    checked_table(f"sent: {' '.join(key)}", as_table(planned(key, tmp_path)))


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("key", TRACED, ids=TRACED_NAMES)
def test_table_is_what_a_real_step_sends(key: tuple[str, str]) -> None:
    how = TRACED[key]
    found = steady(4, TOY, how.strategy, options=how.options)
    assert table_after(f"sent: {' '.join(key)}") == as_table(found)


@pytest.mark.parametrize(("key", "number"), DEEPSPEED.items(), ids=["-".join(key) for key in DEEPSPEED])
def test_tables_of_deepspeed_are_its_traces_and_our_plans(key: tuple[str, str], number: int) -> None:
    case = deepspeed.TRACES[number]
    tables = [
        as_table([(op, size, case["world"]) for op, size in events if op != "backward"])
        for events in (deepspeed.planned(case), deepspeed.traced(case))
    ]
    checked_table(f"sent: {' '.join(key)}", tables[0])
    assert tables[0] == tables[1]
    told = re.sub(r"\s+", " ", section_of(key))
    assert f"`Linear(5, {case['hidden']})`" in told
    assert f"`Linear({case['hidden']}, {case['out']})`" in told
    for name, value in case["zero"].items():
        if isinstance(value, int) and not isinstance(value, bool) and name != "stage":
            assert f"`{name.removeprefix('stage3_')}: {value}`" in told


def test_real_and_planned_toys_have_the_same_tensors(tmp_path: Path) -> None:
    model = answer_step(load_scenario(toy(tmp_path), ())).job.model
    shapes = [shape for layer in TOY["layers"] for shape in layer["params"]]
    sizes = [shape if isinstance(shape, int) else shape[0] * shape[1] for shape in shapes]
    assert [tensor.numel for tensor in model.parameters] == sizes


def summary(key: tuple[str, str]) -> str:
    """A line of the table that compares all."""
    found = json.loads(simulator("run", *SCENARIO, *chosen(key), "--json").out)
    kinds, peak = found["memory"]["by_kind_bytes"], found["memory"]["peak_bytes"]
    states = kinds["params"] + kinds["grads"] + kinds["optimizer"]
    cells = (
        format_time(found["step_time_s"]), format_percent(found["exposed_share"]), format_gib(peak),
        format_gib(states), format_gib(kinds["gathered"] + kinds["buffers"]),
    )  # fmt: skip
    return f"| [{key[0]}, {key[1]}](#{key[0]}-{key[1]}) | {' | '.join(cells)} |"


@pytest.mark.slow
def test_summary_compares_every_strategy() -> None:
    header = "| strategy, implementation | step | exposed | peak | states at the peak | gathered and buffers |"
    checked_table("summary", [header, "|---|---:|---:|---:|---:|---:|", *(summary(key) for key in KEYS)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "words"),
    [
        (("ddp", "torch"), "under autocast"), (("fsdp", "fsdp2"), "under FSDP and Megatron-LM"),
        (("zero1", "megatron"), "under FSDP and Megatron-LM"),
    ],
)  # fmt: skip
def test_activations_that_the_page_names_are_those_at_the_peak(key: tuple[str, str], words: str) -> None:
    found = json.loads(simulator("run", *SCENARIO, *chosen(key), "--json").out)
    assert f"{format_gib(found['memory']['by_kind_bytes']['activations'])} {words}" in " ".join(page().split())


# ----------------------------------------------------------------------------------------------- commands and pictures


def shown(command: str) -> str:
    """What the page prints below a command."""
    (block,) = re.findall(rf"^```console\n\$ {re.escape(command)}\n(.*?)^```$", page(), flags=re.MULTILINE | re.DOTALL)
    return str(block)


#: How the paragraphs of an output begin that the page shows.
SHOWN_PARTS = ("Step time ", "Memory, ")


def excerpt(printed: str) -> str:
    """What the page shows of an output, with ... for the rest."""
    kept = [part for part in stripped(printed).split("\n\n") if part.startswith(SHOWN_PARTS)]
    assert len(kept) == len(SHOWN_PARTS)
    return "...\n" + "\n...\n".join(part.strip("\n") for part in kept) + "\n...\n"


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS, ids=KEY_NAMES)
def test_command_prints_and_draws_what_the_page_shows(
    key: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if UPDATE:
        monkeypatch.chdir(ROOT)
    else:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "docs" / "img").mkdir(parents=True)
    command = command_of(key)
    result = call(command.replace("\\\n", " "))
    if UPDATE:
        old = shown(command)
        FILE.write_text(page().replace(f"$ {command}\n{old}", f"$ {command}\n{excerpt(result.out)}"), "utf-8")
    assert shown(command) == excerpt(result.out)
    head = slice(16, 24)  # width and height in a PNG
    drawn = Path("docs", picture_of(key)).read_bytes()
    assert drawn[head] == (DOCS / picture_of(key)).read_bytes()[head]


# -------------------------------------------------------------------------------------------------------- completeness


@pytest.mark.parametrize("key", KEYS, ids=KEY_NAMES)
def test_every_strategy_has_its_section_with_a_picture_and_what_it_sends(key: tuple[str, str]) -> None:
    section = section_of(key)
    assert f"]({picture_of(key)})" in section
    assert command_of(key) in section
    assert ("<!-- sent: " in section) == (key in TRACED or key in DEEPSPEED)
    assert "Memory" in section


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)\s]+)", page())
    anchors = set(re.findall(r'<a id="([^"]+)"', page()))
    assert [t for t in targets if not t.startswith("#") and not (DOCS / t.partition("#")[0]).exists()] == []
    assert {t[1:] for t in targets if t.startswith("#")} <= anchors
