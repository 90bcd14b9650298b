"""YAML text -> plain Python values, with the line and column of every key and item, and what is wrong with it.

Built from PyYAML's events, so duplicate keys, tags, merge keys and aliases are seen before they are lost.
Values that readers of YAML disagree about are refused (``yaml_scalars``). Also refused: more than 100,000
values (an alias counts as often as it is used, so "billion laughs" stops here) and nesting deeper than 64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from simulator.problems import Loc, Problem
from simulator.yaml_scalars import read_scalar

MAX_VALUES = 100_000
MAX_DEPTH = 64
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_HINTS = {
    "cannot start any token": "indent with spaces, not tabs, and quote text that starts with @, `, % or a tab",
    "tab character": "indent with spaces, not tabs",
    "mapping values are not allowed": "quote a value that holds ': ', and check the indentation",
    "could not find expected ':'": "a line is missing its ':', or its indentation is off",
    "did not find expected key": "check the indentation, and that every '{' and '[' is closed",
    "expected the node content": "a value is missing",
}

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    """``positions``: key or item -> (line, column) from 1. ``broken``: reading stopped, ``value`` is None."""

    value: Any
    positions: Mapping[Loc, tuple[int, int]]
    problems: tuple[Problem, ...]
    broken: bool


class _RefusedError(yaml.MarkedYAMLError):
    """Valid YAML that is not accepted here, and not worth reading on."""


@dataclass(frozen=True, slots=True)
class _Notes:
    """What one pass over the events collects."""

    positions: dict[Loc, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, tuple[Any, int] | None] = field(default_factory=dict)


def read_document(text: str, *, flow_only: bool = False) -> Document:
    """Read one YAML document. Never raises for bad text: what is wrong is in ``problems``."""
    notes = _Notes()
    bad = _CONTROL.search(text)
    if bad:
        where = (text.count("\n", 0, bad.start()) + 1, 1)
        message = f"holds the control character U+{ord(bad[0]):04X}; expected plain text"
        return Document(
            value=None, positions={}, problems=(Problem(loc=(), message=message, position=where),), broken=True
        )
    value, broken = None, False
    try:
        value = _first_document(yaml.parse(text, Loader=_LOADER), notes, flow_only)
    except yaml.YAMLError as error:
        notes.problems.append(_syntax_problem(error))
        broken = True
    return Document(value=value, positions=notes.positions, problems=tuple(notes.problems), broken=broken)


def _syntax_problem(error: yaml.YAMLError) -> Problem:
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(loc=(), message=f"not valid YAML: {str(error).splitlines()[0]}", position=(1, 1))
    started = f" (line {error.context_mark.line + 1})" if error.context and error.context_mark else ""
    said = f"{error.context or ''}{started} {error.problem or ''}".strip()
    if not isinstance(error, _RefusedError):
        hint = next((hint for words, hint in _HINTS.items() if words in said), "")
        said = f"not valid YAML: {said}{': ' + hint if hint else ''}"
    return Problem(loc=(), message=said, position=_position(error.problem_mark or error.context_mark))


def _first_document(events: Iterator[Any], notes: _Notes, flow_only: bool) -> Any:
    value: Any = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                _stop(event, "a second document starts here ('---'); a file holds one")
        elif isinstance(event, yaml.NodeEvent):
            if flow_only and isinstance(event, yaml.CollectionStartEvent) and not event.flow_style:
                _stop(event, "expected one value; write a mapping as {key: value} and a list as [a, b]")
            notes.positions[()] = _position(event.start_mark)
            value, _ = _node(event, events, (), notes)
    return value


def _stop(event: Any, message: str) -> NoReturn:
    raise _RefusedError(problem=message, problem_mark=event.start_mark)


def _position(mark: Any) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _node(event: Any, events: Iterator[Any], loc: Loc, notes: _Notes) -> tuple[Any, int]:
    """Build one node: its value, and how many values it holds once aliases are written out."""
    if isinstance(event, yaml.AliasEvent):
        return _alias(event, notes)
    if event.tag is not None:
        notes.problems.append(_at(event, loc, f"YAML tags are not accepted; remove {event.tag!r}", hides=True))
    if len(loc) > MAX_DEPTH:
        _stop(event, f"nested deeper than {MAX_DEPTH} levels")
    if event.anchor is not None:
        notes.anchors[event.anchor] = None
    if isinstance(event, yaml.ScalarEvent):
        built = (_scalar(event, loc, notes), 1)
    elif isinstance(event, yaml.SequenceStartEvent):
        built = _sequence(events, loc, notes)
    else:
        built = _mapping(events, loc, notes)
    if built[1] > MAX_VALUES:
        _stop(event, f"holds more than {MAX_VALUES:,} values")
    if event.anchor is not None:
        notes.anchors[event.anchor] = built
    return built


def _at(event: Any, loc: Loc, message: str, *, hides: bool = False) -> Problem:
    return Problem(loc=loc, message=message, position=_position(event.start_mark), hides=hides)


def _alias(event: Any, notes: _Notes) -> tuple[Any, int]:
    if event.anchor not in notes.anchors:
        _stop(event, f"the alias '*{event.anchor}' needs its anchor '&{event.anchor}' earlier in the file")
    known = notes.anchors[event.anchor]
    if known is None:
        _stop(event, f"the alias '*{event.anchor}' stands inside its own anchor")
    return known


def _scalar(event: Any, loc: Loc, notes: _Notes) -> Any:
    if event.style:  # quoted or a block of text
        return event.value
    try:
        return read_scalar(event.value)
    except ValueError as error:
        notes.problems.append(_at(event, loc, f"{error}; got {event.value}", hides=True))
        return event.value


def _sequence(events: Iterator[Any], loc: Loc, notes: _Notes) -> tuple[list[Any], int]:
    items: list[Any] = []
    total = 1
    for event in events:
        if isinstance(event, yaml.SequenceEndEvent):
            break
        here = (*loc, len(items))
        notes.positions[here] = _position(event.start_mark)
        value, count = _node(event, events, here, notes)
        items.append(value)
        total += count
    return items, total


def _mapping(events: Iterator[Any], loc: Loc, notes: _Notes) -> tuple[dict[str, Any], int]:
    entries: dict[str, Any] = {}
    total = 1
    for event in events:
        if isinstance(event, yaml.MappingEndEvent):
            break
        key = _key(event, events, loc, notes)
        here = (*loc, key) if key is not None else (*loc, "?")
        if key is not None:
            if key in entries:
                first = notes.positions[here][0]
                notes.problems.append(_at(event, here, f"duplicate key; it already stands on line {first}"))
            notes.positions[here] = _position(event.start_mark)
        value, count = _node(next(events), events, here, notes)
        if key is not None:
            entries[key] = value
        total += count + 1
    return entries, total


def _key(event: Any, events: Iterator[Any], loc: Loc, notes: _Notes) -> str | None:
    """The key as text; None, with a problem noted, when it is no plain text."""
    if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
        if not isinstance(event, yaml.ScalarEvent):
            _node(event, events, (*loc, "?"), notes)
        notes.problems.append(_at(event, loc, "a key must be plain text"))
        return None
    if not event.style and event.value == "<<":
        notes.problems.append(_at(event, loc, "merge keys ('<<') are not accepted; write the keys out"))
        return None
    try:
        value = event.value if event.style else read_scalar(event.value)
    except ValueError as error:
        value, why = None, f": {error}"
    else:
        why = f"; put it in quotes if it is a name: '{event.value}'"
    if not isinstance(value, str) or not value:
        notes.problems.append(_at(event, loc, f"the key {event.value or 'nothing'} is not text{why}"))
        return None
    return value
