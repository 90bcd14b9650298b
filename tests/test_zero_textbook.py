"""ZeRO by hand: volumes, memory and overlap as the paper and the lectures state them (Rajbhandari et al., SC20)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import played, uniform
from zero_steps import (
    ALL,
    BY_HAND,
    collectives,
    drafted,
    held_before,
    inputs,
    layer,
    model_of,
    one_way_s,
    plan_of,
    ran,
    sent_bytes,
    spans,
)

from simulator.errors import ScenarioError
from simulator.network.graph import Network
from simulator.plan import Communicate
from simulator.report.memory import memory_of
from simulator.strategies import STRATEGIES
from simulator.strategies.pieces import cut
from simulator.strategies.step import StepInputs
from simulator.strategies.units import ROOT
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import TrainingModel
from simulator.training.recompute import recomputed_blocks

#: Forward 1 s each, backward 2 s each, 1, 4 and 2 MB.
THREE = model_of(layer("in", 1), layer("mid", 4), layer("out", 2))
EQUAL = model_of(*(layer(f"l{i}", 1) for i in range(6)))
REPLICATED = ("ddp", "torch")
FLAT, LAYERED, SHARDED = BY_HAND


def gathers(asked: StepInputs) -> list[str]:
    return [task.purpose for task in collectives(asked) if task.op == "all_gather"]


# ------------------------------------------------------------------------------------------------------------ by hand


def test_zero_1_is_compute_then_one_reduce_scatter_then_one_all_gather() -> None:
    """9 s of compute, 7 MB each way, the optimizer's quarter of 2 s between them. Nothing is hidden."""
    timeline = ran(inputs(THREE, *FLAT, optimizer_s=2.0))
    seen = spans(timeline)
    assert seen["reduce-scatter by hand"] == pytest.approx((9.0, 9.0 + one_way_s(7)), rel=1e-9)
    assert seen["optimizer"] == pytest.approx((9.0 + one_way_s(7), 9.5 + one_way_s(7)), rel=1e-9)
    assert timeline.end_s == pytest.approx(9.5 + 2 * one_way_s(7), rel=1e-9)


def test_zero_2_reduces_each_layer_under_the_backward_of_the_next() -> None:
    """2, 4 and 1 MB are ready at 5, 7 and 9 s. 4 MB take 3.02 s, so 'in' queues; then three all-gathers."""
    timeline = ran(inputs(THREE, *LAYERED))
    seen = spans(timeline)
    assert seen["reduce-scatter out"] == pytest.approx((5.0, 5.0 + one_way_s(2)), rel=1e-9)
    assert seen["backward 0: mid"] == pytest.approx((5.0, 7.0), rel=1e-9)
    assert seen["reduce-scatter mid"] == pytest.approx((7.0, 7.0 + one_way_s(4)), rel=1e-9)
    reduced = 7.0 + one_way_s(4) + one_way_s(1)
    assert seen["optimizer"][0] == pytest.approx(reduced, rel=1e-9)
    assert timeline.end_s == pytest.approx(reduced + one_way_s(1) + one_way_s(4) + one_way_s(2), rel=1e-9)
    assert gathers(inputs(THREE, *LAYERED)) == ["weights in", "weights mid", "weights out"]


def test_zero_3_without_prefetch_waits_for_every_gather() -> None:
    """Compute 9 s, all gathers twice and exposed; reduce-scatters hide but for what the next gather waits for."""
    timeline = ran(inputs(THREE, *SHARDED))
    seen = spans(timeline)
    forward_end = 3.0 + sum(map(one_way_s, (1, 4, 2)))
    assert seen["forward 0: out"][1] == pytest.approx(forward_end, rel=1e-9)
    out_ready = forward_end + one_way_s(2) + 2.0
    assert seen["reduce-scatter out"][0] == pytest.approx(out_ready, rel=1e-9)
    # the gather of 'mid' was launched before that reduce-scatter only with prefetch; here it queues behind it
    mid_start = out_ready + one_way_s(2) + one_way_s(4)
    assert seen["backward 0: mid"][0] == pytest.approx(mid_start, rel=1e-9)
    in_start = mid_start + 2.0 + one_way_s(4) + one_way_s(1)
    assert timeline.end_s == pytest.approx(in_start + 2.0 + one_way_s(1), rel=1e-9)


