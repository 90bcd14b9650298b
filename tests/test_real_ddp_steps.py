"""What a planned DDP step communicates and holds is what a real one does: torch 2.13 on gloo, 2 and 3 processes.

The sequences of (operation, bytes, group size) are compared element by element, in launch order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import uniform
from real_steps import layers, needs_torch, same, steady, train

from simulator.engine.run import simulate
from simulator.parallel_spec import Parallel
from simulator.plan import Communicate, Plan, RankClass
from simulator.rank_classes import ALL_RANKS
from simulator.report.memory import memory_of
from simulator.strategies import ddp
from simulator.strategies.step import Draft, StepInputs
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import BufferTensor, TrainingModel
from simulator.training.precision import PRECISIONS

pytestmark = [pytest.mark.slow, needs_torch]

Launched = tuple[str, int, int]
MODEL = layers(*[[300_000, 500]] * 6)
#: BatchNorm1d(1024) with its buffers, and nine Linear(1024, 1024).
WITH_BUFFERS = layers([1024, 1024], *[[[1024, 1024], 1024]] * 9)
WITH_BUFFERS["layers"][0]["buffers"] = [{"shape": 1024}, {"shape": 1024}, {"shape": [], "dtype": "int64"}]


def numel(shape: int | list[int]) -> int:
    return shape if isinstance(shape, int) else prod(shape)


def model_of(told: dict[str, Any]) -> TrainingModel:
    """The same layers for the planner; 1 ms each, so that what is in flight at once is."""
    measured = tuple(
        MeasuredLayer(
            name=layer["name"], params=tuple(map(numel, layer["params"])), forward_s=1e-3, backward_s=1e-3
        )
        for layer in told["layers"]
    )  # fmt: skip
    buffers = tuple(
        BufferTensor(name=f"{layer['name']}.{i}", numel=numel(buffer["shape"]), dtype=buffer.get("dtype", "float32"))
        for layer in told["layers"]
        for i, buffer in enumerate(layer.get("buffers", ()))
    )
    made = measured_model(measured, name="real", seq_len=1, micro_batch=1)
    return TrainingModel(
        name="real", operations=made.operations, parameters=made.parameters, num_parameters=made.num_parameters,
        num_layers=made.num_layers, buffers=buffers,
    )  # fmt: skip


def inputs(told: dict[str, Any], world: int, options: dict[str, Any], micro_batches: int = 1) -> StepInputs:
    """Options of DistributedDataParallel (and R's ``hook``, ``sync``) as keys of ``parallel``."""
    keys: dict[str, Any] = {name: options[name] for name in KEPT if name in options}
    if "bucket_cap_mb" in options:
        keys["bucket_cap"] = f"{int(options['bucket_cap_mb'] * 2**20)} B"
    keys |= {"comm_hook": options.get("hook", "none"), "sync_each_micro_batch": options.get("sync") == "every"}
    model = model_of(told)
    return StepInputs(
        model=model, precision=PRECISIONS["fp32"], parallel=Parallel.model_validate(keys), num_ranks=world,
        forward_s=tuple(op.forward_s or 0.0 for op in model.operations),
        backward_s=tuple(op.backward_s or 0.0 for op in model.operations), optimizer="sgd",
        micro_batches=micro_batches,
    )  # fmt: skip


KEPT = ("gradient_as_bucket_view", "find_unused_parameters", "overlap", "iteration")


def launched(draft: Draft) -> list[Launched]:
    return [
        (task.op, int(task.message_bytes), len(draft.axes[task.axis][0]))
        for task in draft.tasks
        if isinstance(task, Communicate)
    ]


CONFIGURATIONS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "default": (MODEL, {}, 1),
    "cap": (MODEL, {"bucket_cap_mb": 2}, 1),
    "view": (MODEL, {"gradient_as_bucket_view": True}, 1),
    "unused": (MODEL, {"find_unused_parameters": True}, 1),
    "unused, cap": (MODEL, {"find_unused_parameters": True, "bucket_cap_mb": 2}, 1),
    "unused, every": (MODEL, {"find_unused_parameters": True, "sync": "every"}, 2),
    "fp16": (MODEL, {"hook": "fp16"}, 1),
    "bf16, view": (MODEL, {"hook": "bf16", "gradient_as_bucket_view": True}, 1),
    "buffers": (WITH_BUFFERS, {}, 1),
    "buffers, no_sync": (WITH_BUFFERS, {}, 3),
    "buffers, every": (WITH_BUFFERS, {"sync": "every"}, 2),
    "no_sync": (MODEL, {}, 4),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_planned_step_launches_what_a_real_one_does(name: str) -> None:
    told, options, micro_batches = CONFIGURATIONS[name]
    real = steady(2, told, "ddp", options=options, accumulation=micro_batches)
    assert launched(ddp.step(inputs(told, 2, options, micro_batches))) == real
    assert len(real) > 1


@pytest.mark.parametrize("overlap", ["none", "per_parameter"])
@pytest.mark.parametrize("sync", ["last", "every"])
def test_tensors_that_are_reduced_one_by_one_go_in_the_real_order(overlap: str, sync: str) -> None:
    """By hand, as the lecture does: in the order of ``parameters()`` after backward, or as gradients become ready."""
    strategy = {"none": "naive", "per_parameter": "per_parameter"}[overlap]
    real = steady(2, MODEL, strategy, options={"sync": sync}, accumulation=2)
    assert launched(ddp.step(inputs(MODEL, 2, {"sync": sync, "overlap": overlap}, 2))) == real


@pytest.mark.parametrize("name", ["default", "cap", "unused", "fp16", "buffers"])
def test_iteration_zero_is_the_planned_first_one(name: str) -> None:
    """One bucket, but for find_unused_parameters. The broadcasts that agree on new buckets belong to iteration 1."""
    told, options, _ = CONFIGURATIONS[name]
    found = train(2, told, "ddp", options=options, trace={"first": 2})
    first, second = (same([answer["first"][number] for answer in found]) for number in range(2))
    assert launched(ddp.step(inputs(told, 2, {**options, "iteration": "first"}))) == first
    steps = launched(ddp.step(inputs(told, 2, options)))
    rebuilding = 0 if "find_unused_parameters" in options else 2
    assert [op for op, _, _ in second[:rebuilding]] == ["broadcast"] * rebuilding
    assert second[rebuilding:] == steps


@pytest.mark.parametrize("name", ["default", "buffers"])
def test_construction_sends_what_is_planned(name: str) -> None:
    """One-dimensional tensors only: 16 bytes (a size and a stride) each are broadcast as their shapes."""
    told, _, _ = CONFIGURATIONS[name]
    flat = {"layers": [{**layer, "params": [numel(shape) for shape in layer["params"]]} for layer in told["layers"]]}
    found = train(2, flat, "ddp", trace={"construction": True})
    assert launched(ddp.startup(inputs(flat, 2, {}))) == same([answer["construction"] for answer in found])


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], int]:
    """3 to 12 layers of 1 to 3 tensors, some with buffers, under any settings."""
    tensors = st.lists(st.integers(1, 200_000), min_size=1, max_size=3)
    told = layers(*draw(st.lists(tensors, min_size=3, max_size=12)))
    for layer in told["layers"]:
        if draw(st.integers(0, 5)) == 0:
            dtype = st.sampled_from(["float32", "int64"])
            layer["buffers"] = [{"shape": draw(st.integers(1, 99)), "dtype": draw(dtype)} for _ in range(2)]
    options: dict[str, Any] = {"sync": draw(st.sampled_from(["last", "every"]))}
    for flag in ("gradient_as_bucket_view", "find_unused_parameters"):
        options[flag] = draw(st.booleans())
    if draw(st.booleans()):
        options["bucket_cap_mb"] = draw(st.sampled_from([0.125, 0.5, 1, 2]))
    if draw(st.booleans()):
        options["hook"] = draw(st.sampled_from(["fp16", "bf16"]))
    return told, options, draw(st.integers(1, 3))


