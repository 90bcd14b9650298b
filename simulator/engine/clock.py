"""SimPy's clock with shorter queues: the same events at the same times in the same order.

Most events of a step happen in the instant that makes them: something is over, and what waited for it starts. They
stand in rows, first come first served, while SimPy's heap is left for those that come later.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import simpy
from simpy.core import SimTime
from simpy.events import NORMAL, PENDING, URGENT, EventPriority

#: Once all else of an instant has happened.
LAST = EventPriority(2)


class Clock(simpy.Environment):
    """An environment that runs until nothing is left. Events of an instant: urgent, then normal, then last ones."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("process", "timeout", "event"):  # bound once, as SimPy does for what is no subclass
            setattr(self, name, getattr(self, name))
        self._later: list[tuple[SimTime, int, simpy.Event]] = []
        self._scheduled = 0
        self._rows = {URGENT: deque[simpy.Event](), NORMAL: deque[simpy.Event](), LAST: deque[simpy.Event]()}
        self._row = self._rows[NORMAL]

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        """Have an event happen after a delay, which is 0 for all but normal ones."""
        at = self._now + delay
        if at == self._now:
            (self._row if priority == NORMAL else self._rows[priority]).append(event)
            return
        assert priority == NORMAL, "what comes later is a normal event"
        self._scheduled += 1
        heappush(self._later, (at, self._scheduled, event))

    def soon(self, event: simpy.Event) -> None:
        """Have an event succeed in this instant: ``event.succeed()`` without its detours."""
        assert event._value is PENDING, "an event happens once"
        event._ok, event._value = True, None
        self._row.append(event)

    def run(self, until: SimTime | simpy.Event | None = None) -> None:
        """Let events happen until none is left. An event that has failed raises what it failed with."""
        assert until is None, "a step runs to its end"
        urgent, row, last, later = *self._rows.values(), self._later
        while True:
            if urgent:
                event = urgent.popleft()
            elif row:
                event = row.popleft()
            elif last:
                event = last.popleft()
            elif later:
                self._now = at = later[0][0]
                while later and later[0][0] == at:
                    row.append(heappop(later)[2])
                continue
            else:
                return
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]  # SimPy's mark of the past
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
