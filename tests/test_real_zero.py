"""ZeRO by hand and ZeroRedundancyOptimizer: our plans against real steps of torch 2.13.0 on gloo, element by element.

The real programs are ``simulator.lab.real_zero``, ``real_zero3`` and ``real_ddp.zero1_torch``; what they communicate is
traced in the dispatcher (``simulator.lab.real_trace``), what memory they hold is counted by weak references.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import uniform
from real_steps import Launched, layers, needs_torch, steady, train

from simulator.engine.run import simulate
from simulator.parallel_spec import Parallel
from simulator.plan import Communicate, Plan, RankClass
from simulator.rank_classes import ALL_RANKS
from simulator.report.memory import Memory, memory_of
from simulator.strategies import STRATEGIES
from simulator.strategies.step import Draft, StepInputs
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.precision import PRECISIONS

pytestmark = [pytest.mark.slow, needs_torch]

Shape = int | list[int]
#: As transformers have them: large and small, matrices and vectors, none a multiple of the ranks.
EMBEDDING, HEAD = [[[1001, 63]]], [63, [[1001, 63]]]
BLOCK = [63, 63, [189, 63], 189, [63, 63], 63, 63, 63, [251, 63], 251, [63, 251], 63]
TOY = [EMBEDDING[0], BLOCK, BLOCK, BLOCK, [63, 63, [1001, 63]]]


def numel(shape: Shape) -> int:
    return math.prod([shape] if isinstance(shape, int) else shape)


def draft(
    world: int, model: list[list[Shape]], *, accumulation: int = 1, adamw: bool = False, **parallel: Any
) -> Draft:
    """What we plan for the model whose layers have these tensors."""
    parts = tuple(
        MeasuredLayer(name=f"layer{number}", params=tuple(map(numel, one)), forward_s=0.01, backward_s=0.02)
        for number, one in enumerate(model)
    )
    made = measured_model(parts, name="toy", seq_len=1, micro_batch=1)
    asked = Parallel(**parallel)
    return STRATEGIES[asked.strategy, asked.implemented_by].step(
        StepInputs(
            model=made, precision=PRECISIONS["fp32"], parallel=asked, num_ranks=world, micro_batches=accumulation,
            forward_s=tuple(op.forward_s or 0.0 for op in made.operations), optimizer="adamw" if adamw else "sgd",
            backward_s=tuple(op.backward_s or 0.0 for op in made.operations),
        )
    )  # fmt: skip


def planned(world: int, model: list[list[Shape]], **asked: Any) -> list[Launched]:
    """The plan's collectives in issue order, as a real step reports them."""
    made = draft(world, model, **asked)
    return [
        (task.op, int(task.message_bytes), len(made.axes[task.axis][0]))
        for task in made.tasks
        if isinstance(task, Communicate)
    ]


def real(
    world: int, model: list[list[Shape]], strategy: str, *, accumulation: int = 1, **options: Any
) -> list[Launched]:
    return steady(world, layers(*model), strategy, options=options, accumulation=accumulation)


# ------------------------------------------------------------------------------------------------------ configurations


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_zero_1_by_hand_is_one_reduce_scatter_and_one_all_gather(world: int, accumulation: int) -> None:
    plan = planned(world, TOY, strategy="zero1", implementation="textbook", accumulation=accumulation)
    assert plan == real(world, TOY, "zero1", accumulation=accumulation)
    assert [op for op, _, _ in plan] == ["reduce_scatter", "all_gather"]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("wrap", "options"), [("block", {}), (2, {"units": 2}), ("root", {"units": [[0, 1, 2, 3, 4]]})]
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_zero_2_by_hand_reduces_layer_by_layer(
    world: int, wrap: Any, options: dict[str, Any], accumulation: int
) -> None:  # fmt: skip
    asked = {"strategy": "zero2", "implementation": "textbook", "wrap": wrap, "accumulation": accumulation}
    assert planned(world, TOY, **asked) == real(world, TOY, "zero2", accumulation=accumulation, **options)


@pytest.mark.parametrize("depth", [0, 1, 2, 9])
@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, {}),
        ({"wrap": 2}, {"units": 2}),
        ({"reshard_after_forward": False}, {"reshard_after_forward": False}),
        ({"reshard_after_forward": "not-last"}, {"keep_last": True}),
        ({"accumulation": 2}, {"accumulation": 2}),
    ],
)
def test_zero_3_by_hand_gathers_ahead_in_both_directions(
    depth: int, asked: dict[str, Any], options: dict[str, Any]
) -> None:  # fmt: skip
    plan = planned(3, TOY, strategy="zero3", implementation="textbook", forward_prefetch=depth, **asked)
    assert plan == real(3, TOY, "zero3", prefetch=depth, **options)


@pytest.mark.parametrize("depths", [(0, 2), (2, 0), (1, 3)])
def test_zero_3_by_hand_may_look_ahead_otherwise_in_backward(depths: tuple[int, int]) -> None:
    ahead, back = depths
    plan = planned(
        2, TOY, strategy="zero3", implementation="textbook", forward_prefetch=ahead, backward_prefetch=back
    )  # fmt: skip
    assert plan == real(2, TOY, "zero3", forward_prefetch=ahead, backward_prefetch=back)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("cap_kib", [None, 100])
