"""The host thread: tiny layers are bound by it, large ones hide it, waiting for the device ends its lead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from command_line import simulator
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import graph

from simulator.answer import StepAnswer, answer_step
from simulator.engine.run import issue_s, simulate, simulate_steady
from simulator.host_costs import FRAMEWORKS, host_costs, with_syncs
from simulator.load import load_device, load_library, load_scenario
from simulator.parallel_spec import Parallel
from simulator.plan import Communicate, Compute, Plan, RankClass, Task
from simulator.rank_classes import ALL_RANKS
from simulator.scenario import Scenario
from simulator.strategies.step import HostCosts

LAYERS = 8
#: Kernels of a step of measured layers on one rank: one forward and two backward per layer, and the optimizer's.
LAUNCHES = 3 * LAYERS + 1


def scenario(
    layer_s: float, *, nodes: int = 1, params: int = 1_000_000, cluster: dict[str, Any] | None = None, **train: Any
) -> Scenario:
    """Layers that take ``layer_s`` forward and twice that backward, on links of 10 GB/s."""
    topology = {
        "name": "lab", "title": "a test", "kind": "uniform", "nodes": nodes, "bandwidth": "10 GB/s", "alpha": "1 us",
        "source": "a test",
    }  # fmt: skip
    layer = {
        "name": "layer", "params": params, "forward": f"{layer_s * 1e6} us", "backward": f"{layer_s * 2e6} us",
        "repeat": LAYERS,
    }  # fmt: skip
    return Scenario.model_validate({
        "cluster": {"topology": topology, **(cluster or {})}, "model": {"layers": [layer]},
        "parallel": {"bucket_cap": "4 MB", "gradient_as_bucket_view": True},
        "train": {"micro_batch": 1, "precision": "fp32", "optimizer": "sgd", **train},
    })  # fmt: skip


def host(kernel_us: float, collective_us: float = 0.0, speed: str = "100%") -> dict[str, Any]:
    times = {"kernel_launch": f"{kernel_us} us", "collective_launch": f"{collective_us} us"}
    return {"host": {**times, "speed": speed}}


def answer(*given: Any, **more: Any) -> StepAnswer:
    return answer_step(scenario(*given, **more))


# --------------------------------------------------------------------------------------------- what a lecture would say


def test_tiny_layers_are_bound_by_their_launches() -> None:
    """1 us of work for every 10 us of launching: the step is launches x cost, whatever the device does."""
    assert answer(1e-6, cluster=host(10.0)).report.step_time_s == pytest.approx(LAUNCHES * 10e-6, rel=1e-9)


def test_half_the_cpu_speed_doubles_a_step_bound_by_launches() -> None:
    fast, slow = (answer(1e-6, cluster=host(10.0, speed=s)).report.step_time_s for s in ("100%", "50%"))
    assert slow == pytest.approx(2 * fast, rel=1e-9)


def test_large_layers_hide_the_host() -> None:
    alone = answer(50e-3, nodes=4).report.step_time_s
    assert answer(50e-3, nodes=4, cluster=host(10.0, 70.0)).report.step_time_s == pytest.approx(alone, rel=1e-9)


def test_item_once_a_step_lets_the_device_wait_for_the_first_launch() -> None:
    """8 layers x 3 ms; the host starts when the device is done, and is ahead again after one launch."""
    work = LAYERS * 3e-3
    assert answer(1e-3, cluster=host(10.0)).report.step_time_s == pytest.approx(work, rel=1e-9)
    synced = answer(1e-3, cluster=host(10.0), host_syncs="step").report.step_time_s
    assert synced == pytest.approx(work + 10e-6, rel=1e-9)


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_item_each_micro_batch_lets_it_wait_that_often(accumulation: int) -> None:
    train = {"grad_accumulation": accumulation, "host_syncs": "micro_batch"}
    found = answer(1e-3, cluster=host(10.0), **train).report.step_time_s
    assert found == pytest.approx(accumulation * (LAYERS * 3e-3 + 10e-6), rel=1e-9)


def test_item_takes_the_run_ahead_that_short_layers_live_on() -> None:
    """Forward kernels are issued slower than they run, backward ones faster: over steps the host gets ahead of both,
    but not when each step starts from nothing.
    """
    free = answer(20e-6, cluster=host(15.0)).report
    synced = answer(20e-6, cluster=host(15.0), host_syncs="step").report
    assert free.step_time_s == pytest.approx(LAYERS * 60e-6, rel=1e-9)  # 25 x 15 us = 375 us are issued in 480 us
    assert synced.step_time_s > free.step_time_s + 15e-6 - 1e-12


def test_a_slow_cpu_exposes_the_all_reduces_that_a_fast_one_hides() -> None:
    """DDP, 4 MB buckets in 0.6 ms of backward each: hidden but for the last, until issuing takes longer than work."""
    fast, slow = (answer(0.3e-3, nodes=4, cluster=host(10.0, 70.0, speed=s)).report for s in ("100%", "2%"))
    issued_s = (LAUNCHES + 2 * LAYERS) * 500e-6  # more or less: scaling gradients are kernels too
    assert fast.idle.host_s == 0
    assert slow.step_time_s > 0.9 * issued_s
    assert slow.hidden_share < fast.hidden_share
    assert slow.idle.host_s > 0.5 * slow.step_time_s


@pytest.mark.parametrize(
    "parallel",
    [
        {"strategy": "fsdp"},
        {"strategy": "fsdp", "implementation": "fsdp1"},
        {"strategy": "zero3", "implementation": "textbook", "forward_prefetch": 1, "backward_prefetch": 1},
    ],
)
def test_a_slow_cpu_exposes_the_gathers_of_sharded_strategies(parallel: dict[str, Any]) -> None:
    """4 MB are gathered in 0.3 ms beside layers of 1 ms, when they are issued in time."""
    found = {}
    for speed in ("100%", "1%"):
        asked = scenario(1e-3, nodes=4, cluster=host(10.0, 35.0, speed))
        found[speed] = answer_step(asked.model_copy(update={"parallel": Parallel.model_validate(parallel)})).report
    assert found["100%"].idle.host_s < 0.01 * found["100%"].step_time_s
    assert found["1%"].idle.host_s > 0.3 * found["1%"].step_time_s
    assert found["1%"].step_time_s > 2 * found["100%"].step_time_s
    assert found["1%"].hidden_share < found["100%"].hidden_share


def test_collectives_of_many_small_tensors_are_bound_by_their_calls() -> None:
    """An all-reduce of 400 B takes two ranks 2 us, and each call takes the host 70 us."""
    asked = scenario(1e-6, nodes=2, params=100, cluster=host(0.0, 70.0))
    tiny = asked.model_copy(update={"parallel": asked.parallel.model_copy(update={"overlap": "per_parameter"})})
    found = answer_step(tiny).report
    assert found.step_time_s == pytest.approx(LAYERS * 70e-6, rel=1e-9)
    assert found.comm_total_s == pytest.approx(LAYERS * 2.04e-6, rel=1e-9)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_slow_host_issues_models_some_of_whose_operations_launch_nothing(strategy: str) -> None:
    """GPT-2's dropout is fused into what comes before it. The host then needs what it takes for all other launches."""
    asked = load_scenario("gpt2-8xa100", [
        "train.kernels=fused", "train.micro_batch=1", "cluster.host.kernel_launch=200 us",
        f"parallel.strategy={strategy}",
    ])  # fmt: skip
    found = answer_step(asked)
    plan = found.job.step
    assert any(task.launches == 0 for task in plan.tasks)
    assert found.report.step_time_s == pytest.approx(issue_s(plan)[plan.classes[0].name], rel=0.02)


