"""The strategies of data parallelism: one line each. A strategy is two functions from StepInputs to tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.plan import Task
from simulator.training import ddp
from simulator.training.memory import Memory, ddp_memory
from simulator.training.step import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """step: the tasks of a steady step. startup: what construction sends. memory: bytes of one rank by kind."""

    step: Callable[[StepInputs], tuple[Task, ...]]
    startup: Callable[[StepInputs], tuple[Task, ...]]
    memory: Callable[[StepInputs, str], Memory]


def _ddp_memory(inputs: StepInputs, optimizer: str) -> Memory:
    copies = inputs.overlap == "bucketed" and not inputs.gradient_as_bucket_view
    return ddp_memory(
        inputs.model, inputs.precision, optimizer, num_ranks=inputs.num_ranks, context_bytes=inputs.context_bytes,
        communicator_bytes=inputs.communicator_bytes, gradient_as_bucket_view=not copies,
    )  # fmt: skip


STRATEGIES: dict[str, Strategy] = {
    "ddp": Strategy(step=ddp.step, startup=ddp.startup, memory=_ddp_memory),
}
