"""Data parallelism: a step worked out by hand, the three ways to overlap, accumulation, and what construction sends."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import played, uniform

from simulator.engine.interference import Interference
from simulator.engine.run import simulate
from simulator.errors import DeadlockError
from simulator.network.graph import Network
from simulator.parallel_spec import Parallel
from simulator.plan import Communicate, Compute, Plan, RankClass, Task
from simulator.rank_classes import ALL_RANKS
from simulator.report.memory import Memory, memory_of
from simulator.strategies import ddp
from simulator.strategies.step import Draft, HostCosts, StepInputs
from simulator.timeline import Timeline
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import BufferTensor, TrainingModel
from simulator.training.precision import PRECISIONS

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


def inputs(model: TrainingModel = THREE, **changed: Any) -> StepInputs:
    """Keys of ``parallel`` go there, all others to StepInputs."""
    told = {"gradient_as_bucket_view": True, "algorithm": "ring"}
    told |= {key: changed.pop(key) for key in list(changed) if key in Parallel.model_fields}
    made = StepInputs(
        model=model, precision=PRECISIONS["fp32"], forward_s=tuple(op.forward_s or 0.0 for op in model.operations),
        backward_s=tuple(op.backward_s or 0.0 for op in model.operations), optimizer_s=0.5,
        copy_bytes_per_s=float("inf"), launch_s=0.0, num_ranks=4, micro_batches=1,
        parallel=Parallel.model_validate(told),
    )  # fmt: skip
    return replace(made, **changed)


def tasks_of(given_inputs: StepInputs) -> tuple[Task, ...]:
    return ddp.step(given_inputs).tasks


def plan(draft: Draft, num_ranks: int = 4) -> Plan:
    classes = (RankClass(name=ALL_RANKS, ranks=tuple(range(num_ranks))),)
    return Plan(title="a step", classes=classes, axes=draft.axes, tasks=draft.tasks, resident=draft.resident)


def ran(
    given_inputs: StepInputs, network: Network = SLOW, fidelity: str = "coflow", core_share: float = 0.0
) -> Timeline:
    of = plan(ddp.step(given_inputs), given_inputs.num_ranks)
    return simulate(of, network, fidelity=fidelity, interference=Interference(core_share=core_share))


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
    seen = spans(ran(inputs(overlap="per_parameter"), core_share=0.2))
    under = all_reduce_s(1)
    mid_ends = 4.5 + under + (4 - 0.8 * under)
    assert seen["backward 0: mid"] == pytest.approx((4.5, mid_ends), rel=1e-9)
    assert seen["backward 0: in"] == pytest.approx((mid_ends, mid_ends + 2 / 0.8), rel=1e-9)
    assert seen["all-reduce in.weight"][0] == pytest.approx(mid_ends + all_reduce_s(4), rel=1e-9)


def test_scaling_and_copying_gradients_take_their_memory_traffic() -> None:
    """At 10 MB/s read + write: scaling 5 MB takes 1 s, copying both buckets out 1 + 0.4 s, each launch 0.1 s.

    The reducer launches a kernel per tensor (reducer.cpp, ``mark_variable_ready_dense``, ``finalize_bucket_dense``):
    two for the first bucket's two tensors.
    """
    timed = inputs(copy_bytes_per_s=10e6, launch_s=0.1, gradient_as_bucket_view=False)
    seen = spans(ran(timed))
    assert seen["scale bucket 0"] == pytest.approx((8.5, 9.7), rel=1e-9)
    assert seen["backward 0: in"] == pytest.approx((9.7, 11.7), rel=1e-9)
    both_end = 9.7 + all_reduce_s(5) + all_reduce_s(2)
    assert seen["copy bucket 0 out"] == pytest.approx((9.7 + all_reduce_s(5), 10.9 + all_reduce_s(5)), rel=1e-9)
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
        assert collectives(tasks_of(alone)) == []
        assert ran(alone, uniform(1)).end_s == pytest.approx(3.5 + 7 + 0.5)
    assert ddp.startup(inputs(num_ranks=1)).tasks == ()


# ----------------------------------------------------------------------------------------- gradient accumulation


@pytest.mark.parametrize("overlap", ["bucketed", "per_parameter", "none"])
def test_accumulation_over_k_micro_batches_communicates_one_kth_as_often(overlap: str) -> None:
    """REQUIREMENTS 14: under no_sync only the last micro-batch sends, so the same bytes serve k times the work."""
    once = tasks_of(inputs(overlap=overlap))
    for k in (2, 4):
        accumulated = tasks_of(inputs(overlap=overlap, micro_batches=k))
        assert [(c.name, c.message_bytes) for c in collectives(accumulated)] == [
            (c.name, c.message_bytes) for c in collectives(once)
        ]
        computed = [t for t in accumulated if isinstance(t, Compute) and t.kind in ("forward", "backward")]
        assert sum(t.seconds for t in computed) == pytest.approx(10.5 * k, rel=1e-12)
        end_s = ran(inputs(overlap=overlap, micro_batches=k)).end_s
        assert end_s == pytest.approx(ran(inputs(overlap=overlap)).end_s + (k - 1) * 10.5, rel=1e-9)


def test_a_thousand_micro_batches_cost_no_more_tasks_than_three() -> None:
    """Nothing can disturb a micro-batch that sends nothing, so equal ones are planned as one."""
    assert len(tasks_of(inputs(micro_batches=1000))) == len(tasks_of(inputs(micro_batches=4)))
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
    small = inputs(bucket_cap=f"{MIB} B")
    tasks = tasks_of(small)
    names = [c.name for c in collectives(tasks)]
    assert names == [f"all-reduce bucket {bucket.index}" for bucket in ddp.step_buckets(small)]
    optimizer = tasks[-1]
    assert optimizer.name == "optimizer"
    assert set(optimizer.after) == set(names)


def test_bf16_gradients_are_half_the_bytes() -> None:
    half = inputs(precision=PRECISIONS["bf16-master"], overlap="none")
    assert sum(c.message_bytes for c in collectives(tasks_of(half))) == 3.5e6


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
            model, num_ranks=network.num_gpus, overlap=overlap, algorithm=algorithm, bucket_cap="8 MiB",
            optimizer_s=1e-4, micro_batches=2,
        )  # fmt: skip
        ends = [ran(of, network, fidelity, core_share=0.1).end_s for fidelity in ("coflow", "message")]
        assert ends[0] == pytest.approx(ends[1], rel=1e-6)


# -------------------------------------------------------------------------------------- settings of DDP, by hand


def sent(of: StepInputs) -> list[tuple[str, float]]:
    return [(task.op, task.message_bytes) for task in collectives(tasks_of(of))]


def test_the_first_iteration_is_one_bucket_after_the_backward() -> None:
    """torch 2.13, iteration 0: before the order of gradients is known, nothing overlaps."""
    timeline = ran(inputs(iteration="first"))
    assert sent(inputs(iteration="first")) == [("all_reduce", 7e6)]
    assert timeline.end_s == pytest.approx(10.5 + all_reduce_s(7) + 0.5, rel=1e-9)
    assert ran(inputs()).end_s < timeline.end_s


def test_a_search_for_unused_parameters_has_its_buckets_from_the_first_iteration_on() -> None:
    """'in' (2 MB) is registered first and fills the 1 MiB bucket, which goes last; then 4 bytes for each tensor."""
    for iteration in ("first", "steady"):
        of = inputs(find_unused_parameters=True, iteration=iteration)
        assert sent(of) == [("all_reduce", 5e6), ("all_reduce", 2e6), ("all_reduce", 12.0)]
    seen = spans(ran(of))
    buckets_end = 8.5 + all_reduce_s(5) + all_reduce_s(2)
    assert seen["all-reduce used parameters"] == pytest.approx((buckets_end, buckets_end + all_reduce_s(12e-6)))
    assert seen["optimizer"][0] == pytest.approx(buckets_end + all_reduce_s(12e-6))


def test_a_bucket_that_is_ready_early_waits_for_those_before_it() -> None:
    """Registered against the order of use: bucket 1 (out, mid) is ready at 8.5 s, bucket 0 (in) at 10.5 s."""
    backwards = replace(THREE, parameters=tuple(reversed(THREE.parameters)))
    seen = spans(ran(inputs(backwards, find_unused_parameters=True)))
    first_end = 10.5 + all_reduce_s(2)
    assert seen["all-reduce bucket 0"] == pytest.approx((10.5, first_end))
    assert seen["all-reduce bucket 1"] == pytest.approx((first_end, first_end + all_reduce_s(5)))


@pytest.mark.parametrize("kernel_s", [0.0, 1e-6])
def test_the_search_takes_the_host_its_walk_where_the_host_takes_time_at_all(kernel_s: float) -> None:
    """Three forward kernels and three tensors: six nodes."""
    of = inputs(find_unused_parameters=True, host=HostCosts(kernel_s=kernel_s))
    (search,) = (task for task in tasks_of(of) if task.name.startswith("search"))
    assert search.host_s == (6 * ddp.GRAPH_WALK_S if kernel_s else 0.0)
    order = [task.name for task in tasks_of(of)]
    assert order.index("forward 0: out") < order.index(search.name) < order.index("backward 0: out")


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_a_compression_hook_halves_the_bytes_and_adds_casts(hook: str) -> None:
    """5 MB at 10 MB/s of traffic: read 5, write 2.5, divide 2.5 + 2.5 (1.25 s); back, beside backward, 2.5 + 5."""
    of = inputs(comm_hook=hook, copy_bytes_per_s=10e6)
    assert sent(of) == [("all_reduce", 2.5e6), ("all_reduce", 1e6)]
    seen = spans(ran(of))
    reduced = 8.5 + 1 + 1.25 + all_reduce_s(2.5)
    assert seen["fill bucket 0"] == pytest.approx((8.5, 9.5))
    assert seen["compress bucket 0"] == pytest.approx((9.5, 10.75))
    assert seen["backward 0: in"] == pytest.approx((10.75, 12.75))
    assert seen["decompress bucket 0"] == pytest.approx((reduced, reduced + 0.75))
    assert seen["optimizer"][0] == pytest.approx(seen["decompress bucket 1"][1])


BUFFERS = (
    BufferTensor(name="in.mean", numel=100_000), BufferTensor(name="in.count", numel=1, dtype="int64"),
    BufferTensor(name="in.var", numel=150_000),
)  # fmt: skip
BUFFERED = replace(THREE, buffers=BUFFERS)


def test_buffers_are_broadcast_flat_by_dtype_before_the_forward_which_waits() -> None:
    """torch 2.13, traced with a BatchNorm: the float buffers as one message, then the counters."""
    of = inputs(BUFFERED)
    assert sent(of)[:2] == [("broadcast", 1e6), ("broadcast", 8.0)]
    seen = spans(ran(of))
    broadcasts = [span for name, span in seen.items() if name.startswith("broadcast")]
    assert len(broadcasts) == 2
    assert broadcasts[0][0] == 0.0
    assert seen["forward 0: in"][0] == pytest.approx(max(end for _, end in broadcasts))


def test_buffers_go_before_the_forwards_that_follow_a_reducing_backward() -> None:
    """Under no_sync that is the first micro-batch's; reducing each time, every one's (torch 2.13, traced)."""
    for every, count in ((False, 2), (True, 6)):
        of = inputs(BUFFERED, micro_batches=3, sync_each_micro_batch=every)
        assert [op for op, _ in sent(of)].count("broadcast") == count
    only = ddp.step(inputs(BUFFERED, micro_batches=3)).tasks
    first_forward = next(i for i, task in enumerate(only) if task.kind == "forward")
    assert all(i < first_forward for i, task in enumerate(only) if getattr(task, "op", "") == "broadcast")


def test_buffers_are_flattened_before_they_are_sent_and_copied_back_before_each_forward() -> None:
    """Of every micro-batch that follows a reduction; here reading and writing 1 MB takes 0.2 s."""
    seen = spans(ran(inputs(BUFFERED, micro_batches=2, sync_each_micro_batch=True, copy_bytes_per_s=1e7)))
    for micro in (0, 1):
        flatten, sending, back = (
            next(span for name, span in seen.items() if name.startswith(f"{verb} float") and f"@{micro}" in name)
            for verb in ("flatten", "broadcast", "copy")
        )
        assert sending[0] >= flatten[1]
        assert back[0] >= sending[1]
        assert back[1] == pytest.approx(back[0] + 0.2)
        assert seen[f"forward {micro}: in"][0] >= back[1]


def test_naive_data_parallelism_reduces_in_the_order_of_parameters_and_hooks_as_gradients_become_ready() -> None:
    registered = ["all-reduce in.weight", "all-reduce mid.weight", "all-reduce out.weight"]
    assert [task.name for task in collectives(tasks_of(inputs(overlap="none")))] == registered
    assert [task.name for task in collectives(tasks_of(inputs(overlap="per_parameter")))] == registered[::-1]


def test_without_distributed_data_parallel_nobody_broadcasts_buffers() -> None:
    for overlap in ("per_parameter", "none"):
        assert {op for op, _ in sent(inputs(BUFFERED, overlap=overlap))} == {"all_reduce"}
    assert sent(inputs(BUFFERED, num_ranks=1)) == []


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("overlap", ["bucketed", "per_parameter", "none"])
def test_reducing_in_every_micro_batch_costs_its_communication_each_time(overlap: str, view: bool) -> None:
    """Each forward waits for all that the backward before it sent: k steps' forward, backward and exposed time."""
    once = ran(inputs(overlap=overlap, gradient_as_bucket_view=view)).end_s - 0.5
    of = inputs(overlap=overlap, gradient_as_bucket_view=view, micro_batches=3, sync_each_micro_batch=True)
    assert sum(size for _, size in sent(of)) == 3 * 7e6
    assert ran(of).end_s == pytest.approx(3 * once + 0.5, rel=1e-9)