# ------------------------------------------------------------------------------------------ where the numbers come from


def test_measured_layers_cost_no_host_and_xla_issues_a_whole_step_at_once() -> None:
    plain = scenario(1e-3)
    assert host_costs(plain, None) == HostCosts()
    assert host_costs(plain, load_device("tpu-v5p")) == HostCosts()
    assert host_costs(plain, load_device("h100-sxm5-80gb")) == FRAMEWORKS["pytorch"]


def test_a_scenario_overrides_one_cost_and_keeps_the_other() -> None:
    asked = scenario(1e-3, cluster={"host": {"kernel_launch": "3 us", "speed": "50%"}})
    costs = host_costs(asked, load_device("h100-sxm5-80gb"))
    assert costs.kernel_s == pytest.approx(6e-6)  # 3 us at half the speed
    assert costs.collective_s == pytest.approx(2 * FRAMEWORKS["pytorch"].collective_s)


@pytest.mark.parametrize("name", ["ddp-llama-1b-16xh100", "gpt2-8xa100"])
def test_models_of_today_hide_the_usual_host(name: str) -> None:
    usual = answer_step(load_scenario(name)).report
    free = answer_step(load_scenario(name, ["cluster.host.kernel_launch=0 us", "cluster.host.collective_launch=0 us"]))
    assert usual.step_time_s == pytest.approx(free.report.step_time_s, rel=1e-9)


