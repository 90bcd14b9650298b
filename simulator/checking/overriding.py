"""Overrides on top of overrides."""

from __future__ import annotations

from collections.abc import Sequence


def merged(overrides: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """``overrides`` without those that ``more`` sets anew, above them or below them, and then ``more``."""
    keys = [_key(text) for text in more]

    def replaced(text: str) -> bool:
        key = _key(text)
        return any(key == new or key.startswith(f"{new}.") or new.startswith(f"{key}.") for new in keys)

    return (*(text for text in overrides if not replaced(text)), *more)


def _key(override: str) -> str:
    return override.partition("=")[0].strip()
