"""A file that a user named, as plain options: JSON, TOML or YAML. One clear error for bad text."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from simulator.errors import ScenarioError
from simulator.problems import show, spell
from simulator.text_file import read_text
from simulator.yaml_document import read_document

MAX_DEPTH = 64


def text_of(path: Path) -> str:
    """The text of the file, of ``config.json`` in a folder. Raises ScenarioError."""
    return read_text(path / "config.json" if path.is_dir() and (path / "config.json").is_file() else path)


def json_options(text: str, name: str) -> dict[str, Any]:
    """The object in a JSON text. Raises ScenarioError naming the line."""

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ScenarioError(f"{name}: {show(key)} stands in one object twice; keep one")
            found[key] = value
        return found

    try:
        return _object(json.loads(text, object_pairs_hook=once), name, "JSON")
    except json.JSONDecodeError as error:
        raise ScenarioError(f"{name}:{error.lineno}: not valid JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        _too_deep(name)
    except ScenarioError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise ScenarioError(f"{name}: not valid JSON: {error}") from None


def toml_options(text: str, name: str) -> dict[str, Any]:
    """The table in a TOML text. Raises ScenarioError naming the line."""
    try:
        return _object(tomllib.loads(text), name, "TOML")
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: not valid TOML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        _too_deep(name)
    except ValueError as error:
        raise ScenarioError(f"{name}: not valid TOML: {error}") from None


def yaml_options(text: str, name: str) -> dict[str, Any]:
    """The mapping in a YAML text; what YAML's readers disagree about (no, 1e9) stays text. Raises ScenarioError."""
    document = read_document(text)
    problems = [problem for problem in document.problems if document.broken or not problem.hides]
    if problems:
        line = (problems[0].position or document.positions.get(problems[0].loc, (1, 1)))[0]
        key = spell(problems[0].loc)
        raise ScenarioError(f"{name}:{line}: {key + ': ' if key else ''}{problems[0].message}")
    return _object(document.value, name, "YAML")


def _object(value: Any, name: str, kind: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScenarioError(f"{name}: expected a {kind} file of options (key: value); got {show(value)}")
    return value


def _too_deep(name: str) -> NoReturn:
    raise ScenarioError(f"{name}: nested too deep")


def flattened(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """``{"a": {"b": 1}}`` -> ``{"a.b": 1}``. Raises ScenarioError for what is nested deeper than 64 levels."""
    return dict(_flat(options, "", 0, name))


def _flat(options: Mapping[str, Any], prefix: str, depth: int, name: str) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        _too_deep(name)
    for key, value in options.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.", depth + 1, name)
        else:
            yield f"{prefix}{key}", value
