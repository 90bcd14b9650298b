"""Shell text -> words as they are written, quotes included, and the ends of commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: Ends a command: a newline or ``;`` that is in no quotes, no array and not continued.
END: Final = "\n"
_PAIRS: Final = {'"': '"', "'": "'", "`": "`"}


def words_of(text: str) -> Iterator[str]:
    """Words and END in order. ``NAME=(a b)`` becomes ``NAME=``, ``a``, ``b``. Never raises."""
    start, index, depth = 0, 0, 0  # of the present word; it is empty where both are equal
    while index < len(text):
        between = _separator(text, index, depth, text[start:index][-1:])
        if between is None:
            index = min(_end_of_part(text, index), len(text))
            continue
        separator, width = between
        if index > start:
            yield text[start:index]
        if separator == "#":
            end = text.find("\n", index)
            width = (len(text) if end < 0 else end) - index
        elif separator in "()":
            depth += 1 if separator == "(" else -1
        elif separator != " ":
            yield separator
        index += width
        start = index
    if index > start:
        yield text[start:index]


def _separator(text: str, index: int, depth: int, before: str) -> tuple[str, int] | None:
    """What stands between words at ``index``, and its width; None inside a word, whose last character is ``before``."""
    character = text[index]
    if character == "#" and not before:
        return "#", 0
    if text.startswith("\\\n", index):
        return " ", 2
    if character in " \t\r" or (character == "\n" and depth):
        return " ", 1
    if character in "\n;":
        return END, 1
    if (character == "(" and before in ("", "=")) or (character == ")" and depth):
        return character, 1
    return (text[index : index + 2], 2) if text.startswith(("&&", "||"), index) else None


def _end_of_part(text: str, index: int) -> int:
    """Where a quoted part, an expansion or a single character that begins at ``index`` ends."""
    character = text[index]
    if character == "\\":
        return index + 2
    if character in _PAIRS:
        return _end_of_quotes(text, index)
    for opening, closing in (("$((", "))"), ("$(", ")"), ("${", "}")):
        if text.startswith(opening, index):
            end = text.find(closing, index)
            return len(text) if end < 0 else end + len(closing)
    return index + 1


def _end_of_quotes(text: str, index: int) -> int:
    quote, place = text[index], index + 1
    while place < len(text) and text[place] != quote:
        place += 2 if text[place] == "\\" and quote != "'" else 1
    return place + 1
