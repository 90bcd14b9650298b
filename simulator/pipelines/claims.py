"""Closed forms of the papers: how long a rank is idle, and how many micro-batches it holds. Without communication.

Idle time is what the step takes beyond the work of a rank, m (tF + tI + tW), where tF, tI and tW are the times of one
micro-batch in all layers of a rank: forward, gradient of the input, gradient of the weights. v is the number of chunks
of a rank. Each holds for equal stages, and says for which times and numbers of micro-batches; elsewhere it is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from simulator.pipelines.one_way import rounds
from simulator.pipelines.playing import StageTimes

#: Times that differ by less are equal.
_CLOSE = 1e-12


@dataclass(frozen=True, slots=True)
class Shape:
    """p ranks, m micro-batches, v chunks on each rank."""

    p: int
    m: int
    v: int

    def __str__(self) -> str:
        return f"{self.p} ranks, {self.m} micro-batches, {self.v} chunk{'s' if self.v > 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is published about a schedule.

    formula: of the idle time, as text. idle: (shape, times) -> idle time of a rank, None where the formula does not
    hold. held: (shape, rank) -> the most micro-batches that a rank holds, all kept until W; None where unknown.
    """

    formula: str
    source: str
    idle: Callable[[Shape, StageTimes], float | None]
    held: Callable[[Shape, int], float | None]


def _detour(shape: Shape) -> int:
    """Chunk times more than (p - 1), where too few micro-batches fill the way round: a rank waits for the first."""
    return (shape.v - 1) * max(0, shape.p - shape.m)


def _idle_looped(shape: Shape, t: StageTimes) -> float:
    return (shape.p - 1 + _detour(shape)) * (t.forward + t.input_grad + t.weight_grad) / shape.v


def _idle_zb1p(shape: Shape, t: StageTimes) -> float | None:
    """Where weights are no longer than either of the two that they stand between, and every rank has work."""
    if t.weight_grad > min(t.forward, t.input_grad) + _CLOSE or shape.m < shape.p:
        return None
    return (shape.p - 1) * (t.forward + t.input_grad - t.weight_grad) / shape.v


def _idle_zbv(shape: Shape, t: StageTimes) -> float | None:
    """The start alone: (p - 1) chunks of forward, each rank without a gap from then on; twice that where the input
    gradient takes twice a forward."""
    if shape.m < 2 * shape.p - 1:
        return None
    if math.isclose(t.input_grad, t.forward) and t.weight_grad <= t.forward + _CLOSE:
        return (shape.p - 1) * t.forward / 2
    if math.isclose(t.input_grad, 2 * t.forward) and math.isclose(t.weight_grad, t.forward):
        return (shape.p - 1) * t.forward
    return None


def _idle_dualpipe_v(shape: Shape, t: StageTimes) -> float | None:
    """Where pairs hide nothing: F&B is F + B in the published (PP/2 - 1) (F&B + B - 3W), with PP = 2 p chunks."""
    if not math.isclose(t.forward, t.input_grad) or t.weight_grad > t.forward + _CLOSE:
        return None
    return (shape.p - 1) * (t.forward + 2 * t.input_grad - t.weight_grad) / 2


def _idle_dualpipe(shape: Shape, t: StageTimes) -> float | None:
    """As above with PP = p stages of all layers of a rank: the ranks of half a pipeline, and twice the time."""
    found = _idle_dualpipe_v(Shape(shape.p // 2, shape.m, 2), t)
    return None if found is None else 2 * found


def _held_interleaved(shape: Shape, rank: int) -> float:
    size = shape.m // rounds(shape.p, shape.m)
    return min(shape.v * shape.m, (shape.v - 1) * size + 2 * (shape.p - 1 - rank) + 1) / shape.v


def _held_split(shape: Shape) -> float:
    """p where rounds are as large as the number of ranks."""
    size = shape.m // rounds(shape.p, shape.m)
    return min(shape.v * shape.m, (shape.v - 1) * size + shape.p) / shape.v


_GPIPE = "https://arxiv.org/abs/1811.06965"
_MEGATRON = "https://arxiv.org/abs/2104.04473"
_BREADTH = "https://arxiv.org/abs/2211.05953"
_ZERO = "https://arxiv.org/abs/2401.10241"
_V_SHAPE = "https://arxiv.org/abs/2405.15362"
_DUALPIPE = "https://arxiv.org/abs/2412.19437"

GPIPE = Claim(
    formula="(p-1)(tF+tI+tW)", source=f"{_GPIPE}, section 2.3", idle=_idle_looped, held=lambda shape, rank: shape.m
)
ONE_F_ONE_B = Claim(
    formula="(p-1)(tF+tI+tW)", source=f"{_MEGATRON}, section 2.2.1", idle=_idle_looped,
    held=lambda shape, rank: min(shape.m, shape.p - rank),
)  # fmt: skip
LOOPED = Claim(
    formula="(p-1)(tF+tI+tW)/v", source=f"{_BREADTH}, section 4.1", idle=_idle_looped,
    held=lambda shape, rank: shape.m,
)  # fmt: skip
INTERLEAVED = Claim(
    formula="(p-1)(tF+tI+tW)/v", source=f"{_MEGATRON}, section 2.2.2", idle=_idle_looped, held=_held_interleaved
)
ZB1P = Claim(
    formula="(p-1)(tF+tI-tW)/v", source=f"{_ZERO}, section 2.3", idle=_idle_zb1p,
    held=lambda shape, rank: _held_split(shape),
)  # fmt: skip
ZBV = Claim(
    formula="(p-1)tF/2 where tI=tF", source=f"{_V_SHAPE}, section 4", idle=_idle_zbv,
    held=lambda shape, rank: None if shape.m < 2 * shape.p - 1 else shape.p,
)  # fmt: skip
DUALPIPE = Claim(
    formula="(p/2-1)(tF+2tI-tW)", source=f"{_DUALPIPE}, table 2", idle=_idle_dualpipe,
    held=lambda shape, rank: shape.p + 1,
)  # fmt: skip
DUALPIPE_V = Claim(
    formula="(p-1)(tF+2tI-tW)/2", source="https://github.com/deepseek-ai/DualPipe, README", idle=_idle_dualpipe_v,
    held=lambda shape, rank: shape.p + 0.5,
)  # fmt: skip
