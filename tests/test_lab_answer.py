"""``simulator lab`` without a lab: which real run stands for a scenario, how real and simulated steps are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from command_line import simulator
from real_steps import needs_torch, ranks, same

from simulator.errors import ScenarioError, SimulatorError
from simulator.lab.fabric import flat, two_level
from simulator.lab.measuring import Numbers
from simulator.lab.model import Way, stated_rate
from simulator.lab.training_job import REAL, training_job
from simulator.lab_answer import LabAnswer, measured_gloo, simulate_lab
from simulator.lab_compare import compare, stages_of_layers
from simulator.lab_text import lab_json, lab_text
from simulator.load import load_scenario
from simulator.parallel_spec import KEYS
from simulator.plan import Communicate
from simulator.scenario import Scenario

FLAT, TWO_LEVEL = "lab-ddp", "lab-hsdp"
NEAR = Way(alpha_s=50e-6, bytes_per_s=stated_rate(400e6))
TINY = {"all_reduce": 1e-3, "all_gather": 1.2e-3, "reduce_scatter": 1.3e-3, "broadcast": 0.6e-3}
NUMBERS = Numbers(near=NEAR, across=None, tiny_s=TINY)


@cache
def loaded(name: str, *overrides: str) -> Scenario:
    return load_scenario(name, overrides)


# ------------------------------------------------------------------------------------------------ the real program

CHOSEN = {
    ("ddp", "torch"): (FLAT,),
    ("zero1", "torch"): (TWO_LEVEL, "parallel.strategy=zero1", "parallel.implementation=torch"),
    ("zero1", "textbook"): (TWO_LEVEL, "parallel.strategy=zero1", "parallel.implementation=textbook"),
    ("zero2", "textbook"): (TWO_LEVEL, "parallel.strategy=zero2", "parallel.implementation=textbook"),
    ("zero3", "textbook"): (TWO_LEVEL, "parallel.strategy=zero3", "parallel.implementation=textbook"),
    ("fsdp", "fsdp2"): (TWO_LEVEL, "parallel.strategy=fsdp"),
    ("fsdp", "fsdp1"): (TWO_LEVEL, "parallel.strategy=fsdp", "parallel.implementation=fsdp1"),
    ("hsdp", "fsdp2"): (TWO_LEVEL,),
    ("hsdp", "fsdp1"): (TWO_LEVEL, "parallel.implementation=fsdp1"),
}
#: Another value of each key that a strategy of the lab reads.
OTHER = {
    "bucket_cap": "2 MiB", "first_bucket": "1 MiB", "gradient_as_bucket_view": "true", "overlap": "none",
    "find_unused_parameters": "true", "comm_hook": "bf16", "iteration": "first", "sync_each_micro_batch": "true",
    "parameters_as_bucket_view": "true", "wrap": "2", "reshard_after_forward": "false", "forward_prefetch": "1",
    "backward_prefetch": "2", "param_dtype": "bf16", "reduce_dtype": "bf16", "reshard_after_backward": "false",
    "wait_each_micro_batch": "false", "reduce_scatter_buffers": "2", "separate_reduce_scatter_group": "true",
    "limit_all_gathers": "false", "shard_size": "4", "all_reduce_each_micro_batch": "false", "algorithm": "ring",
}  # fmt: skip
REFUSED = {"first_bucket", "iteration", "reduce_scatter_buffers", "separate_reduce_scatter_group"}
#: What torch's FSDP1 calls otherwise.
OTHER_OF_FSDP1 = {"backward_prefetch": "post"}


def test_every_strategy_of_torch_can_run_in_the_lab() -> None:
    """All but DeepSpeed's and Megatron's."""
    assert set(REAL) == {key for key in KEYS if key[1] not in ("deepspeed", "megatron")} == set(CHOSEN)


@pytest.mark.parametrize(
    ("strategy", "key"), [(strategy, key) for strategy in REAL for key in KEYS[strategy].split()],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_no_setting_is_left_out_of_the_real_run(strategy: tuple[str, str], key: str) -> None:
    """Each changes the job or is refused by name; ring is what gloo runs in any case."""
    value = OTHER_OF_FSDP1.get(key, OTHER[key]) if strategy[1] == "fsdp1" else OTHER[key]
    usual = loaded(*CHOSEN[strategy], "train.grad_accumulation=2")
    changed = loaded(*CHOSEN[strategy], "train.grad_accumulation=2", f"parallel.{key}={value}")
    if key in REFUSED:
        with pytest.raises(ScenarioError, match=f"parallel.{key}"):
            training_job(changed, 4, 2, 1)
        return
    assert (training_job(changed, 4, 2, 1) == training_job(usual, 4, 2, 1)) == (key == "algorithm")


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("train.grad_accumulation=2",), ("parallel.wrap=2",)], ids=str)
@pytest.mark.parametrize("strategy", REAL, ids="-".join)
def test_the_real_run_sends_what_is_simulated(strategy: tuple[str, str], more: tuple[str, ...]) -> None:
    """Times of the layers left out: what is sent does not depend on them."""
    if more == ("parallel.wrap=2",) and "wrap" not in KEYS[strategy].split():
        pytest.skip("reads no 'wrap'")
    scenario = loaded(*CHOSEN[strategy], *more)
    job = training_job(scenario, 4, 2, 0)
    for layer in job["model"]["layers"]:
        layer["forward_s"] = layer["backward_s"] = 0.0
    traced = same([answer["steady"] for answer in ranks(4).run({**job, "steps": 0, "trace": True})])
    fabric = two_level(2, 800e6, 200e6) if scenario.cluster.spec.name == "lab-two-level" else flat(4, 400e6)
    across = NEAR if fabric.uplink_bit_per_s else None
    plan = simulate_lab(scenario, fabric, Numbers(near=NEAR, across=across, tiny_s=TINY)).timeline.plan
    planned = [
        (task.op, round(task.message_bytes), len(plan.axes[task.axis][0]))
        for task in plan.tasks if isinstance(task, Communicate)
    ]  # fmt: skip
    assert planned == traced


@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        (("gpt2-8xa100",), r"gpt2-8xa100.yaml:\d+: model: the lab runs layers of stated times"),
        (("all-reduce-16384-ranks",), "collective: the lab runs layers of stated times"),
        ((FLAT, "cluster.nodes=1"), "one host sends nothing to itself; the lab needs 2 to 64"),
        ((FLAT, "cluster.nodes=65"), r"hosts per side \[65\]: expected one or two numbers of at least 1, together at"),
        ((FLAT, "cluster.topology=dgx-h100"), "'dgx-h100': the lab builds hosts .* such as lab-flat and lab-two-level"),
        ((FLAT, "train.precision=bf16-mixed"), "train.precision=bf16-mixed: the lab trains in fp32"),
        ((FLAT, "parallel.algorithm=tree"), "gloo all-reduces on a ring; accepted: auto, ring"),
        ((FLAT, "cluster.library=nccl"), "the lab's processes talk over gloo; accepted: gloo"),
        ((FLAT, "cluster.jitter={share: 3%}"), "as fast as cluster.stragglers says; accepted: left out"),
        ((FLAT, "cluster.host={speed: 50%}"), "host thread is that of this machine; accepted: left out"),
        ((FLAT, "train.host_syncs=step"), "no device to wait for"),
        ((FLAT, "train.clip_grad_norm=true"), "the lab clips under FSDP only"),
        ((FLAT, "train.uneven=[{ranks: [0], micro_batch: 2}]"), "the stated time whatever the batch"),
        ((TWO_LEVEL, "parallel.strategy=zero1"), r"the lab does not run zero1 \(deepspeed\); accepted: ddp \(torch\)"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)  # fmt: skip
def test_what_the_lab_cannot_run_is_refused_before_anything_is_built(scenario: Sequence[str], says: str) -> None:
    result = simulator("lab", *scenario)
    assert (result.code, result.out) == (2, "")
    assert re.search(says, " ".join(result.err.split())), result.err
    assert "Traceback" not in result.err
    assert "hosts are up" not in result.err


def test_a_straggler_sleeps_longer_and_is_simulated_so() -> None:
    scenario = loaded(FLAT, "cluster.stragglers=[{ranks: [2], speed: 80%}]")
    assert training_job(scenario, 4, 1, 1, [1.0, 1.0, 0.8, 1.0])["speed"] == [1.0, 1.0, 1.25, 1.0]
    usual, slowed = (simulate_lab(s, flat(4, 400e6), NUMBERS).timeline.end_s for s in (loaded(FLAT), scenario))
    assert slowed - usual == pytest.approx(0.25 * 6 * 60e-3, abs=5e-3)


# ------------------------------------------------------------------------------------------------------ comparing


def test_a_launch_is_what_a_tiny_collective_takes_beyond_its_messages() -> None:
    """A ring of 4: six messages of an all-reduce, three of an all-gather; a reduce-scatter is an all-reduce inside."""
    library = measured_gloo(flat(4, 400e6), NUMBERS)
    messages = {"all_reduce": 6, "all_gather": 3, "reduce_scatter": 6}
    for op, count in messages.items():
        assert library.operation_launch[op] == pytest.approx(TINY[op] - count * 50e-6, abs=2e-6)


PIPELINE, TENSOR = "lab-pipeline", "lab-tensor"


def test_a_pipeline_is_the_job_that_torch_runs_in_stages() -> None:
    job = training_job(loaded(PIPELINE), 4, 1, 3)
    assert job["pipeline"] == {"schedule": "1F1B", "lines": [[0, 1, 2, 3]], "stages": [[0], [1], [2], [3]]}
    assert (job["kind"], job["strategy"], job["accumulation"]) == ("together", "alone", 6)
    assert job["parts"] == [{"ranks": [rank]} for rank in range(4)]
    assert job["model"]["layers"][0]["output"] == 640e3
    beside = training_job(
        loaded(PIPELINE, "parallel.pp=2", "parallel.chunks=2", "parallel.stages=[1, 1, 1, 1]"), 4, 1, 3
    )
    assert beside["pipeline"]["schedule"] == "Interleaved1F1B"
    assert beside["pipeline"]["lines"] == [[0, 2], [1, 3]]
    assert (beside["strategy"], beside["parts"]) == ("ddp", [{"ranks": [0, 1]}, {"ranks": [2, 3]}])


def test_what_layers_send_runs_over_the_groups_of_the_mesh() -> None:
    """Ranks of tp are neighbours, ranks of dp have the same part of each layer; the order of dimensions turns that."""
    job = training_job(loaded(TENSOR), 4, 2, 3)
    assert (job["groups"], job["parts"]) == ({"tp": [[0, 1], [2, 3]]}, [{"ranks": [0, 2]}, {"ranks": [1, 3]}])
    assert job["model"]["layers"][0]["exchanges"][1] == {
        "axis": "tp", "op": "all_reduce", "size_bytes": 640e3, "when": "beside weights", "count": 1, "pieces": 1,
    }  # fmt: skip
    turned = training_job(loaded(TENSOR, "parallel.order=dp-tp-cp-ep-pp"), 4, 2, 3)
    assert (turned["groups"], turned["parts"]) == ({"tp": [[0, 2], [1, 3]]}, [{"ranks": [0, 1]}, {"ranks": [2, 3]}])


@pytest.mark.parametrize(
    ("scenario", "parallel", "message"),
    [
        (PIPELINE, "schedule: zb-h1", "schedule: .*backward is whole.*gpipe, 1f1b, interleaved-1f1b"),
        (PIPELINE, "pp: 2, strategy: fsdp", "strategy: fsdp .fsdp2.*accepted in the lab: ddp"),
        (PIPELINE, "overlap_p2p: true", "overlap_p2p: torch's schedules settle"),
        (PIPELINE, "embedding_as_layer: true", "embedding_as_layer: measured layers have no embedding"),
        (PIPELINE, "pp: 2, overlap: none", "overlap: .*accepted: bucketed"),
        (TENSOR, "tp: 4, strategy: fsdp", "strategy: .*nothing to shard; accepted: ddp"),
        (TENSOR, "tp: 2, strategy: hsdp, shard_size: 2", "strategy: hsdp"),
        (TENSOR, "tp: 3", "tp 3 = 3 ranks of a replica do not divide the 4 ranks"),
    ],
)  # fmt: skip
def test_what_the_lab_does_not_run_over_several_hosts_is_refused_by_name(
    scenario: str, parallel: str, message: str
) -> None:
    usual = "pp: 4, " if scenario == PIPELINE and "pp:" not in parallel else ""
    with pytest.raises(SimulatorError, match=message):
        training_job(loaded(scenario, f"parallel={{{usual}{parallel}}}"), 4, 2, 3)


def test_passes_of_a_stage_and_what_it_sends_are_found_in_the_real_step() -> None:
    """Two hosts, two stages of two layers, two micro-batches: a pass begins with its first layer and ends with its
    last; a send begins when one end has asked and ends when both are done.
    """
    scenario = loaded(PIPELINE, "cluster.nodes=2", "parallel.pp=2", "train.grad_accumulation=2")
    job = training_job(scenario, 2, 1, 1)
    stages = stages_of_layers(job)
    assert stages == {"layer.0": 0, "layer.1": 0, "layer.2": 1, "layer.3": 1}
    forward = [["layer.0", "forward", 0.0, 0.02], ["layer.1", "forward", 0.02, 0.04]]
    backward = [["layer.1", "backward", 0.2, 0.24], ["layer.0", "backward", 0.24, 0.28]]

    def late(spans: list[list[Any]], by_s: float, layers: int = 0) -> list[list[Any]]:
        return [[f"layer.{int(n[-1]) + layers}", way, a + by_s, b + by_s] for n, way, a, b in spans]

    first = [*forward, *late(forward, 0.04), *backward, *late(backward, 0.1)]
    second = [*late(forward, 0.06, 2), *late(backward, -0.1, 2), *late(forward, 0.2, 2), *late(backward, 0.05, 2)]
    sent = [["send", 640_000, 2, 0.04, 0.05], ["send", 640_000, 2, 0.08, 0.09]]
    got = [["recv", 640_000, 2, 0.18, 0.2], ["recv", 640_000, 2, 0.28, None]]
    real: list[dict[str, Any]] = [
        {"spans": [first], "collectives": [sent[0], got[0], sent[1], got[1]]},
        {"spans": [second], "collectives": [
            ["recv", 640_000, 2, 0.0, 0.06], ["send", 640_000, 2, 0.1, 0.2], ["recv", 640_000, 2, 0.1, 0.1],
            ["send", 640_000, 2, 0.3, 0.32],
        ]},
    ]  # fmt: skip
    real[0]["collectives"][-1][3:] = [None, None]
    spans, unmatched = compare(simulate_lab(scenario, flat(2, 400e6), NUMBERS), real, stages)
    found = {span.name: (span.real_start_s, span.real_end_s) for span in spans}
    assert unmatched == ""
    assert found["forward 1: stage 0"] == (pytest.approx(0.04), pytest.approx(0.08))
    assert found["backward 1: stage 1"] == (pytest.approx(0.25), pytest.approx(0.33))
    assert found["send activations 0: stage 0 to 1"] == (0.0, 0.06)
    assert found["send gradients of activations 1: stage 1 to 0"] == (0.3, 0.32)
    real[1]["collectives"].reverse()
    real[1]["collectives"][0][0] = "recv"
    assert "simulated: 2 send (rank 1)" in compare(simulate_lab(scenario, flat(2, 400e6), NUMBERS), real, stages)[1]


def real_step(scenario: Scenario, ops: Sequence[str], late_s: float = 0.0) -> list[dict[str, Any]]:
    """Answers of two ranks to two steps; everything as stated, rank 1 and the second step ``late_s`` later."""
    names = [layer["name"] for layer in training_job(scenario, 2, 1, 1)["model"]["layers"]]
    spans = [[name, "forward", k * 0.02, (k + 1) * 0.02] for k, name in enumerate(names)]
    spans += [
        [name, "backward", 0.12 + k * 0.04, 0.12 + (k + 1) * 0.04] for k, name in enumerate(reversed(names))
    ]  # fmt: skip

    def shifted(by_s: float) -> list[list[Any]]:
        return [[name, way, start + by_s, end + by_s] for name, way, start, end in spans]

    return [
        {
            "steps_s": [0.4 + rank * late_s, 0.4 + (1 + rank) * late_s],
            "spans": [shifted(rank * late_s), shifted((1 + rank) * late_s)],
            "collectives": [[op, 1_200_000, 2, 0.16 + 0.04 * k, 0.2 + 0.04 * k + rank] for k, op in enumerate(ops)],
        }
        for rank in (0, 1)
    ]  # fmt: skip


def answer(scenario: Scenario, ops: Sequence[str], late_s: float = 0.0) -> LabAnswer:
    simulated = simulate_lab(scenario, flat(2, 400e6), NUMBERS)
    spans, unmatched = compare(simulated, real_step(scenario, ops, late_s))
    return LabAnswer(
        fabric=flat(2, 400e6), numbers=NUMBERS, simulated=simulated, real_s=(0.4, 0.5, 0.6), spans=spans,
        real_time=True, unmatched=unmatched,
    )  # fmt: skip


TWO = (FLAT, "cluster.nodes=2")


def test_a_span_begins_with_its_first_rank_and_ends_with_its_last_in_the_median_step() -> None:
    spans = {span.name: span for span in answer(loaded(*TWO), ["all_reduce"] * 6, late_s=0.01).spans}
    first = spans["forward 0: layer.0"]
    assert (first.real_start_s, first.real_end_s) == (pytest.approx(0.005), pytest.approx(0.035))
    assert (first.simulated_start_s, first.simulated_end_s) == (0.0, pytest.approx(0.02))
    last = spans["all-reduce bucket 5"]
    assert (last.real_start_s, last.real_end_s) == (pytest.approx(0.36), pytest.approx(1.4))


def test_a_simulated_span_of_unlike_ranks_begins_with_the_first_and_ends_with_the_last() -> None:
    scenario = loaded(*TWO, "cluster.stragglers=[{ranks: [1], speed: 50%}]")
    spans = {span.name: span for span in answer(scenario, ["all_reduce"] * 6).spans}
    second = spans["forward 0: layer.1"]
    assert (second.simulated_start_s, second.simulated_end_s) == (pytest.approx(0.02), pytest.approx(0.08))


def test_collectives_that_are_not_those_of_the_plan_are_told_not_shown() -> None:
    found = answer(loaded(*TWO), ["all_reduce"] * 3 + ["broadcast"])
    assert found.unmatched == "real: 3 all_reduce, 1 broadcast; simulated: 6 all_reduce"
    assert all(span.real_end_s is None for span in found.spans if span.kind == "communication")
    assert all(span.real_end_s is not None for span in found.spans if span.kind != "communication")
    assert any("not the plan's: real: 3 all_reduce" in str(piece) for piece in lab_text(found, 120))


def test_json_holds_every_span_and_the_error_of_the_median_step() -> None:
    found = answer(loaded(*TWO), ["all_reduce"] * 6)
    told = json.loads(json.dumps(lab_json(found)))
    assert told["step"]["real_median_s"] == 0.5
    assert told["step"]["error"] == pytest.approx(found.simulated.timeline.end_s / 0.5 - 1)
    assert told["measured"]["tiny_s"] == TINY
    assert [span["name"] for span in told["spans"]] == [span.name for span in found.spans]
    assert len(told["spans"]) == 6 + 6 + 6


@pytest.mark.parametrize("width", [60, 120])
def test_lanes_fill_the_line_and_show_who_is_busy(width: int) -> None:
    """Forward takes the first 120 of the 1,400 ms up to the end of the last collective."""
    lanes = [str(piece) for piece in lab_text(answer(loaded(*TWO), ["all_reduce"] * 6), width) if "|" in str(piece)]
    assert {len(lane) for lane in lanes} == {min(width, 100)}
    compute = lanes[0].split("|")[1]
    assert compute.count("f") == pytest.approx(120 / 1400 * len(compute), abs=1)
    assert compute.count("b") == pytest.approx(240 / 1400 * len(compute), abs=1)
