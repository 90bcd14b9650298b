"""A step's report as plain data for ``run --json``. Keys are a contract: SI units, and names carry them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simulator.job import Job
from simulator.plan import MEMORY_KINDS
from simulator.report.memory import thinned
from simulator.report.metrics import StepReport, grouped
from simulator.report.slack import SHARES, SOURCE, slack_of
from simulator.report.stages import StageUse
from simulator.report.verdict import Verdict, bound_sentence, memory_verdict, verdicts

SCHEMA_VERSION = 1
#: Points of the curve of memory over the step.
MOST_POINTS = 500


def step_json(report: StepReport, job: Job, wall_s: float) -> dict[str, Any]:
    """JSON-ready mapping. ``engine.wall_s`` is the only entry that differs between two runs."""
    judged = [_verdict(v) for v in verdicts(report, job)]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "step",
        "title": report.title,
        "feasible": all(v["ok"] for v in judged),
        "step_time_s": report.step_time_s,
        "startup_time_s": report.startup_time_s,
        "breakdown_s": asdict(report.breakdown),
        "copies_s": report.copies_s,
        "idle_s": {
            "host": report.idle.host_s, "copies": report.idle.copies_s, "other": report.idle.other_s,
        },
        "interference_s": report.interference_s,
        "comm_total_s": report.comm_total_s,
        "comm_hidden_s": report.comm_hidden_s,
        "exposed_share": report.exposed_share,
        "tokens_per_step": report.tokens_per_step,
        "tokens_per_s": report.tokens_per_s,
        "tokens_per_s_per_gpu": report.tokens_per_s_per_gpu,
        "tflops_per_gpu": report.tflops_per_gpu,
        "mfu": report.mfu,
        "mfu_definition": report.mfu_definition,
        "num_parameters": job.whole.num_parameters,
        "num_active_parameters": job.whole.num_active_parameters,
        "memory": _memory(report, job),
        "waiting": [
            {"ranks": w.ranks.name, "count": len(w.ranks.ranks), "speed": w.ranks.speed, "work": w.ranks.work,
             "end_s": w.end_s, "waits_s": w.waits_s}
            for w in report.waiting
        ],
        **({"stages": [_stage(stage, job) for stage in report.stages]} if report.stages else {}),
        "bound": bound_sentence(report, job),
        "verdicts": judged,
        "collectives": [_use(use) for use in grouped(report.collectives)],
        "buckets": [_use(use) for use in report.collectives if use.reduces_gradients],
        "links": [
            {"link": link.link, "bytes": link.num_bytes, "utilization": link.utilization} for link in report.links
        ],
        "engine": {
            "wall_s": wall_s, "events": report.events, "fidelity": report.fidelity,
            "ranks_simulated": report.ranks_simulated, "ranks_total": report.ranks_total,
            "handed_over": report.handed_over,
        },
    }  # fmt: skip


def _memory(report: StepReport, job: Job) -> dict[str, Any]:
    """Peak, who holds it, and the curve: bytes of each kind from each time on, at most MOST_POINTS of them."""
    memory, verdict = report.memory, memory_verdict(report, job)
    slack = slack_of(memory.by_kind_bytes, memory.pools_bytes)
    times_s, curve = thinned(memory, MOST_POINTS)
    return {
        "capacity_bytes": None if job.device is None else job.device.memory,
        "peak_bytes": memory.peak_bytes,
        "peak_at": memory.peak_words, "peak_task": memory.peak_at, "peak_s": memory.peak_s, "ranks": memory.ranks,
        "by_kind_bytes": dict(memory.by_kind_bytes),
        "holders": [asdict(holder) for holder in memory.holders],
        "fits": None if verdict is None else verdict.ok,
        "host_bytes": memory.host_bytes,
        "allocator_slack": {
            "pools_bytes": memory.pools_bytes, "shares": list(SHARES), "low_bytes": slack.low_bytes,
            "high_bytes": slack.high_bytes, "counted_in_fits": False, "source": SOURCE,
        },
        "timeline": {
            "times_s": times_s.tolist(),
            "by_kind_bytes": {kind: curve[:, i].tolist() for i, kind in enumerate(MEMORY_KINDS)},
        },
    }  # fmt: skip


def _stage(stage: StageUse, job: Job) -> dict[str, Any]:
    """Times of one rank of the stage, which add up to the step, and its own peak."""
    capacity = None if job.device is None else job.device.memory * job.scenario.limits.memory
    return {
        "ranks": stage.ranks.name, "count": len(stage.ranks.ranks), "layers": stage.layers, "parts": list(stage.parts),
        "breakdown_s": asdict(stage.breakdown), "peak_bytes": stage.peak_bytes,
        "fits": None if capacity is None else stage.peak_bytes <= capacity,
    }  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, Any]:
    entry = asdict(verdict)
    entry["try"] = entry.pop("changes")
    return entry


def _use(use: Any) -> dict[str, Any]:
    entry = asdict(use)
    entry["busbw_bytes_per_s"] = entry.pop("bus_bytes_per_s")
    return entry