SETTINGS: dict[str, dict[str, Any]] = {
    "first": {"iteration": "first"},
    "unused": {"find_unused_parameters": True},
    "fp16": {"comm_hook": "fp16", "copy_bytes_per_s": 1e12},
    "every": {"sync_each_micro_batch": True, "micro_batches": 2},
    "copies": {"gradient_as_bucket_view": False, "copy_bytes_per_s": 1e12},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_coflows_and_messages_agree_under_every_setting(setting: str) -> None:
    model = model_of(*(layer(f"l{i}", size, 0.2e-3, 0.4e-3) for i, size in enumerate((30, 2, 10, 7, 1, 40))))
    of = inputs(replace(model, buffers=BUFFERS), num_ranks=8, bucket_cap="8 MiB", **SETTINGS[setting])
    ends = [ran(of, uniform(8), fidelity).end_s for fidelity in ("coflow", "message")]
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)


# ------------------------------------------------------------------------------------------------------- memory


def memory(**changed: Any) -> Memory:
    """Of THREE under SGD, which keeps nothing: 7 MB of weights, gradients of 1, 4 and 2 MB."""
    return memory_of(ran(inputs(optimizer="sgd", **changed)))


def held(found: Memory) -> dict[str, float]:
    """MB at the peak."""
    return {kind: size / 1e6 for kind, size in found.by_kind_bytes.items() if size}


