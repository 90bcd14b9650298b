"""What real training steps communicate: torch.distributed on gloo over loopback, 2 to 4 processes, torch 2.13.0.

Traced by ``simulator.lab.real_run``, the program that also runs in the lab. Facts about PyTorch stand here as exact
sequences; that our plans list the same is tested beside each plan.
"""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from math import ceil, prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_steps import ROOT, layers, needs_torch, ranks, same, steady, train

pytestmark = [pytest.mark.slow, needs_torch]

MIB = 2**20
#: BatchNorm1d(1024), with its buffers, and nine Linear(1024, 1024).
LECTURE = layers([1024, 1024], *[[[1024, 1024], 1024]] * 9)
LECTURE["layers"][0]["buffers"] = [{"shape": 1024}, {"shape": 1024}, {"shape": [], "dtype": "int64"}]
#: Embedding(1000, 64), three blocks of Linear(64, 256) and Linear(256, 64), LayerNorm(64), a head without bias.
BLOCK = [[256, 64], 256, [64, 256], 64]
TOY = layers([[1000, 64]], BLOCK, BLOCK, BLOCK, [64, 64], [[1000, 64]])
BLOCKS = [[1], [2], [3]]
#: Bytes of a block and of the root in fp32.
B, R = 4 * 33_088, 4 * 128_128
SMALL = layers([[64, 16], 16], [[64, 16], 16], [[64, 16], 16], [[64, 16], 16])


def ops(launched: list[tuple[str, int, int]]) -> str:
    """Operations in one word."""
    short = {"all_gather": "G", "reduce_scatter": "S", "all_reduce": "A", "broadcast": "B"}
    return "".join(short[op] for op, _, _ in launched)


# --- DistributedDataParallel


def test_ddp_steady_step_closes_buckets_once_they_reach_the_cap_and_broadcasts_buffers_first() -> None:
    assert steady(2, LECTURE, "ddp") == [
        ("broadcast", 8_192, 2), ("broadcast", 8, 2),
        ("all_reduce", 4_198_400, 2), ("all_reduce", 29_388_800, 2), ("all_reduce", 4_206_592, 2),
    ]  # fmt: skip


def test_ddp_construction_checks_shapes_then_broadcasts_parameters_and_buffers_by_dtype() -> None:
    found = train(2, LECTURE, "ddp", trace={"construction": True})
    parameters = 4 * (2 * 1024 + 9 * (1024 * 1024 + 1024))
    counts, shapes, *states = same([answer["construction"] for answer in found])
    assert counts == ("all_gather", 8 * 2, 2)
    assert shapes[0] == "broadcast"
    assert states == [("broadcast", parameters + 8_192, 2), ("broadcast", 8, 2)]


@pytest.mark.parametrize(("static_graph", "rebuilt"), [(False, 1), (True, 2)])
def test_ddp_begins_with_one_bucket_and_rebuilds_once(static_graph: bool, rebuilt: int) -> None:
    model = layers(*[[[1024, 512]]] * 4)
    options = {"static_graph": static_graph}
    found = train(2, model, "ddp", options=options, trace={"first": 4, "steady": True}, warm_up=4)
    first = [same([answer["first"][number] for answer in found]) for number in range(4)]
    buckets = [("all_reduce", size, 2) for size in (2 * MIB, 6 * MIB)]
    assert same([answer["steady"] for answer in found]) == buckets
    unused = [("all_reduce", 4 * 4, 2)]  # a static graph learns once which parameters are used
    assert first[0] == (unused if static_graph else []) + [("all_reduce", 8 * MIB, 2)]
    assert [ops(step) for step in first[1:rebuilt]] == ["A"] * (rebuilt - 1)
    assert ops(first[rebuilt]) == "BBAA"
    assert first[rebuilt + 1 :] == [buckets] * (3 - rebuilt)


