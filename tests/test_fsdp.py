"""FSDP2, FSDP1 and HSDP on a network of 10 ms and 1 MB/s: when units are gathered, run and reduced, by hand.

What they send and hold is compared with real runs in tests/test_real_fsdp.py, on CPUs, where every call blocks. How
calls overlap on the streams of a GPU is held here against torch 2.13's hooks (see ``simulator.strategies.fsdp2``).
Copies take no time. A gather or a reduction of 1 MB over four ranks takes G = 0.77 s.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from networks import uniform
from zero_steps import collectives, inputs, layer, model_of, one_way_s, plan_of, ran, spans

from simulator.plan import MEMORY_KINDS, Communicate
from simulator.report.memory import memory_of
from simulator.strategies.step import HostCosts, StepInputs
from simulator.training.operations import TrainingModel

G = one_way_s(1)
#: Forward 5 s and backward 10 s each, far longer than a gather.
LONG = model_of(*(layer(f"l{i}", 1, 5.0, 10.0) for i in range(4)))
#: So short that the network is never idle.
SHORT = model_of(*(layer(f"l{i}", 1, 0.01, 0.01) for i in range(4)))
#: Inside a root that owns the first and the last.
ROOTED = {"wrap": ["l1", "l2"]}


def fsdp2(model: TrainingModel = LONG, **more: Any) -> StepInputs:
    return inputs(model, "fsdp", "fsdp2", **more)


def fsdp1(model: TrainingModel = LONG, **more: Any) -> StepInputs:
    return inputs(model, "fsdp", "fsdp1", **more)


def starts(asked: StepInputs, *names: str) -> list[float]:
    seen = spans(ran(asked))
    return [seen[name][0] for name in names]


def order(asked: StepInputs) -> list[str]:
    """'G3' gathers unit 3, 'S3' reduces it."""
    letters = {"all_gather": "G", "reduce_scatter": "S", "all_reduce": "A"}
    return [letters[task.op] + task.purpose[-1] for task in collectives(asked)]


def peak(asked: StepInputs, kind: str) -> float:
    return float(memory_of(ran(asked)).curve_bytes[:, MEMORY_KINDS.index(kind)].max())


# ------------------------------------------------------------------------------------------------------------- FSDP2


def test_forward_gathers_two_ahead_and_the_next_waits_for_a_copy_out() -> None:
    """Gathers 0, 1 and 2 go at once, since the host runs ahead; 3 waits for the copy-out of 1, when forward 0 ends."""
    gathers = starts(fsdp2(), *(f"all-gather l{i}, forward 0" for i in range(4)))
    assert gathers == pytest.approx([0, G, 2 * G, G + 5], rel=1e-9)
    forwards = starts(fsdp2(), *(f"forward 0: l{i}" for i in range(4)))
    assert forwards == pytest.approx([G, G + 5, G + 10, G + 15], rel=1e-9)


def test_backward_gathers_one_ahead_and_the_last_reduction_is_exposed() -> None:
    """Torch frees the last unit after its forward and gathers it again, under that forward; the step ends one
    reduction after the last backward. A reduction goes before the gather that is issued behind it.
    """
    end = G + 4 * 5
    gathers = starts(fsdp2(), *(f"all-gather l{i}, backward 0" for i in (3, 2, 1, 0)))
    assert gathers == pytest.approx([G + 15, end, end + 10 + G, end + 20 + G], rel=1e-9)
    reductions = starts(fsdp2(), *(f"reduce-scatter l{i}, 0" for i in (3, 2, 1, 0)))
    assert reductions == pytest.approx([end + 10, end + 20, end + 30, end + 40], rel=1e-9)
    assert ran(fsdp2(optimizer_s=2.0)).end_s == pytest.approx(end + 40 + G + 2.0 / 4, rel=1e-9)


def test_one_input_of_a_reduce_scatter_is_in_flight_unless_more_are_allowed() -> None:
    """Compute waits for the reduce-scatter before: with bf16 weights and fp32 reductions these are twice as long.

    ``set_reduce_scatter_max_input_buffers`` lets two be alive, which costs one more of them.
    """
    types = {"param_dtype": "bf16", "reduce_dtype": "fp32", "separate_reduce_scatter_group": True}
    one, two = (fsdp2(SHORT, reduce_scatter_buffers=count, **types) for count in (1, 2))
    for asked, behind in ((one, 1), (two, 2)):
        seen = spans(ran(asked))
        for unit in range(4 - behind):
            copied = seen[f"copy in gradients l{unit}, 0"][0]
            assert copied >= seen[f"reduce-scatter l{unit + behind}, 0"][1] * (1 - 1e-12)
            assert behind == 1 or copied < seen[f"reduce-scatter l{unit + 1}, 0"][1]
    assert peak(one, "buffers") == 1e6
    assert peak(two, "buffers") == 2e6


def test_reductions_pass_gathers_by_with_a_communicator_of_their_own() -> None:
    """Both lanes share the links, so each of two transfers at once takes longer, and the last ends no earlier."""
    apart = fsdp2(SHORT, separate_reduce_scatter_group=True)
    lanes = {task.op: task.lane for task in collectives(apart)}
    assert lanes["all_gather"] != lanes["reduce_scatter"]
    assert {task.lane for task in collectives(fsdp2(SHORT))} == {lanes["all_gather"]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "G0 G1 G2 G3 G3 G2 S3 G1 S2 G0 S1 S0"),
        ({"reshard_after_forward": False}, "G0 G1 G2 G3 S3 S2 S1 S0"),
        ({"reshard_after_forward": "not-last"}, "G0 G1 G2 G3 G2 S3 G1 S2 G0 S1 S0"),
        ({"backward_prefetch": 0}, "G0 G1 G2 G3 G3 S3 G2 S2 G1 S1 G0 S0"),
        ({"backward_prefetch": 2}, "G0 G1 G2 G3 G3 G2 G1 S3 G0 S2 S1 S0"),
    ],
)
def test_units_are_gathered_and_reduced_in_the_order_of_torchs_hooks(settings: dict[str, Any], expected: str) -> None:
    assert " ".join(order(fsdp2(**settings))) == expected


def test_gathers_of_a_smaller_group_wait_for_those_of_the_whole_as_they_share_a_stream() -> None:
    """``reshard_after_forward: 2`` gathers again from two ranks; both kinds use the one stream of gathers."""
    asked = fsdp2(SHORT, reshard_after_forward=2)
    gathers = [task for task in collectives(asked) if task.op == "all_gather"]
    assert [task.axis for task in gathers] == ["shard"] * 4 + ["reshard"] * 4
    seen = spans(ran(asked))
    for before, after in pairwise(gathers):
        assert seen[after.name][0] >= seen[before.name][1]


def test_the_root_stays_whole_and_is_reduced_last() -> None:
    asked = fsdp2(**ROOTED)
    assert [task.purpose for task in collectives(asked)] == [
        "weights root", "weights l1", "weights l2", "weights l2", "weights l1", "gradients l2", "gradients l1",
        "gradients root",
    ]  # fmt: skip


def test_weights_travel_in_one_type_and_gradients_in_another() -> None:
    sizes = {(t.op, t.message_bytes) for t in collectives(fsdp2(param_dtype="bf16", reduce_dtype="fp32"))}
    assert sizes == {("all_gather", 0.5e6), ("reduce_scatter", 1e6)}
    sizes = {(t.op, t.message_bytes) for t in collectives(fsdp2(reduce_dtype="bf16"))}
    assert sizes == {("all_gather", 1e6), ("reduce_scatter", 0.5e6)}
    sizes = {(t.op, t.message_bytes) for t in collectives(fsdp1(param_dtype="fp16", reduce_dtype="fp32"))}
    assert sizes == {("all_gather", 0.5e6), ("reduce_scatter", 1e6)}


def test_accumulation_without_sync_reduces_once_but_gathers_every_time() -> None:
    """mechanics of torch 2.13: ``set_requires_gradient_sync(False)``; gradients stay whole, in the reduce type."""
    asked = fsdp2(micro_batches=3)
    assert sum(task.op == "all_gather" for task in collectives(asked)) == 3 * 8
    assert sum(task.op == "reduce_scatter" for task in collectives(asked)) == 4
    types = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    casts = [[task.name for task in plan_of(fsdp2(micro_batches=2, **more)).tasks if task.name.startswith("cast g")]
             for more in ({}, types)]  # fmt: skip
    assert casts == [[], [f"cast gradients l{unit}, 0" for unit in (3, 2, 1, 0)]]  # only where types differ
    once, often = (peak(fsdp2(micro_batches=count, **types), "grads") for count in (1, 2))
    assert often >= 4 * 1e6 > once


def test_whole_weights_of_two_units_and_their_buffers_are_alive_in_forward() -> None:
    """Unit i and its gathered buffer, and the buffers of the next two: 4 MB of 4 units, then the last is freed."""
    assert peak(fsdp2(), "gathered") == 4e6
    assert peak(fsdp2(reshard_after_forward=False), "gathered") >= 5e6


def test_clipping_reduces_a_norm_for_each_tensor_or_one_in_all() -> None:
    (two,) = [t for t in collectives(fsdp2(clip_grad_norm=True)) if t.op == "all_reduce"]
    (one,) = [t for t in collectives(fsdp1(clip_grad_norm=True)) if t.op == "all_reduce"]
    assert (two.message_bytes, one.message_bytes) == (4 * 4.0, 4.0)


# -------------------------------------------------------------------------------------------------------------- HSDP


@pytest.mark.parametrize("implementation", ["fsdp2", "fsdp1"])
def test_replicas_reduce_the_shard_of_each_unit_behind_its_reduce_scatter(implementation: str) -> None:
    """Shards over neighbours; replicas are ranks at the same place: 2 x 2. A quarter of the bytes: P / W of 4 ranks."""
    asked = inputs(LONG, "hsdp", implementation, shard_size=2)
    plan = plan_of(asked)
    assert plan.axes == {"shard": ((0, 1), (2, 3)), "replicate": ((0, 2), (1, 3))}
    reductions = [t for t in plan.tasks if isinstance(t, Communicate) and t.purpose.startswith("gradients")]
    assert [t.op for t in reductions] == ["reduce_scatter", "all_reduce"] * 4
    assert {t.message_bytes for t in reductions if t.op == "all_reduce"} == {1e6 / 2}
    seen = spans(ran(asked))
    for unit in range(4):
        assert seen[f"all-reduce l{unit}, 0"][0] >= seen[f"reduce-scatter l{unit}, 0"][1]
        if unit:  # while the next unit computes
            assert seen[f"all-reduce l{unit}, 0"][1] < seen[f"reduce-scatter l{unit - 1}, 0"][0]


# ------------------------------------------------------------------------------------------------------------- FSDP1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "G0 G1 G2 G3 G3 G2 S3 G1 S2 G0 S1 S0"),
        ({"backward_prefetch": 0}, "G0 G1 G2 G3 G3 S3 G2 S2 G1 S1 G0 S0"),
        ({"backward_prefetch": "post"}, "G0 G1 G2 G3 G3 G2 S3 G1 S2 G0 S1 S0"),
        ({"reshard_after_forward": False}, "G0 G1 G2 G3 S3 S2 S1 S0"),
    ],
)
def test_fsdp1_gathers_and_reduces_in_the_order_of_its_hooks(settings: dict[str, Any], expected: str) -> None:
    assert " ".join(order(fsdp1(**settings))) == expected


def test_the_limiter_blocks_the_host_before_a_gather_while_two_frees_are_recorded() -> None:
    """torch 2.13, _limiter_utils.py: it waits for the oldest of two frees that it knows; two are left of the last step.

    So gather 3 waits for forward 0, and gathers of the backward for forwards 1, 2 and 3; without the limit a host that
    needs 0.1 ms for a launch issues all gathers of the forward at once.
    """
    host = HostCosts(kernel_s=1e-4, collective_s=1e-4)
    free = spans(ran(fsdp1(limit_all_gathers=False, host=host)))
    held = spans(ran(fsdp1(host=host)))
    for unit in range(4):
        assert free[f"all-gather l{unit}, forward 0"][0] == pytest.approx(unit * G, abs=2e-3)
    gathers = [held[f"all-gather l{unit}, forward 0"][0] for unit in range(4)]
    assert gathers == pytest.approx([0, G, 2 * G, held["forward 0: l0"][1]], abs=3e-3)
    back = [held[f"all-gather l{unit}, backward 0"][0] for unit in (3, 2)]
    assert back == pytest.approx([held["forward 0: l1"][1], held["forward 0: l2"][1]], abs=3e-3)


def test_a_flat_parameter_is_padded_to_the_ranks_and_a_sharded_one_row_by_row() -> None:
    odd = model_of(layer("l0", 4 * 10 / 1e6), layer("l1", 4 * 9 / 1e6))
    assert [t.message_bytes for t in collectives(fsdp1(odd))][:2] == [4 * 12, 4 * 12]
    assert [t.message_bytes for t in collectives(fsdp2(odd))][:2] == [4 * 12, 4 * 12]
    padded, whole = peak(fsdp1(odd), "buffers"), peak(fsdp1(LONG), "buffers")
    assert padded == 4 * 12  # a copy that is padded
    assert whole == 0


def test_on_cpus_each_call_returns_when_it_is_done() -> None:
    """gloo: nothing overlaps, so the step is the sum of its parts."""
    for asked in (fsdp2(streams=False), fsdp1(streams=False)):
        timeline = ran(asked)
        assert timeline.end_s == pytest.approx(sum(span.alone_s for span in timeline.spans), rel=1e-9)
        assert timeline.end_s == pytest.approx(4 * 15 + 12 * G, rel=1e-9)


def test_a_rank_alone_sends_nothing() -> None:
    for asked in (fsdp2(num_ranks=1), fsdp1(num_ranks=1)):
        assert collectives(asked) == []
        assert ran(asked, uniform(1)).end_s == pytest.approx(60.0)