def test_gradients_stand_beside_their_buckets() -> None:
    """All are alive when 'in' is in its backward; before and after the step there are weights and buckets."""
    found = memory(gradient_as_bucket_view=False)
    assert held(found) == {"params": 7, "grads": 7, "buffers": 7}
    assert found.peak_at == "backward 0: in"
    assert found.curve_bytes[[0, -1]].sum(axis=1).tolist() == [14e6, 14e6]


def test_views_of_buckets_spare_the_second_copy_but_for_one_operation() -> None:
    """Autograd's own gradient of 'mid' (4 MB) lives until it is in its bucket, whose memory stays after the step."""
    found = memory(gradient_as_bucket_view=True)
    assert held(found) == {"params": 7, "grads": 7 + 4}
    assert found.peak_at == "backward 0: mid"
    assert found.curve_bytes[[0, -1]].sum(axis=1).tolist() == [14e6, 14e6]


def test_views_spare_nothing_under_no_sync() -> None:
    """zero_grad sets gradients to None, so those of the first micro-batch are no views; torch 2.13, live tensors.

    At 'mid' of the second: buckets 7, kept 7 less 'out', and 4 that are added.
    """
    found = memory(gradient_as_bucket_view=True, micro_batches=2)
    assert held(found) == {"params": 7, "grads": 7 + 6 + 4}
    assert found.peak_at == "backward 1: mid"
    assert found.curve_bytes[-1].sum() == 14e6


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("view", [False, True])
def test_a_step_leaves_the_memory_it_found(setting: str, view: bool) -> None:
    of = inputs(BUFFERED, **{**SETTINGS[setting], "gradient_as_bucket_view": view})
    curve = memory_of(ran(of)).curve_bytes.sum(axis=1)
    assert curve[-1] == curve[0] == curve.min()


