"""Attention heads under tensor parallelism: each rank holds whole heads, so the degree divides their number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Where configurations keep the number of query heads.
_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def valid_degrees(num_heads: int) -> tuple[int, ...]:
    """Tensor parallel degrees that ``num_heads`` heads can be split by, ascending."""
    return tuple(degree for degree in range(1, num_heads + 1) if num_heads % degree == 0)


def degree_problem(num_heads: int, degree: int) -> str:
    """What is wrong with a tensor parallel degree for a number of heads; empty when it fits."""
    degrees = valid_degrees(num_heads)
    if degree in degrees:
        return ""
    return f"{num_heads} attention heads cannot be split over {degree} ranks; {num_heads} can be by {_list(degrees)}"


def _list(degrees: tuple[int, ...]) -> str:
    return ", ".join(str(degree) for degree in degrees)


def heads_of(config: Mapping[str, Any]) -> int | None:
    """Query heads of a model's configuration, by any of its spellings; None where it has none.

    Models that see images keep those of their language model inside ``text_config``.
    """
    inner = config.get("text_config")
    places = (config, inner) if isinstance(inner, Mapping) else (config,)
    found = next((place[key] for place in places for key in _KEYS if key in place), None)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def heads_of_file(path: Path) -> int | None:
    """Query heads of a ``config.json``; None where it cannot be read, which is said elsewhere."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return heads_of(config) if isinstance(config, dict) else None
