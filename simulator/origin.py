"""Where a scenario was written, so that what goes wrong after it was read still names the file and the line.

A scenario carries its origin without being changed by it: two scenarios that say the same are equal wherever they were
written, and the digest does not see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from simulator.problems import Loc, Problem, spell


class Document(Protocol):
    """A document that knows the line of each of its keys, as ``yaml_source.Source`` does."""

    @property
    def value(self) -> Mapping[str, Any]:
        """What it says, as plain values."""
        ...

    def describe(self, problem: Problem) -> str:
        """The problem in one line: file, line, key and message, or the override that set the key."""
        ...


class Origin:
    """The document that a scenario came from; None for one that a program put together. Equal to any other origin."""

    __slots__ = ("document",)

    def __init__(self, document: Document | None = None) -> None:
        self.document = document

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return 0

    def describe(self, loc: Loc, message: str) -> str:
        """``message`` about the key at ``loc``, with file and line where they are known."""
        if self.document is not None:
            return self.document.describe(Problem(loc=loc, message=message))
        return f"{spell(loc)}: {message}"

    def written(self, loc: Loc) -> object:
        """What stands at the key, as it was written (``15T``); None where it was not, or nobody wrote it."""
        found: object = None if self.document is None else self.document.value
        for key in loc:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found
