"""Data parallelism: a step worked out by hand, the three ways to overlap, accumulation, and what construction sends."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import played, uniform

from simulator.engine.run import simulate
from simulator.network.graph import Network
from simulator.plan import Communicate, Compute, Plan, RankClass, Task
from simulator.timeline import Timeline
from simulator.training import ddp
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import TrainingModel
from simulator.training.precision import PRECISIONS
from simulator.training.step import ALL_RANKS, StepInputs

MIB = 2**20
#: Four ranks, 10 ms a message, 1 MB/s: an all-reduce of n MB by a ring takes 6 (0.01 + n / 4) s.
SLOW = uniform(4, 0.01, 1e6)


def all_reduce_s(megabytes: float) -> float:
    return 6 * (0.01 + megabytes / 4)


def layer(name: str, megabytes: float, forward_s: float, backward_s: float) -> MeasuredLayer:
    """One fp32 tensor of that size."""
    return MeasuredLayer(name=name, params=(int(megabytes * 1e6) // 4,), forward_s=forward_s, backward_s=backward_s)


def model_of(*layers: MeasuredLayer) -> TrainingModel:
    return measured_model(layers, name="by hand", seq_len=1, micro_batch=1)


#: Forward 3.5 s; backward 'out' 1 s (1 MB of gradients), 'mid' 4 s (4 MB), 'in' 2 s (2 MB).
THREE = model_of(layer("in", 2, 1.0, 2.0), layer("mid", 4, 2.0, 4.0), layer("out", 1, 0.5, 1.0))


def inputs(model: TrainingModel = THREE, **changed: object) -> StepInputs:
    made = StepInputs(
        model=model, precision=PRECISIONS["fp32"], forward_s=tuple(op.forward_s or 0.0 for op in model.operations),
        backward_s=tuple(op.backward_s or 0.0 for op in model.operations), optimizer_s=0.5,
        copy_bytes_per_s=float("inf"), launch_s=0.0, num_ranks=4, micro_batches=1, overlap="bucketed",
        bucket_cap_bytes=25 * MIB, first_bucket_bytes=MIB, gradient_as_bucket_view=True, algorithm="ring",
        context_bytes=0.0, communicator_bytes=0.0,
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


def plan(tasks: tuple[Task, ...], num_ranks: int = 4) -> Plan:
    everyone = tuple(range(num_ranks))
    classes = (RankClass(name=ALL_RANKS, ranks=everyone),)
    return Plan(title="a step", classes=classes, axes={ddp.AXIS: (everyone,)}, tasks=tasks)


def ran(given_inputs: StepInputs, network: Network = SLOW, fidelity: str = "coflow", slowdown: float = 0.0) -> Timeline:
    of = plan(ddp.step(given_inputs), given_inputs.num_ranks)
    return simulate(of, network, fidelity=fidelity, slowdown=slowdown)


def collectives(tasks: tuple[Task, ...]) -> list[Communicate]:
    return [task for task in tasks if isinstance(task, Communicate)]


def spans(timeline: Timeline) -> dict[str, tuple[float, float]]:
    return {span.task.name: (span.start_s, span.end_s) for span in timeline.spans}


# ------------------------------------------------------------------------------------------------ by hand, to 1e-9


def test_bucketed_overlap_by_hand() -> None:
    """'out' (1 MB) is below the first cap of 1 MiB, so bucket 0 is out + mid, 5 MB, ready at 8.5 s; bucket 1 queues."""
    timeline = ran(inputs())
    seen = spans(timeline)
    first_end = 8.5 + all_reduce_s(5)
    assert seen["backward 0: mid"] == pytest.approx((4.5, 8.5), rel=1e-9)
    assert seen["all-reduce bucket 0"] == pytest.approx((8.5, first_end), rel=1e-9)
    assert seen["backward 0: in"] == pytest.approx((8.5, 10.5), rel=1e-9)
    assert seen["all-reduce bucket 1"] == pytest.approx((first_end, first_end + all_reduce_s(2)), rel=1e-9)
    assert timeline.end_s == pytest.approx(first_end + all_reduce_s(2) + 0.5, rel=1e-9)


def test_per_parameter_overlap_by_hand() -> None:
    """Three all-reduces: out hides under mid's backward, mid's starts at 8.5 s, in's queues behind it."""
    timeline = ran(inputs(overlap="per_parameter"))
    seen = spans(timeline)
    mid_end = 8.5 + all_reduce_s(4)
    assert seen["all-reduce out.weight"] == pytest.approx((4.5, 4.5 + all_reduce_s(1)), rel=1e-9)
    assert seen["all-reduce mid.weight"] == pytest.approx((8.5, mid_end), rel=1e-9)
    assert seen["all-reduce in.weight"] == pytest.approx((mid_end, mid_end + all_reduce_s(2)), rel=1e-9)
    assert timeline.end_s == pytest.approx(mid_end + all_reduce_s(2) + 0.5, rel=1e-9)


