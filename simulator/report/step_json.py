"""A step's report as plain data for ``run --json``. Keys are a contract: SI units, and names carry them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simulator.job import Job
from simulator.report.metrics import StepReport, grouped
from simulator.report.verdict import bound_sentence, memory_verdict, verdicts

SCHEMA_VERSION = 1


def step_json(report: StepReport, job: Job, wall_s: float) -> dict[str, Any]:
    """JSON-ready mapping. ``engine.wall_s`` is the only entry that differs between two runs."""
    memory = memory_verdict(job)
    judged = [asdict(v) for v in verdicts(report, job)]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "step",
        "title": report.title,
        "feasible": all(v["ok"] for v in judged),
        "step_time_s": report.step_time_s,
        "startup_time_s": report.startup_time_s,
        "breakdown_s": asdict(report.breakdown),
        "copies_s": report.copies_s,
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
        "num_parameters": job.model.num_parameters,
        "memory": {
            "capacity_bytes": None if job.device is None else job.device.memory,
            "peak_bytes": job.memory.peak_bytes,
            "peak_at": job.memory.peak_at,
            "by_kind_bytes": dict(job.memory.by_kind_bytes),
            "fits": None if memory is None else memory.ok,
        },
        "bound": bound_sentence(report, job),
        "verdicts": judged,
        "collectives": [_use(use) for use in grouped(report.collectives)],
        "buckets": [_use(use) for use in report.collectives],
        "links": [
            {"link": link.link, "bytes": link.num_bytes, "utilization": link.utilization} for link in report.links
        ],
        "engine": {
            "wall_s": wall_s, "events": report.events, "fidelity": report.fidelity,
            "ranks_simulated": report.ranks_simulated, "ranks_total": report.ranks_total,
            "handed_over": report.handed_over,
        },
    }  # fmt: skip


def _use(use: Any) -> dict[str, Any]:
    entry = asdict(use)
    entry["busbw_bytes_per_s"] = entry.pop("bus_bytes_per_s")
    return entry