@given(jobs())
@settings(max_examples=24, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_model_under_any_settings_launches_what_is_planned(job: tuple[dict[str, Any], dict[str, Any], int]) -> None:
    """Three ranks: an odd world size."""
    told, options, micro_batches = job
    real = steady(3, told, "ddp", options=options, accumulation=micro_batches)
    assert launched(ddp.step(inputs(told, 3, options, micro_batches))) == real


HELD: dict[str, tuple[dict[str, Any], int]] = {
    "default": ({}, 1),
    "view": ({"gradient_as_bucket_view": True}, 1),
    "no_sync": ({}, 2),
    "view, no_sync": ({"gradient_as_bucket_view": True}, 2),
    "view, every": ({"gradient_as_bucket_view": True, "sync": "every"}, 2),
    "unused": ({"find_unused_parameters": True}, 1),
    "fp16, one bucket": ({"hook": "fp16", "bucket_cap_mb": 100}, 1),
}


@pytest.mark.parametrize("name", HELD)
def test_peak_memory_is_that_of_the_real_run(name: str) -> None:
    """Live tensors at the peak, within 2 %: weights, gradients, buckets, what a hook sends. No state under SGD."""
    options, micro_batches = HELD[name]
    real, _ = train(2, MODEL, "ddp", options=options, accumulation=micro_batches, memory=True)
    draft = ddp.step(inputs(MODEL, 2, options, micro_batches))
    classes = (RankClass(name=ALL_RANKS, ranks=(0, 1)),)
    plan = Plan(title="real", classes=classes, axes=draft.axes, tasks=draft.tasks, resident=draft.resident)
    planned = memory_of(simulate(plan, uniform(2))).peak_bytes
    assert planned == pytest.approx(sum(real["memory"].values()), rel=0.02)
