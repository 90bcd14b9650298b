"""Work that is due once an instant is over: after everything else that SimPy runs at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from simulator.engine.clock import LAST


class EndOfInstant:
    """Calls ``work`` once at the end of the current instant, however often it is asked to."""

    def __init__(self, env: simpy.Environment, work: Callable[[], None]) -> None:
        self._env = env
        self._work = work
        self._due = False
        self._event = simpy.Event(env)
        self._event._ok, self._event._value = True, None
        self._calls: list[Callable[[Any], None]] = [self._call]

    def ask(self) -> None:
        """Have ``work`` called when this instant is over."""
        if self._due:
            return
        self._due = True
        self._event.callbacks = self._calls  # one event for all instants: it is over before it is wanted again
        self._env.schedule(self._event, LAST)

    def _call(self, _event: simpy.Event) -> None:
        self._due = False
        self._work()
