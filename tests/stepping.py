"""Steps for tests: a model and settings -> the inputs of a strategy, its plan, and what happens."""

from __future__ import annotations

from typing import Any

from networks import uniform

from simulator.engine.run import simulate
from simulator.network.graph import Network
from simulator.parallel_spec import Parallel
from simulator.plan import Communicate, Plan
from simulator.rank_classes import ALL_RANKS, fold_ranks
from simulator.report.memory import Memory, memory_of
from simulator.strategies import STRATEGIES
from simulator.strategies.step import Draft, StepInputs
from simulator.timeline import Timeline
from simulator.training.operations import TrainingModel
from simulator.training.precision import PRECISIONS


def inputs_of(
    model: TrainingModel, num_ranks: int, parallel: dict[str, Any], *, precision: str = "bf16-master", **changed: Any
) -> StepInputs:  # fmt: skip
    """Forward 1 s and backward 2 s per operation, or as measured; copies take no time, unless ``changed``."""
    settings: dict[str, Any] = {
        "forward_s": tuple(1.0 if op.forward_s is None else op.forward_s for op in model.operations),
        "backward_s": tuple(2.0 if op.backward_s is None else op.backward_s for op in model.operations),
        "optimizer_s": 0.5,
    }
    return StepInputs(
        model=model, precision=PRECISIONS[precision], parallel=Parallel.model_validate(parallel), num_ranks=num_ranks,
        **(settings | changed),
    )  # fmt: skip


def plan_of(inputs: StepInputs) -> Plan:
    """A steady step of the inputs' strategy."""
    parallel = inputs.parallel
    return planned(STRATEGIES[parallel.strategy, parallel.implemented_by].step(inputs), inputs.num_ranks)


def planned(draft: Draft, num_ranks: int) -> Plan:
    """A draft on ranks that are all equal."""
    classes = fold_ranks([(1.0, 1.0)] * num_ranks, draft.axes)
    assert [ranks.name for ranks in classes] == [ALL_RANKS]
    return Plan(title="a step", classes=classes, axes=draft.axes, tasks=draft.tasks, resident=draft.resident)


def collectives_of(plan: Plan) -> list[Communicate]:
    """In the order in which they are issued."""
    return [task for task in plan.tasks if isinstance(task, Communicate)]


def played(inputs: StepInputs, network: Network | None = None, *, fidelity: str = "coflow") -> Timeline:
    """The step on a network, by default the textbook's uniform one."""
    return simulate(plan_of(inputs), network or uniform(inputs.num_ranks), fidelity=fidelity)


def memory_in(inputs: StepInputs) -> Memory:
    """Memory of a rank over the step."""
    return memory_of(played(inputs))
