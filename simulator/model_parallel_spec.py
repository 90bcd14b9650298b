"""How one replica of the model is spread over several GPUs: tensor, pipeline, context and expert parallelism.

The keys stand flat in ``parallel``. A key that would change nothing, since its degree is 1, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from simulator.errors import ScenarioError
from simulator.fields import Count, Frozen, Items, Text
from simulator.problems import nearest

DIMENSIONS: Final = ("tp", "cp", "ep", "dp", "pp")
DEFAULT_ORDER: Final = "tp-cp-ep-dp-pp"
#: key -> the degrees of which one has to be above 1 for it to change anything.
NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "sequence_parallel": ("tp",), "async_tp": ("tp",), "schedule": ("pp",), "chunks": ("pp",), "stages": ("pp",),
    "embedding_as_layer": ("pp",), "overlap_p2p": ("pp",),
    "deallocate_outputs": ("pp",), "cp_method": ("cp",), "cp_balanced": ("cp",),
    "etp": ("ep", "tp"), "expert_nodes": ("ep",), "deduplicate": ("ep",),
}  # fmt: skip


def _order(text: str) -> str:
    """All five dimensions, each once. Raises ScenarioError."""
    named = text.split("-")
    for name in named:
        if name not in DIMENSIONS:
            raise ScenarioError(f"{name!r} is no dimension; accepted are {', '.join(DIMENSIONS)}"
                                f"{nearest(name, DIMENSIONS)}")  # fmt: skip
    if sorted(named) != sorted(DIMENSIONS):
        raise ScenarioError(f"names each of {', '.join(DIMENSIONS)} once, such as {DEFAULT_ORDER}")
    return text


class Zipf(Frozen):
    """Expert loads that fall as a power of their rank: the k-th busiest expert gets 1 / k^exponent."""

    zipf: Annotated[float, Field(ge=0, le=10)] = Field(description="the exponent; 0 is even")
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="which expert is how busy")


class ModelParallel(Frozen):
    """Degrees, and how each dimension works. Data parallelism takes what the degrees leave."""

    tp: Count = Field(default=1, description="tensor parallel degree")
    pp: Count = Field(default=1, description="pipeline parallel degree")
    cp: Count = Field(default=1, description="context parallel degree")
    ep: Count = Field(default=1, description="expert parallel degree: ranks of data parallelism that share the experts")
    order: Annotated[Text, AfterValidator(_order)] = Field(
        default=DEFAULT_ORDER,
        description="which dimension neighbours in rank differ in, fastest first: tp-cp-ep-dp-pp (Megatron, "
        "torchtitan), tp-cp-ep-pp-dp",
    )
    sequence_parallel: bool | None = Field(
        default=None, description="whether norms and dropout share the sequence over tp (all-gather and reduce-scatter "
        "in place of all-reduces); true when left out and tp is above 1"
    )  # fmt: skip
    async_tp: bool = Field(
        default=False, description="whether the all-gathers and reduce-scatters of tp run in pieces beside the products"
    )
    schedule: Text | None = Field(
        default=None, description="pipeline schedule (see 'simulator pipeline all'); 1f1b, or interleaved-1f1b where "
        "chunks are given"
    )  # fmt: skip
    chunks: Count | None = Field(
        default=None, description="stages on each rank of the pipeline; what the schedule usually has when left out"
    )
    stages: Annotated[Items[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = Field(
        default=None, description="layers of each stage, in the order of the model; even when left out"
    )
    embedding_as_layer: bool = Field(
        default=False, description="whether embedding and head each take the place of a layer when stages are even"
    )
    overlap_p2p: bool | None = Field(
        default=None, description="whether sends between stages run beside compute; true for schedules of several "
        "chunks when left out"
    )  # fmt: skip
    deallocate_outputs: bool | None = Field(
        default=None, description="whether what a stage has sent on is freed (Megatron's deallocate_pipeline_outputs) "
        "and not kept until its backward; true for Megatron and for DualPipe when left out"
    )  # fmt: skip
    cp_method: Literal["ring", "all_gather", "ulysses"] = Field(
        default="ring", description="how keys and values get around: a ring beside attention, an all-gather before "
        "it, or all-to-alls that share heads instead"
    )  # fmt: skip
    cp_balanced: bool = Field(
        default=True, description="whether each rank has a piece from both ends of the sequence, so that causal "
        "attention is equal work"
    )  # fmt: skip
    etp: Count | None = Field(default=None, description="tensor parallel degree of the experts; 1 when left out")
    expert_load: Literal["even"] | Zipf | Items[Annotated[float, Field(ge=0)]] = Field(
        default="even", description="tokens of each expert over the mean: even, a list with one number for each "
        "expert, or {zipf: 0.5, seed: 1}"
    )  # fmt: skip
    capacity_factor: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        default=None, description="tokens that an expert takes at most, over the mean; the rest is dropped, and "
        "buffers are padded to it; nothing is dropped when left out"
    )  # fmt: skip
    expert_nodes: Count | None = Field(
        default=None, description="nodes that the experts of a token are on at most (node-limited routing)"
    )
    deduplicate: bool = Field(
        default=False, description="whether a token goes to each node once, and inside it to its experts (DeepEP)"
    )

    @property
    def shares_sequence(self) -> bool:
        """Whether norms and dropout work on a part of the sequence."""
        return self.tp > 1 if self.sequence_parallel is None else self.sequence_parallel

    @property
    def expert_tp(self) -> int:
        """Tensor parallel degree of the experts."""
        return self.etp or 1

    @property
    def schedule_name(self) -> str:
        """The pipeline schedule, which is that of one or of several chunks where none is named."""
        return self.schedule or ("interleaved-1f1b" if (self.chunks or 1) > 1 else "1f1b")

    @property
    def splits_model(self) -> bool:
        """Whether a replica has more than one rank, or its experts are shared."""
        return max(self.tp, self.pp, self.cp, self.ep) > 1


def idle_keys(data: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Keys that are given and would change nothing, and why."""
    for key, degrees in NEEDS.items():
        if data.get(key) is not None and all((data.get(degree) or 1) == 1 for degree in degrees):
            yield (key,), f"needs {' or '.join(degrees)} above 1; got {', '.join(f'{degree} 1' for degree in degrees)}"
