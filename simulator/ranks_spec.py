"""What sets ranks and hosts apart from each other: slow GPUs, jitter, uneven batches, the thread that issues work.

Input nouns; ``rank_looks`` and ``host_costs`` read them. A rank is a place in the job: GPUs in node order, from 0.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, model_validator

from simulator.fields import Count, Frozen, Items, Share, TimeOrZero, errors_at

#: Ways to say which ranks: exactly one of them.
PLACES = ("ranks", "node")
MOST_JITTER = 0.5
Rank = Annotated[int, Field(ge=0, le=10_000_000)]


class SomeRanks(Frozen):
    """Which ranks something holds for: a list of them, or all on one node."""

    ranks: Annotated[Items[Rank], Field(min_length=1)] | None = Field(
        default=None, description="these ranks, such as [3, 11]; ranks are GPUs in node order, from 0"
    )
    node: Rank | None = Field(default=None, description="all ranks on this node, counted from 0")

    @model_validator(mode="wrap")
    @classmethod
    def _says_which_ranks(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> SomeRanks:
        """Checks across keys, reported together with the errors inside them."""
        problems = _problems(data) if isinstance(data, dict) else []
        try:
            some: SomeRanks = handler(data)
        except ValidationError as error:
            if not problems:
                raise
            raise errors_at(cls.__name__, *problems, also=error) from None
        if problems:
            raise errors_at(cls.__name__, *problems)
        return some


def _problems(data: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    given = [key for key in PLACES if data.get(key) is not None]
    if len(given) == 1 or any(key not in (*PLACES, "speed", "micro_batch") for key in data):
        return []  # a misspelt key is reported as unknown
    found = f"has {' and '.join(given)}" if given else "says for no ranks"
    return [((), f"{found}; give exactly one of ranks, node")]


class Straggler(SomeRanks):
    """Ranks that compute slower than the device profile says: ``{ranks: [3], speed: 80%}``, ``{node: 2, speed: 90%}``.

    Speeds of a rank that is named several times multiply. A slow link is no straggler: see ``cluster.faults``.
    """

    speed: Share = Field(description="share of the nominal compute speed that is left")


class UnevenBatch(SomeRanks):
    """Ranks whose micro-batches hold another number of sequences: ``{ranks: [0, 1], micro_batch: 2}``."""

    micro_batch: Count = Field(description="sequences of one forward and backward pass on these ranks")


class Jitter(Frozen):
    """Ranks that differ by chance: each takes exp(share z) times as long, z standard normal, the same all step long."""

    share: Share = Field(description="spread of the compute times of ranks, as a standard deviation, such as 3%")
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(
        default=0, description="which draw; a rank's share of it does not depend on how many ranks there are"
    )

    @model_validator(mode="after")
    def _is_moderate(self) -> Jitter:
        if self.share > MOST_JITTER:
            told = f"must be at most {MOST_JITTER:.0%}; ranks further apart are stragglers (cluster.stragglers)"
            raise errors_at("Jitter", (("share",), told))
        return self


class Host(Frozen):
    """The CPU thread of each rank that issues kernels and collectives. Left out: as the usual framework does."""

    kernel_launch: TimeOrZero | None = Field(
        default=None, description="time to issue one kernel; 6 us for PyTorch, 0 for XLA and for measured layers"
    )
    collective_launch: TimeOrZero | None = Field(
        default=None, description="time to issue one collective; 35 us for PyTorch, 0 for XLA and for measured layers"
    )
    speed: Share = Field(
        default=1.0,
        description="speed of the CPU thread over that of those times",
        json_schema_extra={"default": "100%"},
    )
