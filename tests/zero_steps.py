"""Steps of ZeRO for tests: layers of stated sizes and times, planned, played, and their memory counted by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from networks import uniform
from stepping import plan_of

from simulator.engine.run import simulate
from simulator.network.graph import Network
from simulator.parallel_spec import Parallel
from simulator.plan import Communicate, Plan
from simulator.strategies import STRATEGIES
from simulator.strategies.step import Draft, StepInputs
from simulator.timeline import Timeline
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import TrainingModel
from simulator.training.precision import PRECISIONS

#: Four ranks, 10 ms a message, 1 MB/s.
SLOW = uniform(4, 0.01, 1e6)
#: (strategy, implementation) of this file's tests.
BY_HAND = [("zero1", "textbook"), ("zero2", "textbook"), ("zero3", "textbook")]
ALL = [*BY_HAND, ("zero1", "torch"), ("zero1", "megatron")]


def one_way_s(megabytes: float) -> float:
    """A reduce-scatter or all-gather of so many MB on ``SLOW``: 'auto' halves or doubles, two steps for four ranks."""
    return 2 * 0.01 + 3 / 4 * megabytes


def layer(
    name: str, megabytes: float, forward_s: float = 1.0, backward_s: float = 2.0, *, kept_bytes: float = 0.0
) -> MeasuredLayer:
    """One fp32 tensor of that size."""
    return MeasuredLayer(
        name=name, params=(round(megabytes * 1e6 / 4),), forward_s=forward_s, backward_s=backward_s,
        activation_bytes=kept_bytes,
    )  # fmt: skip


def model_of(*layers: MeasuredLayer) -> TrainingModel:
    return measured_model(layers, name="by hand", seq_len=1, micro_batch=1)


def inputs(model: TrainingModel, strategy: str, implementation: str, **changed: Any) -> StepInputs:
    """Keys of ``parallel`` go there, ``precision`` is a name, all others go to StepInputs."""
    told = {"strategy": strategy, "implementation": implementation}
    told |= {key: changed.pop(key) for key in list(changed) if key in Parallel.model_fields}
    made = StepInputs(
        model=model, precision=PRECISIONS[changed.pop("precision", "fp32")], num_ranks=4,
        forward_s=tuple(op.forward_s or 0.0 for op in model.operations),
        backward_s=tuple(op.backward_s or 0.0 for op in model.operations), parallel=Parallel.model_validate(told),
    )  # fmt: skip
    return replace(made, **changed)


def drafted(asked: StepInputs) -> Draft:
    return STRATEGIES[asked.parallel.strategy, asked.parallel.implemented_by].step(asked)


def ran(asked: StepInputs, network: Network = SLOW, fidelity: str = "coflow") -> Timeline:
    return simulate(plan_of(asked), network, fidelity=fidelity)


def collectives(asked: StepInputs) -> list[Communicate]:
    return [task for task in drafted(asked).tasks if isinstance(task, Communicate)]


def sent_bytes(asked: StepInputs, network: Network = SLOW) -> float:
    """What each rank sends in the step."""
    return sum(cost.sent_bytes_per_rank for cost in ran(asked, network).costs.values())


def spans(timeline: Timeline) -> dict[str, tuple[float, float]]:
    return {span.task.name: (span.start_s, span.end_s) for span in timeline.spans}


def held_before(plan: Plan, task_name: str | None) -> Counter[str]:
    """Bytes by kind, in plan order, when the task starts; None: after the last."""
    alive = {buffer.name: buffer for buffer in plan.resident}
    for task in plan.tasks:
        if task.name == task_name:
            break
        alive |= {buffer.name: buffer for buffer in task.allocates}
        for name in task.frees:
            del alive[name]
    held: Counter[str] = Counter()
    for buffer in alive.values():
        held[buffer.kind] += buffer.size_bytes  # type: ignore[assignment]
    return held
