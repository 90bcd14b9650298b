"""Activities that progress at changing speeds on a SimPy clock: compute slowed by collectives, coflows sharing links.

Speeds are set once per instant, after everything that starts or ends at it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import simpy

from simulator.engine.instants import EndOfInstant

_SAME_TIME = 1e-12


@dataclass(slots=True, eq=False)
class Activity:
    """Work in seconds at full speed. ``what`` is for the function that sets speeds."""

    what: object
    left_s: float
    ended: simpy.Event
    speed: float = 0.0
    since_s: float = 0.0
    end_s: float = float("inf")


#: Speeds, each above 0 and at most 1, of the activities that are running.
SetSpeeds = Callable[[list[Activity]], list[float]]


class Progress:
    """Runs activities to their ends; ``set_speeds`` is asked again whenever one starts or ends."""

    def __init__(self, env: simpy.Environment, set_speeds: SetSpeeds) -> None:
        self._env = env
        self._set_speeds = set_speeds
        self._running: list[Activity] = []
        self._sharing = EndOfInstant(env, self._share)
        self._version = 0

    def run(self, what: object, work_s: float) -> simpy.Event:
        """Start an activity now; the event fires when it has done ``work_s`` seconds of full-speed work."""
        activity = Activity(what=what, left_s=work_s, ended=self._env.event(), since_s=self._env.now)
        self._running.append(activity)
        self.refresh()
        return activity.ended

    def refresh(self) -> None:
        """Set the speeds again when this instant is over."""
        self._sharing.ask()

    def _share(self) -> None:
        now = self._env.now
        for activity, speed in zip(self._running, self._set_speeds(self._running), strict=True):
            if speed == activity.speed:
                continue
            activity.left_s = max(0.0, activity.left_s - (now - activity.since_s) * activity.speed)
            activity.since_s, activity.speed = now, speed
            activity.end_s = now + activity.left_s / speed
        self._version += 1
        if not self._running:
            return
        at = max(now, min(a.end_s for a in self._running))
        version = self._version
        timeout = self._env.timeout(at - now)
        timeout.callbacks.append(lambda _event: self._finish(at) if version == self._version else None)

    def _finish(self, at: float) -> None:
        over = [a for a in self._running if a.end_s <= at * (1 + _SAME_TIME)]
        self._running = [a for a in self._running if a.end_s > at * (1 + _SAME_TIME)]
        for activity in over:
            activity.ended.succeed()
        self.refresh()
