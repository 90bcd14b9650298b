"""``key.path=value`` arguments: applied to a document before it is validated, or expanded into a sweep.

A value is YAML: a scalar (``4``, ``25 MiB``, ``null``) or a flow value (``[4, 4]``, ``{op: all_reduce}``).
Errors about an overridden key name the override instead of a line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulator.errors import ScenarioError
from simulator.problems import Loc, show, spell
from simulator.yaml_document import MAX_DEPTH
from simulator.yaml_source import Source, parse_value

MAX_POINTS = 1_000_000
_OPEN, _CLOSE = "[{", "]}"

Forms = Mapping[Loc, Sequence[str]]


def apply_overrides(source: Source, overrides: Sequence[str], forms: Forms | None = None) -> Source:
    """The document with every override applied, in order.

    ``forms``: blocks that can be written in several forms -> the keys that select a form. An override that sets
    such a key where the file does not replaces the whole block, so ``model.preset=gpt2`` works on any model.
    Raises ScenarioError that lists every override that cannot be read or applied.
    """
    parsed, errors = [], []
    for text in overrides:
        try:
            parsed.append(_parse(text))
        except ScenarioError as error:
            errors.append(str(error))
    keys = [loc for loc, _, _ in parsed]
    errors += [f"override {text}: the key is given twice" for i, (loc, _, text) in enumerate(parsed) if loc in keys[:i]]
    for block, selectors in (forms or {}).items():
        source = _choose_form(source, block, [loc[-1] for loc in keys if loc[:-1] == block], selectors)
    for loc, value, text in parsed:
        try:
            source = _set(source, loc, value, text)
        except ScenarioError as error:
            errors.append(str(error))
    if errors:
        raise ScenarioError("\n".join(errors))
    return source


def _parse(text: str) -> tuple[Loc, Source, str]:
    label = f"override {_short(text)}"
    key, equals, value = text.partition("=")
    if not equals:
        raise ScenarioError(f"{label}: has no '='; expected key=value, such as train.micro_batch=4")
    loc = _loc(key.strip(), label)
    if not value.strip():
        raise ScenarioError(f"{label}: has no value; expected key=value (write null to unset)")
    try:
        parsed = parse_value(value, label)
    except ScenarioError as error:
        raise ScenarioError("\n".join(_without_line(line, label) for line in str(error).splitlines())) from None
    if parsed.value is None and value.strip() not in {"null", "~"}:
        raise ScenarioError(f"{label}: has no value (a '#' starts a comment: quote it); expected key=value")
    return loc, parsed, _short(text)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:97]}..."


def _without_line(line: str, label: str) -> str:
    rest = line.removeprefix(f"{label}:")
    return f"{label}:{rest.partition(':')[2]}" if rest != line else line


def _loc(key: str, label: str) -> Loc:
    """``a.b[0].c`` or ``a.b.0.c`` as a place."""
    parts = key.replace("[", ".").replace("]", "").split(".")
    if not all(part.strip() for part in parts):
        raise ScenarioError(f"{label}: the key {key!r} has an empty part; expected names joined by dots")
    if len(parts) > MAX_DEPTH:
        raise ScenarioError(f"{label}: the key has {len(parts)} parts; at most {MAX_DEPTH} are accepted")
    return tuple(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part.strip() for part in parts)


def _choose_form(source: Source, block: Loc, given: Sequence[str | int], selectors: Sequence[str]) -> Source:
    chosen = [key for key in given if key in selectors]
    current = source.value.get(block[0]) if len(block) == 1 else None
    if not chosen or not isinstance(current, dict) or chosen[0] in current:
        return source
    positions = {loc: at for loc, at in source.positions.items() if loc[: len(block)] != block or loc == block}
    problems = tuple(problem for problem in source.problems if problem.loc[: len(block)] != block)
    return replace(source, value={**source.value, block[0]: {}}, positions=positions, problems=problems)


def _set(source: Source, key: Loc, value: Source, text: str) -> Source:
    loc, known = _place(source.value, key)
    positions = {at: where for at, where in source.positions.items() if at[: len(loc)] != loc}
    origins = {at: origin for at, origin in source.origins.items() if at[: len(loc)] != loc}
    origins |= {loc[:length]: text for length in range(min(known + 1, len(loc)), len(loc) + 1)}
    problems = [problem for problem in source.problems if problem.loc[: len(loc)] != loc]
    problems += [replace(problem, loc=(*loc, *problem.loc), position=None) for problem in value.problems]
    return replace(
        source,
        value=_with(source.value, loc, value.value, (), f"override {text}"),
        positions=positions,
        origins=origins,
        problems=tuple(problems),
    )


def _place(value: Any, key: Loc) -> tuple[Loc, int]:
    """``key`` with numbers kept only where they index a list, and how many of its parts the document has."""
    loc: list[str | int] = []
    known = 0
    for part in key:
        loc.append(part if isinstance(value, list) else str(part))
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            value = value.get(str(part)) if isinstance(value, dict) else None
        known += value is not None
    return tuple(loc), known


def _with(container: Any, loc: Loc, value: Any, done: Loc, label: str) -> Any:
    """A copy of ``container`` with ``value`` at ``loc``; blocks that are not there are made."""
    if not loc:
        return value
    part, rest = loc[0], loc[1:]
    if isinstance(container, list):
        if not isinstance(part, int) or part >= len(container):
            what = f"a list of {len(container)}; expected an index below that, got {part}"
            raise ScenarioError(f"{label}: {spell(done) or 'the document'} is {what}")
        item = _with(container[part], rest, value, (*done, part), label)
        return [*container[:part], item, *container[part + 1 :]]
    if container is not None and not isinstance(container, dict):
        where = spell((*done, part))
        raise ScenarioError(f"{label}: {spell(done)} is {show(container)}, one value, so it holds no {where}")
    block = container or {}
    key = str(part)
    return {**block, key: _with(block.get(key), rest, value, (*done, key), label)}


def expand_sweep(arguments: Sequence[str]) -> list[tuple[str, ...]]:
    """``["a=1,2", "b=x,y"]`` -> ``[("a=1", "b=x"), ("a=1", "b=y"), ("a=2", "b=x"), ("a=2", "b=y")]``.

    Commas inside quotes or brackets do not split. The last key varies fastest. No arguments: one empty point.
    Raises ScenarioError: no '=', an empty value, a key or a value given twice, an open bracket or quote, more
    than 1,000,000 points.
    """
    axes: dict[str, list[str]] = {}
    for text in arguments:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ScenarioError(f"sweep {text}: expected key=value1,value2,..., such as cluster.nodes=1,2,4")
        if key in axes:
            raise ScenarioError(f"sweep {text}: {key} is given twice; write all its values behind one '='")
        axes[key] = [f"{key}={value}" for value in _split_values(values, text)]
    points = math.prod(len(values) for values in axes.values())
    if points > MAX_POINTS:
        raise ScenarioError(f"the sweep has {points:,} points; at most {MAX_POINTS:,} are accepted")
    return list(itertools.product(*axes.values()))


def _split_values(values: str, text: str) -> list[str]:
    found = [""]
    depth, quote = 0, ""
    for character in values:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and (depth or not found[-1].strip()):
            quote = character
        depth += (character in _OPEN) - (character in _CLOSE) if not quote else 0
        if character == "," and not depth and not quote:
            found.append("")
        else:
            found[-1] += character
    if quote or depth:
        raise ScenarioError(f"sweep {text}: a {'quote' if quote else 'bracket'} is not closed")
    found = [value.strip() for value in found]
    if not all(found):
        raise ScenarioError(f"sweep {text}: a value is empty; expected key=value1,value2,...")
    for index, value in enumerate(found):
        if value in found[:index]:
            raise ScenarioError(f"sweep {text}: the value {value} is given twice")
    return found
