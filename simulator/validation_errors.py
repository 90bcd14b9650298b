"""pydantic's validation errors in the words of someone who writes YAML.

``explain`` gives a Finding for each: the branch names that pydantic puts into a place for unions are
taken out, only the branch that the value is meant for is reported, unknown keys name the accepted ones and
the nearest, and every message shows the value that was read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from simulator.errors import UnsupportedError
from simulator.problems import Loc, nearest, show
from simulator.spellings import ours_for

_Error = Mapping[str, Any]
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "dict_type": "a mapping (key: value)",
    "mapping_type": "a mapping (key: value)",
    "list_type": "a list, such as [1, 2]",
    "tuple_type": "a list, such as [1, 2]",
    "none_required": "nothing (null)",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
}


class Finding(NamedTuple):
    """One error: where in the document, what, whether a later version will take it, whether the key itself is wrong."""

    place: Loc
    message: str
    unsupported: bool
    about_key: bool


def explain(error: ValidationError, model: type[BaseModel], value: Any) -> list[Finding]:
    """Every error worth reporting about the document ``value``, in pydantic's order."""
    errors = [dict(item) for item in error.errors(include_url=False)]
    for item in errors:
        item["place"], item["branches"] = _split_place(item, value)
    kept = _meant(errors, 0)
    unknown = [(item["place"][:-1], str(item["place"][-1])) for item in kept if item["type"] == "extra_forbidden"]
    return [
        Finding(item["place"], _message(item, model), _is_unsupported(item), item["type"] == "extra_forbidden")
        for item in kept
        if not (item["type"] == "missing" and _is_misspelt(item["place"], unknown))
        and not _only_counts_valid_items(item)
    ]


