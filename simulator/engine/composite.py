"""Hierarchical collectives as a user composes them from library calls: one in the node, one on every rail, one in the
node. Each call is priced as the library would run it; the calls follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.collectives import make_schedule
from simulator.engine.layouts import layout_of
from simulator.engine.pricer import Pricer, make_pricer
from simulator.engine.wires import make_wires
from simulator.network.graph import Network
from simulator.network.routes import Routes
from simulator.schedule import Ints, Schedule
from simulator.tuning.choice import Option
from simulator.tuning.measured import Cost

#: Stages of a hierarchical operation: (operation, on the node or across the nodes).
_STAGES = {
    "all_reduce": (("reduce_scatter", "node"), ("all_reduce", "rail"), ("all_gather", "node")),
    "reduce_scatter": (("reduce_scatter", "node"), ("reduce_scatter", "rail")),
    "all_gather": (("all_gather", "rail"), ("all_gather", "node")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """Stages in order: who prices the call, and which share of the message it is called with."""

    stages: tuple[tuple[Pricer, float], ...]

    def option(self, size_bytes: float) -> Option:
        """All calls together. The protocol is that of the call that takes longest."""
        calls = [pricer.picked(size_bytes * share) for pricer, share in self.stages]
        latency, transfer = (sum(getattr(one.cost, part) for one in calls) for part in ("latency_s", "transfer_s"))
        longest = max(calls, key=lambda one: one.cost.time_s)
        cost = Cost(latency_s=latency, transfer_s=transfer, inflation=longest.cost.inflation)
        return Option(algorithm="hierarchical", protocol=longest.protocol, believed_s=None, cost=cost)


def make_composite(op: str, network: Network, groups: Ints) -> Composite | None:
    """The hierarchical form of ``op`` on groups (num_groups, p) that run at once; None where it has none: an operation
    without stages, ranks on one node or not equally many on each.
    """
    layout = layout_of(network, groups[0])
    nodes, per_node = layout.grid
    if op not in _STAGES or nodes == 1 or per_node == 1:
        return None
    grid = groups.reshape(len(groups), nodes, per_node)
    on_node = grid.reshape(-1, per_node)
    on_rail = grid.transpose(0, 2, 1).reshape(-1, nodes)
    routes = Routes(network)
    stages = []
    for name, where in _STAGES[op]:
        placed = on_node if where == "node" else on_rail
        pricer = _pricer(name, network, placed, routes)
        if pricer is None:
            return None
        stages.append((pricer, 1.0 if where == "node" else 1.0 / per_node))
    return Composite(stages=tuple(stages))


def _pricer(op: str, network: Network, placed: Ints, routes: Routes) -> Pricer | None:
    """Prices ``op`` on all rows of ``placed`` (num_groups, p) at once."""
    layouts = [layout_of(network, row) for row in placed]

    def schedules(name: str) -> list[Schedule]:
        made = {one: make_schedule(op, name, one, 0.0) for one in dict.fromkeys(layouts)}
        return [made[one] for one in layouts]

    gpus = np.ascontiguousarray(placed).ravel()
    return make_pricer(op, schedules, make_wires(network, gpus, routes), placed.shape[1])
