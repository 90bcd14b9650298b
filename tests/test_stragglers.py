"""Slow ranks and uneven batches: all wait for the last rank, and the report counts and names what each one does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.answer import StepAnswer, answer_step
from simulator.load import load_topology
from simulator.scenario import Scenario

LAYERS, FORWARD_S, BACKWARD_S = 8, 0.050, 0.100
NODES = 4
WORK_S = LAYERS * (FORWARD_S + BACKWARD_S)
#: Naive data parallelism sends the 4 MB of each layer by a ring of its own: 2 (p - 1) (a + n / (p b)).
EACH_REDUCE_S = LAYERS * 6 * (80e-6 + 1e6 / 50e6)


def asked(cluster: dict[str, Any] | None = None, overlap: str = "none", **train: Any) -> dict[str, Any]:
    """The lecture's eight sleeping layers on four nodes."""
    topology = {
        "name": "lab", "title": "a test", "kind": "uniform", "nodes": NODES, "bandwidth": "50 MB/s", "alpha": "80 us",
        "source": "a test",
    }  # fmt: skip
    layer = {
        "name": "layer", "params": 8_000_000 // LAYERS, "forward": "50 ms", "backward": "100 ms",
        "activations": "10 MB", "repeat": LAYERS,
    }  # fmt: skip
    return {
        "cluster": {"topology": topology, **(cluster or {})}, "model": {"layers": [layer]},
        "parallel": {"overlap": overlap, "algorithm": "ring", "bucket_cap": "8 MB"},
        "train": {"micro_batch": 4, "precision": "fp32", "optimizer": "sgd", **train},
    }  # fmt: skip


def answer(cluster: dict[str, Any] | None = None, overlap: str = "none", **train: Any) -> StepAnswer:
    return answer_step(Scenario.model_validate(asked(cluster, overlap, **train)))


def step_s(*given: Any, **more: Any) -> float:
    return answer(*given, **more).report.step_time_s


# --------------------------------------------------------------------------------------------------------------- speeds


def test_the_step_is_the_slow_ranks_work_and_the_communication() -> None:
    assert step_s() == pytest.approx(WORK_S + EACH_REDUCE_S, rel=1e-9)
    slow = answer({"stragglers": [{"ranks": [3], "speed": "80%"}]})
    assert slow.report.step_time_s == pytest.approx(WORK_S / 0.8 + EACH_REDUCE_S, rel=1e-9)


def test_a_slow_rank_among_four_costs_as_much_as_four_slow_ones() -> None:
    one, all_four = ({"stragglers": [{"ranks": ranks, "speed": "70%"}]} for ranks in ([2], [0, 1, 2, 3]))
    for overlap in ("none", "per_parameter", "bucketed"):
        assert step_s(one, overlap) == pytest.approx(step_s(all_four, overlap), rel=1e-9)


def test_a_node_is_its_ranks_and_speeds_multiply() -> None:
    """Each node of the uniform network holds one rank."""
    by_node = answer({"stragglers": [{"node": 1, "speed": "90%"}, {"ranks": [1, 2], "speed": "50%"}]})
    speeds = {rank: c.speed for c in by_node.job.step.classes for rank in c.ranks}
    assert speeds == pytest.approx({0: 1.0, 1: 0.45, 2: 0.5, 3: 1.0})


def test_a_node_of_eight_slows_all_its_gpus() -> None:
    found = answer_step(Scenario.model_validate({
        "cluster": {"topology": load_topology("dgx-h100"), "nodes": 4, "stragglers": [{"node": 2, "speed": "75%"}]},
        "model": {"layers": [{"name": "layer", "params": 1000, "forward": "1 ms", "backward": "2 ms"}]},
        "train": {"micro_batch": 1},
    }))  # fmt: skip
    slow = [c for c in found.job.step.classes if c.speed == 0.75]
    assert [rank for c in slow for rank in c.ranks] == list(range(16, 24))


def test_who_waits_and_for_how_long() -> None:
    """The other three wait for the slow one's quarter more of work, once."""
    report = answer({"stragglers": [{"ranks": [3], "speed": "80%"}]}).report
    waits = {w.ranks.ranks: w.waits_s for w in report.waiting}
    assert waits == pytest.approx({(0, 1, 2): WORK_S * 0.25, (3,): 0.0}, rel=1e-9)
    assert report.breakdown.compute == pytest.approx(WORK_S / 0.8, rel=1e-9)  # of the rank that sets the step


