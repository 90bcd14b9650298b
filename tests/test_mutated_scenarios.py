"""Every shipped scenario with a key dropped, doubled, retyped, out of range or misspelt: an answer, or one clear error.

The draws are fixed: 20 for each scenario that is quick to simulate.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import ROOT, simulator

pytestmark = pytest.mark.slow

#: Those of 16,384 ranks and tori take seconds each.
SCENARIOS = [
    path for path in sorted((ROOT / "scenarios").glob("*.yaml")) if "16384" not in path.name and "tpu" not in path.name
]  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, -1, 0, 1, 2, 3, 7, 10**9, 1.5, "x", "", "25 MiB", "10%", "5 us", "$2/h", True, False, [], {}, [1], {"a": 1},
    "auto", "1e400", ".nan",
)  # fmt: skip
KINDS = ("drop", "retype", "retype", "misspell", "scale", "double")
DRAWS = 20
Place = tuple[Any, ...]


def places(tree: Any, above: Place = ()) -> Iterator[Place]:
    """All keys and items, as paths."""
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield (*above, key)
            yield from places(tree[key], (*above, key))


def mutated(tree: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], Place, str]:
    """A copy with one thing changed, where, and how."""
    tree = copy.deepcopy(tree)
    place, kind = draw.choice(list(places(tree))), draw.choice(KINDS)
    home: Any = tree
    for key in place[:-1]:
        home = home[key]
    key = place[-1]
    if kind == "drop":
        del home[key]
    elif kind == "misspell" and isinstance(key, str):
        spot = draw.randrange(len(key))
        home[key[:spot] + draw.choice("abcxyz_") + key[spot + 1 :]] = home.pop(key)
    elif kind == "scale" and isinstance(home[key], int) and not isinstance(home[key], bool):
        home[key] *= draw.choice([2, 3, 10, -1])
    elif kind == "double":
        home[key] = [home[key], home[key]]
    else:
        home[key] = draw.choice(VALUES)
    return tree, place, kind


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_mutated_scenario_is_answered_or_refused_by_name(path: Path, tmp_path: Path) -> None:
    """Exit code 0, 1 or 2, never a traceback; a refusal has no output, names the file, and the key or what it holds."""
    draw, written = random.Random(path.stem), tmp_path / "mutated.yaml"
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    for _ in range(DRAWS):
        tree, place, kind = mutated(plain, draw)
        written.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        result = simulator("run", str(written))
        told = f"{kind} {place}: {result.code}\n{result.err}\n{written.read_text()}"
        assert result.code in (0, 1, 2), told
        assert "Traceback" not in result.err, told
        if result.code == 2:
            assert result.out == "", told
            assert all(line.startswith("error: ") for line in result.err.splitlines()), told
            assert "mutated.yaml" in result.err, told
            named = [str(part) for part in place if isinstance(part, str)]
            assert any(part[:3] in result.err for part in named) or kind == "drop", told
