"""Strict YAML: what other readers would guess is refused, at the right line, all problems at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from simulator.errors import ScenarioError
from simulator.fields import Bandwidth, Frozen, Items
from simulator.scenario import Scenario
from simulator.text_file import read_text
from simulator.yaml_source import Source, parse, read, validate


class Part(Frozen):
    """A block inside the example model."""

    name: str
    rate: Bandwidth


class Example(Frozen):
    """An input model with one field of each shape."""

    count: Annotated[int, Field(ge=1, le=100, description="how many")] = 1
    ratio: float = 1.0
    flag: bool = True
    title: str = ""
    shape: Items[int] = ()
    part: str | Part | None = None
    parts: Items[Part] = ()


class Rates(Frozen):
    """A mapping whose keys are a closed set."""

    rates: dict[Literal["bf16", "fp8"], Bandwidth]


def complaint(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        validate(parse(text, "f.yaml"), Example)
    return str(caught.value).splitlines()


GOOD = """\
count: 4
ratio: 1.0e-3
flag: false
title: "1e9"
shape: [4, 0, -4]
part: {name: x, rate: 400 Gb/s}
parts:
  - name: y
    rate: 50 GB/s
"""


def test_a_good_file_reads_as_written() -> None:
    made = validate(parse(GOOD, "f.yaml"), Example)
    assert made == Example(
        count=4,
        ratio=1e-3,
        flag=False,
        title="1e9",
        shape=(4, 0, -4),
        part=Part.model_validate({"name": "x", "rate": "400 Gb/s"}),
        parts=(Part.model_validate({"name": "y", "rate": "50 GB/s"}),),
    )


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path, line_end: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", line_end).encode())
    assert validate(read(path), Example) == validate(parse(GOOD, "f.yaml"), Example)
    path.write_bytes(b"\xef\xbb\xbf" + f"title: a{line_end}{line_end}cuont: 4{line_end}".encode())
    with pytest.raises(ScenarioError, match=r"f\.yaml:3: cuont: unknown key"):
        validate(read(path), Example)


def test_positions_are_lines_and_columns_of_keys_and_items() -> None:
    source = parse(GOOD, "f.yaml")
    assert source.position(("count",)) == (1, 1)
    assert source.position(("shape", 2)) == (5, 15)
    assert source.position(("part", "rate")) == (6, 17)
    assert source.position(("parts", 0)) == (8, 5)
    assert source.position(("parts", 0, "rate")) == (9, 5)
    assert source.position(("parts", 0, "nothing", "here")) == (8, 5)


BAD_VALUES = [
    ("count: 1e9", 1, "count", "write 1.0e+9 or 1000000000; got 1e9"),
    ("ratio: 5e-3", 1, "ratio", "write 5.0e-3; got 5e-3"),
    ("\nflag: yes", 2, "flag", 'write true, or "yes" in quotes'),
    ("flag: Off", 1, "flag", 'write false, or "Off" in quotes'),
    ("title: on", 1, "title", 'write true, or "on" in quotes'),
    ("title: 12:30:45", 1, "title", "base 60"),
    ("count: 1:30", 1, "count", "base 60"),
    ("count: 010", 1, "count", "leading zero"),
    ("count: 0x10", 1, "count", "in decimal"),
    ("count: 0b11", 1, "count", "in decimal"),
    ("count: 0o17", 1, "count", "in decimal"),
    ("title: 2026-01-31", 1, "title", 'as a date; put it in quotes ("2026-01-31")'),
    ("title: 2026-01-31T10:00:00Z", 1, "title", "as a date"),
    ("ratio: .nan", 1, "ratio", "finite number"),
    ("ratio: -.inf", 1, "ratio", "finite number"),
    ("ratio: inf", 1, "ratio", "finite number"),
    ("ratio: 1.0e999", 1, "ratio", "finite number"),
    (f"count: {'9' * 5000}", 1, "count", "5000 digits is too large"),
    ("count: !!int 4", 1, "count", "tags are not accepted"),
    ("count: !!python/object/apply:os.system [ls]", 1, "count", "tags are not accepted"),
    ("title: !secret x", 1, "title", "remove '!secret'"),
    ("count: 4.0", 1, "count", "must be a whole number; got 4.0; write 4"),
    ("count: '4'", 1, "count", "must be a whole number; got '4'; remove the quotes"),
    ("count: true", 1, "count", "must be a whole number; got true"),
    ("count:", 1, "count", "must be a whole number; got nothing"),
    ("count: 0", 1, "count", "must be at least 1; got 0"),
    ("count: 10000", 1, "count", "must be at most 100; got 10000"),
    ("ratio: true", 1, "ratio", "must be a number; got true"),
    ("flag: 1", 1, "flag", "must be true or false; got 1"),
    ("flag: 'true'", 1, "flag", "must be true or false; got 'true'"),
    ("title: 4", 1, "title", "must be text; got 4"),
    ("title: [a]", 1, "title", 'must be text; got ["a"]'),
    ("shape: 4", 1, "shape", "must be a list"),
    ("shape:\n- 4\n- five", 3, "shape[1]", "must be a whole number; got 'five'"),
    ("shape: [4,\n  4.0]", 2, "shape[1]", "got 4.0; write 4"),
    ("part: 4", 1, "part", "must be text or a mapping (key: value); got 4"),
    ("part: {name: x}", 1, "part.rate", "missing key"),
    ("part: {name: x, rate: 50}", 1, "part.rate", "has no unit; expected a rate"),
    ("part: {name: x, rte: 50 GB/s}", 1, "part.rte", "did you mean 'rate'?"),
    ("parts:\n  - name: x\n    rate: 50 Gb", 3, "parts[0].rate", "unit 'Gb' is not a rate"),
    ("parts:\n  - name: x\n    rate: 5 GB/s\n  - 7", 4, "parts[1]", "must be a mapping"),
    ("cuont: 4", 1, "cuont", "accepted: count, ratio, flag, title, shape, part, parts; did you mean 'count'?"),
    ("count: 4\n\ncount: 5", 3, "count", "duplicate key; it already stands on line 1"),
    ("part: {name: x, rate: 5 GB/s,\n name: y}", 2, "part.name", "already stands on line 1"),
]


@pytest.mark.parametrize(("text", "line", "key", "said"), BAD_VALUES, ids=[text[:30] for text, *_ in BAD_VALUES])
def test_a_bad_value_is_one_line_with_its_place_and_what_to_write(text: str, line: int, key: str, said: str) -> None:
    (only,) = complaint(text)
    assert only.startswith(f"f.yaml:{line}: {key}: ")
    assert said in only


BAD_DOCUMENTS = [
    ("", 1, "the file is empty"),
    ("# only\n# comments\n", 1, "only comments"),
    ("---\n...\n", 1, "the file is empty"),
    ("[1, 2]", 1, "top level must be a mapping ('key: value' lines); got [1, 2]"),
    ("just text", 1, "top level must be a mapping"),
    ("count: 4\n---\ncount: 5", 2, "a second document"),
    ("count: 4\n\tflag: true", 2, "spaces, not tabs"),
    ("count: 4\nshape: [1, 2\n\ntitle: x", 4, "while parsing a flow sequence (line 2)"),
    ("title: a: b", 1, "quote a value that holds ': '"),
    ("1: 4", 1, "the key 1 is not text"),
    ("on: 4", 1, "the key on is not text"),
    ("null: 4", 1, "the key null is not text"),
    ("? [a, b]\n: 4", 1, "a key must be plain text"),
    ("part: &p {name: x, rate: 1 B/s}\nparts:\n  - <<: *p", 3, "merge keys"),
    ("part: *nowhere", 1, "needs its anchor"),
    ("part: &p [*p]", 1, "inside its own anchor"),
    ("title: \x07", 1, "control character U+0007"),
    ("a: " + "[" * 100 + "]" * 100, 1, "nested deeper than 64"),
    ("shape: [" + "1," * 120_000 + "]", 1, "holds more than 100,000 values"),
]


@pytest.mark.parametrize(("text", "line", "said"), BAD_DOCUMENTS, ids=[text[:30] for text, *_ in BAD_DOCUMENTS])
def test_a_bad_document_names_the_line(text: str, line: int, said: str) -> None:
    first = complaint(text)[0]
    assert first.startswith(f"f.yaml:{line}: ")
    assert said in first


def test_billion_laughs_stops_while_reading() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (only,) = complaint("\n".join(levels))
    assert only == "f.yaml:5: holds more than 100,000 values"


def test_a_plain_alias_is_fine() -> None:
    made = validate(parse("part: &p {name: x, rate: 1 GB/s}\nparts: [*p, *p]", "f.yaml"), Example)
    assert [part.name for part in made.parts] == ["x", "x"]


def test_all_problems_of_a_file_are_reported_by_line() -> None:
    text = "part: {name: 5, rate: 5}\ncount: 1e9\nshape: [1, two]\ncount: 010\ntitel: x\n2: x\nflag: no\n"
    lines = complaint(text)
    assert [line.split(": ")[0] for line in lines] == [f"f.yaml:{n}" for n in (1, 1, 2, 3, 4, 4, 5, 6, 7)], "\n".join(
        lines
    )


def test_a_syntax_error_does_not_hide_what_was_found_before_it() -> None:
    lines = complaint("count: 1e9\ntitle: yes\nshape: [1, 2\n")
    assert ["count" in lines[0], "title" in lines[1], "not valid YAML" in lines[2]] == [True, True, True]


def test_a_flood_of_problems_is_cut_short_and_counted() -> None:
    lines = complaint("shape:\n" + "- x\n" * 2000)
    assert len(lines) == 101
    assert lines[99].startswith("f.yaml:101: shape[99]: must be a whole number")
    assert lines[100] == "f.yaml: and 1,900 more problems"


def test_a_key_outside_a_closed_set_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"f\.yaml:2: rates\.bf61: .*bf16, fp8; did you mean 'bf16'\?"):
        validate(parse("rates:\n  bf61: 1 GB/s", "f.yaml"), Rates)


def test_a_misspelt_key_is_not_reported_as_missing_too() -> None:
    (only,) = complaint("part: {name: x, raet: 5 GB/s}")
    assert "did you mean 'rate'?" in only


def unreadable(path: Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(path, also_known=["demo"])
    return str(caught.value)


def test_file_problems_each_have_their_own_message(tmp_path: Path) -> None:
    (tmp_path / "steps.yaml").write_text("count: 4")
    assert "did you mean" in unreadable(tmp_path / "step.yaml")
    assert "steps.yaml" in unreadable(tmp_path / "step.yaml")
    assert "did you mean 'demo'?" in unreadable(tmp_path / "demoo")
    assert "is a directory" in unreadable(tmp_path)
    assert "no such file" in unreadable(tmp_path / "none" / "x.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"count: 4\0\1\2")
    assert "is binary" in unreadable(binary)
    binary.write_bytes(b"count: 4\ntitle: \xe9t\xe9\n")
    assert "binary.yaml:2: not UTF-8" in unreadable(binary)
    binary.write_bytes("count: 4".encode("utf-16"))
    assert "is binary" in unreadable(binary)


def test_a_file_of_100_mb_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = tmp_path / "big.yaml"
    with big.open("wb") as stream:
        stream.truncate(100_000_000)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("the file was read"))
    assert "holds 100,000,000 bytes; at most 1,000,000" in unreadable(big)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in unreadable(tmp_path / "pipe.yaml")


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("count: 4")

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything, so chmod proves nothing
    assert "cannot be read: Permission denied" in unreadable(path)


YAML_TEXT = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="ab:-[]{},&*!#|>'\"%@`?~0123456789.eE+ \n\t<=", max_size=80),
    st.lists(
        st.sampled_from(
            ["cluster:", "model:", "train:", " topology: uniform", " nodes: 2", " preset: gpt2", " layers:", "  - a",
             "collective: {op: all_reduce, size: 1 B}", " seq_len: 4", " micro_batch: 1e3", "parallel: {tp: 2}",
             " kind: torus", " topology: {kind: ", "}", "&a", "*a", "train: [", "- 4", "\t", "model: {layers: [4]}"]
        )
    ).map("\n".join),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(YAML_TEXT)
def test_any_text_is_a_scenario_or_a_scenario_error(text: str) -> None:
    try:
        validate(parse(text, "f.yaml"), Scenario)
    except ScenarioError as error:
        lines = str(error).splitlines()
    else:
        return
    assert lines
    assert all(line.startswith("f.yaml:") for line in lines)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_source_or_a_scenario_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    try:
        read(path)
    except ScenarioError as error:
        said = str(error)
    else:
        return
    assert str(path) in said


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=9),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(Scenario.model_fields, PLAIN)))
def test_any_value_under_the_right_keys_gives_readable_errors(value: dict[str, object]) -> None:
    try:
        validate(Source(name="f.yaml", value=value), Scenario)
    except ScenarioError as error:
        said = str(error)
    else:
        return
    assert "f.yaml:1: " in said
    assert "pydantic" not in said
    assert "nput should" not in said


def test_the_text_of_a_file_starts_after_its_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfcount: 4")
    assert read_text(path) == "count: 4"


def test_a_wrong_key_with_an_unclear_value_is_reported_as_both() -> None:
    lines = complaint("flagg: yes")
    assert any("unknown key 'flagg'" in line for line in lines)
    assert any("write true" in line for line in lines)