def test_the_text_names_the_rank_that_sets_the_pace(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text(yaml.safe_dump(asked({"stragglers": [{"ranks": [3], "speed": "80%"}]})))
    text = " ".join(simulator("run", str(path)).out.split())
    assert "rank 3 (80 % speed) set the pace" in text
    assert "ranks 0-2 300 ms" in text


# --------------------------------------------------------------------------------------------------------------- jitter


def jittered(share: str, seed: int, nodes: int = 64) -> StepAnswer:
    given = asked({"jitter": {"share": share, "seed": seed}})
    given["cluster"]["topology"]["nodes"] = nodes
    return answer_step(Scenario.model_validate(given))


@pytest.mark.slow
def test_the_more_ranks_the_slower_the_slowest() -> None:
    """The largest of p normal draws: 2.0 to 3.7 spreads above the median of 64 to 4,096 ranks (5th to 95th percentile
    of its distribution Phi^p), and never less with more ranks of the same seed.
    """
    for seed in range(5):
        work = [_work_s(jittered("3%", seed, nodes)) for nodes in (4, 64, 1024)]
        assert work == sorted(work)
    spreads = [_log_over(jittered("3%", seed)) for seed in range(12)]
    assert all(1.2 < spread < 4.0 for spread in spreads)
    assert 1.9 < sum(spreads) / len(spreads) < 2.8  # the mean of the largest of 64 is 2.36


def _work_s(found: StepAnswer) -> float:
    return found.report.breakdown.compute


def _log_over(found: StepAnswer) -> float:
    return math.log(_work_s(found) / WORK_S) / 0.03


def test_jitter_is_the_same_on_every_run_and_needs_few_classes() -> None:
    one, again, other = jittered("3%", 1), jittered("3%", 1), jittered("3%", 2)
    assert one.report.step_time_s == again.report.step_time_s
    assert one.report.step_time_s != other.report.step_time_s
    assert len(one.job.step.classes) == 2
    assert one.job.merged_ranks == 62  # of 64: the slowest stays, and one is the median itself


def test_merging_changes_nothing_against_every_rank_on_its_own() -> None:
    """``fidelity: message`` keeps all 16 ranks as they are."""
    given = asked({"jitter": {"share": "5%", "seed": 3}}, "bucketed", uneven=[{"ranks": [2, 9], "micro_batch": 5}])
    given["cluster"]["topology"]["nodes"] = 16
    merged = answer_step(Scenario.model_validate(given))
    each = answer_step(Scenario.model_validate({**given, "engine": {"fidelity": "message"}}))
    assert (merged.report.ranks_simulated, each.report.ranks_simulated) == (3, 16)
    assert merged.report.step_time_s == pytest.approx(each.report.step_time_s, rel=1e-6)
    assert merged.report.memory.peak_bytes == each.report.memory.peak_bytes
    assert merged.report.tokens_per_step == each.report.tokens_per_step


def test_the_text_says_what_is_merged(tmp_path: Path) -> None:
    path = tmp_path / "jitter.yaml"
    given = asked({"jitter": {"share": "3%"}})
    given["cluster"]["topology"]["nodes"] = 64
    path.write_text(yaml.safe_dump(given))
    assert "62 that are never the last run as the median of their kind" in " ".join(
        simulator("run", str(path)).out.split()
    )


# ------------------------------------------------------------------------------------------------------- uneven batches


def test_requirement_16_the_rank_with_more_samples_sets_the_step() -> None:
    """Forward and backward grow with the samples, communication does not."""
    found = answer(uneven=[{"ranks": [1], "micro_batch": 6}])
    assert found.report.step_time_s == pytest.approx(1.5 * WORK_S + EACH_REDUCE_S, rel=1e-9)
    spared = answer(uneven=[{"ranks": [1], "micro_batch": 1}])
    assert spared.report.step_time_s == pytest.approx(WORK_S + EACH_REDUCE_S, rel=1e-9)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_requirement_16_samples_count_what_each_rank_has(accumulation: int) -> None:
    uneven = [{"ranks": [0, 1], "micro_batch": 6}, {"node": 3, "micro_batch": 1}]
    found = answer(uneven=uneven, grad_accumulation=accumulation, seq_len=10)
    assert found.report.tokens_per_step == (6 + 6 + 4 + 1) * 10 * accumulation == found.job.tokens
    assert found.report.tokens_per_s == pytest.approx(found.report.tokens_per_step / found.report.step_time_s)


def test_memory_of_the_fullest_rank_counts() -> None:
    """Activations of 8 layers x 10 MB for the usual 4 sequences: half as much again for 6."""
    usual, more = (answer(uneven=uneven).report.memory for uneven in ([], [{"ranks": [1], "micro_batch": 6}]))
    assert more.by_kind_bytes["activations"] == pytest.approx(1.5 * usual.by_kind_bytes["activations"])
    assert more.by_kind_bytes["params"] == usual.by_kind_bytes["params"]


def test_half_the_batch_on_ranks_of_half_the_speed_evens_the_step_out() -> None:
    """What uneven batches are for: slow GPUs get less."""
    slow = {"stragglers": [{"ranks": [0, 1], "speed": "50%"}]}
    assert step_s(slow, uneven=[{"ranks": [0, 1], "micro_batch": 2}]) == pytest.approx(WORK_S + EACH_REDUCE_S, rel=1e-9)


def test_the_text_says_how_gradients_weigh(tmp_path: Path) -> None:
    path = tmp_path / "uneven.yaml"
    path.write_text(yaml.safe_dump(asked(uneven=[{"ranks": [1], "micro_batch": 8}])))
    text = " ".join(simulator("run", str(path)).out.split())
    assert "5 sequences of a micro-batch on average" in text
    assert "multiply each rank's loss by its own micro-batch / 5" in text
    told = json.loads(simulator("run", str(path), "--json").out)
    assert told["tokens_per_step"] == 4 + 8 + 4 + 4
    assert {(w["ranks"], w["work"]) for w in told["waiting"]} == {("rank 1", 2.0), ("3 ranks like 0", 1.0)}


@settings(max_examples=25, deadline=None)
@given(
    speeds=st.lists(st.integers(30, 100), min_size=NODES, max_size=NODES),
    batches=st.lists(st.integers(1, 8), min_size=NODES, max_size=NODES),
)
def test_naive_steps_are_the_longest_work_and_the_communication(speeds: list[int], batches: list[int]) -> None:
    found = step_s(
        {"stragglers": [{"ranks": [rank], "speed": f"{speed}%"} for rank, speed in enumerate(speeds)]},
        uneven=[{"ranks": [rank], "micro_batch": batch} for rank, batch in enumerate(batches)],
    )  # fmt: skip
    longest = max(batch / 4 / (speed / 100) for speed, batch in zip(speeds, batches, strict=True))
    assert found == pytest.approx(WORK_S * longest + EACH_REDUCE_S, rel=1e-9)


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cluster.stragglers=[{ranks: [16], speed: 80%}]", "stragglers[0].ranks: no rank 16: the job has 0 to 15"),
        ("cluster.stragglers=[{node: 2, speed: 80%}]", "cluster.stragglers[0].node: no node 2: 'dgx-h100' has 0 to 1"),
        ("cluster.stragglers=[{node: 1, ranks: [3], speed: 80%}]", "has ranks and node; give exactly one of ranks"),
        ("cluster.stragglers=[{speed: 80%}]", "says for no ranks; give exactly one of ranks, node"),
        ("cluster.stragglers=[{ranks: [], speed: 80%}]", "cluster.stragglers[0].ranks"),
        ("cluster.stragglers=[{ranks: [3], speed: 0%}]", "stragglers[0].speed: must lie above 0 (0.0001% or more)"),
        ("cluster.stragglers=[{ranks: [3], sped: 80%}]", "did you mean 'speed'?"),
        ("cluster.stragglers=[{ranks: [3]}]", "cluster.stragglers[0].speed: missing key"),
        ("cluster.jitter={share: 80%}", "must be at most 50%; ranks further apart are stragglers"),
        ("cluster.jitter={share: 3%, seed: -1}", "cluster.jitter.seed"),
        ("train.uneven=[{ranks: [0], micro_batch: 2}, {node: 0, micro_batch: 3}]", "train.uneven[1]: rank 0 has a "),
        ("train.uneven=[{ranks: [99], micro_batch: 2}]", "train.uneven[0].ranks: no rank 99"),
        ("train.uneven=[{ranks: [0], micro_batch: 0}]", "train.uneven[0].micro_batch"),
    ],
)  # fmt: skip
def test_bad_ranks_are_told_with_key_value_and_what_is_accepted(setting: str, message: str) -> None:
    result = simulator("run", "ddp-llama-1b-16xh100", setting)
    assert result.code == 2
    assert message in " ".join(result.err.split())
    assert "Traceback" not in result.err


def test_a_rank_that_is_not_there_is_told_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text(yaml.safe_dump(asked({"stragglers": [{"ranks": [7], "speed": "80%"}]})))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "ranks:" in text)
    result = simulator("run", str(path))
    assert result.code == 2
    assert f"slow.yaml:{line}: cluster.stragglers[0].ranks: no rank 7: the job has 0 to 3" in result.err