def test_a_hook_holds_what_it_sends_until_it_is_cast_back() -> None:
    """In one bucket: 3.5 MB in 16 bits beside 7 MB of weights, gradients and bucket each."""
    found = memory(gradient_as_bucket_view=False, comm_hook="bf16", iteration="first")
    assert held(found) == {"params": 7, "grads": 7, "buffers": 7 + 3.5}
    assert found.peak_at == "compress bucket 0"


def test_without_buckets_there_are_only_gradients() -> None:
    for overlap in ("per_parameter", "none"):
        assert held(memory(overlap=overlap)) == {"params": 7, "grads": 7}


# ------------------------------------------------------------------------------------------- ranks that are not alike


def uneven(batches: dict[int, int]) -> Plan:
    """Ranks that run so many steps each, one class per rank."""
    classes = tuple(RankClass(name=f"rank {rank}", ranks=(rank,)) for rank in batches)
    tasks: list[Task] = []
    for number in range(max(batches.values())):
        names = tuple(f"rank {rank}" for rank, count in batches.items() if number < count)
        tasks += [renamed(task, number, names) for task in tasks_of(inputs())]
    return Plan(title="an epoch", classes=classes, axes={ddp.AXIS: (tuple(batches),)}, tasks=tuple(tasks))


def renamed(task: Task, number: int, classes: tuple[str, ...]) -> Task:
    after = tuple(f"step {number}, {name}" for name in task.after)
    return replace(
        task, name=f"step {number}, {task.name}", after=after, classes=classes, allocates=(), frees=()
    )  # fmt: skip


