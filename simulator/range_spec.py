"""What a number of a profile may be instead: low and high beside the typical value that the profile states.

``share: 93%`` may have a sibling ``share_range: {low: 82%, high: 100%, source: ...}``. Low and high mean one thing
everywhere: the 10th and the 90th percentile of what published runs show, or, where a source states only two ends, those
two. A number without a range is taken as known. Input nouns; ``scaling`` reads them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from simulator.fields import BytesOrZero, Frozen, Share, Text, TimeOrZero, errors_at

Factor = Annotated[float, Field(gt=0, le=1000)]


class ShareRange(Frozen):
    """``{low: 82%, high: 100%, source: ...}``, in the unit of the number it stands beside."""

    low: Share
    high: Share
    source: Text


class TimeRange(Frozen):
    """``{low: 1 us, high: 3 us, source: ...}``."""

    low: TimeOrZero
    high: TimeOrZero
    source: Text


class BytesRange(Frozen):
    """``{low: 0.5 GiB, high: 0.9 GiB, source: ...}``."""

    low: BytesOrZero
    high: BytesOrZero
    source: Text


class NumberRange(Frozen):
    """``{low: 2, high: 3, source: ...}``."""

    low: Annotated[float, Field(ge=0, le=1000)]
    high: Annotated[float, Field(ge=0, le=1000)]
    source: Text


class FactorRange(Frozen):
    """``{low: 0.8, high: 1.2, source: ...}``: factors on the typical values of a whole block, which are 1."""

    low: Factor
    high: Factor
    source: Text

    @model_validator(mode="after")
    def _holds_one(self) -> FactorRange:
        if self.low > 1:
            raise errors_at("FactorRange", (("low",), "must not be above 1, the typical value"))
        if self.high < 1:
            raise errors_at("FactorRange", (("high",), "must not be below 1, the typical value"))
        return self


def check_ranges(model: Frozen, *names: str) -> None:
    """Raises a ValidationError at ``NAME_range.low`` (or ``high``) where that is not below (above) NAME itself."""
    problems: list[tuple[tuple[str | int, ...], str]] = []
    for name in names:
        held, typical = getattr(model, f"{name}_range"), getattr(model, name)
        if held is not None and held.low > typical:
            problems.append(((f"{name}_range", "low"), f"must not be above '{name}', the typical value"))
        if held is not None and held.high < typical:
            problems.append(((f"{name}_range", "high"), f"must not be below '{name}', the typical value"))
    if problems:
        raise errors_at(type(model).__name__, *problems)
