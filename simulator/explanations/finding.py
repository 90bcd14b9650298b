"""A word of the user -> the keys that it means: a whole path, its last parts, or what the text output calls it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from simulator.errors import ScenarioError
from simulator.explanations.outputs import Explanation, outputs
from simulator.explanations.scenario_keys import ScenarioKey, scenario_keys
from simulator.problems import nearest

SCENARIO = "scenario"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Keys of outputs and of scenarios; at least one of either."""

    outputs: tuple[Explanation, ...]
    scenario: tuple[ScenarioKey, ...]


def everything() -> Found:
    """All keys there are."""
    return Found(outputs=tuple(one for output in outputs() for one in output.keys), scenario=scenario_keys())


def find(word: str) -> Found:
    """The keys that ``word`` means. A whole path goes before the end of one, and that before a name in the text output.

    The name of a command (or 'scenario') means all its keys. Raises ScenarioError with the nearest key.
    """
    every = everything()
    asked = plain(word)
    named = Found(
        outputs=tuple(one for one in every.outputs if one.of == asked),
        scenario=tuple(one for one in every.scenario if asked in (SCENARIO, plain(one.key))),
    )
    if named.outputs or asked == SCENARIO:
        return named
    for fits in (_is_path, _is_end):
        found = Found(
            outputs=tuple(one for one in every.outputs if fits(asked, one.key, one.of)),
            scenario=tuple(one for one in every.scenario if fits(asked, one.key, SCENARIO)),
        )
        if found.outputs or found.scenario:
            return found if fits is _is_end else _with_the_same_elsewhere(found, asked, every)
    called = tuple(one for one in every.outputs if asked in (one.shown.lower(), _without_unit(one.shown)))
    if called:
        return Found(outputs=called, scenario=())
    raise ScenarioError(
        f"no key {word!r} in any output or scenario; 'simulator explain' lists all{nearest(asked, _names(every))}"
    )


def _with_the_same_elsewhere(found: Found, asked: str, every: Found) -> Found:
    """Also the keys of other outputs that end so and mean the same, such as ``mfu`` of the rows of a sweep."""
    said = {(one.unit, one.means, one.how) for one in found.outputs}
    outputs = tuple(
        one for one in every.outputs
        if one in found.outputs or ((one.unit, one.means, one.how) in said and _is_end(asked, one.key, one.of))
    )  # fmt: skip
    return Found(outputs=outputs, scenario=found.scenario)


@cache
def plain(path: str) -> str:
    """A path without what tells lists: ``collectives[3].time_s`` and ``collectives[].time_s`` are the same."""
    return re.sub(r"\[\d*\]", "", path.strip().lower())


def _is_path(asked: str, key: str, of: str) -> bool:
    wanted = plain(key)
    return asked in (wanted, f"{of}.{wanted}") or _is_of_any_name(asked, wanted, of)


def _is_of_any_name(asked: str, wanted: str, of: str) -> bool:
    """``memory.timeline.by_kind_bytes.grads`` is a ``memory.timeline.by_kind_bytes.<kind>``. Settings hold dots."""
    before, bracket, _ = wanted.partition("<")
    if not bracket or before not in asked:
        return False
    pattern = re.sub(r"<\w+>", "[^.]+", re.escape(wanted).replace("<setting>", ".+"))
    return re.fullmatch(pattern, asked.removeprefix(f"{of}.")) is not None


def _is_end(asked: str, key: str, of: str) -> bool:
    return plain(key).endswith(f".{asked}")


def _without_unit(shown: str) -> str:
    return shown.lower().partition("(")[0]


def _names(every: Found) -> Iterable[str]:
    """Whole paths first, then last parts, then names in the text output, so that the nearest is found in that order."""
    paths = [plain(key) for key in [*(one.key for one in every.outputs), *(one.key for one in every.scenario)]]
    ends = [path.rpartition(".")[2] for path in paths]
    return dict.fromkeys([*ends, *paths, *(one.shown for one in every.outputs if one.shown)])
