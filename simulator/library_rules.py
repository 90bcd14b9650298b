"""What a library's profile must say to be usable: the constants of each algorithm that it may run, known names.

A library with a cost model needs constants for all that it may run, both in what it believes (``choice``) and in what
runs show (``measured``). One without fixes algorithms by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from simulator.problems import nearest

#: What every such library runs: rings, double trees, and sends and receives.
ALWAYS = ("ring", "double_tree", "p2p")
IN_SWITCHES = ("nvls", "nvls_tree")
#: What a library may believe something about.
BELIEVED = ("ring", "double_tree", *IN_SWITCHES, "pat")
#: One curve of a tree's correction, one number of a latency for each of LL, LL128 and Simple.
PROTOCOLS = 3

#: Algorithms of each operation; tests/test_libraries.py holds them equal to ``simulator.collectives.ALGORITHMS``.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": (
        "ring", "tree", "double_tree", "hierarchical", "nvls", "nvls_tree", "halving_doubling", "direct", "torus",
        "naive",
    ),
    "reduce_scatter": ("ring", "hierarchical", "nvls", "pat", "halving_doubling", "direct", "torus", "naive"),
    "all_gather": ("ring", "hierarchical", "nvls", "pat", "halving_doubling", "direct", "torus", "naive"),
    "broadcast": ("ring", "tree", "eager_tree", "hierarchical", "naive"),
    "reduce": ("ring", "tree", "hierarchical", "naive"),
    "scatter": ("tree", "direct", "naive"),
    "gather": ("tree", "direct", "naive"),
    "all_to_all": ("direct", "pairwise", "rail", "bruck", "naive"),
    "send_recv": ("direct",),
}  # fmt: skip

#: Operations whose result holds that of another of the same size, so that a library may run them in its place.
IN_PLACE_OF: Mapping[str, tuple[str, ...]] = {
    "broadcast": ("all_reduce",),
    "reduce": ("all_reduce",),
    "reduce_scatter": ("all_reduce",),
    "all_gather": ("all_reduce",),
    "gather": ("all_gather",),
    "scatter": ("broadcast", "all_to_all"),
}

Place = tuple[str | int, ...]
Found = Iterator[tuple[Place, str]]


def missing_constants(measured: Any, choice: Any, protocols: Sequence[str]) -> Found:
    """(place, what is wrong) for each constant that ``measured`` lacks. An empty message: the key is missing."""
    names = (*BELIEVED, "p2p")
    for generation, node in measured.generations.items():
        adds = choice is not None and _adds_in_switches(choice, generation)
        algorithms = [*ALWAYS, *(IN_SWITCHES if adds else ()), *(("pat",) if choice is not None else ())]
        where: Place = ("measured", "generations", generation)
        for table in ("base", "nvlink", "pcie"):
            held = [name for name in algorithms if table != "pcie" or name not in IN_SWITCHES]
            yield from _table(getattr(node, table), held, names, (*where, table))
        inside = [name for name in algorithms if name != "nvls_tree"]
        yield from _ramps(node.ramps, [*inside, *_flagged(protocols)], where)
    across = [*ALWAYS, *(("nvls_tree",) if _ever_in_switches(choice) else ()), *(("pat",) if choice else ())]
    for fabric, held in measured.fabrics.items():
        where = ("measured", "fabrics", fabric)
        yield from _table(held.net, across, names, (*where, "net"))
        yield from _ramps(held.ramps, [*across, *_flagged([p for p in held.protocols if p in protocols])], where)


def missing_beliefs(choice: Any, measured: Any, cpus: Sequence[str]) -> Found:
    """(place, what is wrong) for what ``choice`` lacks to decide on every machine that ``measured`` knows."""
    if choice is None:
        return
    switched = IN_SWITCHES if _ever_in_switches(choice) else ()
    needs = {"base": switched, "nvlink": switched, "pcie": (), "net": switched[1:]}  # NVLS stays in one node
    for table, more in needs.items():
        where: Place = ("choice", "latency", table)
        yield from _table(getattr(choice.latency, table), ["ring", "double_tree", "pat", *more], BELIEVED, where)
    for generation, caps in choice.caps.items():
        if caps.nvls_efficiency is not None and caps.nvls_tree is None:
            yield ("choice", "caps", generation, "nvls_tree"), ""
        for key in ("channel_speeds", "net_speeds"):
            if not getattr(caps, key):
                yield ("choice", "caps", generation, key), "must hold at least 1 items; got []"
    for generation in dict.fromkeys([*measured.generations, *measured.family]):
        if generation not in choice.family and generation not in choice.caps:
            yield (
                ("choice", "caps"),
                f"no row for '{generation}', which 'measured' knows; add it, or name another under choice.family",
            )
    for cpu in cpus:
        if cpu not in choice.net_overhead:
            yield ("choice", "net_overhead", cpu), ""
        if cpu not in choice.ll_multi_node:
            yield ("choice", "ll_multi_node", cpu), ""
        elif choice.ll_multi_node[cpu] not in choice.caps:
            row = choice.ll_multi_node[cpu]
            yield ("choice", "ll_multi_node", cpu), f"'{row}' has no row; there are {', '.join(choice.caps)}"
    yield from _tree_corrections(choice.tree_correction)
    yield from _table(choice.corrected_on_x86, (), BELIEVED, ("choice", "corrected_on_x86"))


def _tree_corrections(given: Mapping[str, Sequence[Sequence[float]]]) -> Found:
    where: Place = ("choice", "tree_correction")
    yield from _table(given, (), BELIEVED, where)
    for name, curves in given.items():
        if len(curves) != PROTOCOLS:
            yield (*where, name), f"must hold a list for each of LL, LL128 and Simple; got {len(curves)}"
        yield from (((*where, name, at), "must hold at least 1 items; got []") for at, c in enumerate(curves) if not c)


def unknown_algorithms(algorithms: Mapping[str, str], runs_as: Mapping[str, str]) -> Found:
    """(place, what is wrong) for algorithms and stand-ins that an ``alpha_beta`` library names and nobody can run.

    Both map operations to a name: of an algorithm, and of the operation that is really performed.
    """
    for block, given in (("algorithms", algorithms), ("runs_as", runs_as)):
        for op in (op for op in given if op not in ALGORITHMS):
            yield (block, op), f"unknown operation '{op}'; accepted: {', '.join(ALGORITHMS)}{nearest(op, ALGORITHMS)}"
    algorithms = {op: name for op, name in algorithms.items() if op in ALGORITHMS}
    runs_as = {op: run for op, run in runs_as.items() if op in ALGORITHMS}
    refused = [op for op, run in runs_as.items() if run not in IN_PLACE_OF.get(op, ())]
    for op in refused:
        others = IN_PLACE_OF.get(op, ())
        accepted = f"accepted: {', '.join(others)}" if others else f"nothing stands in for {op}; leave it out"
        why = "is no operation" if runs_as[op] not in ALGORITHMS else f"does not do all that {op} does"
        yield ("runs_as", op), f"'{runs_as[op]}' {why}; {accepted}{nearest(runs_as[op], others)}"
    for op, name in algorithms.items():
        run = op if op in refused else runs_as.get(op, op)
        known = ALGORITHMS[run]
        if name not in known:
            told = op if run == op else f"{run}, which runs_as gives for {op}"
            yield (
                ("algorithms", op),
                f"unknown algorithm '{name}' of {told}; accepted: {', '.join(known)}{nearest(name, known)}",
            )
    for op, run in runs_as.items():
        # without a name the fastest of op's own algorithms is looked for, by the names of ``run``
        if op not in refused and op not in algorithms and set(ALGORITHMS[op]) - {"pat"} - set(ALGORITHMS[run]):
            yield ("runs_as", op), f"say which algorithm of {run} runs, under algorithms.{op}"


def _ever_in_switches(choice: Any) -> bool:
    return choice is not None and any(caps.nvls_efficiency is not None for caps in choice.caps.values())


def _adds_in_switches(choice: Any, generation: str) -> bool:
    caps = choice.caps.get(choice.family.get(generation, generation))
    return caps is not None and caps.nvls_efficiency is not None


def _flagged(protocols: Sequence[str]) -> list[str]:
    """LL and LL128 have a ramp each for all algorithms; those of Simple go by algorithm."""
    return [name for name in protocols if name != "Simple"]


def _table(table: Mapping[str, Any], names: Sequence[str], accepted: Sequence[str], where: Place) -> Found:
    """Names that a table lacks (a misspelt one is reported once, where it stands), and those it should not hold."""
    unknown = [name for name in table if name not in accepted]
    for name in unknown:
        said = f"unknown algorithm '{name}'; accepted: {', '.join(accepted)}{nearest(name, accepted)}"
        yield (*where, name), said
    meant = "".join(nearest(name, accepted) for name in unknown)
    yield from (((*where, name), "") for name in names if name not in table and f"'{name}'" not in meant)


def _ramps(ramps: Mapping[str, Any], names: Sequence[str], where: Place) -> Found:
    yield from _table(ramps, names, (*BELIEVED, "p2p", "LL", "LL128"), (*where, "ramps"))
    for name, ramp in ramps.items():
        if any(later[0] <= earlier[0] for earlier, later in pairwise(ramp)):
            yield (*where, "ramps", name), "the times of its points must rise"
        elif any(later[0] / later[1] < earlier[0] / earlier[1] for earlier, later in pairwise(ramp)):
            yield (*where, "ramps", name), "more bytes must not take less time: time / share may not fall"


def families_without_row(family: Mapping[Any, str], rows: Mapping[Any, Any], where: Place) -> Found:
    """Generations that are said to go by a row that does not exist."""
    for generation, row in family.items():
        if row not in rows:
            yield (*where, "family", generation), f"'{row}' has no row; there are {', '.join(rows)}"
