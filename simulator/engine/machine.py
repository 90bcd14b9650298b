"""The running machine of a training step: SimPy's clock, which ranks are in a collective, and how fast all goes."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from simulator.engine.clock import Clock
from simulator.engine.coflow import Coflow
from simulator.engine.interference import Active, Interference
from simulator.engine.progress import Activity, Progress
from simulator.engine.sharing import Sharing
from simulator.timeline import CollectiveCost


class Machine:
    """Clock and speeds. Compute of a rank class slows while a collective is active on it.

    sharing: how coflows share links; none where no transfer is ever started.
    """

    def __init__(self, classes: Sequence[str], interference: Interference) -> None:
        self.env = Clock()
        self.sharing: Sharing[Activity] | None = None
        self._progress = Progress(self.env, self._new_speeds)
        self._interference = interference
        self._active: dict[str, dict[str, Active]] = {ranks: {} for ranks in classes}
        self._known: dict[tuple[int, bool], tuple[CollectiveCost, Active]] = {}  # by identity, so costs are held
        self._computing: dict[str, dict[Activity, None]] = {ranks: {} for ranks in classes}
        self._beside: dict[str, None] = {}
        self._alone: list[Activity] = []

    def copy(self, seconds: float) -> simpy.Event:
        """Start a copy that nothing slows; the event fires at its end."""
        ended = simpy.Event(self.env)
        self._alone.append(self._progress.run(seconds, _nothing, ended))
        return ended

    def compute(self, ranks: str, seconds: float) -> simpy.Event:
        """Start work on a lane of a rank class; the event fires at its end."""
        running, ended = self._computing[ranks], simpy.Event(self.env)
        activity = self._progress.run(seconds, running.pop, ended)
        running[activity] = None
        self._beside[ranks] = None
        return ended

    def transfer(self, coflow: Coflow, ended: simpy.Event) -> None:
        """Start the byte part of a collective; ``ended`` happens at its end."""
        assert self.sharing is not None, "a transfer shares links"
        activity = self._progress.run(coflow.work_s, _nothing, ended)
        if self.sharing.start(activity, coflow):
            activity.at_end = self.sharing.end
        else:
            self._alone.append(activity)

    def send(self, ranks: str, task: str, cost: CollectiveCost, *, waiting: bool) -> None:
        """The collective of a task is active on a rank class: it sends, at its mean rate, or waits for others."""
        key = (id(cost), waiting)
        if key not in self._known:
            rate = cost.sent_bytes_per_rank / cost.alone_s if cost.alone_s and not waiting else 0.0
            self._known[key] = (cost, Active(channels=cost.channels, bytes_per_s=rate))
        self._active[ranks][task] = self._known[key][1]
        self._changed(ranks)

    def leave(self, ranks: str, task: str) -> None:
        """The collective of a task is over on a rank class."""
        del self._active[ranks][task]
        self._changed(ranks)

    def _changed(self, ranks: str) -> None:
        if self._computing[ranks]:
            self._beside[ranks] = None
            self._progress.refresh()

    def _new_speeds(self) -> list[tuple[Activity, float]]:
        found = [(activity, 1.0) for activity in self._alone]
        self._alone.clear()
        if self.sharing is not None:
            found += self.sharing.changed()
        for ranks in self._beside:
            if running := self._computing[ranks]:
                speed = self._interference.speed(self._active[ranks].values())
                found += [(activity, speed) for activity in running]
        self._beside.clear()
        return found


def _nothing(_activity: Activity) -> None:
    """Nobody keeps an activity that runs alone."""
