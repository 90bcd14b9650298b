# mypy: disable-error-code="import-not-found,misc"
"""A model of sleeping layers in stages, run by the schedules of ``torch.distributed.pipelining``. Needs torch.

Of a job: ``"pipeline": {"schedule": torch's name, "lines": [[rank, ...], ...], "stages": [[layer, ...], ...]}``. lines:
the ranks of each pipeline, first to last; stages: layers by number, stage k stands on rank k modulo the length of a
line. What a stage sends on are the bytes of its last layer's ``output``; torch sends as much back. All shapes are told,
so that torch runs nothing to find them. The loss is the sum; gradients are summed over micro-batches.

One thing is changed in torch: of sends and receives that a schedule begins together the receives come first. NCCL runs
them as one group, in which the order means nothing; over gloo it does, see ``real_operations.both_ways``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from simulator.lab.real_model import SleepingModel
from simulator.lab.real_training import Asked, Wrapped

#: Schedules whose backward is whole: a layer that sleeps does so once.
WHOLE_BACKWARDS = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS")
KEYS = {"schedule", "lines", "stages"}


_begun_together = schedules._batch_p2p


def _receives_first(ops: list[Any], desc: str | None = None) -> Any:
    return _begun_together(sorted(ops, key=lambda one: one.op is dist.isend), desc)


schedules._batch_p2p = _receives_first


class Stage(SleepingModel):
    """Layers between two borders: takes in what the stage before sent, gives as many numbers as it sends on.

    Inside, one number goes from layer to layer, as in any sleeping model.
    """

    def __init__(self, model: SleepingModel, outputs: int) -> None:
        super().__init__(list(model.layers), model.spans, model.dtype)
        self.outputs = outputs

    def forward(self, x: Any) -> Any:
        """Of (1, numbers) to (1, outputs)."""
        return super().forward(x[:, :1]).expand(1, self.outputs).contiguous()


def check(told: Mapping[str, Any], layers: int) -> None:
    """Raises ValueError for a schedule that sleeping layers do not run, or stages that are not all layers in order."""
    if set(told) != KEYS:
        raise ValueError(f"pipeline {sorted(told)}: expected {sorted(KEYS)}")
    if told["schedule"] not in WHOLE_BACKWARDS:
        raise ValueError(f"pipeline: schedule {told['schedule']!r}: expected one of {', '.join(WHOLE_BACKWARDS)}")
    if [layer for stage in told["stages"] for layer in stage] != list(range(layers)):
        raise ValueError(f"pipeline: stages {told['stages']}: expected layers 0 to {layers - 1}, each once, in order")


class Pipeline:
    """This rank's stages. wrap: puts the strategy around one. wrapped: what it made of each.

    build: makes the model of some layers, by number; all note their spans in the first one's list.
    """

    def __init__(
        self, told: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], micro_batches: int, asked: Asked,
        build: Callable[[Sequence[int]], SleepingModel], wrap: Callable[[Asked], Wrapped],
    ) -> None:  # fmt: skip
        line = next(one for one in told["lines"] if asked.groups.rank in one)
        group = asked.groups.mine(told["lines"], asked.workers)
        place, stages = line.index(asked.groups.rank), told["stages"]
        sent = [int(layers[stage[-1]].get("output", 0)) // 4 or 1 for stage in stages[:-1]]
        self.wrapped: list[Wrapped] = []
        self.spans: list[Any] = []
        made = []
        for number in range(place, len(stages), len(line)):
            inputs, outputs = [1, *sent][number], [*sent, 1][number]
            model = Stage(build(stages[number]), outputs)
            for layer in model.layers:
                layer.spans = self.spans
            wrapped = wrap(replace(asked, model=model))
            self.wrapped.append(wrapped)
            shapes = {
                "input_args": torch.zeros(1, inputs, requires_grad=number > 0),
                "output_args": torch.zeros(1, outputs, requires_grad=True),
            }
            made.append(PipelineStage(wrapped.run, number, len(stages), torch.device("cpu"), group=group, **shapes))
        schedule = get_schedule_class(told["schedule"])
        single = issubclass(schedule, PipelineScheduleSingle)
        self.schedule = schedule(
            made[0] if single else made, n_microbatches=micro_batches, loss_fn=lambda output, _target: output.sum(),
            scale_grads=False,
        )  # fmt: skip
        self.first, self.last = place == 0, place == (len(stages) - 1) % len(line)
        self.batch = torch.zeros(micro_batches, 1)

    def step(self) -> None:
        """One step: all micro-batches, then the optimizers."""
        given = (self.batch,) if self.first else ()
        if self.last:
            self.schedule.step(*given, target=self.batch, losses=[])
        else:
            self.schedule.step(*given)
        for wrapped in self.wrapped:
            wrapped.before_update()
            wrapped.update()
        for wrapped in self.wrapped:
            wrapped.clear()