def test_no_overlap_by_hand() -> None:
    """Forward 3.5 s, backward 7 s, then one all-reduce per tensor, then the optimizer."""
    timeline = ran(inputs(overlap="none"))
    expected = 3.5 + 7 + all_reduce_s(1) + all_reduce_s(4) + all_reduce_s(2) + 0.5
    assert timeline.end_s == pytest.approx(expected, rel=1e-9)
    assert min(s.start_s for s in timeline.spans if isinstance(s.task, Communicate)) == 10.5


def test_compute_that_slows_under_communication_by_hand() -> None:
    """Per parameter, a fifth of the speed lost: 'mid' does 0.8 x 1.56 s of its 4 s under the first all-reduce."""
    seen = spans(ran(inputs(overlap="per_parameter"), slowdown=0.2))
    under = all_reduce_s(1)
    mid_ends = 4.5 + under + (4 - 0.8 * under)
    assert seen["backward 0: mid"] == pytest.approx((4.5, mid_ends), rel=1e-9)
    assert seen["backward 0: in"] == pytest.approx((mid_ends, mid_ends + 2 / 0.8), rel=1e-9)
    assert seen["all-reduce in.weight"][0] == pytest.approx(mid_ends + all_reduce_s(4), rel=1e-9)


def test_scaling_and_copying_gradients_take_their_memory_traffic() -> None:
    """At 10 MB/s read + write: scaling 5 MB takes 1 s, copying both buckets out 1 + 0.4 s, each launch 0.1 s."""
    timed = inputs(copy_bytes_per_s=10e6, launch_s=0.1, gradient_as_bucket_view=False)
    seen = spans(ran(timed))
    assert seen["scale bucket 0"] == pytest.approx((8.5, 9.6), rel=1e-9)
    assert seen["backward 0: in"] == pytest.approx((9.6, 11.6), rel=1e-9)
    both_end = 9.6 + all_reduce_s(5) + all_reduce_s(2)
    assert seen["copy bucket 0 out"] == pytest.approx((9.6 + all_reduce_s(5), 10.7 + all_reduce_s(5)), rel=1e-9)
    assert seen["copy bucket 1 out"] == pytest.approx((both_end, both_end + 0.5), rel=1e-9)
    assert seen["optimizer"] == pytest.approx((both_end + 0.5, both_end + 1.0), rel=1e-9)


def test_communication_that_fits_under_backward_costs_only_its_last_bucket() -> None:
    """The last bucket is ready when backward ends, so its all-reduce is exposed; here nothing else is."""
    fast = uniform(4, 1e-6, 1e9)
    last = 6 * (1e-6 + 2e6 / 4 / 1e9)
    for overlap in ("bucketed", "per_parameter"):
        assert ran(inputs(overlap=overlap), fast).end_s == pytest.approx(3.5 + 7 + last + 0.5, rel=1e-9)


def test_more_overlap_is_never_slower_here() -> None:
    """On one communicator without slowed compute: bucketed <= per parameter <= none once latency counts."""
    many = model_of(*(layer(f"l{i}", 0.01, 0.01, 0.02) for i in range(40)))
    ends = [ran(inputs(many, overlap=overlap)).end_s for overlap in ("bucketed", "per_parameter", "none")]
    assert ends[0] < ends[1] < ends[2]


def test_one_rank_communicates_nothing() -> None:
    for overlap in ("bucketed", "per_parameter", "none"):
        alone = inputs(num_ranks=1, overlap=overlap)
        assert collectives(ddp.step(alone)) == []
        assert ran(alone, uniform(1)).end_s == pytest.approx(3.5 + 7 + 0.5)
    assert ddp.startup(inputs(num_ranks=1)) == ()


# ----------------------------------------------------------------------------------------- gradient accumulation


@pytest.mark.parametrize("overlap", ["bucketed", "per_parameter", "none"])
def test_accumulation_over_k_micro_batches_communicates_one_kth_as_often(overlap: str) -> None:
    """REQUIREMENTS 14: under no_sync only the last micro-batch sends, so the same bytes serve k times the work."""
    once = ddp.step(inputs(overlap=overlap))
    for k in (2, 4):
        accumulated = ddp.step(inputs(overlap=overlap, micro_batches=k))
        assert [(c.name, c.message_bytes) for c in collectives(accumulated)] == [
            (c.name, c.message_bytes) for c in collectives(once)
        ]
        computed = [t for t in accumulated if isinstance(t, Compute) and t.kind in ("forward", "backward")]
        assert sum(t.seconds for t in computed) == pytest.approx(10.5 * k, rel=1e-12)
        end_s = ran(inputs(overlap=overlap, micro_batches=k)).end_s
        assert end_s == pytest.approx(ran(inputs(overlap=overlap)).end_s + (k - 1) * 10.5, rel=1e-9)


