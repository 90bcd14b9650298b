"""A problem in a document, and the words to state it: the place, the value that was read, the nearest right name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong, at a place. ``hides``: the value is not to be believed, so say no more about it."""

    loc: Loc
    message: str
    position: tuple[int, int] | None = None
    hides: bool = False
    unsupported: bool = False


def spell(loc: Loc) -> str:
    """``("layers", 0, "name")`` -> ``"layers[0].name"``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    text = text.removeprefix(".")
    return text if len(text) <= 200 else f"{text[:197]}..."


def show(value: Any, width: int = 60) -> str:
    """A value as its author would recognise it: short, on one line."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(value if len(value) <= width else value[: width - 3] + "...")
    if isinstance(value, dict):
        return "a mapping with " + (", ".join(list(value)[:5]) or "no keys")
    text = json.dumps(value, default=str)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known word, or an empty string."""
    names = list(known)
    lower = {name.lower(): name for name in names}
    begun = [name for name in lower if len(word) > 2 and name.startswith(word.lower())]
    if begun:
        return f"; did you mean {lower[begun[0]]!r}?"
    close = difflib.get_close_matches(word.lower(), list(lower), n=1, cutoff=0.55)
    return f"; did you mean {lower[close[0]]!r}?" if close else ""
