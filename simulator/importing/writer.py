"""A Draft -> YAML text: each value with the option that it came from, then what was ignored, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby

from simulator.importing.draft import Draft, Entry
from simulator.problems import show
from simulator.yaml_scalars import read_scalar

#: Column that comments start in, where the value leaves room.
_COMMENTS = 40
_PLAIN = re.compile(r"[A-Za-z0-9./~][\w./ +-]*\Z", re.ASCII)


def scenario_text(draft: Draft) -> str:
    """The scenario as YAML, which ``simulator run`` reads as it stands."""
    return "\n".join([*_head(draft), *_blocks(draft), *_ignored(draft)]) + "\n"


def _head(draft: Draft) -> Iterator[str]:
    yield f"# {one_line(draft.title)}"
    yield "# Behind each value: the option that it came from. 'guess' marks what the file does not say."
    for warning in draft.warnings:
        yield f"# warning: {one_line(warning)}"


def _blocks(draft: Draft) -> Iterator[str]:
    for block, entries in groupby(draft.entries, key=lambda entry: entry.place.partition(".")[0]):
        yield f"{block}:"
        yield from (_line(entry) for entry in entries)


def _line(entry: Entry) -> str:
    text = f"  {entry.place.partition('.')[2]}: {scalar(entry.value)}"
    return f"{text:<{_COMMENTS}}  # {one_line(entry.comment)}"


def _ignored(draft: Draft) -> Iterator[str]:
    if draft.ignored:
        yield f"# Ignored: {counted(len(draft.ignored), 'option')} of the file"
    for item in draft.ignored:
        value = "null" if item.value is None else show(item.value)
        yield f"#   {one_line(item.option)}: {one_line(value)} - {one_line(item.reason)}"


def scalar(value: object) -> str:
    """A value as YAML reads it back: names plain, any other text in quotes."""
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _PLAIN.match(value) and value == value.strip() and _reads_as_text(value) else json.dumps(value)


def _reads_as_text(text: str) -> bool:
    try:
        return read_scalar(text) == text
    except ValueError:
        return False


def counted(count: int, noun: str) -> str:
    """``1 option``, ``2 options``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def one_line(text: str) -> str:
    """Text that may stand in a comment: what cannot be printed is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