@pytest.mark.parametrize("fidelity", ["coflow", "message"])
def test_a_rank_with_one_batch_less_leaves_the_others_in_an_all_reduce(fidelity: str) -> None:
    """Field case g03 (pytorch issue 38174), REQUIREMENTS 31: they wait for ever, and the answer says for whom."""
    assert simulate(uneven({0: 2, 1: 2, 2: 2, 3: 2}), SLOW, fidelity=fidelity).end_s > 0
    with pytest.raises(DeadlockError) as stopped:
        simulate(uneven({0: 2, 1: 2, 2: 2, 3: 1}), SLOW, fidelity=fidelity)
    told = str(stopped.value)
    assert "step 1, all-reduce bucket 0 on rank 0" in told
    assert "'step 1, all-reduce bucket 0' is never called by rank 3" in told
    assert "step 0" not in told


def test_the_rank_with_more_samples_sets_the_step_and_the_others_wait() -> None:
    """REQUIREMENTS 16: rank 3 works on half as many samples again, so its backward is ready 5.25 s later."""
    classes = (RankClass(name="most", ranks=(0, 1, 2)), RankClass(name="more", ranks=(3,), work=1.5))
    tasks = tuple(replace(task, classes=("most", "more")) for task in tasks_of(inputs()))
    of = Plan(title="uneven", classes=classes, axes={ddp.AXIS: ((0, 1, 2, 3),)}, tasks=tasks)
    timeline = simulate(of, SLOW)
    first_end = 8.5 * 1.5 + all_reduce_s(5)
    assert timeline.end_s == pytest.approx(first_end + all_reduce_s(2) + 0.5, rel=1e-9)
    waits = [s for s in timeline.of_class("most") if s.task.name == "all-reduce bucket 0"]
    assert waits[0].duration_s == pytest.approx(8.5 * 0.5 + all_reduce_s(5), rel=1e-9)


# ---------------------------------------------------------------------------------------------------- construction


def test_construction_checks_shapes_and_broadcasts_the_weights() -> None:
    """torch 2.13, traced: all-gather of the parameter count, broadcast of the shapes, broadcast of the parameters."""
    calls = collectives(ddp.startup(inputs()).tasks)
    assert [(c.op, c.message_bytes) for c in calls] == [
        ("all_gather", 4 * 8.0),
        ("broadcast", 3 * 16.0),
        ("broadcast", 7e6),
    ]


def test_weights_are_broadcast_in_groups_that_close_once_they_reach_250_mib() -> None:
    """torch/csrc/distributed/c10d/comm.cpp: broadcast_coalesced groups by the same rule as gradient buckets."""
    big = model_of(*(layer(f"l{i}", megabytes, 0.0, 0.0) for i, megabytes in enumerate((200, 100, 200, 10, 600, 5))))
    weights = [c.message_bytes for c in collectives(ddp.startup(inputs(big)).tasks) if "parameters" in c.name]
    assert weights == [300e6, 810e6, 5e6]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_all_weights_are_broadcast_once(megabytes: list[int]) -> None:
    of = inputs(model_of(*(layer(f"l{i}", size, 0.0, 0.0) for i, size in enumerate(megabytes))))
    weights = [c.message_bytes for c in collectives(ddp.startup(of).tasks) if "parameters" in c.name]
    assert sum(weights) == sum(megabytes) * 1e6
    assert all(group >= 250 * MIB for group in weights[:-1])


def test_float_buffers_are_broadcast_with_the_weights_and_counters_by_themselves() -> None:
    """torch 2.13, traced: one message per dtype, of weights and buffers."""
    calls = collectives(ddp.startup(inputs(BUFFERED)).tasks)
    assert [c.message_bytes for c in calls[2:]] == [7e6 + 1e6, 8.0]
