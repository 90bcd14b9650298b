"""What a library with a cost model must say to be usable: which constants each algorithm that it may run needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

#: What every such library runs: rings, double trees, and sends and receives.
ALWAYS = ("ring", "double_tree", "p2p")
IN_SWITCHES = ("nvls", "nvls_tree")

Place = tuple[str | int, ...]


def missing_constants(measured: Any, choice: Any, protocols: Sequence[str]) -> Iterator[tuple[Place, str]]:
    """(place, what is wrong) for each constant that ``measured`` lacks. An empty message: the key is missing."""
    for generation, node in measured.generations.items():
        adds = choice is not None and _adds_in_switches(choice, generation)
        algorithms = [*ALWAYS, *(IN_SWITCHES if adds else ()), *(("pat",) if choice is not None else ())]
        where: Place = ("measured", "generations", generation)
        for table in ("base", "nvlink", "pcie"):
            held = [name for name in algorithms if table != "pcie" or name not in IN_SWITCHES]
            yield from _lacks(getattr(node, table), held, (*where, table))
        inside = [name for name in algorithms if name != "nvls_tree"]
        yield from _ramps(node.ramps, [*inside, *_flagged(protocols)], where)
    reduced = choice is not None and any(caps.nvls_efficiency is not None for caps in choice.caps.values())
    across = [*ALWAYS, *(("nvls_tree",) if reduced else ()), *(("pat",) if choice is not None else ())]
    for fabric, held in measured.fabrics.items():
        where = ("measured", "fabrics", fabric)
        yield from _lacks(held.net, across, (*where, "net"))
        yield from _ramps(held.ramps, [*across, *_flagged([p for p in held.protocols if p in protocols])], where)


def _adds_in_switches(choice: Any, generation: str) -> bool:
    caps = choice.caps.get(choice.family.get(generation, generation))
    return caps is not None and caps.nvls_efficiency is not None


def _flagged(protocols: Sequence[str]) -> list[str]:
    """LL and LL128 have a ramp each for all algorithms; those of Simple go by algorithm."""
    return [name for name in protocols if name != "Simple"]


def _lacks(table: Mapping[str, Any], names: Sequence[str], where: Place) -> Iterator[tuple[Place, str]]:
    yield from (((*where, name), "") for name in names if name not in table)


def _ramps(ramps: Mapping[str, Any], names: Sequence[str], where: Place) -> Iterator[tuple[Place, str]]:
    yield from _lacks(ramps, names, (*where, "ramps"))
    for name, ramp in ramps.items():
        if any(later[0] <= earlier[0] for earlier, later in pairwise(ramp)):
            yield (*where, "ramps", name), "the times of its points must rise"


def families_without_row(
    family: Mapping[str, str], rows: Mapping[str, Any], where: Place
) -> Iterator[tuple[Place, str]]:
    """Generations that are said to go by a row that does not exist."""
    for generation, row in family.items():
        if row not in rows:
            yield (*where, "family", generation), f"'{row}' has no row; there are {', '.join(rows)}"
