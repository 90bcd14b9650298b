"""``simulator check``: verdicts, cures that are simulated, break-even, costs, conditions."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from command_line import ROOT

from simulator.answer import answer_step, cluster_network
from simulator.checking.changes import changes_of
from simulator.checking.conditions import parse_condition
from simulator.checking.judgements import USUAL_EXPOSED
from simulator.checking.overriding import merged
from simulator.cli.check import check
from simulator.errors import ScenarioError
from simulator.load import load_scenario
from simulator.planner import make_job

H100, MFU = 989.4e12, 0.4


def written(path: Path, **blocks: Any) -> str:
    path.write_text(yaml.safe_dump(blocks), encoding="utf-8")
    return str(path)


def asked(*arguments: str) -> Result:
    result = CliRunner().invoke(check, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def told(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(*arguments, "--json").output)
    return found


@cache
def told_of(name: str) -> dict[str, Any]:
    """Of a shipped scenario as it is, with all advice."""
    return told(name)


def one_layer(path: Path, tokens: int, bandwidth: str, parallel: dict[str, Any]) -> str:
    """A layer of 100 M parameters on 1,024 H100 that reach 40 % of their peak."""
    params = 100_000_000
    forward = 2 * params * tokens / (H100 * MFU)
    return written(
        path, cluster={"topology": {
            "name": "flat", "kind": "uniform", "nodes": 1024, "bandwidth": bandwidth, "alpha": "0 us",
            "library": "textbook", "source": "the lectures' links",
        }},
        model={"layers": [{
            "name": "layer", "params": params, "forward": f"{forward * 1e3} ms", "backward": f"{2e3 * forward} ms",
        }]},
        parallel=parallel, train={"seq_len": tokens, "micro_batch": 1, "precision": "bf16-master"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bandwidth", "parallel", "published"),
    [
        ("50 GB/s", {"strategy": "ddp", "algorithm": "ring"}, 5300),
        ("450 GB/s", {"strategy": "ddp", "algorithm": "ring"}, 590),
        ("50 GB/s", {"strategy": "fsdp", "reduce_dtype": "fp32"}, 10_560),
    ],
)
def test_break_even_tokens_are_those_of_the_lectures(
    tmp_path: Path, bandwidth: str, parallel: dict[str, Any], published: int
) -> None:
    """REQUIREMENTS 15: b F/(6 B). All-reduce: b = 4; ZeRO-3: 8, two gathers in 16 bits and gradients in fp32."""
    found = told(one_layer(tmp_path / "s.yaml", 8192, bandwidth, parallel), "--no-search")
    assert found["break_even"]["tokens_per_gpu"] == pytest.approx(published, rel=0.01)
    assert found["break_even"]["now_tokens_per_gpu"] == 8192


def test_a_step_at_its_break_even_bandwidth_communicates_as_long_as_it_computes(tmp_path: Path) -> None:
    parallel = {"strategy": "ddp", "algorithm": "ring"}
    even = told(one_layer(tmp_path / "s.yaml", 8192, "50 GB/s", parallel), "--no-search")["break_even"]
    rate = f"{even['bandwidth_bytes_per_s'] / 1e9} GB/s"
    again = told(one_layer(tmp_path / "t.yaml", 8192, rate, parallel), "--no-search")["break_even"]
    assert again["bandwidth_bytes_per_s"] == pytest.approx(again["now_bytes_per_s"], rel=1e-3)
    assert again["tokens_per_gpu"] == pytest.approx(8192, rel=1e-3)


# ------------------------------------------------------------------------------------------------------------- verdicts


def llama(path: Path, **more: Any) -> str:
    blocks: dict[str, Any] = {
        "cluster": {"topology": "dgx-h100", "nodes": 2}, "model": {"preset": "llama-3.2-1b"},
        "train": {"seq_len": 4096, "micro_batch": 2, "precision": "bf16-mixed"},
    }  # fmt: skip
    return written(path, **(blocks | more))


def test_a_step_that_fits_and_hides_is_fine(tmp_path: Path) -> None:
    result = asked(llama(tmp_path / "s.yaml"))
    assert result.exit_code in (0, None)
    assert result.output.count("ok  ") == 2
    assert f"limit {USUAL_EXPOSED:.1%}".replace("%", " %") in result.output
    assert "What mends it" not in result.output


@pytest.mark.slow
def test_a_model_that_does_not_fit_does_with_the_first_advice() -> None:
    path = str(ROOT / "scenarios/llama-8b-does-not-fit.yaml")
    before = told(path)
    assert not before["feasible"]
    advice = before["verdicts"][0]["try"]
    assert advice
    after = told(path, *advice[0]["set"], "--no-search")
    assert after["feasible"]
    assert after["memory_peak_bytes"] == pytest.approx(advice[0]["memory_peak_bytes"])
    same_batch = [cure for cure in advice if not cure["alters_batch"]]
    costs = [cure["gpu_s_per_token"] for cure in same_batch]
    assert costs == sorted(costs, key=lambda cost: float(f"{cost:.3g}"))
    assert advice[: len(same_batch)] == same_batch


@pytest.mark.slow
def test_communication_that_does_not_hide_does_with_the_first_advice() -> None:
    before = told_of("gpt2-two-workstations-10gbe")
    assert before["exposed_share"] > USUAL_EXPOSED
    advice = before["verdicts"][1]["try"]
    assert advice
    after = told("gpt2-two-workstations-10gbe", *advice[0]["set"], "--no-search")
    assert after["feasible"]
    assert after["exposed_share"] <= USUAL_EXPOSED


@pytest.mark.slow
def test_a_change_that_leaves_less_than_an_allocator_takes_is_no_first_advice(tmp_path: Path) -> None:
    """16 sequences of 8,192 tokens on one H100: 2 of them fill 78.2 of 79.6 GiB, 1 leaves 30 GiB."""
    path = llama(tmp_path / "s.yaml", cluster={"topology": "dgx-h100", "nodes": 1, "gpus_per_node": 1},
                 train={"seq_len": 8192, "micro_batch": 16, "precision": "bf16-mixed"})  # fmt: skip
    first, second = told(path)["verdicts"][0]["try"]
    assert (first["set"][0], second["set"][0]) == ("train.micro_batch=1", "train.micro_batch=2")
    assert first["gpu_s_per_token"] > second["gpu_s_per_token"]
    assert "GiB, tight" in asked(path).output


@pytest.mark.slow
def test_a_model_too_large_for_one_gpu_is_spread_over_more_of_its_host(tmp_path: Path) -> None:
    path = llama(tmp_path / "s.yaml", cluster={"topology": "dgx-h100", "nodes": 1, "gpus_per_node": 1},
                 model={"preset": "llama-3-8b"}, train={"seq_len": 4096, "micro_batch": 1, "grad_accumulation": 8,
                                                        "precision": "bf16-mixed"})  # fmt: skip
    (first, *_) = told(path)["verdicts"][0]["try"]
    assert first["set"] == ["cluster.gpus_per_node=8", "parallel={strategy: fsdp}", "train.grad_accumulation=1"]
    assert (first["gpus"], first["alters_batch"]) == (8, False)


@pytest.mark.slow
def test_gradients_that_stay_whole_while_they_accumulate_are_sharded_by_advice(tmp_path: Path) -> None:
    """Four H100, two micro-batches: FSDP without its collective in between keeps 29.9 GiB of gradients on each."""
    path = llama(tmp_path / "s.yaml", cluster={"topology": "dgx-h100", "nodes": 1, "gpus_per_node": 4},
                 model={"preset": "llama-3-8b"}, parallel={"strategy": "fsdp"},
                 train={"seq_len": 4096, "micro_batch": 1, "grad_accumulation": 2,
                        "precision": "bf16-mixed"})  # fmt: skip
    (first, *_) = told(path)["verdicts"][0]["try"]
    assert (first["set"], first["alters_batch"]) == (["parallel.sync_each_micro_batch=true"], False)


@pytest.mark.slow
def test_70b_in_full_is_sent_to_the_32_a100_that_its_users_found_to_be_the_least() -> None:
    """16 hold its tensors, with less to spare than the pools of an allocator take; epfLLM/Megatron-LLM issue 52."""
    first, second = told("llama-2-70b-8xa100-does-not-fit")["verdicts"][0]["try"]
    assert (first["set"], first["gpus"], second["gpus"]) == (["cluster.nodes=4"], 32, 16)


@pytest.mark.slow
def test_no_advice_hides_communication_behind_work_that_nobody_needs() -> None:
    """Memory has 16 GiB of room: recomputation would only slow compute down until communication hides."""
    (verdict, *_) = [v for v in told_of("gpt2-two-workstations-10gbe")["verdicts"] if not v["ok"]]
    assert verdict["try"]
    assert not [setting for change in verdict["try"] for setting in change["set"] if "recompute" in setting]


def test_a_batch_beyond_the_critical_one_fails(tmp_path: Path) -> None:
    """16 GPUs x 2 x 4,096 tokens."""
    path = llama(tmp_path / "s.yaml")
    within, beyond = (told(path, f"goal.critical_batch={size}", "--no-search") for size in ("4M", "100k"))
    assert [v["ok"] for v in within["verdicts"] if v["what"] == "batch"] == [True]
    (batch,) = (v for v in beyond["verdicts"] if v["what"] == "batch")
    assert not batch["ok"]
    assert batch["value"] == "131k tokens a step"


# ---------------------------------------------------------------------------------------------------------------- costs


def test_costs_are_price_times_gpus_times_time(tmp_path: Path) -> None:
    cost = {"gpu_hour": "$2.50/h", "low": "$2/h", "high": "$4/h", "as_of": "2026-11"}
    found = told(llama(tmp_path / "s.yaml", cost=cost, goal={"tokens": "1T"}))
    step_s, costs = found["step_time_s"], found["cost"]
    steps = 1e12 / 131_072
    assert costs["steps"] == pytest.approx(steps)
    assert costs["gpu_hours"] == pytest.approx(16 * steps * step_s / 3600)
    assert costs["run"]["typical"] == pytest.approx(2.5 * costs["gpu_hours"])
    assert costs["run"]["low"] == pytest.approx(2.0 * costs["gpu_hours"])
    assert costs["run"]["high"] == pytest.approx(4.0 * costs["gpu_hours"])
    assert costs["per_million_tokens"]["typical"] == pytest.approx(costs["run"]["typical"] / 1e6)
    assert costs["per_step"]["typical"] == pytest.approx(2.5 * 16 * step_s / 3600)
    assert costs["days"] == pytest.approx(steps * step_s / 86_400)
    assert costs["days_by_6nd"] == pytest.approx(6 * 1_235_814_400 * 1e12 / (16 * 989.4e12 * 0.4) / 86_400, rel=1e-3)


def test_without_a_price_no_money_is_told(tmp_path: Path) -> None:
    found = told(llama(tmp_path / "s.yaml"))["cost"]
    assert found["per_step"] is found["run"] is found["days"] is None
    assert found["gpu_hours_per_million_tokens"] > 0
    assert "$" not in asked(llama(tmp_path / "s.yaml")).output


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ({"gpu_hour": "$2.50/h"}, "cost.as_of"),
        ({"gpu_hour": 2.5, "as_of": "2026-11"}, "cost.gpu_hour"),
        ({"gpu_hour": "$2.50/h", "low": "$3/h", "as_of": "2026-11"}, "cost.low: must not be above gpu_hour"),
        ({"gpu_hour": "$2.50/h", "high": "$1/h", "as_of": "2026-11"}, "cost.high: must not be below gpu_hour"),
        ({"gpu_hour": "$2.50/h", "as_of": "November"}, "cost.as_of"),
    ],
)
def test_a_price_needs_a_unit_a_day_and_a_range_around_it(tmp_path: Path, cost: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        asked(llama(tmp_path / "s.yaml", cost=cost))


COST = {"gpu_hour": "$2.50/h", "as_of": "2026-11"}


def test_limits_on_the_whole_run_are_judged_by_its_days_and_its_price(tmp_path: Path) -> None:
    path = llama(tmp_path / "s.yaml", cost=COST, goal={"tokens": "100B"})
    costs = told(path, "--no-search")["cost"]
    days, dollars = costs["days"], costs["run"]["typical"]
    assert dollars == pytest.approx(days * 24 * 16 * 2.5)
    for factor, holds in ((1.01, True), (0.99, False)):
        found = told(
            path, f"limits.time={days * factor:.6f} days", f"limits.cost=${dollars * factor:.2f}", "--no-search"
        )  # fmt: skip
        judged = {v["what"]: v["ok"] for v in found["verdicts"]}
        assert judged["time of the run"] is judged["cost of the run"] is holds
        assert found["feasible"] is holds


@pytest.mark.parametrize(
    ("limits", "blocks", "words"),
    [
        ({"time": "30 days"}, {}, "limits.time: needs goal.tokens in the scenario"),
        ({"cost": "$1M"}, {}, "limits.cost: needs goal.tokens and cost in the scenario"),
        ({"cost": "$1M"}, {"goal": {"tokens": "1T"}}, "limits.cost: needs cost in the scenario"),
        ({"cost": "1M"}, {"goal": {"tokens": "1T"}, "cost": COST}, "expected an amount such as '.250'"),
        ({"time": 30}, {"goal": {"tokens": "1T"}}, "has no unit"),
    ],
)
def test_a_limit_on_the_run_needs_a_run(
    tmp_path: Path, limits: dict[str, Any], blocks: dict[str, Any], words: str
) -> None:
    with pytest.raises(ScenarioError, match=words):
        asked(llama(tmp_path / "s.yaml", limits=limits, **blocks))


@pytest.mark.parametrize(
    ("parallel", "sizes"),
    [
        ({"strategy": "fsdp"}, [8, 16, 32]), ({"strategy": "hsdp"}, [16, 32]),
        ({"strategy": "hsdp", "shard_size": 16}, [8, 32]),
    ],
)  # fmt: skip
def test_shards_are_tried_over_one_node_and_over_more_up_to_half_of_all(
    tmp_path: Path, parallel: dict[str, Any], sizes: list[int]
) -> None:
    cluster = {"topology": "dgx-h100", "nodes": 8}
    scenario = load_scenario(llama(tmp_path / "s.yaml", cluster=cluster, parallel=parallel))
    network = cluster_network(scenario)
    tried = [c.overrides[0] for c in changes_of(make_job(scenario, network), network)]
    found = [int(text.rpartition(" ")[2].rstrip("}")) for text in tried if "shard_size" in text]
    assert found == sizes


@pytest.mark.parametrize(
    ("parallel", "precision", "offered"),
    [
        ({"strategy": "ddp"}, "bf16-mixed", "parallel.comm_hook=bf16"),
        ({"strategy": "ddp", "comm_hook": "bf16"}, "bf16-mixed", ""),
        ({"strategy": "ddp"}, "bf16", ""),
        ({"strategy": "fsdp", "reshard_after_forward": False}, "bf16-mixed", "parallel.reduce_dtype=bf16"),
        ({"strategy": "fsdp", "reduce_dtype": "bf16"}, "bf16-mixed", ""),
    ],
)  # fmt: skip
def test_16_bit_gradients_are_offered_where_they_are_not_sent_yet(
    tmp_path: Path, parallel: dict[str, Any], precision: str, offered: str
) -> None:
    path = llama(tmp_path / "s.yaml", parallel=parallel)
    scenario = load_scenario(path, [f"train.precision={precision}"])
    network = cluster_network(scenario)
    tried = [o for c in changes_of(make_job(scenario, network), network) for o in c.overrides]
    assert [o for o in tried if "comm_hook" in o or "reduce_dtype" in o] == ([offered] if offered else [])


@pytest.mark.parametrize(
    ("overrides", "factors"),
    [((), ["2", "4"]), (("cluster.scale.nic_bandwidth=2",), ["4", "8"]), (("cluster.nodes=1",), [])],
)
def test_a_faster_network_is_tried_between_nodes_on_top_of_the_scenarios_own(
    tmp_path: Path, overrides: tuple[str, ...], factors: list[str]
) -> None:
    scenario = load_scenario(llama(tmp_path / "s.yaml"), overrides)
    network = cluster_network(scenario)
    tried = [o for c in changes_of(make_job(scenario, network), network) if c.hardware for o in c.overrides]
    assert [o.partition("=")[2] for o in tried if "nic_bandwidth" in o] == factors


@pytest.mark.slow
def test_where_nothing_mends_everything_the_nearest_says_what_still_fails(tmp_path: Path) -> None:
    """GPT-2 at a micro-batch that does not fit, and an MFU that nothing reaches."""
    path = llama(
        tmp_path / "s.yaml", cluster={"topology": "dgx-h100", "nodes": 1}, model={"preset": "gpt2"},
        train={"seq_len": 1024, "micro_batch": 128, "precision": "bf16-mixed"},
    )  # fmt: skip
    text = asked(path, "--fail-if", "mfu<95%", "--no-range").output
    tried_at = text.index("nothing that was tried mends everything")
    assert text.index("FAIL memory") < tried_at, "judgements come before what is tried"
    assert "(still" in text
    assert "fails: MFU)" in text
    tried = told(path, "--no-range")["verdicts"][0]["try"]
    assert all(cure["mends"] and cure["still_failing"] == [] for cure in tried)


@pytest.mark.slow
def test_other_machines_are_the_last_advice_and_the_smallest_batch_the_next_to_last(tmp_path: Path) -> None:
    path = llama(
        tmp_path / "s.yaml", cluster={"topology": "aws-p4d", "nodes": 2},
        train={"seq_len": 1024, "micro_batch": 1, "precision": "bf16-mixed"},
    )  # fmt: skip
    (exposed,) = (verdict for verdict in told(path)["verdicts"] if not verdict["ok"])
    advice = exposed["try"]
    altered = [(cure["alters_hardware"], cure["alters_batch"]) for cure in advice]
    assert altered == sorted(altered)
    assert (True, False) in altered
    batches = [cure["tokens_per_step"] for cure in advice if cure["alters_batch"]]
    assert batches == sorted(batches)
    assert len(batches) == len({cure["set"][0].partition("=")[0] for cure in advice if cure["alters_batch"]})


# ----------------------------------------------------------------------------------------------------------- conditions


def test_fail_if_fails_when_it_holds(tmp_path: Path) -> None:
    path = llama(tmp_path / "s.yaml")
    step_s = told(path)["step_time_s"]
    for condition, fails in (
        (f"step>{step_s * 1e3 + 1:.0f} ms", False), (f"step>{step_s * 1e3 - 1:.0f} ms", True), ("mfu<90%", True),
        ("memory>=40 GiB", True), ("exposed>10%", False), ("tokens_per_s<1k", False),
    ):  # fmt: skip
        result = asked(path, "--no-search", "--fail-if", condition)
        assert ("FAIL" in result.output) is fails, condition


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exposd>10%", "did you mean 'exposed'"),
        ("exposed=10%", "expected METRIC"),
        ("step>10", "has no unit"),
        ("cost>10", "an amount such as"),
        ("memory>10", "has no unit"),
        ("memory>150%", "expected a share such as"),
        ("exposed>10", "is 1000%; expected a share such as '10%'"),
        ("mfu<1", "is 100%"),
        ("mfu<140%", "is 140%"),
    ],
)
def test_a_condition_that_cannot_be_read_says_what_is_accepted(text: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        parse_condition(text)


def test_memory_is_judged_by_size_or_by_share(tmp_path: Path) -> None:
    path = llama(tmp_path / "s.yaml")
    peak = told(path, "--no-search", "--no-range")["memory_peak_bytes"]
    capacity = answer_step(load_scenario(path)).job.device.memory  # type: ignore[union-attr]
    for share, fails in ((peak / capacity - 0.01, True), (peak / capacity + 0.01, False)):
        found = told(path, "--no-search", "--no-range", "--fail-if", f"memory>{100 * share:.2f}%")
        (judged,) = (v for v in found["verdicts"] if v["what"] == "peak memory's share of the device")
        assert judged["ok"] is not fails


def test_a_condition_on_money_needs_a_price(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"needs goal\.tokens and cost"):
        asked(llama(tmp_path / "s.yaml"), "--fail-if", "cost>$1M")


def test_a_change_takes_the_place_of_the_users_own_setting() -> None:
    mine = ("train.micro_batch=8", "parallel.strategy=ddp", "cluster.nodes=4")
    assert merged(mine, ("train.micro_batch=4", "parallel={strategy: fsdp}")) == (
        "cluster.nodes=4", "train.micro_batch=4", "parallel={strategy: fsdp}",
    )  # fmt: skip


@pytest.mark.slow
def test_a_change_of_one_key_leaves_the_rest_of_a_block_that_the_user_set(tmp_path: Path) -> None:
    block = "cluster={topology: dgx-h100, nodes: 1, gpus_per_node: 4}"
    assert merged((block,), ("cluster.nodes=2",)) == (block, "cluster.nodes=2")
    path = llama(tmp_path / "s.yaml", cluster={"topology": "dgx-a100", "nodes": 2}, model={"preset": "llama-3-8b"})
    mine = (block, "parallel={strategy: fsdp}", "train.micro_batch=1", "train.grad_accumulation=2")
    (first, *_) = told(path, *mine)["verdicts"][0]["try"]
    after = told(path, *mine, *first["set"], "--no-search")
    assert (after["feasible"], after["memory_peak_bytes"]) == (True, first["memory_peak_bytes"])
