"""The planned training step as one value: made by the planner, played by the engine, read by the report."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.device import DeviceSpec
from simulator.plan import Plan
from simulator.scenario import Scenario, Train
from simulator.strategies.step import StepInputs
from simulator.training.operations import TrainingModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A planned training step: the plans, and what the report needs to know beside the timeline.

    core_share, channel_share, memory_s_per_byte: how collectives slow compute (engine.interference). device: None for
    measured layers on a topology without one. unsharded: the whole model, where a rank may hold a part. merged_ranks:
    ranks that are simulated with the speed of others (rank_classes).
    """

    scenario: Scenario
    train: Train
    inputs: StepInputs
    device: DeviceSpec | None
    step: Plan
    startup: Plan
    core_share: float
    channel_share: float
    memory_s_per_byte: float
    merged_ranks: int = 0
    unsharded: TrainingModel | None = None

    @property
    def model(self) -> TrainingModel:
        return self.inputs.model

    @property
    def whole(self) -> TrainingModel:
        """The model that all ranks of a replica train together."""
        return self.unsharded or self.inputs.model

    @property
    def num_ranks(self) -> int:
        """All ranks of the job."""
        return self.inputs.world_size

    @property
    def ranks_of_replica(self) -> int:
        """Ranks that work on the same samples."""
        return self.inputs.mesh.ranks_of_replica if self.inputs.mesh else 1

    @property
    def micro_batch_of_all(self) -> int:
        """Sequences of one micro-batch, all replicas together, each with its own number of them."""
        samples = sum(len(ranks.ranks) * ranks.work for ranks in self.step.classes) / self.ranks_of_replica
        return round(self.train.micro_batch * samples)

    @property
    def tokens(self) -> int:
        """Tokens (or samples, when a sample is no sequence) of a step, all ranks together."""
        return self.whole.seq_len * self.micro_batch_of_all * self.inputs.micro_batches
