"""Ctrl-C and the other requests to stop, noted when they come and answered at a place of our choosing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], int | None]]:
    """Inside, SIGINT, SIGTERM and SIGHUP interrupt nothing; the value says which one came first, or None.

    So a row is never half written and workers are never half stopped. A signal that was ignored before (nohup, a
    job in the background) stays ignored. Main thread only.
    """
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number in numbers if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, note)
    try:
        yield lambda: seen[0] if seen else None
    finally:
        for number in heard:
            signal.signal(number, before[number])
