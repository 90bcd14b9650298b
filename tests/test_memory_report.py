"""Memory over the step: the curve is what is alive, the peak is told in words with its holders, slack stands apart."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from command_line import simulator
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import uniform
from strategies import examples

from simulator.engine.run import simulate
from simulator.plan import MEMORY_KINDS, Buffer, Communicate, Compute, Plan, RankClass, Task
from simulator.report.memory import BEFORE_THE_STEP, Memory, memory_of, thinned
from simulator.report.slack import SHARES, slack_of
from simulator.report.words import layer_words, task_words

LLAMA = ("run", "ddp-llama-1b-16xh100", "--json")


def answer(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(simulator(*arguments).out)
    return found


# ------------------------------------------------------------------------------------------------- the curve is a law


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Tasks of 0 to 2 s on two lanes, each of which may take memory that it or a later task on its lane gives back."""
    tasks: list[Task] = []
    held: dict[str, list[str]] = {"compute": [], "copy-in": []}
    for number in range(draw(st.integers(1, 14))):
        lane = draw(st.sampled_from(sorted(held)))
        made = [
            Buffer(name=f"b{number}.{i}", kind=draw(st.sampled_from(MEMORY_KINDS)), size_bytes=draw(st.floats(0, 1e9)))
            for i in range(draw(st.integers(0, 2)))
        ]
        held[lane] += [buffer.name for buffer in made]
        gone = tuple(name for name in held[lane] if draw(st.booleans()))
        held[lane] = [name for name in held[lane] if name not in gone]
        tasks.append(Compute(
            name=f"t{number}", kind="forward", classes=("all",), seconds=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
            lane=lane, allocates=tuple(made), frees=gone,
        ))  # fmt: skip
    resident = (Buffer(name="weights", kind="params", size_bytes=draw(st.floats(0, 1e9))),)
    everyone = (RankClass(name="all", ranks=(0, 1)),)
    return Plan(title="any", classes=everyone, axes={}, tasks=tuple(tasks), resident=resident)


@settings(max_examples=examples(80))
@given(plans())
def test_between_changes_the_curve_is_the_sum_of_what_is_alive(plan: Plan) -> None:
    """Alive: allocated by a task that has started, and not freed by one that has ended."""
    timeline = simulate(plan, uniform(2))
    memory = memory_of(timeline)
    sizes = {b.name: b for t in plan.tasks for b in t.allocates} | {b.name: b for b in plan.resident}
    spans = {span.task.name: span for span in timeline.spans}
    times = sorted({0.0, timeline.end_s, *(t for s in timeline.spans for t in (s.start_s, s.end_s))})
    for a, b in pairwise(times):
        now = (a + b) / 2
        taken = {"weights"} | {buffer.name for t in plan.tasks for buffer in t.allocates if spans[t.name].start_s < now}
        alive = taken - {name for t in plan.tasks for name in t.frees if spans[t.name].end_s < now}
        by_kind = [sum(sizes[name].size_bytes for name in alive if sizes[name].kind == kind) for kind in MEMORY_KINDS]
        row = memory.curve_bytes[np.searchsorted(memory.times_s, now) - 1]
        assert row.tolist() == pytest.approx(by_kind, rel=1e-9, abs=1e-3)
        assert memory.peak_bytes >= sum(by_kind) * (1 - 1e-12)
    assert sum(h.size_bytes for h in memory.holders) <= memory.peak_bytes * (1 + 1e-9) + 1e-3


@settings(max_examples=examples(80))
@given(plans(), st.integers(3, 12))
def test_a_thinned_curve_keeps_its_peak_and_its_beginning(plan: Plan, most: int) -> None:
    memory = memory_of(simulate(plan, uniform(2)))
    times, curve = thinned(memory, most)
    assert len(times) == len(curve) <= max(most, 2)
    assert curve.sum(axis=1).max() == memory.curve_bytes.sum(axis=1).max()
    assert times.tolist() == sorted(times.tolist())
    assert times[0] == memory.times_s[0]
    known = {(float(t), *row) for t, row in zip(memory.times_s, memory.curve_bytes.tolist(), strict=True)}
    assert {(float(t), *row) for t, row in zip(times, curve.tolist(), strict=True)} <= known


def by_hand(*activations: float) -> Memory:
    """A step of one-second tasks: each takes 1 B for good and so many B of activations for itself."""
    tasks = tuple(
        Compute(
            name=f"forward 0: layers.{i}", kind="forward", classes=("all",), seconds=1.0, part=f"layers.{i}",
            allocates=(
                Buffer(name=f"kept {i}", kind="grads", size_bytes=1.0),
                Buffer(name=f"activations layers.{i} @0", kind="activations", size_bytes=size),
            ),
            frees=(f"activations layers.{i} @0",),
        )
        for i, size in enumerate(activations)
    )  # fmt: skip
    everyone = (RankClass(name="all", ranks=(0,)),)
    return memory_of(simulate(Plan(title="by hand", classes=everyone, axes={}, tasks=tasks), uniform(2)))


