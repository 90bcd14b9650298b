"""The running machine of a training step: SimPy's clock, which ranks are in a collective, and how fast all goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import simpy

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
        self.env = simpy.Environment()
        self.sharing: Sharing[Activity] | None = None
        self._progress = Progress(self.env, self._new_speeds)
        self._interference = interference
        self._active: dict[str, dict[str, Active]] = {ranks: {} for ranks in classes}
        self._computing: dict[str, dict[Activity, None]] = {ranks: {} for ranks in classes}
        self._beside: dict[str, None] = {}
        self._alone: list[Activity] = []

    def compute(self, ranks: str, seconds: float) -> simpy.Event:
        """Start work on a lane of a rank class; the event fires at its end."""
        running = self._computing[ranks]
        activity = self._progress.run(seconds, running.pop)
        running[activity] = None
        self._beside[ranks] = None
        return activity.ended

    def transfer(self, coflow: Coflow) -> simpy.Event:
        """Start the byte part of a collective; the event fires at its end."""
        assert self.sharing is not None, "a transfer shares links"
        activity = self._progress.run(coflow.work_s, _nothing)
        if self.sharing.start(activity, coflow):
            activity.at_end = self.sharing.end
        else:
            self._alone.append(activity)
        return activity.ended

    def send(self, ranks: str, task: str, cost: CollectiveCost, *, waiting: bool) -> None:
        """The collective of a task is active on a rank class: it sends, at its mean rate, or waits for others."""
        rate = cost.sent_bytes_per_rank / cost.alone_s if cost.alone_s else 0.0
        self._active[ranks][task] = Active(channels=cost.channels, bytes_per_s=0.0 if waiting else rate)
        self._changed(ranks)

    def leave(self, ranks: str, task: str) -> None:
        """The collective of a task is over on a rank class."""
        del self._active[ranks][task]
        self._changed(ranks)

    def _changed(self, ranks: str) -> None:
        if self._computing[ranks]:
            self._beside[ranks] = None
            self._progress.refresh()

    def _new_speeds(self) -> Iterator[tuple[Activity, float]]:
        for activity in self._alone:
            yield activity, 1.0
        self._alone.clear()
        if self.sharing is not None:
            yield from self.sharing.changed()
        for ranks in self._beside:
            speed = self._interference.speed(self._active[ranks].values())
            for activity in self._computing[ranks]:
                yield activity, speed
        self._beside.clear()


def _nothing(_activity: Activity) -> None:
    """Nobody keeps an activity that runs alone."""
