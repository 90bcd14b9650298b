"""How far a library's shipped profile was from a log, and what it must be multiplied by to agree with the log's fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.fit import Errors, Fit, errors_of, time_s
from simulator.calibration.samples import Samples
from simulator.collectives.busbw import bus_factor
from simulator.errors import ScenarioError
from simulator.measurements.accuracy import BANDS, band_of

Floats = NDArray[np.float64]
#: Sizes at which a profile holds a factor, at most, besides the knots of the fit.
MOST_POINTS = 64
#: A shipped profile that is off by more than this is of another machine: it is not corrected.
MOST_FACTOR = 1000.0
#: Share of a time that printed digits and a clock's resolution explain. Of 76 published tables none is below 1.04 times
#: what the links' nominal rates need (stas00/ml-engineering, 4 x 8 B200, 16 GiB).
ROUNDING = 0.02
#: From this size on (bytes) bandwidth decides, and a profile that is this many times too fast is of other links.
LARGE, SLOW = 64 * 2**20, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BandErrors:
    """Errors on the timings of one band of sizes (``measurements.accuracy.BANDS``)."""

    band: str
    errors: Errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One fit against the shipped profile.

    span: of the ranks, ``one_node`` or ``several_nodes``: the corrections hold for groups of the same. corrections:
    (size in bytes, fitted time / shipped profile's time), sizes ascending. shipped: errors of the
    uncorrected profile on all timings of the log; shipped_held_out and calibrated: of the uncorrected and of the
    corrected profile on the timings at sizes that the fit did not see. By band, bands without a timing left out.
    shipped_all: as shipped, over all sizes. shipped_times_s: the uncorrected profile's time for each timing, in order.
    warnings: sentences for the user, none where nothing is odd.
    """

    span: str
    corrections: tuple[tuple[float, float], ...]
    shipped: tuple[BandErrors, ...]
    shipped_held_out: tuple[BandErrors, ...]
    calibrated: tuple[BandErrors, ...]
    shipped_all: Errors
    shipped_times_s: tuple[float, ...]
    warnings: tuple[str, ...] = ()


def correction_sizes(fit: Fit, samples: Samples) -> Floats:
    """Where a profile is corrected, in bytes: at the sizes of the log (MOST_POINTS of them, even in the logarithm) and
    the knots of the fit. At a held-out size the factor is that of the fit, which never saw the time measured there.
    """
    sizes = np.unique(samples.sizes_bytes)
    if len(sizes) > MOST_POINTS:
        wanted = np.linspace(np.log(sizes[0]), np.log(sizes[-1]), MOST_POINTS)
        sizes = sizes[np.unique(np.abs(np.log(sizes)[:, None] - wanted).argmin(axis=0))]
    return np.union1d(sizes, np.array(fit.knots_bytes))


def corrections_of(fit: Fit, sizes_bytes: Floats, shipped_s: Floats) -> tuple[tuple[float, float], ...]:
    """(size, factor) at each size; ``shipped_s`` is the shipped profile's time there. Raises ScenarioError for a
    profile that is off by more than MOST_FACTOR.
    """
    factors = time_s(fit, sizes_bytes) / shipped_s
    far = int(np.abs(np.log(factors)).argmax())
    if not 1 / MOST_FACTOR <= factors[far] <= MOST_FACTOR:
        raise ScenarioError(
            f"{', '.join(fit.names)}: {fit.op} of {sizes_bytes[far]:.0f} B takes {factors[far]:.3g} times what the "
            f"shipped profile gives, more than {MOST_FACTOR:.0f} times off: another machine? Say which with --topology"
        )
    return tuple(zip(sizes_bytes.tolist(), factors.tolist(), strict=True))


def compare(
    fit: Fit,
    samples: Samples,
    corrections: tuple[tuple[float, float], ...],
    shipped_s: Floats,
    calibrated_s: Floats,
    *,
    span: str,
) -> Comparison:
    """The comparison; ``shipped_s`` and ``calibrated_s`` are the profile's times for each timing of ``samples``,
    without and with the corrections.
    """
    shipped, calibrated = (np.abs(times / samples.times_s - 1) for times in (shipped_s, calibrated_s))
    held = ~np.isin(samples.sizes_bytes, fit.fitted_sizes_bytes)
    return Comparison(
        span=span, corrections=corrections, shipped=_by_band(samples.sizes_bytes, shipped),
        shipped_held_out=_by_band(samples.sizes_bytes[held], shipped[held]),
        calibrated=_by_band(samples.sizes_bytes[held], calibrated[held]), shipped_all=errors_of(shipped),
        shipped_times_s=tuple(shipped_s.tolist()),
        warnings=(*_slow(fit, samples, shipped_s), *_held(fit, samples, calibrated_s)),
    )  # fmt: skip


def check_links(samples: Samples, least_s: Floats, topology: str) -> None:
    """Raises ScenarioError for a timing shorter than ``least_s`` (for each of ``samples``): what the links need for its
    bytes at the rates of their data sheets.
    """
    share = samples.times_s / np.maximum(least_s, 1e-300)
    at = int(share.argmin())
    if share[at] >= 1 - ROUNDING:
        return
    size, time = samples.sizes_bytes[at], samples.times_s[at]
    busbw = size * bus_factor(samples.op, samples.ranks) / time
    raise ScenarioError(
        f"{', '.join(samples.names)}: {samples.op} on {samples.ranks} ranks is faster than the links of '{topology}' "
        f"allow at {size:.0f} B: {time * 1e6:.2f} us (busbw {busbw / 1e9:.1f} GB/s) where its bytes alone need "
        f"{least_s[at] * 1e6:.2f} us (busbw {busbw * share[at] / 1e9:.1f} GB/s); check units, ranks and --topology"
    )


def _slow(fit: Fit, samples: Samples, shipped_s: Floats) -> Iterator[str]:
    """Large messages that take many times as long as the shipped profile says: accepted, and told."""
    large = samples.sizes_bytes >= LARGE
    ratio = samples.times_s[large] / shipped_s[large]
    if large.any() and np.median(ratio) > SLOW:
        yield (
            f"{', '.join(fit.names)}: {fit.op} on {fit.ranks} ranks of {LARGE / 2**20:.0f} MiB and more takes "
            f"{np.median(ratio):.3g} times as long as the shipped profile gives (busbw "
            f"{fit.busbw_bytes_per_s / 1e9:.4g} GB/s): did the library fall back to TCP, or lose links? "
            "NCCL_DEBUG=INFO tells; or is it another machine, see --topology"
        )


def _held(fit: Fit, samples: Samples, calibrated_s: Floats) -> Iterator[str]:
    """A corrected profile that stays above the fit: it takes no algorithm below what the links need for its bytes."""
    over = calibrated_s / time_s(fit, samples.sizes_bytes)
    at = int(over.argmax())
    if over[at] > 1 + ROUNDING:
        yield (
            f"{', '.join(fit.names)}: {fit.op} on {fit.ranks} ranks is faster at {samples.sizes_bytes[at]:.0f} B than "
            "the usable rate of the links allows the algorithm that the shipped profile picks (a better one, or a "
            f"reduction inside the network?): the corrected profile is held there, {100 * (over[at] - 1):.1f} % above "
            "the log"
        )


def _by_band(sizes: Floats, error: Floats) -> tuple[BandErrors, ...]:
    names = np.array([band_of(float(size)).name for size in sizes])
    return tuple(
        BandErrors(band=band.name, errors=errors_of(error[names == band.name]))
        for band in BANDS
        if (names == band.name).any()
    )