def test_with_smaller_activations_the_peak_moves_to_where_the_rest_is_larger() -> None:
    """10 B of activations after the first task, 1 + 10 = 11 B; a tenth of them: 4 + 0.5 B at the last one."""
    memory = by_hand(10.0, 1.0, 1.0, 5.0)
    assert (memory.peak_bytes, memory.peak_words) == (11.0, "forward of layer 0")
    assert memory.peak_with("activations", 0.1) == pytest.approx(4.5)
    assert memory.peak_with("activations", 1.0) == memory.peak_bytes
    assert memory.peak_with("grads", 0.0) == 10.0


# ------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("name", "kind", "part", "words"),
    [
        ("backward 0: layers.31.mlp.down", "backward", "layers.31", "backward of layer 31 (mlp.down)"),
        ("forward 0: embedding", "forward", "embedding", "forward of embedding"),
        ("backward 0: loss", "backward", "head", "backward of head (loss)"),
        ("forward 0: layers.3.norm", "forward", "layers.3.norm", "forward of layer 3 (norm)"),
        ("forward 1 .. 3: all operations", "forward", "micro-batches 1 .. 3", "forward of micro-batches 1 .. 3"),
        ("copy bucket 3 out", "copy", "", "copy bucket 3 out"),
        ("optimizer", "optimizer", "", "optimizer"),
    ],
)
def test_a_task_is_told_in_words(name: str, kind: str, part: str, words: str) -> None:
    assert task_words(Compute(name=name, kind=kind, classes=("all",), seconds=1.0, part=part)) == words


def test_a_collective_is_told_by_what_it_sends_and_a_pass_by_its_micro_batch() -> None:
    gather = Communicate(
        name="g", op="all_gather", axis="dp", algorithm="auto", message_bytes=1.0, classes=("all",),
        purpose="weights layers.3",
    )  # fmt: skip
    assert task_words(gather) == "all_gather of weights layers.3"
    task = Compute(name="backward 4: h.2.attn", kind="backward", classes=("all",), seconds=1.0, part="h.2")
    assert task_words(task, micro_batches=5) == "backward of layer 2 (attn), micro-batch 4"
    assert [layer_words(name) for name in ("model.layers.7", "conv1", "layer1.0.conv2")] == [
        "layer 7", "conv1", "layer1.0.conv2"
    ]  # fmt: skip


def test_a_peak_before_the_first_task_is_told_so() -> None:
    task = Compute(name="t", kind="forward", classes=("all",), seconds=1.0, frees=("w",))
    held = (Buffer(name="w", kind="params", size_bytes=8.0),)
    memory = memory_of(simulate(
        Plan(title="x", classes=(RankClass(name="all", ranks=(0,)),), axes={}, tasks=(task,), resident=held), uniform(2)
    ))  # fmt: skip
    assert (memory.peak_at, memory.peak_words, memory.peak_s) == (BEFORE_THE_STEP, BEFORE_THE_STEP, 0.0)


# -------------------------------------------------------------------------------------------------- text and JSON


def test_json_holds_the_peak_its_holders_and_the_curve() -> None:
    memory = answer(*LLAMA)["memory"]
    assert memory["peak_at"] == "backward of head (loss)"
    curve = memory["timeline"]
    assert set(curve["by_kind_bytes"]) == set(MEMORY_KINDS)
    totals = np.sum([curve["by_kind_bytes"][kind] for kind in MEMORY_KINDS], axis=0)
    assert len(totals) == len(curve["times_s"]) <= 500
    assert totals.max() == pytest.approx(memory["peak_bytes"], rel=1e-12)
    assert curve["times_s"][int(totals.argmax())] == memory["peak_s"]
    largest = memory["holders"][0]
    assert (largest["kind"], largest["name"]) == ("activations", "activations loss @0")
    assert largest["size_bytes"] <= memory["by_kind_bytes"]["activations"]
    assert sum(holder["size_bytes"] for holder in memory["holders"]) == pytest.approx(memory["peak_bytes"])


def test_text_says_when_the_peak_is_and_what_holds_it() -> None:
    text = simulator("run", "ddp-llama-1b-16xh100").out
    assert "Memory, 51.2 GiB at backward of head (loss)" in text
    assert "kept for backward 22.5 GiB, logits' gradient 5.87 GiB" in text


