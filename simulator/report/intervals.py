"""Lengths of unions and differences of time intervals: what 'hidden' and 'exposed' are made of. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals that cover the same times, ascending."""
    merged: list[Interval] = []
    first, last = 0.0, -math.inf
    for start, end in sorted([interval for interval in intervals if interval[1] > interval[0]]):
        if start > last:
            merged.append((first, last))
            first, last = start, end
        elif end > last:
            last = end
    merged.append((first, last))
    return merged[1:]  # before the first one there was nothing


def total(intervals: Iterable[Interval]) -> float:
    """Summed length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def minus(intervals: Sequence[Interval], cover: Sequence[Interval]) -> list[Interval]:
    """The parts of disjoint ``intervals`` outside disjoint ``cover``; both ascending. One pass over both."""
    left: list[Interval] = []
    place = 0
    for start, end in intervals:
        at = start
        while place < len(cover) and cover[place][1] <= at:
            place += 1
        look = place
        while look < len(cover) and cover[look][0] < end:
            if cover[look][0] > at:
                left.append((at, cover[look][0]))
            at = max(at, cover[look][1])
            look += 1
        if at < end:
            left.append((at, end))
    return left
