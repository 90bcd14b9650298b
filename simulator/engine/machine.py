"""The running machine of a training step: SimPy's clock, which ranks are in a collective, and how fast all goes."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from simulator.engine.coflow import Coflow, speeds
from simulator.engine.interference import Active, Interference
from simulator.engine.progress import Activity, Progress
from simulator.schedule import Floats
from simulator.timeline import CollectiveCost


class Machine:
    """Clock and speeds. Compute of a rank class slows while a collective is active on it.

    capacity: (num_links,) bytes/s that coflows share.
    """

    def __init__(self, classes: Sequence[str], capacity: Floats, interference: Interference) -> None:
        self.env = simpy.Environment()
        self._progress = Progress(self.env, self._speeds)
        self._capacity = capacity
        self._interference = interference
        self._active: dict[str, dict[str, Active]] = {ranks: {} for ranks in classes}

    def compute(self, ranks: str, seconds: float) -> simpy.Event:
        """Start work on a lane of a rank class; the event fires at its end."""
        return self._progress.run(ranks, seconds)

    def transfer(self, coflow: Coflow) -> simpy.Event:
        """Start the byte part of a collective; the event fires at its end."""
        return self._progress.run(coflow, coflow.work_s)

    def send(self, ranks: str, task: str, cost: CollectiveCost, *, waiting: bool) -> None:
        """The collective of a task is active on a rank class: it sends, at its mean rate, or waits for others."""
        rate = cost.sent_bytes_per_rank / cost.alone_s if cost.alone_s else 0.0
        self._active[ranks][task] = Active(channels=cost.channels, bytes_per_s=0.0 if waiting else rate)
        self._progress.refresh()

    def leave(self, ranks: str, task: str) -> None:
        """The collective of a task is over on a rank class."""
        del self._active[ranks][task]
        self._progress.refresh()

    def _speeds(self, running: list[Activity]) -> list[float]:
        flows = [a.what for a in running if isinstance(a.what, Coflow)]
        shares = iter(speeds(flows, self._capacity) if len(flows) > 1 else [1.0] * len(flows))
        return [next(shares) if isinstance(a.what, Coflow) else self._compute_speed(str(a.what)) for a in running]

    def _compute_speed(self, ranks: str) -> float:
        return self._interference.speed(self._active[ranks].values())
