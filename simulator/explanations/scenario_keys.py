"""Every key of a scenario, from its JSON Schema: there is no second text beside the fields' own descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from simulator.schema import SCHEMAS

#: Keys that hold a whole file of another kind, or its name; the file's own keys are those of its schema.
FILES: Final = {"cluster.topology": "topology", "cluster.library": "library"}
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioKey:
    """One key. ``key``: its path, ``[]`` behind a list. ``default``: as written in YAML, '' where there is none."""

    key: str
    accepts: str
    default: str
    required: bool
    means: str


@cache
def scenario_keys() -> tuple[ScenarioKey, ...]:
    """All keys in the order of the scenario's blocks. A key that stands in several forms of a block is told once."""
    schema = SCHEMAS["scenario"]()
    found: dict[str, ScenarioKey] = {}
    for key in _keys(schema, "", schema["definitions"]):
        found.setdefault(key.key, key)
    return tuple(found.values())


def _keys(block: Schema, path: str, known: Schema) -> Iterator[ScenarioKey]:
    required = block.get("required", ())
    for name, held in block.get("properties", {}).items():
        key = f"{path}{name}"
        yield ScenarioKey(
            key=key, accepts=accepts(held, known), default=_default(held), required=name in required,
            means=str(held.get("description", "")),
        )  # fmt: skip
        if key not in FILES:
            for inner, behind in _blocks(held, known):
                yield from _keys(inner, f"{key}{behind}.", known)


def _blocks(held: Schema, known: Schema) -> Iterator[tuple[Schema, str]]:
    """Blocks of keys that a value may be, with what stands between its key and theirs."""
    if "$ref" in held:
        yield from _blocks(known[str(held["$ref"]).rpartition("/")[2]], known)
    elif "properties" in held:
        yield held, ""
    for other in _choices(held):
        yield from _blocks(other, known)
    if isinstance(held.get("items"), Mapping):
        for block, behind in _blocks(held["items"], known):
            yield block, f"[]{behind}"


def _choices(held: Schema) -> Sequence[Schema]:
    return [*held.get("allOf", ()), *held.get("anyOf", ()), *held.get("oneOf", ())]


def accepts(held: Schema, known: Schema) -> str:
    """What may be written for a value, in words: ``whole number, 1 or more``, ``such as 25 MiB``."""
    words = list(dict.fromkeys(_accepts(held, known)))
    return " or ".join(words)


def _accepts(held: Schema, known: Schema) -> Iterator[str]:
    kind = held.get("type")
    if "$ref" in held:
        target = known[str(held["$ref"]).rpartition("/")[2]]
        yield from ["a block of keys"] if "properties" in target else _accepts(target, known)
    elif "enum" in held or "const" in held:
        yield ", ".join(str(value) for value in held.get("enum", [held.get("const")]))
    elif "examples" in held:
        yield f"such as {held['examples'][0]}"
    elif kind == "array":
        yield _list(held, known)
    elif kind in ("integer", "number"):
        yield _number(held)
    elif kind in _WORDS:
        yield _WORDS[str(kind)]
    for other in _choices(held):
        yield from _accepts(other, known)


def _list(held: Schema, known: Schema) -> str:
    items = held.get("items")
    if not isinstance(items, Mapping):  # of a fixed length, whose places may differ
        return "a list"
    inner = list(dict.fromkeys(_accepts(items, known)))
    return f"a list of {_plural(inner[0])}" if len(inner) == 1 else f"a list of ({' or '.join(inner)})"


_WORDS: Final = {"string": "text", "boolean": "true, false", "object": "a block of keys"}
_PLURALS: Final = {"a block of keys": "blocks of keys", "text": "texts", "true, false": "true or false"}


def _plural(words: str) -> str:
    return _PLURALS.get(words, words.replace("whole number", "whole numbers", 1))


def _number(held: Schema) -> str:
    what = "whole number" if held["type"] == "integer" else "number"
    low, high = held.get("minimum"), held.get("maximum")
    if low is None:
        return what
    return f"{what}, {low:,} or more" if high is None or high >= 10**6 else f"{what}, {low:,} to {high:,}"


def _default(held: Schema) -> str:
    value = held.get("default")
    if value is None or value == []:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
