"""Gradient buckets as PyTorch's DDP builds them, against traced runs and as laws."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.model_spec import PresetModel
from simulator.strategies.buckets import Bucket, ReadyTensor, assign, by_registration, coalesced, ready_order, whole
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import ParameterTensor, TrainingModel
from simulator.training.presets import build_model

MIB = 2**20


def tensors(*sizes_bytes: float) -> tuple[ReadyTensor, ...]:
    return tuple(
        ReadyTensor(tensor=ParameterTensor(name=f"t{i}", numel=int(size)), operation=f"op{i}", size_bytes=size)
        for i, size in enumerate(sizes_bytes)
    )


def sizes(buckets: tuple[Bucket, ...]) -> list[float]:
    return [bucket.size_bytes for bucket in buckets]


def preset(name: str) -> TrainingModel:
    return build_model(PresetModel(preset=name), seq_len=1, micro_batch=1, precision="fp32", attention="eager")


# ----------------------------------------------------------------------------------------------------- traced runs


@pytest.mark.parametrize(
    ("cap_mib", "traced_bytes"),
    [(25, [2_052_000, 28_852_224, 15_853_824]), (35, [2_052_000, 38_297_600, 6_408_448])],
)
def test_resnet_18_has_the_buckets_that_were_seen_on_the_wire(cap_mib: int, traced_bytes: list[int]) -> None:
    """Field case b01: pytorch issue 48880 and pull request 121640; 11,689,512 fp32 parameters, first cap 1 MiB."""
    ready = ready_order(preset("resnet-18"), 4)
    assert len(ready) == 62
    assert sizes(assign(ready, first_cap_bytes=MIB, cap_bytes=cap_mib * MIB)) == traced_bytes
    assert sum(traced_bytes) == 4 * 11_689_512


def test_a_traced_step_of_nine_linears_and_a_batch_norm() -> None:
    """torch 2.13, BatchNorm(1024) and nine Linear(1024), fp32: three all-reduces, of just these bytes."""
    norm = MeasuredLayer(name="norm", params=(1024, 1024), forward_s=0.0, backward_s=0.0)
    linear = MeasuredLayer(name="linear", params=(1024 * 1024, 1024), forward_s=0.0, backward_s=0.0, repeat=9)
    model = measured_model((norm, linear), name="traced", seq_len=1, micro_batch=1)
    buckets = assign(ready_order(model, 4), first_cap_bytes=MIB, cap_bytes=25 * MIB)
    assert sizes(buckets) == [4_198_400, 29_388_800, 4_206_592]


@pytest.mark.parametrize(("cap_mib", "count"), [(1, 8), (25, 2), (64, 2)])
def test_the_lectures_mlp_fills_few_buckets(cap_mib: int, count: int) -> None:
    """REQUIREMENTS 13: 8 x (Linear(1024) + LayerNorm) in 34 tensors; each Linear's weight is 4 MiB.

    The head is ready first but far below 1 MiB, so it shares the last Linear's bucket; the other seven blocks hold
    28 MiB: one bucket at a cap of 25 MiB as at 64.
    """
    ready = ready_order(preset("cs-mlp-8x1024"), 4)
    assert len(ready) == 34
    assert len(assign(ready, first_cap_bytes=MIB, cap_bytes=cap_mib * MIB)) == count


# ------------------------------------------------------------------------------------------------------ the rule


def test_the_tensor_that_crosses_the_cap_is_included() -> None:
    """torch 2.13: 4 + 24 MiB make one bucket of 28, 20 + 26 one of 46."""
    for pair, together in (((4, 24), 28), ((20, 26), 46)):
        buckets = assign(tensors(*(MIB * size for size in pair)), first_cap_bytes=25 * MIB, cap_bytes=25 * MIB)
        assert sizes(buckets) == [MIB * together]


def test_a_bucket_closes_when_it_reaches_the_cap_exactly() -> None:
    assert sizes(assign(tensors(10, 15, 1), first_cap_bytes=25, cap_bytes=25)) == [25, 1]


def test_the_first_bucket_has_its_own_cap() -> None:
    assert sizes(assign(tensors(2, 2, 2, 2, 2), first_cap_bytes=1, cap_bytes=4)) == [2, 4, 4]


def test_a_tensor_larger_than_the_cap_is_never_split() -> None:
    assert sizes(assign(tensors(1, 1000, 1), first_cap_bytes=1, cap_bytes=10)) == [1, 1000, 1]


def test_a_model_without_parameters_has_no_bucket() -> None:
    assert assign((), first_cap_bytes=1, cap_bytes=1) == ()


def test_gradients_are_ready_in_reverse_order_of_operations_and_of_their_tensors() -> None:
    layers = (
        MeasuredLayer(name="a", params=(1, 2), forward_s=0.0, backward_s=0.0),
        MeasuredLayer(name="b", params=(3,), forward_s=0.0, backward_s=0.0, repeat=2),
    )
    ready = ready_order(measured_model(layers, name="m", seq_len=1, micro_batch=1), 2)
    assert [r.tensor.name for r in ready] == ["b.1.weight", "b.0.weight", "a.1", "a.0"]
    assert [r.operation for r in ready] == ["b.1", "b.0", "a", "a"]
    assert [r.size_bytes for r in ready] == [6, 6, 4, 2]


def test_a_bucket_is_ready_when_its_last_tensor_is() -> None:
    (bucket,) = assign(tensors(1, 1, 1), first_cap_bytes=3, cap_bytes=3)
    assert (bucket.index, bucket.ready_after) == (0, "op2")


def model_of(*numels: int) -> TrainingModel:
    layers = tuple(
        MeasuredLayer(name=f"l{i}", params=(n,), forward_s=0.0, backward_s=0.0) for i, n in enumerate(numels)
    )
    return measured_model(layers, name="m", seq_len=1, micro_batch=1)


def names(bucket: Bucket) -> list[str]:
    return [ready.tensor.name.removesuffix(".weight") for ready in bucket.tensors]


def test_before_the_order_of_gradients_is_known_the_first_registered_fill_the_small_bucket_and_go_last() -> None:
    """torch 2.13 with find_unused_parameters, traced: caps fill in order of registration, then buckets are reversed."""
    model = model_of(3, 2, 2, 2, 1)
    buckets = by_registration(model, ready_order(model, 1), first_cap_bytes=1, cap_bytes=4)
    assert [names(bucket) for bucket in buckets] == [["l3", "l4"], ["l1", "l2"], ["l0"]]
    assert [bucket.index for bucket in buckets] == [0, 1, 2]
    assert [bucket.ready_after for bucket in buckets] == ["l3", "l1", "l0"]


def test_one_bucket_holds_everything_in_order_of_registration() -> None:
    model = model_of(3, 2, 1)
    (bucket,) = whole(model, ready_order(model, 2))
    assert (names(bucket), bucket.size_bytes, bucket.numel, bucket.ready_after) == (["l0", "l1", "l2"], 12, 6, "l0")
    assert whole(model_of(), ()) == ()


def test_a_tied_table_is_ready_with_the_embedding_wherever_it_is_registered() -> None:
    """The bucket waits for the tensor that is ready last, not for the one that is listed last."""
    model = preset("gpt2")
    first, last = model.operations[0], by_registration(
        model, ready_order(model, 4), first_cap_bytes=MIB, cap_bytes=25 * MIB
    )[-1]  # fmt: skip
    assert last.tensors[0].tensor.name == "transformer.wte.weight"
    assert last.ready_after == first.name


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 60), st.integers(1, 60))
def test_buckets_by_registration_hold_every_gradient_once_and_their_last_is_ready_last(
    numels: list[int], first_cap: int, cap: int
) -> None:
    """Read backwards they are the registered tensors under the rule; the small cap is that of the last bucket."""
    model = model_of(*numels)
    ready = ready_order(model, 4)
    buckets = by_registration(model, ready, first_cap_bytes=first_cap, cap_bytes=cap)
    listed = [ready.tensor for bucket in reversed(buckets) for ready in bucket.tensors]
    assert listed == list(model.parameters)
    turns = {gradient.operation: gradient.turn for gradient in ready}
    for bucket in buckets:
        assert turns[bucket.ready_after] == max(t.turn for t in bucket.tensors)
        limit = first_cap if bucket is buckets[-1] else cap
        assert bucket is buckets[0] or bucket.size_bytes >= limit
        assert sum(t.size_bytes for t in bucket.tensors[:-1]) < limit


def test_buffers_of_resnet_18_are_two_messages() -> None:
    """20 batch norms: 4,800 means and as many variances in fp32, and 20 int64 counters."""
    buffers = preset("resnet-18").buffers
    flats = coalesced([(buffer.dtype, buffer.size_bytes) for buffer in buffers], 250 * MIB)
    assert [(flat.dtype, flat.size_bytes, len(flat.members)) for flat in flats] == [
        ("float32", 38_400, 40),
        ("int64", 160, 20),
    ]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), max_size=20), st.integers(1, 20))
def test_what_is_coalesced_is_every_tensor_once_by_dtype(tensors: list[tuple[str, int]], cap: int) -> None:
    flats = coalesced([(dtype, float(size)) for dtype, size in tensors], cap)
    assert sorted(chain.from_iterable(flat.members for flat in flats)) == list(range(len(tensors)))
    assert [flat.members[0] for flat in flats] == sorted(flat.members[0] for flat in flats)
    for flat in flats:
        assert {tensors[member][0] for member in flat.members} == {flat.dtype}
        assert flat.size_bytes == sum(tensors[member][1] for member in flat.members)
        assert sum(tensors[member][1] for member in flat.members[:-1]) < cap
    for dtype in "ab":
        assert all(flat.size_bytes >= cap for flat in [flat for flat in flats if flat.dtype == dtype][:-1])


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 60), st.integers(1, 60))
def test_buckets_follow_the_rule_for_any_tensors(numels: list[int], first_cap: int, cap: int) -> None:
    """Joined they are the ready order; all but the last reached their cap, and not before their last tensor."""
    ready = tensors(*numels)
    buckets = assign(ready, first_cap_bytes=first_cap, cap_bytes=cap)
    assert tuple(chain.from_iterable(bucket.tensors for bucket in buckets)) == ready
    assert [bucket.index for bucket in buckets] == list(range(len(buckets)))
    for bucket in buckets:
        limit = cap if bucket.index else first_cap
        before_last = sum(t.size_bytes for t in bucket.tensors[:-1])
        assert before_last < limit
        assert bucket is buckets[-1] or bucket.size_bytes >= limit
