"""Holistic Trace Analysis (PyPI: traceinsight), the tool for PyTorch's own traces, finds in ours what we report.

By default HTA shrinks every kernel to whole microseconds (start up, end down), which opens gaps between neighbours
that touch; it offers ``set_disable_ns_rounding`` (HTA_DISABLE_NS_ROUNDING=1) for traces that are exact, as ours are.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.engine.interference import Interference
from simulator.engine.run import simulate
from simulator.job import Job
from simulator.load import load_scenario
from simulator.network.builders import build_network
from simulator.plan import Communicate, Compute, Plan, RankClass
from simulator.planner import make_job
from simulator.report.metrics import measure
from simulator.report.trace import write_trace
from simulator.timeline import CollectiveCost, Span, Timeline

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # HTA's own imports, and those of its plotting library
    hta = pytest.importorskip("hta.trace_analysis", reason="needs the extra 'hta': pip install clustersim[hta]")
    options = pytest.importorskip("hta.configs.env_options").HTAEnvOptions.instance()
    validate_trace_format = pytest.importorskip("hta.utils.validate_trace").validate_trace_format

# HTA uses what pandas will drop; none of that is ours
pytestmark = [
    pytest.mark.slow,
    *(pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning")),
]

LLAMA = """
cluster: {topology: dgx-h100, nodes: 2}
model: {preset: llama-3.2-1b}
parallel: {strategy: ddp}
train: {seq_len: 512, micro_batch: 1, precision: bf16-mixed}
"""
MEASURED = """
cluster: {topology: uniform, nodes: 4}
model:
  layers: [{name: block, params: [15000000, 10000000], forward: 1 ms, backward: 2 ms, repeat: 6}]