def _only_counts_valid_items(item: _Error) -> bool:
    """Whether pydantic calls a list too short because it left out the items that are wrong."""
    return bool(item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"])


def _is_unsupported(item: _Error) -> bool:
    return isinstance(item.get("ctx", {}).get("error"), UnsupportedError)


def _is_misspelt(place: Loc, unknown: Sequence[tuple[Loc, str]]) -> bool:
    """Whether a missing key is there under a wrong spelling, which is reported already."""
    return any(
        parent == place[:-1] and difflib.get_close_matches(word, [str(place[-1])], cutoff=0.7)
        for parent, word in unknown
    )


def _split_place(item: _Error, value: Any) -> tuple[Loc, tuple[tuple[int, str], ...]]:
    """pydantic's ``loc`` as a place in the document, and the union branches on the way: (depth, branch)."""
    place: list[str | int] = []
    branches: list[tuple[int, str]] = []
    loc = item["loc"]
    for index, part in enumerate(loc):
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if inside and (not isinstance(value, list) or int(part) < len(value)):
            place.append(part)
            value = value[part]
        elif item["type"] == "missing" and index == len(loc) - 1:
            place.append(part)
            break
        else:
            branches.append((len(place), str(part)))
    if item["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        place.append(_discriminator(item))
    return tuple(place), tuple(branches)


def _discriminator(item: _Error) -> str:
    """The key whose value selects the branch of a union, such as ``kind``."""
    named = str(item["ctx"]["discriminator"]).strip("'")
    return named.removesuffix("()").removeprefix("_")  # of a function, which is named after the key that it reads


def _meant(errors: Sequence[dict[str, Any]], level: int) -> list[dict[str, Any]]:
    """Of every union keep the errors of one branch: the one whose kind of value was given."""
    kept: list[dict[str, Any]] = []
    done: set[Loc] = set()
    for item in errors:
        if len(item["branches"]) <= level:
            kept.append(item)
            continue
        depth = item["branches"][level][0]
        union = item["place"][:depth]
        if union in done:
            continue
        done.add(union)
        members = [
            other for other in errors
            if len(other["branches"]) > level
            and other["branches"][level][0] == depth
            and other["place"][:depth] == union
        ]  # fmt: skip
        kept.extend(_best_branch(members, union, level))
    return kept


def _best_branch(members: Sequence[dict[str, Any]], union: Loc, level: int) -> list[dict[str, Any]]:
    by_branch: dict[str, list[dict[str, Any]]] = {}
    for item in members:
        by_branch.setdefault(item["branches"][level][1], []).append(item)
    wrong_kind = [
        item for item in members
        if item["place"] == union and (item["type"] in _EXPECTED or item["type"] == "literal_error")
    ]  # fmt: skip
    wrong = {item["branches"][level][1] for item in wrong_kind}
    right = [errors for branch, errors in by_branch.items() if branch not in wrong]
    if right or len(by_branch) == 1:
        return _meant(min(right or by_branch.values(), key=len), level + 1)
    expected = list(dict.fromkeys(_expected(item) for item in wrong_kind))
    return [{**members[0], "type": "wrong_kind", "place": union, "expected": " or ".join(expected)}]


def _expected(item: _Error) -> str:
    if item["type"] == "literal_error":
        return f"one of {item['ctx']['expected'].replace(chr(39), '').replace(' or ', ', ')}"
    return _EXPECTED[item["type"]]


def _message(item: _Error, model: type[BaseModel]) -> str:
    kind, given, ctx = item["type"], item["input"], item.get("ctx", {})
    got = f"; got {show(given)}"
    if kind == "missing":
        return _missing(item, model)
    if kind == "extra_forbidden":
        return _unknown(item, model)
    if kind == "wrong_kind":
        return f"must be {item['expected']}{got}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}{got}{_advice(kind, given)}"
    if kind == "literal_error":
        names = [name.strip("' ") for name in ctx["expected"].replace(" or ", ", ").split(", ")]
        return f"unknown value{got}; accepted: {', '.join(names)}{nearest(str(given), names)}"
    if kind == "union_tag_invalid":
        names = [name.strip("' ") for name in ctx["expected_tags"].split(", ")]
        return (
            f"unknown {_discriminator(item)} {ctx['tag']!r}; accepted: {', '.join(names)}{nearest(ctx['tag'], names)}"
        )
    if kind == "union_tag_not_found":
        return "missing key"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"must be {words} {_number(ctx[key])}{got}"
    if kind == "value_error":
        return f"{ctx['error']}{got if _is_plain(given) else ''}"
    if kind in {"too_short", "too_long"}:
        bound = f"at least {ctx['min_length']}" if kind == "too_short" else f"at most {ctx['max_length']}"
        return f"must hold {bound} items{got}"
    if kind in {"string_too_short", "string_too_long"}:
        bound = f"at least {ctx['min_length']}" if kind == "string_too_short" else f"at most {ctx['max_length']}"
        return f"must be text of {bound} characters{got}"
    said = str(item["msg"])
    return f"{said[:1].lower()}{said[1:]}{got if _is_plain(given) and kind != 'problem' else ''}"


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | BaseModel)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _advice(kind: str, given: Any) -> str:
    if isinstance(given, str) and kind.startswith(("int", "float")) and given.strip().lstrip("+-").isdigit():
        return "; remove the quotes"
    if isinstance(given, float) and kind.startswith("int") and given.is_integer():
        return f"; write {int(given)}"
    if isinstance(given, int | float) and kind == "string_type":
        return "; put it in quotes if it is a name"
    return ""


def _missing(item: _Error, model: type[BaseModel]) -> str:
    for owner in _models_at(model, item["loc"][:-1]):
        for name, info in owner.model_fields.items():
            if (info.alias or name) == item["loc"][-1]:
                return f"missing key{': ' + info.description if info.description else ''}"
    return "missing key"


def _unknown(item: _Error, model: type[BaseModel]) -> str:
    key = str(item["loc"][-1])
    owners = _models_at(model, item["loc"][:-1])
    accepted = [info.alias or name for owner in owners[:1] for name, info in owner.model_fields.items()]
    ours = ours_for(key, item["place"][:-1]) if "train" in model.model_fields else ""
    meant = f"; did you mean {ours!r}?" if ours else nearest(key, accepted)
    return f"unknown key {show(key)}; accepted: {', '.join(accepted)}{meant}"


def _models_at(kind: Any, loc: Loc) -> list[type[BaseModel]]:
    """The input models that pydantic's ``loc`` can lead to, starting from the type ``kind``."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        tags = [extra.tag for extra in args[1:] if isinstance(extra, Tag)]
        if tags and loc and loc[0] in tags:
            return _models_at(args[0], loc[1:])
        return [] if tags else _models_at(args[0], loc)
    if origin in {Union, UnionType}:
        return [found for branch in args for found in _models_at_branch(branch, loc)]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not loc:
            return [kind]
        fields = {info.alias or name: info for name, info in kind.model_fields.items()}
        return _models_at(fields[str(loc[0])].annotation, loc[1:]) if loc[0] in fields else []
    if args and loc:
        return _models_at(args[0] if isinstance(loc[0], int) else args[-1], loc[1:])
    return []


def _models_at_branch(branch: Any, loc: Loc) -> list[type[BaseModel]]:
    """A union's branch. In a place pydantic names it by its class, by the literal that selects it, or not at all."""
    if not loc:
        return _models_at(branch, loc)
    if str(loc[0]).startswith("tagged-union["):
        return _models_at(branch, loc[1:])
    if get_origin(branch) is Annotated and any(isinstance(extra, Tag) for extra in get_args(branch)[1:]):
        return _models_at(branch, loc)
    fields = getattr(branch, "model_fields", {})
    selectors = [
        value
        for info in fields.values()
        if get_origin(info.annotation) is Literal
        for value in get_args(info.annotation)
    ]
    name = getattr(branch, "__name__", None)
    checked = name and re.match(rf"function-\w+\[.*\b{name}\]", str(loc[0]))  # a class with checks of its own
    if loc[0] == name or checked or loc[0] in selectors:
        return _models_at(branch, loc[1:])
    return _models_at(branch, loc)
