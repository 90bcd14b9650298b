"""Megatron's distributed optimizer: buckets and padding as its source lays them out, overlap, and bytes per parameter.

Source: NVIDIA/Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py (Core 0.15).
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import uniform
from zero_steps import collectives, drafted, held_before, inputs, layer, model_of, one_way_s, plan_of, ran, spans

from simulator.errors import ScenarioError
from simulator.parallel_spec import Parallel
from simulator.strategies import megatron
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import TrainingModel

MEGATRON = ("zero1", "megatron")
#: Layers of 1 MB fp32, 0.5 MB bf16: 250,000 parameters, padded to 250,112 = 1,954 x 128.
SIX = model_of(*(layer(f"l{i}", 1) for i in range(6)))
PADDED = 250_112
ONE_EACH = {"reduce_bucket_size": 250_000}


def of_tensors(*sizes: int) -> TrainingModel:
    layers = (MeasuredLayer(name="l", params=sizes, forward_s=1.0, backward_s=1.0),)
    return measured_model(layers, name="m", seq_len=1, micro_batch=1)


# -------------------------------------------------------------------------------------------------------------- buckets


def test_buckets_follow_the_rules_of_param_and_grad_buffer_by_hand() -> None:
    """Registered 100, 70, 1000; from the back, each from a multiple of 64, closing at 1,000 elements, padded to 128.

    1000 -> [0, 1000) closes, padded to 1024; 70 -> [1024, 1094); 100 from 1152 -> [1152, 1252), padded to 1280.
    """
    buckets = megatron.buckets_of(of_tensors(100, 70, 1000), 4, 1000)
    assert [[t.numel for t in bucket.tensors] for bucket in buckets] == [[1000], [70, 100]]
    assert [bucket.numel for bucket in buckets] == [1024, 256]


def test_a_bucket_is_padded_to_the_least_common_multiple_of_ranks_and_128() -> None:
    (bucket,) = megatron.buckets_of(of_tensors(10), 6, 1)
    assert bucket.numel == math.lcm(6, 128) == 384


@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=30), num_ranks=st.integers(1, 12), cap=st.integers(1, 900)
)
def test_buckets_hold_every_parameter_once_and_split_evenly(sizes: list[int], num_ranks: int, cap: int) -> None:
    model = of_tensors(*sizes)
    buckets = megatron.buckets_of(model, num_ranks, cap)
    assert [t for bucket in buckets for t in bucket.tensors] == list(reversed(model.parameters))
    for bucket in buckets:
        own = [t.numel for t in bucket.tensors]
        assert bucket.numel % num_ranks == 0 == bucket.numel % 128
        assert bucket.numel >= sum(own)
        end = 0
        for numel in own[:-1]:
            end = -(-end // 64) * 64 + numel
            assert end < cap, "it would have closed before its last tensor"


def test_default_size_grows_with_the_ranks_and_one_bucket_without_overlap() -> None:
    """max(40,000,000, 1,000,000 x dp) elements."""
    sizes = [megatron.bucket_size(Parallel(strategy="zero1", implementation="megatron"), n) for n in (8, 40, 64)]
    assert sizes == [40e6, 40e6, 64e6]
    plain = inputs(SIX, *MEGATRON, overlap_grad_reduce=False)
    assert [(task.op, task.message_bytes) for task in collectives(plain)] == [
        ("reduce_scatter", 4.0 * 1_500_288),  # five starts at multiples of 250,048, and 250,000 more, to 128
        ("all_gather", 4.0 * 1_500_288),
    ]


# ------------------------------------------------------------------------------------------------------------- timeline


def test_gradients_are_reduced_under_backward_and_weights_gathered_after_the_optimizer() -> None:
    """By hand: forward 6 s, backward 2 s each; RS of 1.0004 MB takes 0.77 s under it; then six all-gathers."""
    timeline = ran(inputs(SIX, *MEGATRON, overlap_param_gather=False, **ONE_EACH))
    seen, each = spans(timeline), one_way_s(4 * PADDED / 1e6)
    assert seen["reduce-scatter bucket 0"] == pytest.approx((8.0, 8.0 + each), rel=1e-9)
    assert seen["reduce-scatter bucket 5"] == pytest.approx((18.0, 18.0 + each), rel=1e-9)
    assert timeline.end_s == pytest.approx(18.0 + 7 * each, rel=1e-9)


def test_gathers_overlap_the_next_forward_one_bucket_ahead_and_the_first_is_exposed() -> None:
    """A steady step starts with the bucket of the first layers; a hook waits, then launches the next bucket's."""
    timeline = ran(inputs(SIX, *MEGATRON, **ONE_EACH))
    seen, each = spans(timeline), one_way_s(4 * PADDED / 1e6)
    order = [name for name in seen if name.startswith("all-gather")]
    assert order == [f"all-gather bucket {i}" for i in (5, 4, 3, 2, 1, 0)]
    assert seen["forward 0: l0"] == pytest.approx((each, each + 1.0), rel=1e-9)
    assert seen["all-gather bucket 4"] == pytest.approx((each, 2 * each), rel=1e-9)
    assert seen["all-gather bucket 3"][0] == pytest.approx(each + 1.0, rel=1e-9)  # at l1's hook, not before
    assert timeline.end_s == pytest.approx(18.0 + 2 * each, rel=1e-9)


