"""``simulator compare``: what differs in, what differs out, and the same numbers that ``run`` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from simulator.cli.compare import compare
from simulator.cli.run import run

BASE = """\
cluster: {topology: dgx-h100, nodes: 1}
model: {preset: gpt2}
parallel: {strategy: ddp}
train: {seq_len: 1024, micro_batch: 4}
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    return str(path)


def output(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(compare, list(arguments), standalone_mode=False)
    if result.exception:
        raise result.exception
    assert result.return_value == code
    return result.output


def told(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output(*arguments, "--json"))
    return found


def test_numbers_are_those_of_run(base: str) -> None:
    found = told(base, "--vs", "parallel.strategy=fsdp")
    for number, settings in enumerate(([], ["parallel.strategy=fsdp"])):
        alone = json.loads(CliRunner().invoke(run, [base, *settings, "--json"], standalone_mode=False).output)
        assert found["quantities"]["step time"][number] == alone["step_time_s"]
        assert found["quantities"]["peak memory"][number] == alone["memory"]["peak_bytes"]
        assert found["quantities"]["exposed communication"][number] == alone["breakdown_s"]["exposed_comm"]


def test_parts_of_the_step_add_up_to_it(base: str) -> None:
    found = told(base, "--vs", "parallel.strategy=zero3", "--vs", "parallel.strategy=fsdp")["quantities"]
    parts = ("forward and backward", "copies", "optimizer", "exposed communication", "other")
    for number, step_s in enumerate(found["step time"]):
        assert sum(found[part][number] for part in parts if part in found) == pytest.approx(step_s)


def test_only_what_differs_is_listed(base: str, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(BASE.replace("dgx-h100", "dgx-a100").replace("micro_batch: 4", "micro_batch: 8"))
    assert told(base, str(other))["differences"] == {
        "cluster.topology": ["dgx-h100", "dgx-a100"], "train.micro_batch": ["4", "8"],
    }  # fmt: skip
    assert "say the same" in output(base, base)


def test_what_differs_is_shown_as_it_was_written(base: str) -> None:
    found = told(base, "--vs", "goal.tokens=15T cluster.nodes=2", "--vs", "goal={tokens: 300B}")["differences"]
    assert found["goal.tokens"] == ["", "15T", "300B"]
    assert found["cluster.nodes"] == ["1", "2", "1"]


def test_settings_without_vs_hold_for_all(base: str) -> None:
    found = told(base, "--vs", "parallel.strategy=fsdp train.micro_batch=2", "cluster.nodes=2", "train.micro_batch=8")
    assert found["quantities"]["GPUs"] == [16, 16]
    assert found["differences"]["train.micro_batch"] == ["8", "2"]


def test_a_change_is_told_against_the_first(base: str) -> None:
    text = output(base, "--vs", "train.micro_batch=8", "--vs", "train.grad_accumulation=8")
    assert text.startswith("A: ")
    assert "(+100.0 %)" in text  # tokens of the step
    assert "(8 x)" in text
    assert text.count("Compute bounds the step") + text.count("ommunication") >= 3


def test_what_does_not_fit_is_said(base: str) -> None:
    assert "C: FAIL: memory" in output(base, "--vs", "train.micro_batch=8", "--vs", "model.preset=llama-3-8b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{base}",), "needs two scenarios"),
        (("train.micro_batch=2",), "needs two scenarios"),
        (("{base}",) * 7, "at most 6"),
        (("{base}", "all-reduce-16384-ranks"), "holds a single collective"),
    ],
)
def test_wrong_use_says_how(base: str, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(click.UsageError, match=words):
        output(*(argument.format(base=base) for argument in arguments))
