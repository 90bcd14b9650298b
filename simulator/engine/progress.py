"""Activities that progress at changing speeds on a SimPy clock: compute slowed by collectives, coflows sharing links.

Speeds are set once per instant, after everything that starts or ends at it, and only where something has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

import simpy

from simulator.engine.clock import Clock
from simulator.engine.instants import EndOfInstant

_SAME_TIME = 1e-12


@dataclass(slots=True, eq=False)
class Activity:
    """Work in seconds at full speed. number: in the order of starts. at_end: called when it is over, before ``ended``
    happens.
    """

    number: int
    left_s: float
    ended: simpy.Event
    at_end: Callable[[Activity], None]
    since_s: float
    speed: float = 0.0
    end_s: float = float("inf")


#: Activities that may have another speed now, and that speed, above 0 and at most 1.
NewSpeeds = Callable[[], Iterable[tuple[Activity, float]]]


class Progress:
    """Runs activities to their ends; ``new_speeds`` is asked once at the end of an instant in which it may say more.

    Cost of a change: those activities whose speeds it sets, and the logarithm of the number of all.
    """

    def __init__(self, env: Clock, new_speeds: NewSpeeds) -> None:
        self._env = env
        self._new_speeds = new_speeds
        self._ends: list[tuple[float, int, Activity]] = []
        self._sharing = EndOfInstant(env, self._share)
        self._started = self._pushed = 0
        self._due_s = float("inf")

    def run(self, work_s: float, at_end: Callable[[Activity], None], ended: simpy.Event) -> Activity:
        """Start an activity now; ``ended`` happens when it has done ``work_s`` seconds of full-speed work."""
        self._started += 1
        self._sharing.ask()
        return Activity(self._started, work_s, ended, at_end, self._env.now)

    def refresh(self) -> None:
        """Ask for new speeds when this instant is over."""
        self._sharing.ask()

    def _share(self) -> None:
        now = self._env.now
        for activity, speed in self._new_speeds():
            if speed == activity.speed:
                continue
            if activity.speed:
                activity.left_s = max(0.0, activity.left_s - (now - activity.since_s) * activity.speed)
            activity.since_s, activity.speed = now, speed
            activity.end_s = now + activity.left_s / speed
            self._pushed += 1
            heappush(self._ends, (activity.end_s, self._pushed, activity))
        self._wait()

    def _wait(self) -> None:
        """Come back at the next end, unless that is what is waited for already."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][2].end_s:  # its speed has changed since
            heappop(ends)
        if not ends:
            self._due_s = float("inf")
            return
        at = max(self._env.now, ends[0][0])
        if at != self._due_s:
            self._due_s = at
            self._env.timeout(at - self._env.now, at).callbacks.append(self._finish)

    def _finish(self, due: simpy.Event) -> None:
        at = due.value  # the clock may miss it by rounding
        assert at is not None, "made with its time"
        if at != self._due_s:
            return
        self._due_s = float("inf")
        over: list[Activity] = []
        ends, until = self._ends, at * (1 + _SAME_TIME)
        while ends and ends[0][0] <= until:
            end_s, _, activity = heappop(ends)
            if end_s == activity.end_s:
                activity.end_s = float("-inf")
                over.append(activity)
        if len(over) > 1:
            over.sort(key=lambda activity: activity.number)
        for activity in over:
            activity.at_end(activity)
            self._env.soon(activity.ended)
        self.refresh()
