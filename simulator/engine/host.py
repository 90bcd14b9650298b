"""The host thread of each rank class: it issues the plan's tasks in order, each for so long, and waits at times.

It may have begun before the step does on the device: a host that never waits runs ahead from one step to the next.
The queue between host and device is taken to be long enough (a CUDA stream holds about a thousand launches).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import simpy

from simulator.engine.clock import Clock
from simulator.plan import Plan, RankClass, Task


class _Issued(NamedTuple):
    """When the task's first kernel is queued, and when its last is."""

    first: simpy.Event
    last: simpy.Event


class HostThreads:
    """One thread per class. ``ends(task name, class)`` gives the events that a wait for that task waits for.

    ahead_s: by class, how long before the step it begins; 0 where a class is left out. ended_s: by class, when it has
    issued the last task; negative before the step begins.
    """

    def __init__(
        self, plan: Plan, env: Clock, ends: Callable[[str, str], list[simpy.Event]],
        ahead_s: Mapping[str, float],
    ) -> None:  # fmt: skip
        self._plan, self._env, self._ends = plan, env, ends
        self._ahead_s = {ranks.name: ahead_s.get(ranks.name, 0.0) for ranks in plan.classes}
        self.ended_s: dict[str, float] = {}
        self._issued = {
            (task.name, ranks): _Issued(env.event(), env.event()) for task in plan.tasks for ranks in task.classes
        }

    def start(self) -> None:
        """Let all threads run; every task's end event must exist by now."""
        for ranks in self._plan.classes:
            self._env.process(self._thread(ranks))

    def first_launch(self, task: Task, ranks: str) -> simpy.Event:
        """The first kernel of the task is queued."""
        return self._issued[task.name, ranks].first

    def last_launch(self, task: Task, ranks: str) -> simpy.Event:
        """The last kernel of the task is queued: the work cannot end before."""
        return self._issued[task.name, ranks].last

    def _thread(self, ranks: RankClass) -> Generator[simpy.Event, Any, None]:
        for task in self._plan.tasks:
            if ranks.name not in task.classes:
                continue
            for name in task.host_after:
                for event in self._ends(name, ranks.name):
                    self._ahead_s[ranks.name] = 0.0  # what is waited for ends within the step
                    if not event.processed:
                        yield event
            issued = self._issued[task.name, ranks.name]
            launches = max(1, task.launches)  # an operation fused into its neighbours launches nothing
            one_s = task.host_s / launches / ranks.speed
            if (left_s := self._within_the_step(ranks.name, one_s)) > 0:
                yield self._env.timeout(left_s)
            self._env.soon(issued.first)
            if (left_s := self._within_the_step(ranks.name, one_s * (launches - 1))) > 0:
                yield self._env.timeout(left_s)
            self._env.soon(issued.last)
        self.ended_s[ranks.name] = self._env.now - self._ahead_s[ranks.name]

    def _within_the_step(self, ranks: str, seconds: float) -> float:
        """What the thread's work takes of the step: what it does before the step begins takes none."""
        ahead_s = self._ahead_s[ranks]
        if not ahead_s:
            return seconds
        before = min(seconds, ahead_s)
        self._ahead_s[ranks] = ahead_s - before
        return seconds - before
