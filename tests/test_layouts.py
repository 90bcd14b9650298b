"""Layouts that ``check`` proposes: what can be, with the same batch; what it says of a step of several stages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import simulator

from simulator.answer import StepAnswer, answer_step, cluster_network
from simulator.checking.changes import changes_of
from simulator.checking.conditions import parse_condition
from simulator.checking.judgements import USUAL_BUBBLE, judgements
from simulator.checking.layouts import change_of, layouts_of, neighbours_of
from simulator.job import Job
from simulator.load import load_scenario
from simulator.network.graph import Network
from simulator.planner import make_job
from simulator.report.break_even import break_even_of
from simulator.report.charts.stages import stages_chart


def written(path: Path, **more: Any) -> str:
    blocks: dict[str, Any] = {
        "cluster": {"topology": "dgx-h100", "nodes": 2}, "model": {"preset": "llama-3.2-1b"},
        "train": {"seq_len": 2048, "micro_batch": 1, "grad_accumulation": 8, "precision": "bf16-mixed"},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(blocks | more), encoding="utf-8")
    return str(path)


def planned(path: str, *overrides: str) -> tuple[Job, Network]:
    scenario = load_scenario(path, overrides)
    network = cluster_network(scenario)
    return make_job(scenario, network), network


@cache
def staged(path: str) -> StepAnswer:
    return answer_step(load_scenario(path), with_startup=False)


@pytest.fixture(scope="module")
def four_stages(tmp_path_factory: pytest.TempPathFactory) -> StepAnswer:
    parallel = {"strategy": "ddp", "tp": 2, "pp": 4}
    return staged(written(tmp_path_factory.mktemp("staged") / "s.yaml", parallel=parallel))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "model", "seq_len"), [(4, "llama-3-70b", 8192), (3, "llama-3-8b", 8192), (8, "llama-3-8b", 65_536)]
)
def test_every_layout_can_be_and_keeps_the_batch(tmp_path: Path, nodes: int, model: str, seq_len: int) -> None:
    path = written(
        tmp_path / "s.yaml", cluster={"topology": "dgx-h100", "nodes": nodes}, model={"preset": model},
        parallel={"strategy": "ddp"}, train={"seq_len": seq_len, "micro_batch": 2, "grad_accumulation": 4,
                                             "precision": "bf16-mixed"},
    )  # fmt: skip
    job, network = planned(path)
    found = layouts_of(job, network)
    assert found
    for layout in found:
        d = layout.degrees
        assert d.dp * d.tp * d.cp * d.pp == 8 * nodes
        assert d.tp <= 8, "tensor parallelism ends at the node"
        assert d.pp <= job.whole.num_layers
        assert d.micro_batches >= d.pp, "no pipeline that never fills"
        moved, _ = planned(path, *change_of(layout, job).overrides)
        assert moved.tokens == job.tokens
        mesh = moved.inputs.mesh
        assert (mesh.tp, mesh.cp, mesh.pp) == (d.tp, d.cp, d.pp) if mesh else d.replica == 1


def test_what_cannot_fit_is_not_simulated(tmp_path: Path) -> None:
    """70.6 G parameters x 18 bytes are 1.27 TB (Megatron's states); eight H100 have 0.68 TB."""
    path = written(tmp_path / "s.yaml", cluster={"topology": "dgx-h100", "nodes": 1}, model={"preset": "llama-3-70b"})
    assert layouts_of(*planned(path)) == ()


def test_another_strategy_keeps_the_layout(four_stages: StepAnswer) -> None:
    tried = [c.overrides[0] for c in changes_of(four_stages.job, four_stages.network)]
    assert "parallel={strategy: zero1, tp: 2, pp: 4}" in tried
    assert not [text for text in tried if text.startswith("parallel={") and "pp: 4" not in text]


def test_neighbours_of_a_layout_halve_or_double_one_degree_with_the_same_batch(four_stages: StepAnswer) -> None:
    job = four_stages.job
    tried = {change.overrides for change in neighbours_of(job, four_stages.network)}
    assert ("parallel.tp=4", "train.grad_accumulation=16") in tried
    assert ("parallel.pp=2", "train.grad_accumulation=4") in tried
    assert ("parallel.chunks=2",) in tried
    assert not [text for texts in tried for text in texts if text.startswith(("parallel.cp", "parallel.ep"))]


def test_a_bubble_above_a_tenth_of_the_step_fails_and_says_the_formula(four_stages: StepAnswer) -> None:
    """(p - 1)/(m + p - 1), 3/11 with even stages (Narayanan et al. 2021); the head makes the last stage longer."""
    (bubble,) = (v for v in judgements(four_stages, []) if v.what == "pipeline bubble")
    report = four_stages.report
    share = report.breakdown.bubble / report.step_time_s
    assert bubble.ok is (share <= USUAL_BUBBLE) is False
    assert "(p - 1)/(m + p - 1) is 27.3 % with p = 4 ranks and m = 8 micro-batches" in bubble.why
    assert max(use.breakdown.bubble for use in report.stages) >= report.breakdown.bubble
    for condition, ok in (("bubble>1%", False), ("bubble>90%", True)):
        assert parse_condition(condition).verdict(report, four_stages.job).ok is ok


def test_break_even_is_told_of_data_parallelism_only(four_stages: StepAnswer, tmp_path: Path) -> None:
    alone = staged(written(tmp_path / "s.yaml"))
    assert break_even_of(four_stages.report, four_stages.job) is None
    assert break_even_of(alone.report, alone.job) is not None


def test_the_picture_of_a_pipeline_has_every_pass_of_every_stage_once(four_stages: StepAnswer) -> None:
    chart = stages_chart(four_stages.timeline, four_stages.report)
    assert [row.name for row in chart.rows] == [f"pp {n}" for n in range(4)]
    for row in chart.rows:
        for style in ("forward", "backward"):
            assert sorted(b.micro_batch for b in row.bars if b.style == style) == list(range(8))  # type: ignore[type-var]
        assert sum(bar.style == "optimizer" for bar in row.bars) == 1
        white = chart.end_s - sum(bar.end_s - bar.start_s for bar in row.bars)
        assert white / chart.end_s == pytest.approx(row.bubble, abs=0.01), "but for copies"


def test_a_step_without_stages_has_no_such_picture(tmp_path: Path) -> None:
    alone = staged(written(tmp_path / "s.yaml"))
    assert stages_chart(alone.timeline, alone.report).rows == ()


@pytest.mark.slow
def test_70b_that_no_sharding_fits_gets_a_layout_that_works(tmp_path: Path) -> None:
    """Megatron's rule (arXiv:2104.04473): tensor parallelism inside the node, stages across."""
    import json

    path = written(
        tmp_path / "s.yaml", cluster={"topology": "dgx-h100", "nodes": 4}, model={"preset": "llama-3-70b"},
        parallel={"strategy": "zero1"},
        train={"seq_len": 8192, "micro_batch": 1, "grad_accumulation": 4, "precision": "bf16-mixed"},
    )  # fmt: skip
    told = json.loads(simulator("check", path, "--no-range", "--json").out)
    (memory,) = (v for v in told["verdicts"] if not v["ok"])
    first = memory["try"][0]
    assert (first["mends"], first["alters_batch"], first["gpus"]) == (True, False, 32)
    job, _ = planned(path, *first["set"])
    assert job.inputs.mesh is not None
    assert job.inputs.mesh.tp <= 8
    assert job.inputs.mesh.pp > 1
    again = json.loads(simulator("check", path, *first["set"], "--no-range", "--json").out)
    assert again["feasible"]
    assert again["memory_peak_bytes"] == first["memory_peak_bytes"]
