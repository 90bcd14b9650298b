"""Strict YAML that remembers where everything stands, so that every error names file, line and key.

``read`` turns a file into a ``Source``: plain Python values, the line and column of every key and list
item, and the problems met on the way. ``validate`` turns a Source into an input model, or raises one
ScenarioError that lists *all* problems of the file, one line each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from simulator.errors import ScenarioError, UnsupportedError
from simulator.problems import Loc, Problem, show, spell
from simulator.text_file import read_text
from simulator.validation_errors import explain
from simulator.yaml_document import read_document

MAX_LINES = 100  # of one error; more do not help anybody
ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A YAML document as plain Python, and where each part of it came from.

    ``positions``: key or item -> (line, column), both from 1. ``origins``: what a command-line override
    set -> the override's text; an error there names the override instead of a line.
    """

    name: str
    value: Any
    positions: Mapping[Loc, tuple[int, int]] = field(default_factory=dict)
    origins: Mapping[Loc, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    directory: Path | None = None

    def position(self, loc: Loc) -> tuple[int, int]:
        """(line, column) of the key or item at ``loc``, or of its nearest existing parent."""
        for length in range(len(loc), -1, -1):
            if loc[:length] in self.positions:
                return self.positions[loc[:length]]
        return (1, 1)

    def origin(self, loc: Loc) -> str | None:
        """The override that set ``loc`` or the part of the document that holds it; None for the file."""
        for length in range(len(loc), -1, -1):
            if loc[:length] in self.origins:
                return self.origins[loc[:length]]
            if loc[:length] in self.positions:
                return None
        return None

    def describe(self, problem: Problem) -> str:
        """``file:line: key.path: message``, or ``override key=value: message``."""
        origin = None if problem.position else self.origin(problem.loc)
        key = spell(problem.loc)
        if origin is not None:
            same_key = key == "" or origin.split("=", 1)[0].strip() == key
            return f"override {origin}: {'' if same_key else key + ': '}{problem.message}"
        line = (problem.position or self.position(problem.loc))[0]
        return f"{self.name}:{line}: {key + ': ' if key else ''}{problem.message}"

    def error(self, *problems: Problem) -> ScenarioError:
        """One error for all ``problems``, a line each: those of the file by line, then those of overrides as given."""

        given = list(dict.fromkeys(self.origins.values()))

        def order(problem: Problem) -> tuple[int, tuple[int, int]]:
            origin = None if problem.position else self.origin(problem.loc)
            if origin is not None:
                return (1 + given.index(origin), (0, 0))
            return (0, problem.position or self.position(problem.loc))

        lines = list(dict.fromkeys(self.describe(problem) for problem in sorted(problems, key=order)))
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"{self.name}: and {len(lines) - MAX_LINES:,} more problems"]
        kind = UnsupportedError if all(problem.unsupported for problem in problems) else ScenarioError
        return kind("\n".join(lines))


def read(path: Path | str, *, also_known: Iterable[str] = ()) -> Source:
    """Read a YAML file whose top level is a mapping.

    ``also_known``: names offered beside the files of that directory when ``path`` does not exist.
    Raises ScenarioError: file missing, a directory, empty, binary, too large, not UTF-8, not YAML.
    """
    return parse(read_text(Path(path), also_known=also_known), str(path), directory=Path(path).parent)


def parse(text: str, name: str, *, directory: Path | None = None) -> Source:
    """Read YAML text whose top level is a mapping; ``name`` stands for the file in errors. Raises ScenarioError."""
    source = _source(text, name, directory=directory)
    if source.value is None and not source.problems:
        raise ScenarioError(f"{name}:1: the file is empty (or holds only comments); expected 'key: value' lines")
    if not isinstance(source.value, dict):
        message = f"the top level must be a mapping ('key: value' lines); got {show(source.value)}"
        raise source.error(*source.problems, Problem(loc=(), message=message))
    return source


def parse_value(text: str, name: str) -> Source:
    """Read one YAML scalar or one flow value (``[4, 4]``, ``{a: 1}``), as a command line gives it."""
    return _source(text, name, flow_only=True)


def _source(text: str, name: str, *, directory: Path | None = None, flow_only: bool = False) -> Source:
    document = read_document(text, flow_only=flow_only)
    source = Source(
        name=name,
        value=document.value,
        positions=document.positions,
        problems=document.problems,
        directory=directory,
    )
    if document.broken:
        raise source.error(*source.problems)
    return source


def validate(source: Source, model: type[ModelT]) -> ModelT:
    """Build ``model`` from a Source. Raises ScenarioError with every problem of the document."""
    problems = list(source.problems)
    hidden = [problem.loc for problem in problems if problem.hides]
    try:
        result = model.model_validate_json(json.dumps(source.value))
    except ValidationError as error:
        for found in explain(error, model, source.value):
            if found.about_key or not any(found.place[: len(bad)] == bad for bad in hidden):
                problems.append(Problem(loc=found.place, message=found.message, unsupported=found.unsupported))
    else:
        if not problems:
            return result
    raise source.error(*problems)