# ------------------------------------------------------------------------------------------------------------- slack


def test_slack_is_a_share_of_tensors_and_told_beside_the_peak() -> None:
    """2 to 10 % of all but the driver's and NCCL's own memory; the peak and ``fits`` know nothing of it."""
    memory = answer(*LLAMA)["memory"]
    tensors = memory["peak_bytes"] - memory["by_kind_bytes"]["workspace"]
    slack = memory["allocator_slack"]
    assert (slack["low_bytes"], slack["high_bytes"]) == pytest.approx((0.02 * tensors, 0.1 * tensors))
    assert slack["counted_in_fits"] is False
    assert "arXiv" in slack["source"]
    assert (slack["shares"], sum(memory["by_kind_bytes"].values())) == (
        list(SHARES), pytest.approx(memory["peak_bytes"])
    )  # fmt: skip


@pytest.mark.parametrize(("free_bytes", "tight"), [(-1e9, False), (1e9, True), (6e9, False)])
def test_a_step_that_slack_may_break_is_feasible_and_called_tight(free_bytes: float, tight: bool) -> None:
    """51.2 GiB with 4.9 GiB of slack at most: 6 GB free are enough, 1 GB may not be, and with -1 GB it does not fit."""
    found = answer(*LLAMA)["memory"]
    share = (found["peak_bytes"] + free_bytes) / found["capacity_bytes"]
    result = simulator(*LLAMA[:2], f"limits.memory={share:.15f}", "limits.exposed=null")
    text = " ".join(result.out.split())
    assert result.code == (0 if free_bytes > 0 else 1)
    assert ("ok memory:" in text) == (free_bytes > 0)
    assert ("tight: 954 MiB free, and an allocator's slack may take 1,006 MiB to 4.91 GiB" in text) == tight


def _task(name: str, lane: str, made: float = 0.0, frees: tuple[str, ...] = ()) -> Compute:
    buffers = (Buffer(name=f"b {name}", kind="gathered", size_bytes=made),) if made else ()
    return Compute(
        name=name, kind="copy", classes=("all",), seconds=1.0, lane=lane, allocates=buffers, frees=frees
    )  # fmt: skip


def _in_order(*tasks: Compute) -> Memory:
    chained = [replace(task, after=(tasks[i - 1].name,) if i else ()) for i, task in enumerate(tasks)]
    everyone = (RankClass(name="all", ranks=(0, 1)),)
    return memory_of(simulate(Plan(title="x", classes=everyone, axes={}, tasks=tuple(chained)), uniform(2)))


def test_a_stream_cannot_use_what_another_one_has_left() -> None:
    """10 on one stream, given back, then 6 on another: 16 are reserved though no more than 10 are ever alive.

    torch 2.13, c10/cuda/CUDACachingAllocator.cpp: a free block serves only the stream that it was made on.
    """
    apart = _in_order(
        _task("a", "compute", 10.0), _task("b", "compute", frees=("b a",)), _task("c", "copy-in", 6.0)
    )  # fmt: skip
    assert (apart.peak_bytes, apart.pools_bytes) == (10.0, 6.0)
    alike = _in_order(
        _task("a", "compute", 10.0), _task("b", "compute", frees=("b a",)), _task("c", "compute", 6.0)
    )  # fmt: skip
    assert (alike.peak_bytes, alike.pools_bytes) == (10.0, 0.0)


def test_pools_come_on_top_of_both_ends_of_the_slack() -> None:
    """Reserved is at least what the pools need, and blocks of the wrong size are a share of that."""
    slack = slack_of({"params": 90.0, "workspace": 50.0}, 10.0)
    assert (slack.low_bytes, slack.high_bytes) == pytest.approx((10.0 + 0.02 * 100.0, 10.0 + 0.1 * 100.0))


@settings(max_examples=examples(50))
@given(plans())
def test_pools_are_each_streams_own_peak(plan: Plan) -> None:
    """The memory of a plan with the buffers of one lane alone, added over lanes, less the peak of all."""
    memory = memory_of(simulate(plan, uniform(2)))
    alone = []
    for lane in ("compute", "copy-in"):
        tasks = tuple(task if task.lane == lane else replace(task, allocates=(), frees=()) for task in plan.tasks)
        held = plan.resident if lane == "compute" else ()
        alone.append(memory_of(simulate(replace(plan, tasks=tasks, resident=held), uniform(2))).peak_bytes)
    assert memory.pools_bytes == pytest.approx(sum(alone) - memory.peak_bytes, rel=1e-9, abs=1e-3)


def test_slack_of_nothing_but_the_context_is_nothing() -> None:
    assert slack_of({"workspace": 1e9}).high_bytes == 0.0