def test_zero_3_with_prefetch_gathers_the_next_layer_while_one_computes() -> None:
    """REQUIREMENTS 22: forward: 'in' is awaited, 'mid' takes 3.02 s under its 1 s, 'out' 1.52 s under mid's 1 s."""
    timeline = ran(inputs(THREE, *SHARDED, forward_prefetch=1))
    seen = spans(timeline)
    mid = one_way_s(1) + one_way_s(4)
    assert seen["all-gather mid forward"] == pytest.approx((one_way_s(1), mid), rel=1e-9)
    assert seen["all-gather out forward"] == pytest.approx((mid, mid + one_way_s(2)), rel=1e-9)
    forward_end = mid + one_way_s(2) + 1.0
    backward = forward_end + one_way_s(2)
    assert seen["backward 0: out"] == pytest.approx((backward, backward + 2.0), rel=1e-9)
    assert seen["all-gather mid backward"] == pytest.approx((backward, backward + one_way_s(4)), rel=1e-9)
    # mid's gather is the longer, so out's reduce-scatter queues behind it and in's gather behind that
    mid_start = backward + one_way_s(4)
    assert seen["backward 0: mid"][0] == pytest.approx(mid_start, rel=1e-9)
    assert seen["all-gather in backward"][0] == pytest.approx(mid_start + one_way_s(2), rel=1e-9)


