"""Which input moves a step most: laws of physics for each input, and what ``simulator tornado`` tells."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.answer import StepAnswer, answer_step
from simulator.load import load_scenario
from simulator.report.verdict import Verdict, verdicts
from simulator.scaling import INPUTS, scaled
from simulator.scenario import Scenario
from simulator.uncertainty.tornado import Tornado, tornado_of
from simulator.uncertainty.tornado_plot import plot_tornado
from simulator.uncertainty.tornado_text import finding, tornado_text

#: Two layers of a transformer on one GPU.
ALONE = (
    "gpt2-8xa100",
    "model={num_layers: 2, hidden_size: 768, num_attention_heads: 12, intermediate_size: 3072, vocab_size: 8000}",
    "cluster.topology=dgx-h100", "cluster.nodes=1", "cluster.gpus_per_node=1", "limits.exposed=null",
)  # fmt: skip
#: A few matrices on two nodes.
NODES = ("mlp-naive",)


def judge(answer: StepAnswer) -> list[Verdict]:
    return verdicts(answer.report, answer.job)


def step_s(scenario: Scenario, **factors: float) -> float:
    return answer_step(scaled(scenario, factors)).report.step_time_s


@cache
def loaded(*asked: str) -> Scenario:
    return load_scenario(asked[0], asked[1:])


@cache
def tornado(*asked: str) -> Tornado:
    return tornado_of(loaded(*asked), 0.2, judge)[1]


def measured(path: Path, layers: list[dict[str, Any]], alpha: str = "0 us", cap: str = "1 MiB") -> Scenario:
    """Layers of stated times on four GPUs of an ideal network of 1 GB/s."""
    topology = {
        "name": "flat", "kind": "uniform", "nodes": 4, "bandwidth": "1 GB/s", "alpha": alpha, "library": "textbook",
        "source": "a test",
    }  # fmt: skip
    path.write_text(yaml.safe_dump({
        "cluster": {"topology": topology}, "model": {"layers": layers},
        "parallel": {"strategy": "ddp", "bucket_cap": cap},
        "train": {"micro_batch": 1, "precision": "fp32", "optimizer": "sgd"},
    }), encoding="utf-8")  # fmt: skip
    return load_scenario(path)


@given(factor=st.floats(0.3, 3.0))
@settings(max_examples=4, deadline=None)
def test_a_step_that_only_computes_takes_the_inverse_of_how_fast_it_computes(factor: float) -> None:
    """All rates times f and all times between kernels over f: the step is over f, whatever bounds which kernel."""
    rates = dict.fromkeys(("matmul_rate", "attention_rate", "memory_bandwidth"), factor)
    times = dict.fromkeys(("kernel_gap", "host_launch"), 1 / factor)
    assert step_s(loaded(*ALONE), **rates, **times) == pytest.approx(step_s(loaded(*ALONE)) / factor, rel=1e-9)


def test_a_step_bound_by_its_host_takes_as_much_longer_as_that_does() -> None:
    slow = loaded(*ALONE, "cluster.host.kernel_launch=2 ms")
    assert step_s(slow, host_launch=1.5) == pytest.approx(1.5 * step_s(slow), rel=0.02)
    assert step_s(slow, matmul_rate=0.5) == pytest.approx(step_s(slow), rel=0.02)


@given(factor=st.floats(0.2, 5.0))
@settings(max_examples=4, deadline=None)
def test_a_step_bound_by_its_network_takes_the_inverse_of_its_bandwidth(
    tmp_path_factory: pytest.TempPathFactory, factor: float
) -> None:
    layers = [{"name": "one", "params": 10_000_000, "forward": "1 ns", "backward": "1 ns"}]
    bound = measured(tmp_path_factory.mktemp("bound") / "s.yaml", layers)
    assert step_s(bound, link_bandwidth=factor) == pytest.approx(step_s(bound) / factor, rel=1e-5)


def test_an_input_that_hides_has_no_swing(tmp_path: Path) -> None:
    """The layer with parameters is reduced behind the backward of one that has none, at any rate nearby."""
    hidden = measured(tmp_path / "s.yaml", [
        {"name": "first", "params": 0, "forward": "50 ms", "backward": "100 ms"},
        {"name": "second", "params": 1_000_000, "forward": "50 ms", "backward": "100 ms"},
    ], alpha="5 us")  # fmt: skip
    found = tornado_of(hidden, 0.2, judge)[1]
    assert {swing.name for swing in found.swings} == {"link_bandwidth", "network_latency", "library_overhead"}
    assert not any(swing.moves for swing in found.swings)
    assert "hangs on no input" in finding(found)


@pytest.mark.parametrize("asked", [ALONE, NODES], ids=lambda asked: asked[0])
def test_more_of_a_rate_never_takes_longer_and_more_of_a_time_never_shorter(asked: tuple[str, ...]) -> None:
    for swing in tornado(*asked).swings:
        less, more = swing.less.step_time_s, swing.more.step_time_s
        base = tornado(*asked).base.step_time_s
        ends = (less, base, more) if INPUTS[swing.name].slower else (more, base, less)
        assert list(ends) == sorted(ends), swing.name


def test_inputs_come_widest_first_and_only_those_that_the_scenario_has() -> None:
    alone, nodes = tornado(*ALONE), tornado(*NODES)
    for found in (alone, nodes):
        widths = [swing.width for swing in found.swings]
        assert widths == sorted(widths, reverse=True)
    names = {swing.name for swing in alone.swings}
    assert {"matmul_rate", "attention_rate", "memory_bandwidth", "memory_capacity"} <= names
    assert not any(INPUTS[name].group in ("network", "money") for name in names), "one GPU sends nothing"
    assert {"nic_bandwidth", "network_latency"} <= {swing.name for swing in nodes.swings}
    assert "attention_rate" not in {swing.name for swing in nodes.swings}, "layers of matrices attend to nothing"


def test_a_price_moves_the_cost_one_to_one_and_the_finding_is_about_the_next_input() -> None:
    found = tornado(*NODES, "cost={gpu_hour: $2/h, as_of: 2026-11}")
    price = next(swing for swing in found.swings if swing.name == "price")
    assert (price.less_change, price.more_change) == (pytest.approx(-0.2), pytest.approx(0.2))
    assert price.less.step_time_s == price.more.step_time_s == found.base.step_time_s
    rest = [swing for swing in found.swings if swing.name != "price"]
    for swing in rest:
        assert swing.less_change == pytest.approx(swing.less.step_time_s / found.base.step_time_s - 1)
    assert finding(found).startswith(f"The cost of a token hangs on the {rest[0].words} besides the price")


def test_memory_capacity_moves_no_time_but_says_where_the_step_no_longer_fits() -> None:
    answer = answer_step(loaded(*ALONE))
    assert answer.job.device is not None
    share = 1.1 * answer.report.memory.peak_bytes / answer.job.device.memory
    limits = loaded(*ALONE).limits.model_copy(update={"memory": share})
    found = tornado_of(loaded(*ALONE).model_copy(update={"limits": limits}), 0.2, judge)[1]
    capacity = next(swing for swing in found.swings if swing.name == "memory_capacity")
    assert not capacity.moves
    assert (capacity.less.failing, capacity.more.failing) == (("memory",), ())
    assert str([*tornado_text(found, "#")][-1]) == "edge memory: holds as it is, fails with memory capacity -20 %"


def test_the_finding_comes_first_and_json_says_the_same() -> None:
    shown, told = simulator("tornado", *NODES), json.loads(simulator("tornado", *NODES, "--json").out)
    assert shown.code == 0
    lines = " ".join(shown.out.split())
    assert told["finding"] in lines
    assert lines.index(told["finding"]) < lines.index("Each input alone")
    first = tornado(*NODES).swings[0]
    assert told["result"] == "step_time_s"
    assert (told["inputs"][0]["input"], told["inputs"][0]["less_change"]) == (first.name, first.less_change)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--by", "0%"), "--by: must lie above 0% and be at most 90%; got '0%'"),
        (("--by", "lots"), "--by: expected a share"),
        (("--plot", "t.bmp"), "the ending says the format"),
        (("cluster.nodez=2",), "nodez"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: tuple[str, ...], told: str) -> None:
    result = simulator("tornado", *NODES, *arguments)
    assert result.code == 2
    assert told in result.err


def test_a_single_collective_has_no_tornado() -> None:
    result = simulator("tornado", "all-reduce-two-a100-nodes")
    assert result.code == 2
    assert "single collective" in result.err


@pytest.mark.slow
def test_the_picture_is_the_same_every_time(tmp_path: Path) -> None:
    found = tornado(*NODES)
    for name in ("a.png", "b.png", "a.svg", "b.svg"):
        plot_tornado(found, tmp_path / name, "a few layers")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert svg == (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert "NIC bandwidth" in svg