def test_a_small_batch_of_a_small_model_is_bound_by_the_usual_host() -> None:
    """One sequence of 64 tokens through GPT-2 takes a B200 less time than PyTorch takes to issue its kernels."""
    small = ["train.micro_batch=1", "train.seq_len=64", "train.grad_accumulation=1", "cluster.gpus_per_node=1",
             "cluster.topology=dgx-b200"]  # fmt: skip
    usual = answer_step(load_scenario("gpt2-8xa100", small))
    plan = usual.job.step
    assert usual.report.step_time_s == pytest.approx(issue_s(plan)[plan.classes[0].name], rel=1e-9)
    free = answer_step(load_scenario("gpt2-8xa100", [*small, "cluster.host.kernel_launch=0 us"]))
    assert usual.report.step_time_s > 1.2 * free.report.step_time_s


def test_only_calls_of_gloo_block_their_thread() -> None:
    assert not load_library("gloo").streams  # type: ignore[union-attr]
    assert load_library("textbook").streams  # type: ignore[union-attr]
    for library, streams in (("gloo", False), ("textbook", True)):
        cluster = {"library": load_library(library)}
        asked = scenario(1e-3, nodes=2)
        spec = asked.cluster.spec.model_copy(update=cluster)
        made = answer_step(asked.model_copy(update={"cluster": asked.cluster.model_copy(update={"topology": spec})}))
        assert made.job.inputs.streams is streams


# ------------------------------------------------------------------------------------------------------ the steady step


NETWORK = graph([(f"gpu{i}", "switch", 50e9, 2.5e-6) for i in range(4)])
COPIES = 14


@st.composite
def tasks(draw: st.DrawFn, waits: bool) -> list[Task]:
    """A step that ends with an optimizer that waits for everything."""
    found: list[Task] = []
    for number in range(draw(st.integers(2, 7))):
        names = [task.name for task in found]
        after = tuple({draw(st.sampled_from(names)) for _ in range(draw(st.integers(0, 2)))}) if names else ()
        host_after = (draw(st.sampled_from(names)),) if waits and names and draw(st.integers(0, 3)) == 0 else ()
        host_s = draw(st.integers(0, 6)) * 1e-4
        if number == 0 or draw(st.booleans()):
            found.append(Compute(
                name=f"t{number}", kind="forward", classes=(ALL_RANKS,), seconds=draw(st.integers(0, 8)) * 1e-4,
                after=after, host_s=host_s, launches=draw(st.integers(1, 3)), host_after=host_after,
            ))  # fmt: skip
        else:
            found.append(Communicate(
                name=f"t{number}", op="all_reduce", axis="dp", algorithm="ring", message_bytes=1e7,
                classes=(ALL_RANKS,), after=after, host_s=host_s, host_after=host_after,
            ))  # fmt: skip
    end = Compute(name="optimizer", kind="optimizer", classes=(ALL_RANKS,), seconds=1e-4, host_s=1e-4,
                  after=tuple(task.name for task in found))  # fmt: skip
    return [*found, end]


