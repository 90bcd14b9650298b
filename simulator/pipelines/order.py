"""What a rank of a pipeline does, in which order: forwards and backwards of micro-batches through its stages.

Pure data: no clock, no network. The letters are those of the papers and of ``torch.distributed.pipelining``:

- F: the forward of a micro-batch through a stage;
- B: its whole backward, the gradients of the input and of the weights;
- I: the gradient of the input alone, which the stage before waits for;
- W: the gradient of the weights alone, which nobody waits for, once I is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]
#: In the order in which a micro-batch meets them.
KINDS: Final[tuple[Kind, ...]] = ("F", "B", "I", "W")


class Action(NamedTuple):
    """One kind of work on one micro-batch in one stage. A tuple, since 64 ranks with 512 micro-batches have 200,000."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


class Pair(NamedTuple):
    """The forward of one micro-batch and the whole backward of another, run together so that one's communication
    hides behind the other's compute (DualPipe)."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})"


Step = Action | Pair
#: Steps of one rank, in order.
Order = tuple[Step, ...]


def actions(order: Order) -> Iterator[Action]:
    """Actions of an order, those of a pair one after the other, forward first."""
    for step in order:
        if isinstance(step, Pair):
            yield from step
        else:
            yield step


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """Orders of all ranks, and where stages stand.

    chunks: pieces into which a rank's share of the model is cut; a piece is a stage.
    orders: one per rank. ranks_of_stages: the rank of each stage.
    stages_per_chain: stages of one whole model. DualPipe holds the model twice, so it has two chains of stages, which
    micro-batches enter at opposite ends; all others have one.
    """

    name: str
    chunks: int
    num_micro_batches: int
    orders: tuple[Order, ...]
    ranks_of_stages: tuple[int, ...]
    stages_per_chain: int

    @property
    def num_ranks(self) -> int:
        """Ranks of the pipeline."""
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        """Stages on all ranks, those of every chain."""
        return len(self.ranks_of_stages)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that stand on a rank, in the order of the model."""
        return tuple(stage for stage, home in enumerate(self.ranks_of_stages) if home == rank)

    def part_of_model(self, stage: int) -> int:
        """Which part of the model a stage holds, counted from the input: stages of two chains may hold the same."""
        return stage % self.stages_per_chain

    def is_first(self, stage: int) -> bool:
        """Whether a stage takes the input of the model."""
        return stage % self.stages_per_chain == 0

    def is_last(self, stage: int) -> bool:
        """Whether a stage gives the output of the model."""
        return (stage + 1) % self.stages_per_chain == 0