def test_zero_redundancy_optimizer_broadcasts_whole_tensors_from_their_owners(
    world: int, view: bool, cap_kib: int | None
) -> None:  # fmt: skip
    asked, options = (
        ({}, {}) if cap_kib is None else ({"bucket_cap": f"{cap_kib} KiB"}, {"bucket_cap_mb": cap_kib / 2**10})
    )
    plan = planned(world, TOY, strategy="zero1", implementation="torch", parameters_as_bucket_view=view, **asked)
    assert plan == real(world, TOY, "zero1_torch", parameters_as_bucket_view=view, **options)


def test_a_rank_that_owns_no_tensor_broadcasts_an_empty_bucket() -> None:
    """Two tensors on four ranks: with views each rank sends its bucket, an empty one as one fp32 zero."""
    plan = planned(4, [[100], [200]], strategy="zero1", implementation="torch", parameters_as_bucket_view=True)
    assert plan == real(4, [[100], [200]], "zero1_torch", parameters_as_bucket_view=True)
    assert [size for _, size, _ in plan[-4:]] == [800, 400, 4, 4]


# -------------------------------------------------------------------------------------------------------- random models

SIZES = st.integers(1, 300) | st.lists(st.integers(1, 40), min_size=1, max_size=2)
MODELS = st.lists(st.lists(SIZES, min_size=1, max_size=5), min_size=3, max_size=12)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), model=MODELS, world=st.sampled_from([2, 3, 5]), accumulation=st.integers(1, 3))
def test_plans_of_random_models_are_what_real_steps_communicate(
    data: st.DataObject, model: list[list[Shape]], world: int, accumulation: int
) -> None:
    """3 to 12 layers, odd numbers of ranks, tensors that divide by nothing."""
    kind, depth = data.draw(st.sampled_from(["zero1", "zero2", "zero3", "zero1_torch"])), data.draw(st.integers(0, 4))
    asked: dict[str, Any] = {"strategy": kind[:5], "implementation": "textbook"}
    options: dict[str, Any] = {}
    if kind in ("zero2", "zero3"):
        asked["wrap"] = options["units"] = data.draw(st.integers(1, 4))
    if kind == "zero3":
        asked["forward_prefetch"] = options["prefetch"] = depth
    if kind == "zero1_torch":
        options = {"parameters_as_bucket_view": bool(depth % 2), "bucket_cap_mb": 2000 / 2**20}
        asked |= {"implementation": "torch", "parameters_as_bucket_view": bool(depth % 2), "bucket_cap": "2000 B"}
    plan = planned(world, model, accumulation=accumulation, **asked)
    assert plan == real(world, model, kind, accumulation=accumulation, **options)


# --------------------------------------------------------------------------------------------------------------- memory

#: 24 layers of 4 MB. What the program has given back is seen a moment longer, up to the input of one reduce-scatter:
#: a thirtieth at most.
LARGE: list[list[Shape]] = [[250_000] * 4] * 24


def peak_of(world: int, model: list[list[Shape]], *, adamw: bool = False, **asked: Any) -> Memory:
    """On a network so fast that nothing is in flight for long, as on loopback when every reduction is awaited."""
    made = draft(world, model, adamw=adamw, **asked)
    classes = (RankClass(name=ALL_RANKS, ranks=tuple(range(world))),)
    plan = Plan(title="a step", classes=classes, axes=made.axes, tasks=made.tasks, resident=made.resident)
    return memory_of(simulate(plan, uniform(world, 1e-9, 1e15)))


BY_HAND = {"implementation": "textbook"}


@pytest.mark.parametrize(
    ("asked", "strategy", "options", "adamw"),
    [
        ({"strategy": "zero1", **BY_HAND}, "zero1", {}, False),
        ({"strategy": "zero1", **BY_HAND}, "zero1", {}, True),
        ({"strategy": "zero2", **BY_HAND}, "zero2", {"reduces_in_flight": 1}, False),
        ({"strategy": "zero3", **BY_HAND}, "zero3", {"reduces_in_flight": 1, "prefetch": 0}, False),
        ({"strategy": "zero3", **BY_HAND, "forward_prefetch": 1}, "zero3", {"reduces_in_flight": 1}, False),
        ({"strategy": "zero1", "implementation": "torch"}, "zero1_torch", {}, False),
    ],
)
def test_peak_memory_is_that_of_live_tensors_of_the_real_step(
    asked: dict[str, Any], strategy: str, options: dict[str, Any], adamw: bool
) -> None:
    """SGD where AdamW's own temporaries, which we do not count, would be the peak (``foreach``: a shard more)."""
    optimizer = "adamw" if adamw else "sgd"
    found = train(2, layers(*LARGE), strategy, options=options, optimizer=optimizer, memory=True)
    measured = max(sum(answer["memory"].values()) for answer in found)
    assert peak_of(2, LARGE, adamw=adamw, **asked).peak_bytes == pytest.approx(measured, rel=0.02)