def test_a_slow_gather_holds_up_the_forward_of_its_layers() -> None:
    model = model_of(*(layer(f"l{i}", 4, 1.0, 9.0) for i in range(3)))
    seen = spans(ran(inputs(model, *MEGATRON, reduce_bucket_size=1_000_000)))
    each = one_way_s(4 * 1_000_064 / 1e6)
    assert [seen[f"forward 0: l{i}"][0] for i in range(3)] == pytest.approx([each, 2 * each, 3 * each], rel=1e-9)


def test_only_the_last_micro_batch_reduces_and_only_the_first_gathers() -> None:
    many, once = (inputs(SIX, *MEGATRON, micro_batches=count, **ONE_EACH) for count in (5, 1))
    assert [(t.name, t.message_bytes) for t in collectives(many)] == [
        (t.name, t.message_bytes) for t in collectives(once)
    ]
    seen = spans(ran(many))
    assert seen["all-gather bucket 0"][1] < seen["forward 0: l5"][1]
    assert seen["reduce-scatter bucket 0"][0] > seen["backward 4: l5"][0]


def test_volume_is_2_psi_in_elements_in_two_types() -> None:
    """REQUIREMENTS 20: gradients 4 bytes, weights 2: 6 Psi bytes, of which a rank sends (W-1)/W."""
    asked = inputs(SIX, *MEGATRON, precision="bf16-master", **ONE_EACH)
    by_op = {
        op: sum(t.message_bytes for t in collectives(asked) if t.op == op) for op in ("reduce_scatter", "all_gather")
    }
    assert by_op == {"reduce_scatter": 4.0 * 6 * PADDED, "all_gather": 2.0 * 6 * PADDED}


def test_overlapping_the_gather_alone_is_refused_as_megatron_does() -> None:
    with pytest.raises(ScenarioError, match="overlap_param_gather: true needs overlap_grad_reduce"):
        drafted(inputs(SIX, *MEGATRON, overlap_param_gather=True, overlap_grad_reduce=False))


# --------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("precision", ["bf16-master", "bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("num_ranks", [1, 2, 8, 64])
def test_states_are_6_and_12_over_d_bytes_per_parameter(precision: str, num_ranks: int) -> None:
    """Megatron-LM, dist_optimizer.md: bf16 weights, fp32 gradients: 6 + 12/d, so 18 alone."""
    model = of_tensors(*[10_000_000] * 20)
    plan = plan_of(inputs(model, *MEGATRON, num_ranks=num_ranks, precision=precision))
    held = held_before(plan, "optimizer")
    found = (held["params"] + held["grads"] + held["optimizer"]) / model.num_parameters
    assert found == pytest.approx(6 + 12 / num_ranks, rel=1e-4)


def test_gradients_hold_one_buffer_all_the_time_and_micro_batches_add_nothing() -> None:
    """fp32 weights: 4 + 4 + 8/d; the same before the first task as at any other time."""
    for count in (1, 2, 5):
        plan = plan_of(inputs(SIX, *MEGATRON, micro_batches=count, **ONE_EACH))
        at = {name: held_before(plan, name) for name in ("forward 0: l0", f"backward {count - 1}: l0", "optimizer")}
        assert len({tuple(sorted(held.items())) for held in at.values()}) == 1
        assert at["optimizer"]["grads"] == 4.0 * 6 * PADDED
        assert at["optimizer"]["optimizer"] == 8.0 * 6 * PADDED / 4


def test_alone_it_computes_and_sends_nothing() -> None:
    timeline = ran(inputs(SIX, *MEGATRON, num_ranks=1, optimizer_s=0.5, micro_batches=3), uniform(1))
    assert not timeline.costs
    assert timeline.end_s == pytest.approx(3 * 18.0 + 0.5, rel=1e-5)  # padding is updated too
