# mypy: disable-error-code="import-not-found,misc"
"""The training jobs of a real run: build a model, wrap it, train, and say what one rank saw. Needs torch.

A 'train' job: ``{"model", "strategy", "options", "optimizer", "accumulation", "warm_up", "steps", "speed", "workers",
"trace", "collectives", "memory"}``. model: see ``real_model``. strategy and options: see ``real_strategies``; options
may hold ``units``. optimizer: 'sgd' (default), 'adamw', 'none'. accumulation: micro-steps per step. ``steps`` are timed
after ``warm_up`` others. speed: per rank, what the stated times are multiplied by (1.5 is a straggler). workers: gloo's
threads per group, see ``real_groups``. trace: true, or {"construction": bool, "first": number of steps, "steady":
bool}. collectives: true times each collective of one more step. memory: true counts live tensors over more steps,
see ``real_memory``, and tells of the one that held least; times mean nothing then.

Where a model stands on several ranks: "groups", of each axis (tp, cp, ep) the partition of all ranks that its layers'
exchanges run over, see ``real_exchanges``; "pipeline", see ``real_pipeline``, whose micro-batches are "accumulation".
Ranks that hold the same part of the model are then a part of a job 'together', since a strategy runs over these.

A 'together' job: ``{"parts": [{"ranks": [...], "model", "strategy", ...}, ...], "warm_up", "steps", ...}``: several
trainings at once on disjoint ranks, each step of all beginning at the same instant.

Answer of a rank: steps_s (from the agreed instant to the end of this rank's step); spans (of the timed steps, each
layer's [name, 'forward' or 'backward', start, end] from that instant); construction, first, steady ([op, bytes, group
size] in launch order, where traced); collectives (see ``real_trace.timed``); memory (kind -> bytes at the peak); values
(of this rank's parameters: the least, the largest and one between, tensor by tensor) and expected (what they must be
under sgd, else null; also 0 in padding and in layers never used).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from simulator.lab.real_groups import TORCH_WORKERS, Groups
from simulator.lab.real_measure import agreed_instant
from simulator.lab.real_memory import LiveBytes
from simulator.lab.real_model import SleepingModel, Span, build_model
from simulator.lab.real_pipeline import Pipeline
from simulator.lab.real_pipeline import check as check_pipeline
from simulator.lab.real_strategies import check
from simulator.lab.real_trace import Recorder, timed
from simulator.lab.real_training import LEARNING_RATE, Asked, Wrapped, train_step

#: Steps before a steady one: DistributedDataParallel rebuilds its buckets after the first, with static_graph after two.
WARM_UP = 3
#: Steps of which the one with the least peak counts: gloo's threads hold what they have sent a moment longer at times.
MEMORY_STEPS = 3
#: Strategies whose model may stand in stages.
IN_PIPELINES = ("alone", "ddp")


def train(job: dict[str, Any], groups: Groups) -> dict[str, Any]:
    """One training on all ranks; see the module."""
    return together({**job, "parts": [{"ranks": list(range(groups.world))}]}, groups)


def together(job: dict[str, Any], groups: Groups) -> dict[str, Any]:
    """Trainings at once; what a part does not say, the job says for all. A rank in no part answers {}."""
    shared = {key: value for key, value in job.items() if key != "parts"}
    parts = [{**shared, **part} for part in job["parts"]]
    _check(parts, groups.world)
    partition, everyone = [part["ranks"] for part in parts], groups.all(TORCH_WORKERS)
    groups.mine(partition, job.get("workers", TORCH_WORKERS))
    mine = next((part for part in parts if groups.rank in part["ranks"]), None)
    if mine is None:
        for _ in range(int(job.get("steps", 0))):
            agreed_instant(everyone)
            dist.barrier(group=everyone)
        if job.get("collectives"):
            agreed_instant(everyone)
        return {}
    if job.get("memory"):
        with LiveBytes() as live:
            return _train(mine, partition, groups, live)
    return _train(mine, partition, groups, None)


def _check(parts: list[dict[str, Any]], world: int) -> None:
    """What would be wrong for some ranks only, and let the others wait, is wrong for all here. Raises ValueError."""
    ranks = [rank for part in parts for rank in part["ranks"]]
    if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(world)):
        raise ValueError(f"ranks {ranks}: expected each at most once, of 0 to {world - 1}")
    for part in parts:
        options = part.get("options") or {}
        check(part["strategy"], options)
        if "pipeline" in part:
            check_pipeline(part["pipeline"], len(part["model"]["layers"]))
            if part["strategy"] not in IN_PIPELINES:
                raise ValueError(f"pipeline: strategy {part['strategy']!r}: expected one of {', '.join(IN_PIPELINES)}")
        subgroups = len(options.get("mesh") or []) > 1 or type(options.get("reshard_after_forward")) is int
        if subgroups and len(part["ranks"]) < world:
            raise ValueError(f"{part['strategy']}: groups within a part: only where one model is trained by all ranks")


def _train(job: dict[str, Any], partition: list[list[int]], groups: Groups, live: LiveBytes | None) -> dict[str, Any]:
    asked, trace = _asked(job, partition, groups), job.get("trace") or {}
    trace = {"steady": True} if trace is True else trace
    answer: dict[str, Any] = {}
    if live:
        live.settle("buffer", asked.model.buffers())
    with Recorder() as recorder:
        steps = _pipeline(job, asked) if "pipeline" in job else _whole(job, asked, live)
    if trace.get("construction"):
        answer["construction"] = recorder.launched
    answer |= steps.run(int(trace.get("first", 0)), int(job.get("warm_up", WARM_UP)), int(job.get("steps", 0)))
    if trace.get("steady"):
        answer["steady"] = steps.traced()
    if job.get("collectives"):
        answer["collectives"] = timed(steps.plain, agreed_instant(groups.all(TORCH_WORKERS)))
    if live:
        answer["memory"] = min((_peak(live, steps) for _ in range(MEMORY_STEPS)), key=lambda kinds: sum(kinds.values()))
    return answer | _values(asked, steps)


def _peak(live: LiveBytes, steps: _Steps) -> dict[str, int]:
    """Of one step."""
    live.restart()
    steps.plain()
    return live.peak


def _whole(job: dict[str, Any], asked: Asked, live: LiveBytes | None) -> _Steps:
    """Steps of a model that each rank of a part has all of."""
    micro_steps = int(job.get("accumulation", 1))
    wrapped = check(job["strategy"], asked.options).wrap(asked)
    if live:
        live.settle("parameter", wrapped.trained())
        wrapped = replace(wrapped, update=live.updating(wrapped.update))
    model = asked.model
    return _Steps(asked, [wrapped], micro_steps, lambda: train_step(model, wrapped, micro_steps), model.spans)


def _pipeline(job: dict[str, Any], asked: Asked) -> _Steps:
    """Steps of a model that stands in stages on several ranks."""
    layers, micro_steps = job["model"]["layers"], int(job.get("accumulation", 1))

    def build(numbers: Sequence[int]) -> SleepingModel:
        return _model(job, asked.groups, {**job["model"], "layers": [layers[number] for number in numbers]})

    wrap = check(job["strategy"], asked.options).wrap
    made = Pipeline(job["pipeline"], layers, micro_steps, asked, build, wrap)
    return _Steps(asked, made.wrapped, micro_steps, made.step, made.spans)


def _asked(job: dict[str, Any], partition: list[list[int]], groups: Groups) -> Asked:
    workers = job.get("workers", TORCH_WORKERS)
    model = {**job["model"], "layers": []} if "pipeline" in job else job["model"]
    return Asked(
        model=_model(job, groups, model), ranks=tuple(job["ranks"]), group=groups.mine(partition, workers),
        groups=groups, workers=workers, options=dict(job.get("options") or {}), optimizer=job.get("optimizer", "sgd"),
    )  # fmt: skip


def _model(job: dict[str, Any], groups: Groups, told: dict[str, Any]) -> SleepingModel:
    """The layers that are told, on this rank."""
    rank, workers = groups.rank, job.get("workers", TORCH_WORKERS)
    axes = {axis: groups.mine(partition, workers) for axis, partition in (job.get("groups") or {}).items()}
    speed = (job.get("speed") or [1.0] * groups.world)[rank]
    return build_model(told, (job.get("options") or {}).get("units"), speed, lambda: rank + 1.0, axes)


class _Steps:
    """Runs steps of one model and counts them. wrapped: it, or its stages; spans: where its layers note theirs."""

    def __init__(
        self, asked: Asked, wrapped: Sequence[Wrapped], micro_steps: int, one: Callable[[], None], spans: list[Span]
    ) -> None:
        self.asked, self.wrapped, self.micro_steps, self.done = asked, wrapped, micro_steps, 0
        self._one, self._spans = one, spans

    def plain(self) -> None:
        """One step."""
        self._one()
        self.done += 1

    def traced(self) -> list[Any]:
        """One step, and what it launched."""
        with Recorder() as recorder:
            self.plain()
        return list(recorder.launched)

    def run(self, first: int, warm_up: int, steps: int) -> dict[str, Any]:
        """Traced steps, warm-up, timed steps."""
        answer: dict[str, Any] = {"first": [self.traced() for _ in range(first)]} if first else {}
        for _ in range(warm_up - first):
            self.plain()
        if not steps:
            return answer
        times, spans, everyone = [], [], self.asked.groups.all(TORCH_WORKERS)
        gc.collect()
        for _ in range(steps):
            self._spans.clear()
            begin = agreed_instant(everyone)
            self.plain()
            times.append(time.perf_counter() - begin)
            dist.barrier(group=everyone)  # who is done first must not take the others' processor for what follows
            spans.append([[name, way, start - begin, end - begin] for name, way, start, end in self._spans])
        return answer | {"steps_s": times, "spans": spans}


def _values(asked: Asked, steps: _Steps) -> dict[str, Any]:
    """Whether what the strategy did to the parameters is data parallelism: the mean of all ranks' gradients, summed."""
    mean = sum(rank + 1 for rank in asked.ranks) / asked.world
    exact = asked.optimizer == "sgd" and not asked.options.get("clip")
    backwards = steps.done * steps.micro_steps
    held = [part.detach().flatten() for one in steps.wrapped for part in one.held() if part.numel()]
    values = sorted({value for part in held for value in _distinct(part)})
    return {"values": values[:8], "expected": -LEARNING_RATE * mean * backwards if exact else None}


def _distinct(part: Any) -> list[float]:
    """The least and the largest value, and one in between where there is one. Unlike torch.unique it sorts nothing."""
    low, high = torch.aminmax(part)
    between = part[(part != low) & (part != high)]
    return [float(low), float(high), *map(float, between[:1])]
