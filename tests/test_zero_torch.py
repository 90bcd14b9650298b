"""ZeroRedundancyOptimizer: who owns what, what it sends, and that nothing of it is hidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import uniform
from test_zero_textbook import eight
from zero_steps import SLOW, collectives, drafted, inputs, layer, model_of, plan_of, ran, sent_bytes, spans

from simulator.strategies import ddp, zero_torch
from simulator.strategies.zero_torch import partition
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import ParameterTensor, TrainingModel

WHOLE = ("zero1", "torch")
THREE = model_of(layer("in", 1), layer("mid", 4), layer("out", 2))


def tensors(*sizes: int) -> tuple[ParameterTensor, ...]:
    return tuple(ParameterTensor(name=f"t{i}", numel=size) for i, size in enumerate(sizes))


def test_the_largest_tensor_goes_to_the_rank_that_has_least() -> None:
    """By hand: 9 -> rank 0, 5 -> 1, 4 -> 1 (5 < 9), 4 -> 0 (ties go to the lower rank), 1 -> 1."""
    owned = partition(tensors(4, 9, 1, 5, 4), 2)
    assert [[t.name for t in part] for part in owned] == [["t1", "t4"], ["t3", "t0", "t2"]]


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=40), num_ranks=st.integers(1, 9))
def test_every_tensor_has_one_owner_and_none_has_a_tensor_too_many(sizes: list[int], num_ranks: int) -> None:
    """Graham's bound for lists (SIAM J. Appl. Math. 17(2), 1969): at most the mean and the largest."""
    owned = partition(tensors(*sizes), num_ranks)
    assert sorted(t.name for part in owned for t in part) == sorted(t.name for t in tensors(*sizes))
    assert max(sum(t.numel for t in part) for part in owned) <= sum(sizes) / num_ranks + max(sizes)
    assert all([t.numel for t in part] == sorted((t.numel for t in part), reverse=True) for part in owned)


def test_volume_is_3_psi_all_reduce_and_broadcasts() -> None:
    """REQUIREMENTS 20, by whole tensor: an all-reduce moves 2 Psi, the broadcasts Psi: half as much again as flat."""
    sent = collectives(inputs(THREE, *WHOLE))
    assert sum(task.message_bytes * (2 if task.op == "all_reduce" else 1) for task in sent) == 3 * 7e6
    flat = collectives(inputs(THREE, "zero1", "textbook"))
    assert sum(task.message_bytes for task in flat) == 2 * 7e6
    # on the links of two ranks, where a broadcast is one message: 2 (W-1)/W Psi each, then Psi from the owners
    two = inputs(THREE, *WHOLE, num_ranks=2)
    assert sent_bytes(two, uniform(2)) == pytest.approx(7e6 + 7e6, rel=1e-9)


def test_broadcasts_go_owner_by_owner_after_the_optimizer_and_hide_behind_nothing() -> None:
    """mid is rank 0's, out rank 1's, in rank 2's; rank 3 owns nothing. The busiest owns 4 of 7 MB: 4/7 of 1.4 s."""
    timeline = ran(inputs(THREE, *WHOLE, optimizer_s=1.4))
    seen = spans(timeline)
    start, end = seen["optimizer"]
    assert end - start == pytest.approx(0.8, rel=1e-9)
    sent = [task for task in collectives(inputs(THREE, *WHOLE)) if task.op == "broadcast"]
    assert [(task.name, task.root) for task in sent] == [
        ("broadcast mid.weight", 0), ("broadcast out.weight", 1), ("broadcast in.weight", 2),
    ]  # fmt: skip
    assert [name for name in seen if name.startswith("broadcast")] == [task.name for task in sent]
    assert seen["broadcast mid.weight"][0] == pytest.approx(end, rel=1e-9)
    alone = [cost.alone_s for name, cost in timeline.costs.items() if name.startswith("broadcast")]
    assert min(alone) > 1.0  # a rank gets each tensor at 1 MB/s at best
    assert timeline.end_s == pytest.approx(end + sum(alone), rel=1e-9)


def test_bucket_views_broadcast_once_per_rank_and_an_empty_rank_sends_a_zero() -> None:
    views = [t for t in collectives(inputs(THREE, *WHOLE, parameters_as_bucket_view=True)) if t.op == "broadcast"]
    assert [task.message_bytes for task in views] == [4e6, 2e6, 1e6, zero_torch.EMPTY_BUCKET_BYTES]
    assert [task.purpose for task in views] == [f"weights of rank {rank}" for rank in range(4)]


def test_gradients_are_reduced_as_without_it() -> None:
    """The all-reduces are DistributedDataParallel's, in all its settings, and so is all before the optimizer."""
    for settings in ({}, {"bucket_cap": "3 MB"}, {"comm_hook": "bf16"}, {"find_unused_parameters": True}):
        asked = inputs(THREE, *WHOLE, micro_batches=2, **settings)
        own, plain = drafted(asked).tasks, ddp.step(asked).tasks
        assert own[: len(plain) - 1] == plain[:-1]


def lopsided() -> TrainingModel:
    """One tensor larger than all others together."""
    layers = (MeasuredLayer(name="l", params=(1000, 10, 10, 10), forward_s=1.0, backward_s=1.0),)
    return measured_model(layers, name="m", seq_len=1, micro_batch=1)


def test_optimizer_states_are_those_of_the_busiest_rank() -> None:
    """Equal tensors: 1/W of 8 bytes per parameter. A tensor is never split, so a large one stays whole somewhere."""

    def states(model: TrainingModel) -> float:
        return sum(b.size_bytes for b in plan_of(inputs(model, *WHOLE)).resident if b.kind == "optimizer")

    equal = model_of(*(layer(f"l{i}", 1) for i in range(8)))
    assert states(equal) == 8 * equal.num_parameters / 4
    assert states(lopsided()) == 8 * 1000


def test_alone_it_is_ddp() -> None:
    asked = inputs(THREE, *WHOLE, num_ranks=1)
    assert drafted(asked) == ddp.step(asked)


def test_construction_sends_what_ddp_sends() -> None:
    asked = inputs(THREE, *WHOLE)
    assert zero_torch.startup(asked) == ddp.startup(asked)


def test_messages_of_broadcasts_overtake_whole_ones() -> None:
    """Up to the optimizer every rank and message gives the same as one class: within 1e-6. In a row of broadcasts the
    root is done first and begins the next, which only messages show: they are never slower."""
    asked, network = eight(WHOLE, "uniform")
    coflow, message = ran(asked, network), ran(asked, network, "message")
    assert spans(coflow)["optimizer"] == pytest.approx(spans(message)["optimizer"], rel=1e-6)
    assert 0.95 * coflow.end_s < message.end_s < coflow.end_s


def test_flat_zero_1_is_faster_than_by_whole_tensor() -> None:
    """2 Psi against 3 Psi on a network that is the bottleneck, although DDP overlaps and the flat one does not."""
    slow = model_of(*(layer(f"l{i}", 4, 0.01, 0.02) for i in range(6)))
    assert ran(inputs(slow, "zero1", "textbook"), SLOW).end_s < ran(inputs(slow, *WHOLE), SLOW).end_s
