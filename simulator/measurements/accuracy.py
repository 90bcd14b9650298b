"""How far predictions are from measurements: relative errors by system, operation and size, against stated targets.

The error of a row is ``predicted / measured - 1``. Of a group: the median and the 90th percentile of its size, the
bias (median with its sign), and the worst row. Percentiles are linear between rows, as numpy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.measurements.tables import Measured

MIB = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Sizes from ``low`` (included) to ``high`` bytes, and the median error that is aimed at; p90 may be twice that."""

    name: str
    low: float
    high: float
    target: float


BANDS = (
    Band(name="< 1 MiB", low=0.0, high=MIB, target=0.35),
    Band(name="1-64 MiB", low=MIB, high=64 * MIB, target=0.20),
    Band(name=">= 64 MiB", low=64 * MIB, high=float("inf"), target=0.10),
)
#: What the 90th percentile may be, as a multiple of the median's target.
P90_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measured row and what was predicted for it; ``algorithm`` and ``protocol`` are the prediction's."""

    measured: Measured
    time_s: float
    algorithm: str
    protocol: str

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.time_s / self.measured.time_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Errors of a group of rows in one band of sizes. ``group`` is what its rows have in common, in words."""

    group: tuple[str, ...]
    band: Band
    rows: int
    median: float
    p90: float
    bias: float
    worst: Compared

    @property
    def met(self) -> bool:
        """Whether median and 90th percentile are within the band's target."""
        return self.median <= self.band.target and self.p90 <= P90_FACTOR * self.band.target


def band_of(size_bytes: float) -> Band:
    """The band that a size falls into."""
    return next(band for band in BANDS if band.low <= size_bytes < band.high)


def accuracy(group: tuple[str, ...], band: Band, rows: Sequence[Compared]) -> Accuracy:
    """The errors of at least one row, summed up."""
    errors = np.array([row.error for row in rows])
    size = np.abs(errors)
    return Accuracy(
        group=group, band=band, rows=len(rows), median=float(np.median(size)), p90=float(np.percentile(size, 90)),
        bias=float(np.median(errors)), worst=rows[int(np.argmax(size))],
    )  # fmt: skip


def by_group(rows: Iterable[Compared], key: Callable[[Compared], tuple[str, ...]]) -> tuple[Accuracy, ...]:
    """Accuracy of each group that ``key`` makes, groups in order of first sight, bands from small to large."""
    groups: dict[tuple[str, ...], list[Compared]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return tuple(
        accuracy(group, band, inside)
        for group, held in groups.items()
        for band in BANDS
        if (inside := [row for row in held if band_of(row.measured.size_bytes) is band])
    )


def system_and_op(row: Compared) -> tuple[str, str]:
    """The key of the table by system: topology with nodes x GPUs of a node, and operation."""
    return row.measured.system, row.measured.op


def held_out(row: Compared) -> tuple[str]:
    """Whether a constant of the model came from the row's table."""
    return ("constants were read off these" if row.measured.fitted else "held out",)
