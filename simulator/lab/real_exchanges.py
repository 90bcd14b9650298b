# mypy: disable-error-code="import-not-found,misc"
"""What a sleeping layer sends to the ranks that share the model with it, around and beside its sleep. Needs torch.

Of each exchange ``{"axis", "op", "size_bytes", "when", "count", "pieces"}``, as in a scenario's measured layers. What
stands 'before' or 'after' is waited for; what stands 'beside' is begun before the layer sleeps and waited for after it.
With ``pieces`` the forward sleeps in so many, and each but the last has a part of the exchanges beside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.lab.real_operations import OPERATIONS, Begin, whole_ranks


class _Exchange:
    def __init__(self, told: Mapping[str, Any], group: Any) -> None:
        unknown = set(told) - {"axis", "op", "size_bytes", "when", "count", "pieces"}
        if unknown or told["op"] not in OPERATIONS:
            raise ValueError(f"exchange {dict(told)}: expected an op of {sorted(OPERATIONS)} and no {sorted(unknown)}")
        self.when, self.count, self.pieces = str(told["when"]), int(told.get("count", 1)), int(told.get("pieces", 1))
        self.begin: Begin = OPERATIONS[told["op"]](whole_ranks(told["size_bytes"], group), group)

    def one_by_one(self, count: int) -> None:
        """So many in a row, each waited for."""
        for _ in range(count):
            self.begin()()


class Exchanges:
    """All exchanges of a layer. groups: axis -> the group that this rank is in."""

    def __init__(self, told: Sequence[Mapping[str, Any]], groups: Mapping[str, Any]) -> None:
        self._all = [_Exchange(one, groups[one["axis"]]) for one in told]

    @property
    def in_halves(self) -> bool:
        """Whether a backward has something beside one of its halves: the input's gradient, then the weights'."""
        return any(one.when in ("beside input", "beside weights") for one in self._all)

    def before(self, passing: str) -> None:
        """What comes before a 'forward' or 'backward'."""
        self._run(f"before {passing}")

    def after(self, passing: str) -> None:
        """What comes after it."""
        self._run(f"after {passing}")

    def _run(self, when: str) -> None:
        for one in self._all:
            if one.when == when:
                one.one_by_one(one.count)

    def asleep(self, when: str, seconds: float) -> None:
        """Sleep, with what runs beside: 'beside forward', 'beside input' or 'beside weights'."""
        beside = [one for one in self._all if one.when == when]
        pieces = max((one.pieces for one in beside), default=1)
        for piece in range(max(1, pieces - 1)):
            self._beside(beside, piece, max(1, pieces - 1), seconds / pieces)
        if pieces > 1:
            time.sleep(seconds / pieces)

    def _beside(self, beside: Sequence[_Exchange], piece: int, of: int, seconds: float) -> None:
        """A piece of the sleep: the thread, which has nothing else to do, sees to the exchanges and sleeps the rest."""
        until = time.perf_counter() + seconds
        counts = [one.count // of + (piece < one.count % of) for one in beside]
        begun = [(one, count, one.begin()) for one, count in zip(beside, counts, strict=True) if count]
        for one, count, wait in begun:
            wait()
            one.one_by_one(count - 1)
        time.sleep(max(0.0, until - time.perf_counter()))
