"""Collective algorithms: plain functions ``(layout, size_bytes) -> Schedule``. They know no network and no clock.

``ALGORITHMS`` is the one place to add one: (operation, algorithm) -> function. ``check`` and the law tests run
over the whole table, so a new line is tested the moment it exists.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from simulator.collectives import (
    alltoall,
    bruck,
    chain,
    double_tree,
    halving_doubling,
    hierarchical,
    naive,
    nvls,
    rail,
    ring,
    torus,
    tree,
)
from simulator.collectives.layout import Layout
from simulator.errors import ScenarioError
from simulator.schedule import Schedule

#: Name that asks for what the library runs, or, where it has no choice of its own, for what is fastest.
AUTO = "auto"

Algorithm = Callable[[Layout, float], Schedule]

ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    ("all_reduce", "ring"): ring.all_reduce,
    ("reduce_scatter", "ring"): ring.reduce_scatter,
    ("all_gather", "ring"): ring.all_gather,
    ("broadcast", "ring"): chain.broadcast,
    ("reduce", "ring"): chain.reduce,
    ("broadcast", "tree"): tree.broadcast,
    ("broadcast", "eager_tree"): tree.eager_broadcast,
    ("reduce", "tree"): tree.reduce,
    ("scatter", "tree"): tree.scatter,
    ("gather", "tree"): tree.gather,
    ("all_reduce", "tree"): tree.all_reduce,
    ("all_reduce", "double_tree"): double_tree.all_reduce,
    ("all_reduce", "hierarchical"): hierarchical.all_reduce,
    ("reduce_scatter", "hierarchical"): hierarchical.reduce_scatter,
    ("all_gather", "hierarchical"): hierarchical.all_gather,
    ("broadcast", "hierarchical"): hierarchical.broadcast,
    ("reduce", "hierarchical"): hierarchical.reduce,
    ("all_reduce", "nvls"): nvls.all_reduce,
    ("reduce_scatter", "nvls"): nvls.reduce_scatter,
    ("all_gather", "nvls"): nvls.all_gather,
    ("all_reduce", "nvls_tree"): nvls.tree_all_reduce,
    ("reduce_scatter", "pat"): bruck.reduce_scatter,
    ("all_gather", "pat"): bruck.all_gather,
    ("all_reduce", "halving_doubling"): halving_doubling.all_reduce,
    ("reduce_scatter", "halving_doubling"): halving_doubling.reduce_scatter,
    ("all_gather", "halving_doubling"): halving_doubling.all_gather,
    ("all_to_all", "direct"): alltoall.direct_all_to_all,
    ("all_to_all", "pairwise"): alltoall.pairwise_all_to_all,
    ("all_to_all", "rail"): rail.all_to_all,
    ("all_to_all", "bruck"): bruck.all_to_all,
    ("all_reduce", "direct"): alltoall.direct_all_reduce,
    ("reduce_scatter", "direct"): alltoall.direct_reduce_scatter,
    ("all_gather", "direct"): alltoall.direct_all_gather,
    ("scatter", "direct"): alltoall.direct_scatter,
    ("gather", "direct"): alltoall.direct_gather,
    ("send_recv", "direct"): alltoall.direct_send_recv,
    ("all_reduce", "torus"): torus.all_reduce,
    ("reduce_scatter", "torus"): torus.reduce_scatter,
    ("all_gather", "torus"): torus.all_gather,
    ("all_reduce", "naive"): naive.all_reduce,
    ("reduce_scatter", "naive"): naive.reduce_scatter,
    ("all_gather", "naive"): naive.all_gather,
    ("broadcast", "naive"): naive.broadcast,
    ("reduce", "naive"): naive.reduce,
    ("scatter", "naive"): naive.scatter,
    ("gather", "naive"): naive.gather,
    ("all_to_all", "naive"): naive.all_to_all,
}

#: What plans alone ask for, as it makes no sense for a group of any size: one rank sends to another, one way.
PLAN_ONLY: dict[tuple[str, str], Algorithm] = {("send", "direct"): alltoall.direct_send}

OPERATIONS: tuple[str, ...] = (
    "broadcast", "scatter", "gather", "reduce", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv",
)  # fmt: skip


def algorithms_of(op: str) -> tuple[str, ...]:
    """Names of the algorithms of an operation. Raises ScenarioError with the nearest name for an unknown one."""
    names = tuple(name for (operation, name) in (*ALGORITHMS, *PLAN_ONLY) if operation == op)
    if not names:
        raise ScenarioError(f"operation '{op}' is unknown; accepted: {', '.join(OPERATIONS)}{_nearest(op, OPERATIONS)}")
    return names


def make_schedule(op: str, algorithm: str, layout: Layout, size_bytes: float) -> Schedule:
    """Look the algorithm up and call it. Raises ScenarioError with the nearest name for an unknown one."""
    names = algorithms_of(op)
    if algorithm not in names:
        hint = _nearest(algorithm, names)
        raise ScenarioError(f"algorithm '{algorithm}' is not known for {op}; accepted: {', '.join(names)}{hint}")
    return (ALGORITHMS | PLAN_ONLY)[op, algorithm](layout, size_bytes)


def _nearest(name: str, names: tuple[str, ...]) -> str:
    match = get_close_matches(name.replace("-", "_").lower(), names, n=1)
    return f"; did you mean '{match[0]}'?" if match else ""