def test_ddp_that_looks_for_unused_parameters_has_buckets_of_reversed_registration_from_the_start() -> None:
    """The first registered tensors fill the 1 MiB bucket (0.5 + 2 MiB), which goes last; then an int32 per tensor."""
    model = layers([[512, 256]], *[[[1024, 512]]] * 3, [[512, 512]])
    model["layers"].append({"name": "never", "params": [10], "unused": True})
    found = train(2, model, "ddp", options={"find_unused_parameters": True}, trace={"first": 1, "steady": True})
    expected = [("all_reduce", 5 * MIB + 4 * 10, 2), ("all_reduce", 5 * MIB // 2, 2), ("all_reduce", 4 * 6, 2)]
    assert same([answer["first"][0] for answer in found]) == expected
    assert same([answer["steady"] for answer in found]) == expected


def test_ddp_compression_hooks_halve_the_bytes() -> None:
    for hook in ("fp16", "bf16"):
        assert steady(2, LECTURE, "ddp", options={"hook": hook, "broadcast_buffers": False}) == [
            ("all_reduce", 4_198_400 // 2, 2), ("all_reduce", 29_388_800 // 2, 2), ("all_reduce", 4_206_592 // 2, 2)
        ]  # fmt: skip


def test_ddp_no_sync_reduces_in_the_last_micro_step_and_broadcasts_buffers_in_the_first() -> None:
    assert steady(2, LECTURE, "ddp", accumulation=3) == steady(2, LECTURE, "ddp")
    assert ops(steady(2, LECTURE, "ddp", accumulation=2, options={"sync": "every"})) == "BBAAA" * 2


# --- the lecture's ways by hand


def test_naive_data_parallelism_reduces_tensor_by_tensor_in_registration_order() -> None:
    assert steady(3, SMALL, "naive") == [("all_reduce", 4096, 3), ("all_reduce", 64, 3)] * 4


def test_hooks_reduce_in_the_order_in_which_gradients_become_ready_which_is_reversed() -> None:
    assert steady(3, SMALL, "per_parameter") == [("all_reduce", 64, 3), ("all_reduce", 4096, 3)] * 4


# --- ZeRO


def test_zero_redundancy_optimizer_reduces_all_and_broadcasts_each_tensor_from_its_owner() -> None:
    """Greedy, largest first: owners of 3 ranks in turn get 4096, 4096, 4096, then 64, 64 and the rest."""
    found = steady(3, SMALL, "zero1_torch")
    assert found[0] == ("all_reduce", 4 * 4160, 3)
    assert sorted(found[1:]) == sorted([("broadcast", 4096, 3), ("broadcast", 64, 3)] * 4)


def test_zero_redundancy_optimizer_with_bucket_views_broadcasts_once_per_rank() -> None:
    found = steady(2, SMALL, "zero1_torch", options={"parameters_as_bucket_view": True})
    assert found == [("all_reduce", 4 * 4160, 2), ("broadcast", 2 * 4160, 2), ("broadcast", 2 * 4160, 2)]


def test_zero_by_the_book_moves_twice_the_parameters_padded_to_whole_elements_per_rank() -> None:
    odd = layers([7], [[3, 5]], [10])
    assert steady(3, odd, "zero1") == [("reduce_scatter", 4 * 33, 3), ("all_gather", 4 * 33, 3)]
    assert steady(3, odd, "zero2") == [
        ("reduce_scatter", 4 * 12, 3), ("reduce_scatter", 4 * 15, 3), ("reduce_scatter", 4 * 9, 3),
        ("all_gather", 4 * 9, 3), ("all_gather", 4 * 15, 3), ("all_gather", 4 * 12, 3),
    ]  # fmt: skip


def test_zero2_keeps_no_whole_gradients_so_every_micro_step_reduces() -> None:
    assert ops(steady(2, SMALL, "zero2", accumulation=2)) == "SSSS" * 2 + "GGGG"
    assert ops(steady(2, SMALL, "zero1", accumulation=2)) == "SG"


@pytest.mark.parametrize(
    ("prefetch", "order"), [(0, "GGGG" "GSGSGSGS"), (1, "GGGG" "GGSGSGSS"), (2, "GGGG" "GGGSGSSS")]
)  # fmt: skip
def test_zero3_gathers_ahead_as_far_as_it_is_told(prefetch: int, order: str) -> None:
    assert ops(steady(2, SMALL, "zero3", options={"prefetch": prefetch})) == order


# --- FSDP


FSDP_STEP = [
    ("all_gather", R, 2), *[("all_gather", B, 2)] * 3,
    ("all_gather", B, 2), ("all_gather", B, 2), ("reduce_scatter", B, 2),
    ("all_gather", B, 2), ("reduce_scatter", B, 2), ("reduce_scatter", B, 2), ("reduce_scatter", R, 2),
]  # fmt: skip


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_fsdp_gathers_2l_plus_1_times_and_reduces_l_plus_1_times_the_root_last(strategy: str) -> None:
    assert steady(2, TOY, strategy, options={"units": BLOCKS}) == FSDP_STEP


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({"reshard_after_forward": False}, "GGGG" "SSSS"),
        ({"reshard_after_forward": "all but last"}, "GGGG" "GSGSSS"),
        ({"root_reshard_after_forward": True}, "GGGG" "GGGSGSSS"),
        ({"forward_prefetch": 2, "backward_prefetch": 2}, "GGGG" "GGGSSSS"),
    ],
)  # fmt: skip
def test_fully_shard_gathers_again_only_what_it_freed(options: dict[str, Any], order: str) -> None:
    assert ops(steady(2, TOY, "fsdp2", options={"units": BLOCKS, **options})) == order


def test_fully_shard_to_part_of_the_world_gathers_again_from_that_part() -> None:
    found = steady(4, TOY, "fsdp2", options={"units": BLOCKS, "reshard_after_forward": 2})
    assert [group for op, _, group in found if op == "all_gather"] == [4, 4, 4, 4, 2, 2, 2]
    assert {group for op, _, group in found if op == "reduce_scatter"} == {4}


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_mixed_precision_gathers_in_one_type_and_reduces_in_another(strategy: str) -> None:
    options = {"units": BLOCKS, "param_dtype": "bfloat16", "reduce_dtype": "float32"}
    expected = [(op, size // 2 if op == "all_gather" else size, 2) for op, size, _ in FSDP_STEP]
    assert steady(2, TOY, strategy, options=options) == expected


def test_fully_shard_pads_the_first_dimension_of_every_parameter_and_fsdp1_the_sum() -> None:
    """64 x 256 on 3 ranks becomes 66 x 256."""
    model = layers([[64, 256], 64])
    assert steady(3, model, "fsdp2", options={"units": 1})[0] == ("all_gather", 4 * (66 * 256 + 66), 3)
    assert steady(3, model, "fsdp1", options={"units": 1})[0] == ("all_gather", 4 * (64 * 256 + 64 + 1), 3)


def test_hybrid_sharding_reduces_each_shard_across_replicas_after_its_reduce_scatter() -> None:
    expected = []
    for op, size, group in FSDP_STEP:
        expected += [(op, size, group)] + [("all_reduce", size // 2, 2)] * (op == "reduce_scatter")
    assert steady(4, TOY, "fsdp2", options={"units": BLOCKS, "mesh": [2, 2]}) == expected
    hybrid = {"units": BLOCKS, "mesh": [2, 2], "sharding": "hybrid_shard"}
    assert steady(4, TOY, "fsdp1", options=hybrid) == expected


def test_accumulation_without_sync_still_gathers_in_every_micro_step() -> None:
    step = ops(FSDP_STEP)
    assert ops(steady(2, TOY, "fsdp2", options={"units": BLOCKS}, accumulation=3)) == step.replace("S", "") * 2 + step
    every = {"units": BLOCKS, "sync": "every"}
    assert ops(steady(2, TOY, "fsdp2", options=every, accumulation=2)) == step * 2


def test_hybrid_accumulation_may_leave_the_all_reduce_to_the_last_micro_step() -> None:
    options = {"units": BLOCKS, "mesh": [2, 2], "sync": "every", "all_reduce": "last"}
    step = ops(FSDP_STEP)
    assert ops(steady(4, TOY, "fsdp2", options=options, accumulation=2)) == step + step.replace("S", "SA")


def test_weights_kept_after_backward_are_not_gathered_by_the_next_forward() -> None:
    options = {"units": BLOCKS, "reshard_after_backward": "last"}
    first, second = "GGGGGGG", "GGSGSSS"  # the second forward frees the blocks again
    assert ops(steady(2, TOY, "fsdp2", options=options, accumulation=2)) == first + second


def test_gradient_clipping_is_one_norm_per_parameter_for_fully_shard_and_one_in_all_for_fsdp1() -> None:
    options = {"units": BLOCKS, "clip": 1.0}
    assert steady(2, TOY, "fsdp2", options=options) == [*FSDP_STEP, ("all_reduce", 4 * 16, 2)]
    assert steady(2, TOY, "fsdp1", options=options) == [*FSDP_STEP, ("all_reduce", 4, 2)]


def test_fsdp1_that_keeps_weights_after_forward_gathers_each_unit_once() -> None:
    assert ops(steady(2, TOY, "fsdp1", options={"units": BLOCKS, "sharding": "shard_grad_op"})) == "GGGGSSSS"


def test_fsdp1_without_prefetch_gathers_a_unit_when_its_backward_begins() -> None:
    assert ops(steady(2, TOY, "fsdp1", options={"units": BLOCKS, "backward_prefetch": None})) == "GGGGGSGSGSS"


# --- the harness itself

STRATEGIES = [
    ("naive", {}), ("flat", {}), ("per_parameter", {}), ("ddp", {}), ("ddp", {"gradient_as_bucket_view": True}),
    ("ddp", {"hook": "bf16"}), ("zero1_torch", {}), ("zero1_torch", {"parameters_as_bucket_view": True}),
    ("zero1", {}), ("zero1", {"by_unit": True}), ("zero2", {}), ("zero2", {"reduces_in_flight": 1}),
    ("zero3", {"prefetch": 0}), ("zero3", {"prefetch": 2, "reduces_in_flight": 1}),
    ("zero3", {"reshard_after_forward": False}), ("fsdp2", {"units": 2}), ("fsdp1", {"units": 2}),
]  # fmt: skip


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(("strategy", "options"), STRATEGIES)
def test_every_strategy_trains_like_every_other(strategy: str, options: dict[str, Any], accumulation: int) -> None:
    """Rank r's gradients are r + 1 everywhere: after n backwards of p ranks SGD has moved by -lr n (p + 1) / 2."""
    model = layers([[5, 3], 7], [4], [[6, 2], 1])
    for answer in train(3, model, strategy, options=options, accumulation=accumulation, warm_up=3):
        assert answer["expected"] == -(2**-10) * 3 * accumulation * 2
        assert set(answer["values"]) <= {answer["expected"], 0.0}  # zeros: FSDP1's padding
        assert strategy == "fsdp1" or answer["values"] == [answer["expected"]]


def test_the_profiler_sees_the_same_collectives_as_the_tracer() -> None:
    for strategy in ("ddp", "zero1_torch", "zero3", "fsdp1", "fsdp2"):
        found = train(2, SMALL, strategy, trace=True, collectives=True)
        for answer in found:
            assert [entry[:3] for entry in answer["collectives"]] == answer["steady"]
            assert all(start <= end for *_, start, end in answer["collectives"])


def test_layers_sleep_forward_in_order_and_backward_in_reverse_a_straggler_longer() -> None:
    model = layers([8], [8], [8], forward_s=0.004, backward_s=0.008)
    names = ["layer0", "layer1", "layer2"]
    for rank, answer in enumerate(train(2, model, "ddp", steps=2, speed=[1.0, 2.0])):
        assert len(answer["spans"]) == len(answer["steps_s"]) == 2
        for spans in answer["spans"]:
            assert [(name, way) for name, way, *_ in spans] == (
                [(name, "forward") for name in names] + [(name, "backward") for name in reversed(names)]
            )
            for _, way, start, end in spans:
                assert end - start >= (1 + rank) * (0.004 if way == "forward" else 0.008)
            assert all(before[3] <= after[2] for before, after in pairwise(spans))


def test_live_bytes_of_data_parallel_adamw_are_four_per_parameter_and_role() -> None:
    """Parameters, gradients, buckets, two states and, for a moment, one more copy (foreach); 8 scalars of step."""
    n = 4 * 4160
    memory = train(2, SMALL, "ddp", optimizer="adamw", memory=True)[0]["memory"]
    assert memory == {"parameter": n, "gradient": n, "bucket": n, "optimizer": 3 * n + 8 * 4}
    viewed = train(2, SMALL, "ddp", options={"gradient_as_bucket_view": True}, memory=True)[0]["memory"]
    assert viewed["bucket"] == n
    assert viewed["gradient"] < n / 2  # only until it is copied


def test_live_bytes_of_sharded_states_shrink_with_the_ranks() -> None:
    n = 4 * 4160
    for strategy in ("zero3", "fsdp2", "fsdp1"):
        memory = train(4, SMALL, strategy, options={"units": 1}, optimizer="adamw", memory=True)[0]["memory"]
        assert memory["parameter"] == n / 4
        assert memory["optimizer"] == pytest.approx(2 * n / 4, abs=64)


def test_two_trainings_on_disjoint_ranks_run_side_by_side() -> None:
    parts = [{"ranks": [0, 2], "model": SMALL, "strategy": "naive"}, {"ranks": [1], "model": SMALL, "strategy": "ddp"}]
    found = ranks(4).run({"kind": "together", "parts": parts, "steps": 2, "trace": True, "collectives": True})
    assert found[3] == {}
    assert [len(answer["steps_s"]) for answer in found[:3]] == [2, 2, 2]
    assert same([found[0]["steady"], found[2]["steady"]]) == [("all_reduce", 4096, 2), ("all_reduce", 64, 2)] * 4
    assert found[0]["values"] == [found[0]["expected"]]
    assert same([found[1]["steady"]]) == [("all_reduce", 4 * 4160, 1)]


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"strategy": "zero9"}, "strategy 'zero9'.*did you mean 'zero"),
        (
            {"strategy": "ddp", "options": {"buket_cap_mb": 1}},
            "ddp: option 'buket_cap_mb'.*did you mean 'bucket_cap_mb'",
        ),
        ({"strategy": "fsdp2", "options": {"units": [[1, 0]]}}, "units .*expected lists of consecutive layers"),
        ({"strategy": "fsdp2", "options": {"mesh": [3, 2]}}, "mesh .*product is 2"),
        ({"strategy": "naive", "workers": 3}, "workers 3: expected 1 or 2"),
        ({"kind": "pong"}, "job 'pong': expected one of"),
    ],
)
def test_a_wrong_job_is_answered_with_the_reason_and_the_next_one_runs(job: dict[str, Any], says: str) -> None:
    for answer in ranks(2).run({"model": SMALL, **job}):
        assert re.search(says, answer["error"])
    assert steady(2, SMALL, "flat") == [("all_reduce", 4 * 4160, 2)]


def test_tiny_collectives_and_pings_say_how_long_each_took() -> None:
    tiny = ranks(3).run({"kind": "tiny", "repeats": 3})
    assert set(tiny[0]["median_s"]) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
    assert all(
        time > 0 for answer in tiny for by in answer["times_s"].values() for times in by.values() for time in times
    )
    ping = ranks(3).run({"kind": "ping", "ranks": [0, 2], "sizes_bytes": [100, 100_000], "repeats": 3})
    assert [{size: len(times) for size, times in answer["times_s"].items()} for answer in ping] == [
        {"100": 3, "100000": 3}, {}, {"100": 3, "100000": 3}
    ]  # fmt: skip


def test_functional_collectives_count_like_the_others() -> None:
    """Which DTensors and compiled models launch. The ranks are pretended: torch's 'fake' process group."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from simulator.lab.real_trace import Recorder

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with Recorder() as recorder:
            launched = [
                functional.all_reduce(torch.ones(8), "sum", dist.group.WORLD),
                functional.all_gather_single(torch.ones(8), 0, dist.group.WORLD),
                functional.reduce_scatter_single(torch.ones(8), "sum", 0, dist.group.WORLD),
            ]
            for tensor in launched:
                functional.wait_tensor(tensor)
    finally:
        dist.destroy_process_group()
    assert recorder.launched == [("all_reduce", 32, 4), ("all_gather", 4 * 32, 4), ("reduce_scatter", 32, 4)]


@pytest.mark.parametrize("arguments", [["0", "2"], ["zero", "2", "meet", "jobs"]])
def test_wrong_arguments_end_with_one_line_and_code_2(arguments: list[str]) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "simulator.lab.real_run", *arguments], capture_output=True, encoding="utf-8", cwd=ROOT,
        check=False,
    )  # fmt: skip
    assert told.returncode == 2
    assert told.stderr == "error: expected RANK WORLD RENDEZVOUS JOBS, see simulator/lab/real_run.py\n"


# --- laws

SHAPES = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=2), min_size=1, max_size=3)
MODELS = st.lists(SHAPES, min_size=3, max_size=8)


@settings(max_examples=15)
@given(shapes=MODELS, world=st.sampled_from([2, 3]))
def test_volumes_of_random_models(shapes: list[list[list[int]]], world: int) -> None:
    """DDP reduces every byte once; fully_shard and ZeRO-3 gather and reduce what they pad, unit by unit."""
    model = layers(*shapes)
    total = 4 * sum(prod(shape) for layer in shapes for shape in layer)
    reduced = steady(world, model, "ddp", options={"bucket_cap_mb": 0.001})
    assert sum(size for _, size, _ in reduced) == total
    by_rows = [4 * sum(ceil(s[0] / world) * world * prod(s[1:]) for s in layer) for layer in shapes]
    flat = [4 * ceil(sum(map(prod, layer)) / world) * world for layer in shapes]
    for strategy, sizes in (("fsdp2", by_rows), ("zero3", flat)):
        found = steady(world, model, strategy, options={"units": 1})
        assert [size for op, size, _ in found if op == "reduce_scatter"] == sizes[::-1]
        assert [size for op, size, _ in found if op == "all_gather"] == sizes + sizes[::-1]
