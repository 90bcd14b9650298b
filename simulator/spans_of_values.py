"""Lists of values as the command line writes them: ``2,4,...,4096`` ranks, sizes from 1K to 1G."""

from __future__ import annotations

import re

from simulator.errors import ScenarioError, UnitError
from simulator.units import parse_message_size

MAX_RANKS = 1_000_000
MAX_VALUES = 10_000


def rank_counts(text: str, flag: str) -> list[int]:
    """``"8"``, ``"2,4,8"`` or ``"2,4,...,4096"`` (the ratio or the difference of the first two goes on).

    Raises ScenarioError for anything else, and for counts outside 1 .. MAX_RANKS.
    """
    parts = [part.strip() for part in text.split(",")]
    if "..." in parts:
        parts = [str(value) for value in _continued(parts, text, flag)]
    return list(dict.fromkeys(_rank_count(part, flag) for part in parts))


def _rank_count(part: str, flag: str) -> int:
    if not re.fullmatch(r"\d{1,7}", part) or not 1 <= int(part) <= MAX_RANKS:
        raise ScenarioError(
            f"{flag}: '{part}' is no number of ranks; expected whole numbers from 1 to {MAX_RANKS:,} such as "
            "8, 2,4,8 or 2,4,...,4096"
        )
    return int(part)


def _continued(parts: list[str], text: str, flag: str) -> list[int]:
    place = parts.index("...")
    known = parts[:place]
    ends = parts[place + 1 :]
    for part in known + ends:
        _rank_count(part, flag)
    if len(known) < 2 or len(ends) != 1:
        raise ScenarioError(f"{flag}: '{text}': '...' goes between two starting values and the last: 2,4,...,4096")
    first, second, last = int(known[-2]), int(known[-1]), int(ends[0])
    values = [int(p) for p in known]
    if first < 1 or second <= first or last <= second:
        raise ScenarioError(f"{flag}: '{text}': the values around '...' must grow")
    ratio = second // first if second % first == 0 and _reaches(first, second // first, last) else 0
    while values[-1] < last:
        values.append(values[-1] * ratio if ratio else values[-1] + second - first)
        if len(values) > MAX_VALUES:
            raise ScenarioError(f"{flag}: '{text}' has more than {MAX_VALUES:,} values")
    if values[-1] != last:
        raise ScenarioError(f"{flag}: '{text}': going on from {first}, {second} does not reach {last}")
    return values


def _reaches(first: int, ratio: int, last: int) -> bool:
    value = first
    while value < last:
        value *= ratio
    return value == last


def sizes_between(smallest: str, largest: str, factor: float) -> list[float]:
    """Sizes from ``smallest`` to ``largest``, each ``factor`` times the last, in whole bytes.

    Raises ScenarioError for bad sizes, a factor of 1 or less, or a largest below the smallest.
    """
    low = _size(smallest, "-b")
    high = _size(largest, "-e") if largest else low
    if high < low:
        raise ScenarioError(f"-e: '{largest}' is smaller than -b '{smallest}'")
    if not 1 < factor < float("inf"):
        raise ScenarioError(f"-f: {factor:g}: the ratio of one size to the next must be above 1")
    if low == 0 < high:
        raise ScenarioError("-b: sizes that grow by a factor cannot start at 0; give 1 or more")
    sizes = [low]
    while low and sizes[-1] * factor <= high * (1 + 1e-12):
        following = float(int(sizes[-1] * factor + 0.5))
        sizes.append(max(following, sizes[-1] + 1))
        if len(sizes) > MAX_VALUES:
            raise ScenarioError(f"-f: {factor:g} makes more than {MAX_VALUES:,} sizes")
    return sizes


def _size(text: str, flag: str) -> float:
    if text.strip().startswith("-"):
        raise ScenarioError(f"{flag}: '{text}': a size must be zero or more")
    try:
        size = parse_message_size(text)
    except UnitError as error:
        raise ScenarioError(f"{flag}: '{text}': {error}") from None
    if size < 0 or size != int(size) or size > 2**60:
        raise ScenarioError(f"{flag}: '{text}': expected a whole number of bytes from 0 to 1 EiB")
    return size
