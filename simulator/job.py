"""The planned training step as one value: made by the planner, played by the engine, read by the report."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.device import DeviceSpec
from simulator.plan import Plan
from simulator.scenario import Scenario, Train
from simulator.training.memory import Memory
from simulator.training.operations import TrainingModel
from simulator.training.step import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A planned training step: the plans, and what the report needs to know beside the timeline.

    slowdown: share of compute speed lost while a collective is active. device: None for measured layers on a
    topology without one.
    """

    scenario: Scenario
    train: Train
    inputs: StepInputs
    device: DeviceSpec | None
    step: Plan
    startup: Plan
    memory: Memory
    slowdown: float

    @property
    def model(self) -> TrainingModel:
        return self.inputs.model

    @property
    def num_ranks(self) -> int:
        return self.inputs.num_ranks
