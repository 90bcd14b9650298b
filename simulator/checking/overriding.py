"""Overrides on top of overrides."""

from __future__ import annotations

from collections.abc import Sequence


def merged(overrides: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """``overrides`` without those that ``more`` sets anew, themselves or a block that holds them, and then ``more``.

    A block that is set as a whole (``parallel={strategy: fsdp}``) stays, and ``more`` sets a key in it.
    """
    keys = [_key(text) for text in more]

    def replaced(text: str) -> bool:
        key = _key(text)
        return any(key == new or key.startswith(f"{new}.") for new in keys)

    return (*(text for text in overrides if not replaced(text)), *more)


def _key(override: str) -> str:
    return override.partition("=")[0].strip()