@given(compute_s=st.floats(0.05, 3.0), megabytes=st.floats(0.1, 4.0), layers=st.integers(2, 8))
def test_prefetch_hides_gathers_exactly_while_compute_is_longer(
    compute_s: float, megabytes: float, layers: int
) -> None:  # fmt: skip
    """REQUIREMENTS 22: forward of L layers takes g + L f where f >= g, else L g + f; without prefetch L (g + f)."""
    model = model_of(*(layer(f"l{i}", megabytes, compute_s) for i in range(layers)))
    gather = one_way_s(-(-model.operations[0].parameters[0].numel // 4) * 16 / 1e6)  # padded to four ranks
    ends = [
        spans(ran(inputs(model, *SHARDED, forward_prefetch=depth)))[f"forward 0: l{layers - 1}"][1]
        for depth in (0, 1, 2)
    ]
    hidden = gather + layers * compute_s if compute_s >= gather else layers * gather + compute_s
    assert ends == pytest.approx([layers * (gather + compute_s), hidden, hidden], rel=1e-9)


def test_deeper_prefetch_helps_only_where_layers_are_unequal() -> None:
    """Equal layers: one ahead is enough. A short layer before a long gather: two ahead start it earlier."""
    equal = [ran(inputs(EQUAL, *SHARDED, forward_prefetch=depth)).end_s for depth in (0, 1, 2)]
    assert equal[0] > equal[1] == pytest.approx(equal[2], rel=1e-9)
    uneven = model_of(*(layer(f"l{i}", 4 if i % 3 == 2 else 0.4, 1.0, 2.0) for i in range(9)))
    ends = [ran(inputs(uneven, *SHARDED, forward_prefetch=depth)).end_s for depth in (0, 1, 2)]
    assert ends[0] > ends[1] > ends[2]


# ------------------------------------------------------------------------------------------------- volumes (item 20)


def test_volumes_per_step_are_2_psi_and_3_psi() -> None:
    """REQUIREMENTS 20, per rank of W: (W-1)/W of 2 Psi for DDP and ZeRO-1 (flat) and 2, of 3 Psi for ZeRO-3."""
    size, share = 7e6, 3 / 4
    assert sent_bytes(inputs(THREE, "ddp", "torch", algorithm="ring")) == pytest.approx(2 * size * share, rel=1e-9)
    assert sent_bytes(inputs(THREE, *FLAT)) == pytest.approx(2 * size * share, rel=1e-9)
    assert sent_bytes(inputs(THREE, *LAYERED)) == pytest.approx(2 * size * share, rel=1e-9)
    assert sent_bytes(inputs(THREE, *SHARDED)) == pytest.approx(3 * size * share, rel=1e-9)


def test_accumulation_multiplies_what_cannot_wait() -> None:
    """k micro-batches: ZeRO-1 still 2 Psi; ZeRO-2 reduces in each, (k + 1) Psi; ZeRO-3 does all in each, 3 k Psi."""
    for which, psi in zip(BY_HAND, (2, 4, 9), strict=True):
        sent = sum(task.message_bytes for task in collectives(inputs(THREE, *which, micro_batches=3)))
        assert sent == psi * 7e6


def test_messages_are_padded_to_whole_elements_per_rank() -> None:
    odd = measured_model(
        (MeasuredLayer(name="l", params=(5, 2), forward_s=1.0, backward_s=1.0),), name="odd", seq_len=1, micro_batch=1
    )  # fmt: skip
    for which in BY_HAND:
        assert {task.message_bytes for task in collectives(inputs(odd, *which, num_ranks=3))} == {9 * 4}


@pytest.mark.parametrize("which", BY_HAND)
def test_weights_and_gradients_travel_in_the_types_they_are_kept_in(which: tuple[str, str]) -> None:
    for precision, width in (("fp32", 4), ("bf16-master", 2), ("bf16-mixed", 4)):
        sizes = sum(task.message_bytes for task in collectives(inputs(THREE, *which, precision=precision)))
        assert sizes == (3 if which == SHARDED else 2) * 7e6 / 4 * width


# ---------------------------------------------------------------------------------------- memory (items 18, 19, 21, 23)


def states_bytes(which: tuple[str, str], parameters: float, num_ranks: int, precision: str) -> float:
    """Weights, gradients and optimizer states, where the paper counts them: all gradients there, whole or sharded."""
    parts = tuple(
        MeasuredLayer(name=f"l{i}", params=(int(parameters / 50),), forward_s=1.0, backward_s=1.0) for i in range(50)
    )
    model = measured_model(parts, name="m", seq_len=1, micro_batch=1)
    plan = plan_of(inputs(model, *which, num_ranks=num_ranks, precision=precision))
    held = held_before(plan, "flatten gradients m" if which == FLAT else "optimizer")
    if which == FLAT and not held["grads"]:
        raise AssertionError("the flat copy is where gradients are whole for the last time")
    return held["params"] + held["grads"] + held["optimizer"]


@pytest.mark.parametrize(
    ("parameters", "expected_gb"),
    [
        (7.5e9, {REPLICATED: 120, FLAT: 31.4, LAYERED: 16.6, SHARDED: 1.9}),
        (100e9, {REPLICATED: 1600, FLAT: 418.75, LAYERED: 221.9, SHARDED: 25}),
    ],
)
def test_model_states_per_gpu_are_the_papers(parameters: float, expected_gb: dict[tuple[str, str], float]) -> None:
    """REQUIREMENTS 18 (ZeRO, figure 1): 64 GPUs, 2 + 2 + 12 bytes per parameter. Of 100B only ZeRO-3 fits 80 GB."""
    found = {which: states_bytes(which, parameters, 64, "bf16-master") for which in expected_gb}
    for which, gigabytes in expected_gb.items():
        assert found[which] / 1e9 == pytest.approx(gigabytes, rel=0.015)
    assert [which for which in found if found[which] < 80e9] == ([SHARDED] if parameters == 100e9 else [*found][1:])


def test_largest_models_on_eight_gpus() -> None:
    """REQUIREMENTS 19: 8 x 80 GB, 2 + 2 + 8 bytes per parameter: 6.7 B, 16 B, 24.6 B and 53.3 B parameters."""
    for which, billions in zip((REPLICATED, *BY_HAND), (6.7, 16.0, 24.6, 53.3), strict=True):
        per_parameter = states_bytes(which, 1e9, 8, "bf16-moments") / 1e9
        assert 80 / per_parameter == pytest.approx(billions, rel=0.006)  # 80 / 12 is printed as 6.7


def test_resident_parameters_are_a_share_of_the_ranks() -> None:
    """REQUIREMENTS 21: 16,448 parameters on 4 ranks: 4,112 each."""
    model = measured_model(
        (MeasuredLayer(name="l", params=(256 * 64, 64), forward_s=1.0, backward_s=1.0),), name="m", seq_len=1,
        micro_batch=1,
    )  # fmt: skip
    (weights,) = [b for b in drafted(inputs(model, *SHARDED)).resident if b.kind == "params"]
    assert (model.num_parameters, weights.size_bytes) == (16_448, 4 * 4_112)


def peak_by_kind(asked: StepInputs, kind: str) -> float:
    """Highest curve of one kind, on a network so fast that what is sent is gone at once."""
    memory = memory_of(ran(asked, uniform(asked.num_ranks, 1e-9, 1e15)))
    kinds = list(memory.by_kind_bytes)
    return float(memory.curve_bytes[:, kinds.index(kind)].max())


def test_zero_2_holds_whole_gradients_of_the_layer_it_runs_and_of_the_one_it_sends() -> None:
    """REQUIREMENTS 21: reduced layer by layer and freed: shards of five layers of 1 MB, and two whole ones."""
    assert peak_by_kind(inputs(EQUAL, *LAYERED), "grads") == pytest.approx(5 / 4 * 1e6 + 2e6, rel=1e-6)
    assert peak_by_kind(inputs(EQUAL, *FLAT), "grads") == pytest.approx(6e6 + 6e6 / 4, rel=1e-6)


def test_gradients_wait_whole_for_a_slow_network() -> None:
    """On 1 MB/s a reduce-scatter of 4 MB outlasts the backward of two layers, so the next ones queue up whole."""
    model = model_of(*(layer(f"l{i}", 4, 0.1, 0.1) for i in range(6)))
    memory = memory_of(ran(inputs(model, *LAYERED)))
    assert memory.by_kind_bytes["grads"] == pytest.approx(6 * 4e6 + 4e6 / 4, rel=1e-6)  # all whole, the first's shard


@pytest.mark.parametrize(("depth", "layers_alive"), [(0, 1), (1, 2), (2, 3), (9, 6)])
def test_zero_3_has_one_whole_layer_alive_without_prefetch_and_two_with(depth: int, layers_alive: int) -> None:
    """REQUIREMENTS 21."""
    asked = inputs(EQUAL, *SHARDED, forward_prefetch=depth)
    assert peak_by_kind(asked, "gathered") == layers_alive * 1e6
    assert memory_of(ran(asked)).curve_bytes.max() > 0


def test_kept_layers_are_gathered_once_and_stay() -> None:
    """REQUIREMENTS 21: reshard_after_forward keeps chosen layers: L gathers less, and they live to their backward."""
    everything = inputs(EQUAL, *SHARDED, reshard_after_forward=False)
    assert len(gathers(everything)) == 6
    assert peak_by_kind(everything, "gathered") == 6e6
    last = inputs(EQUAL, *SHARDED, reshard_after_forward="not-last")
    assert len(gathers(last)) == 11
    chosen = inputs(EQUAL, *SHARDED, reshard_after_forward=[True, False, True, False, True, True])
    assert len(gathers(chosen)) == 10
    assert peak_by_kind(chosen, "gathered") == 3e6


def test_activations_are_sharded_by_no_stage() -> None:
    """REQUIREMENTS 23: under no strategy of the table, on 2 ranks or 8."""
    model = model_of(*(layer(f"l{i}", 1, kept_bytes=5e6) for i in range(6)))
    for which in STRATEGIES:
        shards = {"shard_size": 2} if which[0] == "hsdp" else {}
        for num_ranks in (4, 8) if shards else (2, 8):
            assert peak_by_kind(inputs(model, *which, num_ranks=num_ranks, **shards), "activations") == 30e6


@given(
    which=st.sampled_from(ALL), sizes=st.lists(st.lists(st.integers(1, 50), max_size=3), min_size=1, max_size=6),
    num_ranks=st.integers(1, 5), micro_batches=st.integers(1, 4), depth=st.integers(0, 3),
    precision=st.sampled_from(["fp32", "bf16-mixed", "bf16-master"]), clip=st.booleans(),
)  # fmt: skip
def test_a_step_gives_back_all_that_it_takes(
    which: tuple[str, str], sizes: list[list[int]], num_ranks: int, micro_batches: int, depth: int, precision: str,
    clip: bool,
) -> None:  # fmt: skip
    """So a second step starts like the first. With W ranks a rank sends what a rank alone does not."""
    parts = tuple(
        MeasuredLayer(name=f"l{i}", params=(1, *some), forward_s=1.0, backward_s=1.0, activation_bytes=3.0)
        for i, some in enumerate(sizes)
    )
    model = measured_model(parts, name="m", seq_len=1, micro_batch=1)
    ahead = {"forward_prefetch": depth} if which == SHARDED else {}
    asked = inputs(
        model, *which, num_ranks=num_ranks, micro_batches=micro_batches, precision=precision, clip_grad_norm=clip,
        **ahead,
    )  # fmt: skip
    plan = plan_of(asked)
    assert held_before(plan, None) == held_before(replace(plan, tasks=()), None)
    assert bool(collectives(asked)) == (num_ranks > 1)


# ----------------------------------------------------------------------------------------------- pieces, other settings


def test_pieces_are_units_and_what_is_in_none_goes_layer_by_layer() -> None:
    assert [piece.name for piece in cut(EQUAL, "block")] == [f"l{i}" for i in range(6)]
    assert [piece.name for piece in cut(EQUAL, 4)] == ["l0 .. l3", "l4 .. l5"]
    (whole,) = cut(EQUAL, ROOT)
    assert (whole.numel, whole.uses) == (1_500_000, ((0, 5),))
    leftover = cut(EQUAL, ["l1", "l4"])
    assert [(piece.name, piece.uses) for piece in leftover] == [(f"l{i}", ((i, i),)) for i in range(6)]


def tied() -> TrainingModel:
    """The last layer uses the first one's tensor again and owns none."""
    plain = model_of(layer("embedding", 1), layer("block", 1), layer("head", 0))
    return replace(plain, tied=(("head", "embedding.weight"),))


def test_a_tied_tensor_is_gathered_in_both_places_and_reduced_once() -> None:
    asked = inputs(tied(), *SHARDED, wrap=["block"])
    purposes = [(task.op, task.purpose) for task in collectives(asked)]
    gather, reduce = "all_gather", "reduce_scatter"
    assert purposes == [
        (gather, "weights embedding"), (gather, "weights block"), (gather, "weights embedding"),
        (gather, "weights embedding"), (gather, "weights block"), (reduce, "gradients block"),
        (gather, "weights embedding"), (reduce, "gradients embedding"),
    ]  # fmt: skip


def test_what_is_run_again_has_its_weights_gathered_before() -> None:
    """A block of three operations, replayed whole before the backward of its last: all pieces are needed there."""
    block = recomputed_blocks(list(model_of(layer("a", 1), layer("b", 1), layer("c", 1)).operations), 8.0)
    model = replace(model_of(layer("a", 1), layer("b", 1), layer("c", 1)), operations=tuple(block))
    tasks = drafted(inputs(model, *SHARDED)).tasks
    replaying = next(i for i, task in enumerate(tasks) if task.name.startswith("backward"))
    before = [task.purpose for task in tasks[:replaying] if isinstance(task, Communicate)]
    assert sorted(before[3:]) == ["weights a", "weights b", "weights c"]


def test_the_norm_of_clipping_is_one_number_over_all_shards() -> None:
    for which in (*BY_HAND, ("zero1", "megatron")):
        (norm,) = [t for t in collectives(inputs(THREE, *which, clip_grad_norm=True)) if t.op == "all_reduce"]
        assert norm.message_bytes == 4.0
        seen = spans(ran(inputs(THREE, *which, clip_grad_norm=True)))
        reduced = max(end for name, (_, end) in seen.items() if name.startswith("reduce-scatter"))
        assert reduced <= seen["all-reduce norm"][0] < seen["all-reduce norm"][1] <= seen["optimizer"][0]


def test_settings_of_others_are_refused_by_name() -> None:
    with pytest.raises(ScenarioError, match=r"reshard_after_forward: 2 .* accepted: true, false, not-last"):
        drafted(inputs(EQUAL, *SHARDED, reshard_after_forward=2))
    with pytest.raises(ScenarioError, match=r"for each of l0, l1, l2, l3, l4, l5"):
        drafted(inputs(EQUAL, *SHARDED, reshard_after_forward=[True, False]))
    with pytest.raises(ScenarioError, match=r"backward_prefetch: 'pre' is FSDP1's"):
        drafted(inputs(EQUAL, *SHARDED, backward_prefetch="pre"))


def eight(which: tuple[str, str], cluster: str) -> tuple[StepInputs, Network]:
    """Five layers on eight ranks, two micro-batches."""
    network = uniform(8, 1e-3, 1e6) if cluster == "uniform" else played(cluster, nodes=1)
    scale = 1.0 if cluster == "uniform" else 1e-3
    model = model_of(*(layer(f"l{i}", 1 + i % 2, scale, 2 * scale) for i in range(5)))
    more = {SHARDED: {"forward_prefetch": 1}, ("zero1", "megatron"): {"reduce_bucket_size": 300_000}}.get(which, {})
    return inputs(model, *which, num_ranks=8, optimizer_s=0.5 * scale, micro_batches=2, **more), network


@pytest.mark.parametrize("which", [*BY_HAND, ("zero1", "megatron")])
@pytest.mark.parametrize("cluster", ["uniform", "dgx-h100"])
def test_coflows_and_messages_give_the_same_step(which: tuple[str, str], cluster: str) -> None:
    """Every rank and every message of 8 ranks, against one class and whole collectives: within 1e-6."""
    asked, network = eight(which, cluster)
    coflow, message = (ran(asked, network, fidelity).end_s for fidelity in ("coflow", "message"))
    assert coflow == pytest.approx(message, rel=1e-6)
