"""Samples -> constants: T(S) = alpha + S f / (B eff(S)), with nccl-tests' factor f and an efficiency that only grows.

The time of a byte, g(S) = f / (B eff(S)), falls with the size: at knots k_1 < ... < k_m it is g_m plus non-negative
steps d_j = g_j - g_(j+1). Between knots it is linear in 1/S, which makes the time S g(S) linear in S there, and it is
constant outside. So T is linear in alpha, g_m and d_j, all of them non-negative, and a robust fit is non-negative least
squares (Lawson and Hanson 1974, chapter 23) of relative errors, weighted again and again as Huber (1964) has it: full
weight within 1.345 standard deviations (from the median of the errors' size), less beyond. More bytes never take less
time: knots that would fall are held at one time. What small messages leave open, whether latency or slow bytes cost
them, is settled for the latency by a small penalty on the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.samples import Samples
from simulator.collectives.busbw import bus_factor
from simulator.errors import ScenarioError

Floats = NDArray[np.float64]
MOST_KNOTS = 16
FEWEST_SIZES = 4
#: Below this size (bytes) only latency counts: at 10 GB/s it is 0.4 us.
FIRST_KNOT = 4096
_HUBER = 1.345
_MAD_TO_SIGMA = 1.4826
_ROUNDS = 30
#: No run repeats its times more closely than this, so no fit is trusted to: the least standard deviation.
_NOISE = 0.005
#: Weight of the equations that keep two knots' times equal, where errors count 1.
_HOLD = 1e4
#: Weight of the penalty on a step, as a share of the time of a message at its knot.
_PENALTY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors |fitted / measured - 1| over ``rows`` timings: median, 90th percentile, largest."""

    rows: int
    median: float
    p90: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants of one operation on one number of ranks. ``knots_bytes`` and ``efficiency`` are the curve's points.

    ``fitted`` are the errors on the sizes that the constants came from (every other one), ``held_out`` on the others.
    """

    op: str
    ranks: int
    nodes: int | None
    per_node: int | None
    device: str | None
    names: tuple[str, ...]
    alpha_s: float
    busbw_bytes_per_s: float
    knots_bytes: tuple[float, ...]
    efficiency: tuple[float, ...]
    fitted_sizes_bytes: tuple[float, ...]
    fitted: Errors
    held_out: Errors


def time_s(fit: Fit, sizes_bytes: Floats) -> Floats:
    """What the fit gives at each size, in seconds."""
    share = np.interp(-1.0 / sizes_bytes, -1.0 / np.array(fit.knots_bytes), 1.0 / np.array(fit.efficiency))
    return fit.alpha_s + sizes_bytes * bus_factor(fit.op, fit.ranks) * share / fit.busbw_bytes_per_s


def fit_samples(samples: Samples) -> Fit:
    """Fit every other size, the smallest and the largest among them. Raises ScenarioError with fewer than 4 sizes."""
    sizes = np.unique(samples.sizes_bytes)
    if len(sizes) < FEWEST_SIZES:
        raise ScenarioError(
            f"{', '.join(samples.names)}: {samples.op} on {samples.ranks} ranks has {len(sizes)} sizes; a fit that can "
            f"be tested on some needs {FEWEST_SIZES} or more"
        )
    chosen = sizes[::2] if len(sizes) % 2 else np.append(sizes[:-1:2], sizes[-1])
    inside = np.isin(samples.sizes_bytes, chosen)
    knots = _knots(chosen)
    alpha, cost = _robust(samples.sizes_bytes[inside], samples.times_s[inside], knots)
    if cost[-1] <= 0:
        raise ScenarioError(f"{', '.join(samples.names)}: the times do not grow with the size")
    fit = Fit(
        op=samples.op, ranks=samples.ranks, nodes=samples.nodes, per_node=samples.per_node,
        device=samples.device, names=samples.names, alpha_s=alpha,
        busbw_bytes_per_s=bus_factor(samples.op, samples.ranks) / float(cost[-1]),
        knots_bytes=tuple(knots.tolist()), efficiency=tuple((cost[-1] / cost).tolist()),
        fitted_sizes_bytes=tuple(chosen.tolist()), fitted=_NOTHING, held_out=_NOTHING,
    )  # fmt: skip
    error = np.abs(time_s(fit, samples.sizes_bytes) / samples.times_s - 1)
    return replace(fit, fitted=errors_of(error[inside]), held_out=errors_of(error[~inside]))


def errors_of(error: Floats) -> Errors:
    """Of at least one relative error, each without its sign."""
    return Errors(
        rows=len(error), median=float(np.median(error)), p90=float(np.percentile(error, 90)),
        largest=float(error.max()),
    )  # fmt: skip


_NOTHING = Errors(rows=0, median=0.0, p90=0.0, largest=0.0)


def _knots(sizes: Floats) -> Floats:
    """At most MOST_KNOTS of the sizes from FIRST_KNOT on, evenly over their logarithm, both ends among them."""
    sizes = sizes[sizes >= min(FIRST_KNOT, sizes[-2])]
    wanted = np.linspace(np.log(sizes[0]), np.log(sizes[-1]), min(MOST_KNOTS, len(sizes)))
    return np.unique(sizes[np.abs(np.log(sizes)[:, None] - wanted).argmin(axis=0)])


def _robust(sizes: Floats, times: Floats, knots: Floats) -> tuple[float, Floats]:
    """(alpha in s, seconds of a byte at each knot)."""
    design = _design(sizes, knots) / times[:, None]
    level = np.minimum.accumulate(np.interp(np.log(knots), np.log(sizes), times)[::-1])[::-1]
    at_knots = _design(knots, knots) / level[:, None]
    penalty = np.zeros((len(knots) - 1, design.shape[1]))
    penalty[:, 2:] = np.diag(_PENALTY * knots[:-1] / level[:-1])
    weight = np.ones(len(sizes))
    solution = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        solution = _growing(design, weight, penalty, at_knots, level)
        size = np.abs(design @ solution - 1.0)
        sigma = max(_NOISE, _MAD_TO_SIGMA * float(np.median(size)))
        updated = np.minimum(1.0, _HUBER * sigma / np.maximum(size, 1e-12))
        if np.allclose(updated, weight, rtol=1e-6, atol=1e-9):
            break
        weight = updated
    cost = solution[1] + np.append(np.cumsum(solution[:1:-1])[::-1], 0.0)
    return float(solution[0]), cost


def _growing(design: Floats, weight: Floats, penalty: Floats, at_knots: Floats, level: Floats) -> Floats:
    """Weighted least squares in which no knot takes longer than the next: pairs that would are held equal."""
    root = np.sqrt(weight)
    held: list[int] = []
    while True:
        equal = (at_knots * level[:, None])[1:][held] - (at_knots * level[:, None])[:-1][held]
        equal = _HOLD * equal / level[1:][held][:, None]
        matrix = np.vstack([design * root[:, None], penalty, equal])
        goal = np.concatenate([root, np.zeros(len(penalty) + len(held))])
        solution = non_negative_least_squares(matrix, goal)
        at = (at_knots @ solution) * level
        falls = [j for j in range(len(at) - 1) if at[j] > at[j + 1] * (1 + 1e-6) and j not in held]
        if not falls:
            return solution
        held = sorted([*held, *falls])


def _design(sizes: Floats, knots: Floats) -> Floats:
    """Columns alpha, g_m, d_1 .. d_(m-1): T = design @ them. Step d_j counts whole up to knot j, none from j + 1 on."""
    columns = [np.ones(len(sizes)), sizes]
    for j in range(len(knots) - 1):
        share = np.interp(-1.0 / sizes, -1.0 / knots[j : j + 2], [1.0, 0.0])
        columns.append(sizes * share)
    return np.stack(columns, axis=1)


def non_negative_least_squares(matrix: Floats, goal: Floats) -> Floats:
    """The x >= 0 that minimises |matrix @ x - goal|; matrix of shape (rows, columns), goal of shape (rows,).

    Lawson and Hanson's active set, on columns scaled to length 1; it ends after at most finitely many exchanges.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    count = scaled.shape[1]
    free = np.zeros(count, dtype=bool)
    x = np.zeros(count)
    tolerance = 1e-12 * float(np.abs(scaled.T @ goal).max() + 1e-300)
    for _ in range(10 * count):
        pull = scaled.T @ (goal - scaled @ x)
        pull[free] = -np.inf
        if pull.max() <= tolerance:
            break
        free[int(np.argmax(pull))] = True
        x = _back_inside(scaled, goal, x, free)
    return np.asarray(x / scale, dtype=np.float64)


def _back_inside(matrix: Floats, goal: Floats, x: Floats, free: NDArray[np.bool_]) -> Floats:
    """Least squares over the free columns, giving up those that would turn negative, one after the other."""
    while True:
        wanted = np.zeros(len(x))
        wanted[free] = np.linalg.lstsq(matrix[:, free], goal, rcond=None)[0]
        below = free & (wanted <= 0)
        if not below.any():
            return wanted
        ratio = x[below] / np.maximum(x[below] - wanted[below], 1e-300)
        x = x + float(ratio.min()) * (wanted - x)
        free &= x > 1e-15
        x[~free] = 0.0