def test_a_thousand_micro_batches_cost_no_more_tasks_than_three() -> None:
    """Nothing can disturb a micro-batch that sends nothing, so equal ones are planned as one."""
    assert len(ddp.step(inputs(micro_batches=1000))) == len(ddp.step(inputs(micro_batches=4)))
    assert ran(inputs(micro_batches=1000)).end_s == pytest.approx(ran(inputs()).end_s + 999 * 10.5, rel=1e-9)


# ----------------------------------------------------------------------------------------- what is sent, and when


@pytest.mark.parametrize("overlap", ["bucketed", "per_parameter", "none"])
def test_every_gradient_byte_is_reduced_once_and_after_its_backward(overlap: str) -> None:
    timeline = ran(inputs(overlap=overlap))
    sent = [span for span in timeline.spans if isinstance(span.task, Communicate)]
    assert sum(span.task.message_bytes for span in sent) == 7e6
    assert all(span.task.op == "all_reduce" for span in sent)
    ready = {"out.weight": 4.5, "mid.weight": 8.5, "in.weight": 10.5}
    for span in sent:
        for tensor, ready_s in ready.items():
            if tensor in span.task.name:
                assert span.start_s >= ready_s
    for one, following in pairwise(sent):
        assert following.start_s >= one.end_s


def test_buckets_are_reduced_strictly_in_order_and_before_the_optimizer() -> None:
    small = inputs(bucket_cap_bytes=MIB)
    tasks = ddp.step(small)
    names = [c.name for c in collectives(tasks)]
    assert names == [f"all-reduce bucket {bucket.index}" for bucket in ddp.step_buckets(small)]
    optimizer = tasks[-1]
    assert optimizer.name == "optimizer"
    assert set(optimizer.after) == set(names)


def test_bf16_gradients_are_half_the_bytes() -> None:
    half = inputs(precision=PRECISIONS["bf16-master"], overlap="none")
    assert sum(c.message_bytes for c in collectives(ddp.step(half))) == 3.5e6


CLUSTERS: dict[str, Network] = {
    "uniform": uniform(8),
    "one node": played("dgx-h100", nodes=1),
    "two nodes": played("dgx-h100", nodes=2),
}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving_doubling"])
def test_coflows_and_messages_give_the_same_step(cluster: str, algorithm: str) -> None:
    """Every rank and every message of 8 or 16 ranks, against one class and whole collectives: within 1e-6."""
    network = CLUSTERS[cluster]
    model = model_of(*(layer(f"l{i}", size, 0.2e-3, 0.4e-3) for i, size in enumerate((30, 2, 10, 7, 1, 40))))
    for overlap in ("bucketed", "per_parameter", "none"):
        of = inputs(
            model, num_ranks=network.num_gpus, overlap=overlap, algorithm=algorithm, bucket_cap_bytes=8 * MIB,
            optimizer_s=1e-4, micro_batches=2,
        )  # fmt: skip
        ends = [ran(of, network, fidelity, slowdown=0.1).end_s for fidelity in ("coflow", "message")]
        assert ends[0] == pytest.approx(ends[1], rel=1e-6)


# ---------------------------------------------------------------------------------------------------- construction


def test_construction_checks_shapes_and_broadcasts_the_weights() -> None:
    """torch 2.13, traced: all-gather of the parameter count, broadcast of the shapes, broadcast of the parameters."""
    calls = collectives(ddp.startup(inputs()))
    assert [(c.op, c.message_bytes) for c in calls] == [
        ("all_gather", 4 * 8.0),
        ("broadcast", 3 * 16.0),
        ("broadcast", 7e6),
    ]


def test_weights_are_broadcast_in_groups_that_close_once_they_reach_250_mib() -> None:
    """torch/csrc/distributed/c10d/comm.cpp: broadcast_coalesced groups by the same rule as gradient buckets."""
    big = model_of(*(layer(f"l{i}", megabytes, 0.0, 0.0) for i, megabytes in enumerate((200, 100, 200, 10, 600, 5))))
    weights = [c.message_bytes for c in collectives(ddp.startup(inputs(big))) if "parameters" in c.name]
    assert weights == [300e6, 810e6, 5e6]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_all_weights_are_broadcast_once(megabytes: list[int]) -> None:
    of = inputs(model_of(*(layer(f"l{i}", size, 0.0, 0.0) for i, size in enumerate(megabytes))))
    weights = [c.message_bytes for c in collectives(ddp.startup(of)) if "parameters" in c.name]
    assert sum(weights) == sum(megabytes) * 1e6
    assert all(group >= 250 * MIB for group in weights[:-1])