parallel: {strategy: ddp, bucket_cap: 60 MB}
train: {micro_batch: 1, precision: fp32}
"""
OVERLAPS = ("bucketed", "per_parameter", "none")


@pytest.fixture(params=[False, True], ids=["exact", "whole microseconds"])
def tolerance_points(request: pytest.FixtureRequest) -> Iterator[float]:
    """How far HTA may be off, in points of a percentage: little, unless it rounds kernels of some 30 us."""
    options.set_disable_ns_rounding(not request.param)
    yield 1.0 if request.param else 0.1
    options.set_disable_ns_rounding(False)


def run(directory: Path, text: str, *overrides: str, fidelity: str = "coflow") -> tuple[Job, Timeline, Any]:
    """Simulate, write a trace, and open it with HTA."""
    file = directory / "scenario.yaml"
    file.write_text(text)
    scenario = load_scenario(str(file), overrides)
    cluster = scenario.cluster
    network = build_network(cluster.spec, nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)
    job = make_job(scenario, network)
    interference = Interference(core_share=job.core_share, memory_s_per_byte=job.memory_s_per_byte)
    timeline = simulate(job.step, network, interference=interference, fidelity=fidelity)
    write_trace(timeline, f"{directory}/trace/", device=job.device)
    return job, timeline, hta.TraceAnalysis(trace_dir=f"{directory}/trace")


def shares(timeline: Timeline) -> tuple[float, float, float, float]:
    """Seconds in which rank 0 does nothing, only computes, only communicates, does both: looked up between events."""
    spans = timeline.of_class(timeline.plan.classes[0].name)
    seconds = {(work, talk): 0.0 for work in (False, True) for talk in (False, True)}
    for a, b in itertools.pairwise(sorted({0.0, timeline.end_s, *(t for s in spans for t in (s.start_s, s.end_s))})):
        now = {s.task.lane == "compute" for s in spans if s.start_s <= (a + b) / 2 < s.end_s}
        seconds[True in now, False in now] += b - a
    return seconds[False, False], seconds[True, False], seconds[False, True], seconds[True, True]


def test_hta_finds_what_a_step_drawn_on_paper_holds(tmp_path: Path) -> None:
    """Compute in [0, 2] and [4, 5] ms, a collective in [3, 6]: a third of it hidden, a sixth of the step idle."""
    work = [
        Compute(name=f"forward 0: {name}", kind="forward", classes=("all",), seconds=0.0, part=name) for name in "ab"
    ]
    talk = Communicate(
        name="gather", op="all_gather", axis="dp", algorithm="ring", message_bytes=1e6, classes=("all",)
    )  # fmt: skip
    cost = CollectiveCost(
        algorithm="ring", group_size=2, num_steps=1, num_messages=2, sent_bytes_per_rank=5e5, alone_s=3e-3,
        latency_s=0.0, fidelity="vector", handed_over="",
    )  # fmt: skip
    everyone = RankClass(name="all", ranks=(0, 1))
    drawn = ((work[0], 0.0, 2e-3), (talk, 3e-3, 6e-3), (work[1], 4e-3, 5e-3))
    timeline = Timeline(
        plan=Plan(title="paper", classes=(everyone,), axes={"dp": ((0, 1),)}, tasks=(work[0], talk, work[1])),
        spans=tuple(Span(task=t, ranks="all", start_s=a, end_s=b, alone_s=b - a) for t, a, b in drawn),
        costs={"gather": cost}, end_s=6e-3, link_names=(), link_bytes=np.zeros(0), link_bytes_per_s=np.zeros(0),
        fidelity="coflow", events=3,
    )  # fmt: skip
    write_trace(timeline, f"{tmp_path}/trace/")
    analysis = hta.TraceAnalysis(trace_dir=f"{tmp_path}/trace")
    assert list(analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]) == [33.33]
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    assert [row[f"{part}_time(us)"] for part in ("idle", "compute", "non_compute")] == [1000, 3000, 2000]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("text", [LLAMA, MEASURED], ids=["llama", "measured"])
def test_hta_finds_the_overlap_that_we_report(
    tmp_path: Path, text: str, overlap: str, tolerance_points: float
) -> None:  # fmt: skip
    job, timeline, analysis = run(tmp_path, text, f"parallel.overlap={overlap}")
    found = analysis.get_comm_comp_overlap(visualize=False)
    assert list(found["rank"]) == [0]
    percent = float(found["comp_comm_overlap_pctg"].iloc[0])
    _, _, alone_s, both_s = shares(timeline)
    assert percent == pytest.approx(100 * both_s / (alone_s + both_s), abs=tolerance_points)
    assert percent == pytest.approx(100 * measure(timeline, timeline, job).hidden_share, abs=tolerance_points)
    assert (percent == 0) == (overlap == "none")
    assert percent < 95, "a case in which all hides proves little"


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_hta_splits_the_step_as_we_do(tmp_path: Path, overlap: str, tolerance_points: float) -> None:
    job, timeline, analysis = run(tmp_path, LLAMA, f"parallel.overlap={overlap}")
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    found = [float(row[f"{part}_pctg"]) for part in ("idle_time", "compute_time", "non_compute_time")]
    nothing_s, work_s, talk_s, both_s = shares(timeline)
    ours = [100 * part / timeline.end_s for part in (nothing_s, work_s + both_s, talk_s)]
    assert found == pytest.approx(ours, abs=tolerance_points)
    parts = measure(timeline, timeline, job).breakdown
    reported = [parts.other + parts.bubble, parts.compute + parts.optimizer, parts.exposed_comm]
    assert found == pytest.approx([100 * part / timeline.end_s for part in reported], abs=tolerance_points)


def test_hta_knows_each_kernel_for_what_it_is(tmp_path: Path) -> None:
    _, timeline, analysis = run(tmp_path, LLAMA)
    assert analysis.get_profiler_steps() == [1]
    kinds, names = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10_000, duration_ratio=1.0)
    assert set(kinds["kernel_type"]) == {"COMPUTATION", "COMMUNICATION", "COMPUTATION overlapping COMMUNICATION"}
    nccl = names[names["kernel_type"] == "COMMUNICATION"]
    algorithms = {cost.algorithm.upper() for cost in timeline.costs.values()}
    assert set(nccl["name"]) == {f"ncclDevKernel_AllReduce_Sum_{name}" for name in algorithms}
    talk_s = sum(s.duration_s for s in timeline.spans if s.task.lane != "compute")
    assert float(nccl["sum (us)"].sum()) == pytest.approx(talk_s * 1e6, rel=0.01)
    buckets = analysis.get_gpu_user_annotation_breakdown(visualize=False, num_kernels=10_000, duration_ratio=1.0)
    assert set(buckets["name"]) == {s.task.name for s in timeline.spans if s.task.lane != "compute"}


def test_hta_reads_a_directory_as_one_rank_per_file(tmp_path: Path) -> None:
    options.set_disable_ns_rounding(True)
    _, timeline, analysis = run(tmp_path, MEASURED, fidelity="message")
    options.set_disable_ns_rounding(False)
    found = analysis.get_comm_comp_overlap(visualize=False).sort_values("rank")
    assert list(found["rank"]) == [0, 1, 2, 3]
    _, _, alone_s, both_s = shares(timeline)
    assert list(found["comp_comm_overlap_pctg"]) == pytest.approx([100 * both_s / (alone_s + both_s)] * 4, abs=0.1)


def test_the_arguments_of_our_events_have_the_types_that_hta_expects(tmp_path: Path) -> None:
    run(tmp_path, MEASURED)
    assert validate_trace_format(f"{tmp_path}/trace/rank_0.json.gz", level="complete") == (True, {})
