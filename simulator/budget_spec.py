"""What a run is for and what it may cost: a dated price, how many tokens, and the largest batch that still pays.

Input nouns; ``report.costs`` and ``report.judgements`` read them. No price is built in: prices differ by contract and
change by the month, so a scenario states its own, and when that was.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from simulator.fields import Frozen, Price, Text, Tokens, errors_at

Day = Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?$")]


class Cost(Frozen):
    """What a GPU costs: ``{gpu_hour: $2.50/h, low: $1.90/h, high: $3.50/h, as_of: 2026-11-29}``."""

    gpu_hour: Price = Field(description="price of one GPU for one hour, with all that comes with it")
    low: Price | None = Field(default=None, description="lowest price to expect; gpu_hour when left out")
    high: Price | None = Field(default=None, description="highest price to expect; gpu_hour when left out")
    as_of: Day = Field(description="when the price was seen: a day or a month, such as 2026-11-29 or 2026-11")
    source: Text | None = Field(default=None, description="where it was seen")

    @model_validator(mode="after")
    def _is_a_range(self) -> Cost:
        low, high = self.range
        if low > self.gpu_hour:
            raise errors_at("Cost", (("low",), "must not be above gpu_hour"))
        if high < self.gpu_hour:
            raise errors_at("Cost", (("high",), "must not be below gpu_hour"))
        return self

    @property
    def range(self) -> tuple[float, float]:
        """US dollars per GPU-hour, lowest and highest."""
        return (self.gpu_hour if self.low is None else self.low, self.gpu_hour if self.high is None else self.high)


class Goal(Frozen):
    """What the whole run is for: ``{tokens: 15T, critical_batch: 4M}``."""

    tokens: Tokens | None = Field(default=None, description="tokens of the whole run, such as 15T")
    critical_batch: Tokens | None = Field(
        default=None,
        description="tokens per step beyond which a larger batch hardly saves steps (the gradient's noise scale, "
        "McCandlish et al. 2018), such as 4M",
    )
