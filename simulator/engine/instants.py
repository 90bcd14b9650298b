"""Work that is due once an instant is over: after everything else that SimPy runs at the same time."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import EventPriority

#: SimPy runs urgent (0) and normal (1) events of an instant before this.
_LAST = EventPriority(2)


class EndOfInstant:
    """Calls ``work`` once at the end of the current instant, however often it is asked to."""

    def __init__(self, env: simpy.Environment, work: Callable[[], None]) -> None:
        self._env = env
        self._work = work
        self._due = False

    def ask(self) -> None:
        """Have ``work`` called when this instant is over."""
        if self._due:
            return
        self._due = True
        event = self._env.event()
        event._ok, event._value = True, None
        event.callbacks.append(self._call)
        self._env.schedule(event, priority=_LAST)

    def _call(self, _event: simpy.Event) -> None:
        self._due = False
        self._work()