def plan(found: list[Task]) -> Plan:
    everyone = RankClass(name=ALL_RANKS, ranks=(0, 1, 2, 3))
    return Plan(title="a test", classes=(everyone,), axes={"dp": ((0, 1, 2, 3),)}, tasks=tuple(found))


def repeated(found: list[Task], copies: int) -> Plan:
    """The step so many times; what waits for nothing waits for the optimizer before."""
    made: list[Task] = []
    for copy in range(copies):
        for task in found:
            behind = (f"optimizer {copy - 1}",) if copy and not task.after else ()
            made.append(replace(
                task, name=f"{task.name} {copy}", after=(*(f"{name} {copy}" for name in task.after), *behind),
                host_after=tuple(f"{name} {copy}" for name in task.host_after),
            ))  # fmt: skip
    return plan(made)


@pytest.mark.slow
@pytest.mark.parametrize("waits", [False, True])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_steady_step_is_what_a_long_run_of_steps_settles_to(waits: bool, data: st.DataObject) -> None:
    """The last of many steps in one plan, whose host thread goes on from one to the next."""
    found = data.draw(tasks(waits))
    one = plan(found)
    alone_s = simulate(plan([replace(task, host_s=0.0) for task in found]), NETWORK).end_s
    host_s = issue_s(one)[one.classes[0].name]
    assume(abs(host_s - alone_s) > 0.15 * alone_s)  # else the lead grows for longer than the run
    ends = sorted(s.end_s for s in simulate(repeated(found, COPIES), NETWORK).spans if s.task.kind == "optimizer")
    assert simulate_steady(one, NETWORK).end_s == pytest.approx(ends[-1] - ends[-2], rel=1e-9)


def test_a_steady_step_is_never_shorter_than_what_either_side_needs() -> None:
    for kernel_us in (1.0, 30.0, 300.0):
        found = answer(100e-6, nodes=4, cluster=host(kernel_us, 35.0))
        step = found.job.step
        assert found.report.step_time_s >= issue_s(step)[step.classes[0].name] * (1 - 1e-9)
        assert found.report.step_time_s >= answer(100e-6, nodes=4).report.step_time_s * (1 - 1e-9)


def test_where_a_micro_batch_begins() -> None:
    """At its first forward, or at the gathering of weights for it; never inside a backward that gathers."""

    def of(name: str, kind: str) -> Task:
        if kind in {"all_gather", "reduce_scatter"}:
            return Communicate(
                name=name, op=kind, axis="dp", algorithm="auto", message_bytes=8.0, classes=(ALL_RANKS,)
            )  # fmt: skip
        return Compute(name=name, kind=kind, classes=(ALL_RANKS,), seconds=1.0)

    kinds = [
        "all_gather", "forward", "all_gather", "backward", "reduce_scatter", "all_gather", "backward", "copy",
        "reduce_scatter", "all_gather", "forward", "backward", "forward", "backward", "optimizer",
    ]  # fmt: skip
    found = with_syncs([of(f"{number} {kind}", kind) for number, kind in enumerate(kinds)])
    assert [(task.name, task.host_after) for task in found if task.host_after] == [
        ("9 all_gather", ("7 copy",)), ("12 forward", ("11 backward",)),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cluster.host.kernel_launch=6", "unit"),
        ("cluster.host.speed=0%", "0.0001%"),
        ("cluster.host.speed=150%", "at most 100%"),
        ("cluster.host.kernel_lunch=6 us", "kernel_launch"),
        ("train.host_syncs=always", "never"),
    ],
)
def test_bad_host_keys_are_told(setting: str, message: str) -> None:
    result = simulator("run", "gpt2-8xa100", setting)
    assert result.code == 2
    assert setting.partition("=")[0].rpartition(".")[2][:6] in result.err
    assert message in result.err
    assert "Traceback" not in result.err
