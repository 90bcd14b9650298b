"""The running machine of a training step: SimPy's clock, which ranks are in a collective, and how fast all goes."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from simulator.engine.coflow import Coflow, speeds
from simulator.engine.progress import Activity, Progress
from simulator.schedule import Floats


class Machine:
    """Clock and speeds. Compute of a rank class slows by ``slowdown`` while a collective is active on it.

    capacity: (num_links,) bytes/s that coflows share.
    """

    def __init__(self, classes: Sequence[str], capacity: Floats, slowdown: float) -> None:
        self.env = simpy.Environment()
        self._progress = Progress(self.env, self._speeds)
        self._capacity = capacity
        self._slowdown = slowdown
        self._in_collectives = dict.fromkeys(classes, 0)

    def compute(self, ranks: str, seconds: float) -> simpy.Event:
        """Start work on the compute lane of a rank class; the event fires at its end."""
        return self._progress.run(ranks, seconds)

    def transfer(self, coflow: Coflow) -> simpy.Event:
        """Start the byte part of a collective; the event fires at its end."""
        return self._progress.run(coflow, coflow.work_s)

    def enter(self, ranks: str) -> None:
        """A collective becomes active on a rank class."""
        self._in_collectives[ranks] += 1
        self._progress.refresh()

    def leave(self, ranks: str) -> None:
        """A collective of a rank class is over."""
        self._in_collectives[ranks] -= 1
        self._progress.refresh()

    def _speeds(self, running: list[Activity]) -> list[float]:
        flows = [a.what for a in running if isinstance(a.what, Coflow)]
        shares = iter(speeds(flows, self._capacity) if len(flows) > 1 else [1.0] * len(flows))
        return [next(shares) if isinstance(a.what, Coflow) else self._compute_speed(str(a.what)) for a in running]

    def _compute_speed(self, ranks: str) -> float:
        return 1.0 - self._slowdown if self._in_collectives[ranks] else 1.0
