"""What has to be over before what, whatever the times: by the waits and lanes of the plan of every strategy.

A step that lacks a wait may well take the same time on most networks, and reads data that is not there yet on others.
So these laws look at the plan alone: a task is *behind* another when a chain of waits and lanes leads from it to that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import pytest
from zero_steps import inputs, layer, model_of, plan_of

from simulator.plan import Communicate, Plan, Task
from simulator.strategies import STRATEGIES

LAYERS = 5
#: Unlike sizes, so that buckets hold one layer or several.
MODEL = model_of(*(layer(f"l{i}", 0.6 + i % 3, kept_bytes=1e6) for i in range(LAYERS)))
FSDP2 = ({}, {"reshard_after_forward": False}, {"forward_prefetch": 2, "backward_prefetch": 2},
         {"sync_each_micro_batch": True}, {"separate_reduce_scatter_group": True, "reduce_scatter_buffers": 2},
         {"param_dtype": "bf16", "reduce_dtype": "fp32"}, {"wrap": ["l1", "l3"]}, {"wait_each_micro_batch": False},
         {"reshard_after_backward": False}, {"reshard_after_forward": 2})  # fmt: skip
FSDP1 = ({}, {"reshard_after_forward": False}, {"forward_prefetch": 1}, {"backward_prefetch": "post"},
         {"backward_prefetch": 0}, {"sync_each_micro_batch": True}, {"param_dtype": "bf16", "reduce_dtype": "fp32"},
         {"limit_all_gathers": False}, {"wrap": ["l1", "l3"]})  # fmt: skip
DEEPSPEED = ({}, {"reduce_bucket_size": 300_000}, {"overlap_comm": True, "reduce_bucket_size": 300_000},
             {"overlap_comm": False, "reduce_bucket_size": 300_000})  # fmt: skip
SETTINGS = {
    ("ddp", "torch"): ({}, {"overlap": "per_parameter"}, {"overlap": "none"}, {"comm_hook": "fp16"},
                       {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"iteration": "first"},
                       {"sync_each_micro_batch": True}),
    ("zero1", "deepspeed"): (*DEEPSPEED, {"use_multi_rank_bucket_allreduce": False}),
    ("zero1", "torch"): ({}, {"parameters_as_bucket_view": True}, {"comm_hook": "bf16"}),
    ("zero1", "megatron"): ({"reduce_bucket_size": 300_000}, {"overlap_param_gather": False, "reduce_bucket_size": 1},
                            {"overlap_grad_reduce": False}),
    ("zero1", "textbook"): ({},),
    ("zero2", "deepspeed"): (*DEEPSPEED, {"use_multi_rank_bucket_allreduce": False, "overlap_comm": True}),
    ("zero2", "textbook"): ({}, {"wrap": 2}),
    ("zero3", "deepspeed"): (
        *DEEPSPEED, {"prefetch_bucket_size": 0},
        {"prefetch_bucket_size": 0, "max_reuse_distance": 0, "param_persistence_threshold": 0},
    ),
    ("zero3", "textbook"): ({}, {"forward_prefetch": 2}, {"wrap": 2}, {"reshard_after_forward": "not-last"}),
    ("fsdp", "fsdp2"): FSDP2, ("hsdp", "fsdp2"): (*FSDP2[:-1], {"all_reduce_each_micro_batch": False,
                                                                "sync_each_micro_batch": True}),
    ("fsdp", "fsdp1"): FSDP1, ("hsdp", "fsdp1"): FSDP1,
}  # fmt: skip
CASES = [(key, number, micro) for key, all_ in SETTINGS.items() for number in range(len(all_)) for micro in (1, 3)]
every_case = pytest.mark.parametrize(("key", "number", "micro_batches"), CASES, ids=lambda v: str(v))


@cache
def planned(key: tuple[str, str], number: int, micro_batches: int) -> tuple[Plan, dict[str, set[str]]]:
    """The plan on four ranks, and for each task all those that it is behind. Gradients of three micro-batches are
    clipped; without that nothing but their own waits keeps the optimizer from the reductions.
    """
    shards = {"shard_size": 2} if key[0] == "hsdp" else {}
    more = SETTINGS[key][number] | shards
    precision = "bf16-mixed" if "param_dtype" in more else "fp32"
    asked = inputs(
        MODEL, *key, micro_batches=micro_batches, precision=precision, clip_grad_norm=micro_batches > 1, **more
    )
    plan = plan_of(asked)
    behind: dict[str, set[str]] = {}
    on_lane: dict[str, str] = {}
    for task in plan.tasks:
        waits = [*task.after, *([on_lane[task.lane]] if task.lane in on_lane else [])]
        behind[task.name] = set(waits).union(*(behind[name] for name in waits))
        on_lane[task.lane] = task.name
    return plan, behind


def layers_of(purpose: str) -> range:
    """The layers between the first and the last that it names; all when it names none."""
    named = [int(number) for number in re.findall(r"\bl(\d+)", purpose)]
    return range(min(named), max(named) + 1) if named else range(LAYERS)


def sent(plan: Plan, what: str) -> Iterable[Communicate]:
    return (t for t in plan.tasks if isinstance(t, Communicate) and t.purpose.split()[0] in what.split())


def passes(plan: Plan, which: str, layers: Iterable[int]) -> list[Task]:
    """Tasks of the forward or backward of layers, in all micro-batches."""
    ends = tuple(f": l{number}" for number in layers)
    return [task for task in plan.tasks if task.kind == which and task.name.endswith(ends)]


def test_all_strategies_are_here() -> None:
    assert set(SETTINGS) == set(STRATEGIES)


@every_case
def test_gradients_are_sent_once_they_are_ready(key: tuple[str, str], number: int, micro_batches: int) -> None:
    """A reduction is behind every backward of its layers; of several micro-batches behind those issued before it."""
    plan, behind = planned(key, number, micro_batches)
    order = {task.name: place for place, task in enumerate(plan.tasks)}
    reductions = list(sent(plan, "gradient gradients"))
    assert reductions
    for task in reductions:
        for ready in passes(plan, "backward", layers_of(task.purpose)):
            if micro_batches == 1 or order[ready.name] < order[task.name]:
                assert ready.name in behind[task.name], (ready.name, task.name)


@every_case
def test_the_optimizer_is_behind_all_that_reduces_gradients_and_behind_their_norm(
    key: tuple[str, str], number: int, micro_batches: int
) -> None:
    plan, behind = planned(key, number, micro_batches)
    (step,) = [task for task in plan.tasks if task.kind == "optimizer"]
    assert {task.name for task in sent(plan, "gradient gradients which norm norms")} <= behind[step.name]
    assert micro_batches == 1 or any("norm of" in name or "norms of" in name for name in behind[step.name])


@every_case
def test_layers_run_behind_the_gathering_of_their_weights(
    key: tuple[str, str], number: int, micro_batches: int
) -> None:
    """Forward and backward of a layer are behind the last gathering of it that was issued before; what is gathered or
    sent after the optimizer is behind the optimizer.
    """
    plan, behind = planned(key, number, micro_batches)
    gathered: dict[int, str] = {}
    updated = False
    for task in plan.tasks:
        updated = updated or task.kind == "optimizer"
        if isinstance(task, Communicate) and task.purpose.split()[0] in ("weights", "updated"):
            assert not updated or "optimizer" in behind[task.name], task.name
            gathered |= dict.fromkeys(layers_of(task.purpose), task.name)
        for index, name in gathered.items():
            if task.kind in ("forward", "backward") and task.name.endswith(f": l{index}"):
                assert name in behind[task.name], (name, task.name)
    assert bool(gathered) == (key != ("ddp", "torch"))


@every_case
def test_an_owner_keeps_its_part_of_a_bucket_once_that_is_reduced(
    key: tuple[str, str], number: int, micro_batches: int
) -> None:
    """DeepSpeed's buckets, whose names say which one."""
    plan, behind = planned(key, number, micro_batches)
    keeping = [task for task in plan.tasks if task.name.startswith("keep own part of ")]
    assert bool(keeping) == (key[1] == "deepspeed")
    for task in keeping:
        bucket = task.name.removeprefix("keep own part of ")
        calls = {t.name for t in plan.tasks if isinstance(t, Communicate) and t.name.endswith(f" {bucket}")}
        assert calls
        assert calls <= behind[task.name]


@every_case
def test_memory_is_given_back_behind_what_fills_it_and_all_of_it(
    key: tuple[str, str], number: int, micro_batches: int
) -> None:
    plan, behind = planned(key, number, micro_batches)
    makers = {buffer.name: task.name for task in plan.tasks for buffer in task.allocates}
    assert sorted(makers) == sorted(name for task in plan.tasks for name in task.frees)
    for task in plan.tasks:
        for name in task.frees:
            assert makers[name] in {task.name, *behind[task.name]}, (name, task.name)
