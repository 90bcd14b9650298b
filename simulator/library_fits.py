"""What a user's own runs showed of a library, as ``simulator calibrate`` writes it into a profile. Input nouns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.fields import Bandwidth, Bytes, Frozen, Items, Ratio, Share, TimeOrZero

Text = Annotated[str, Field(min_length=1)]


class FittedPoint(Frozen):
    """Share of ``busbw`` that a message of ``size`` reaches."""

    size: Bytes
    share: Share


class FitErrors(Frozen):
    """Relative errors of a fit over so many timings."""

    timings: int
    median: Ratio
    p90: Ratio
    largest: Ratio


class FittedOperation(Frozen):
    """Constants of one operation, T(S) = alpha + S f / (busbw share(S)): for people; the factors are what counts.

    ``per_node``: ranks on each node. Errors: of the fit on the sizes ``fitted`` and ``held_out``, and of the
    uncorrected ``base`` on all.
    """

    op: Text
    ranks: int
    nodes: int | None = None
    per_node: int | None = None
    device: str | None = None
    alpha: TimeOrZero
    busbw: Bandwidth
    efficiency: Items[FittedPoint]
    fitted: FitErrors
    held_out: FitErrors
    base: FitErrors | None = None
    source: Items[str]
