"""Units of axes, and lengths of labels: shared by the page and the pictures."""

from __future__ import annotations

from math import ceil, floor, log10
from textwrap import fill
from typing import NamedTuple


class Unit(NamedTuple):
    """A value in SI units divided by ``factor`` is in ``name``."""

    factor: float
    name: str


_TIMES = (Unit(1.0, "s"), Unit(1e-3, "ms"), Unit(1e-6, "us"))


def time_unit(longest_s: float) -> Unit:
    """Seconds, milliseconds or microseconds, so that the longest time has one to three digits before the point."""
    return next((unit for unit in _TIMES if longest_s >= unit.factor), _TIMES[-1])


def memory_unit(most_bytes: float) -> Unit:
    """GiB, or MiB below one of them."""
    return Unit(2.0**30, "GiB") if most_bytes >= 2**30 else Unit(2.0**20, "MiB")


def nice_share(largest: float) -> float:
    """The end of a scale of shares that holds the largest: 5, 10, 25, 50 or 100 %."""
    return next((end for end in (0.05, 0.10, 0.25, 0.50, 1.0) if largest <= end), largest)


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten on a short axis, whole powers on a long one."""
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [float(f"{step}e{power}") for power in powers for step in steps if low <= float(f"{step}e{power}") <= high]


def wrapped(text: str, width: int) -> str:
    """Lines of at most ``width`` characters; long names break where they must."""
    return fill(text, width, break_on_hyphens=False)
