"""What was simulated, in one line; and the order in which judgements are told. Plain text, no console."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.job import Job
from simulator.mesh import Mesh
from simulator.network.graph import Network
from simulator.report.metrics import StepReport
from simulator.report.verdict import Verdict
from simulator.report.words import strategy_words


def headline(report: StepReport, job: Job, network: Network) -> str:
    """Model, strategy, cluster and batch in one line."""
    train = job.train
    size = f"{_count(job.whole.num_parameters)} parameters"
    if job.whole.num_inactive_parameters:
        size += f", {_count(job.whole.num_active_parameters)} active"
    nodes = f"{network.num_nodes} node{'s' if network.num_nodes != 1 else ''}"
    gpus = f"{job.num_ranks:,} GPU{'s' if job.num_ranks != 1 else ''}"
    line = f"{job.whole.name} ({size}), {_strategy(job)} on {gpus}"
    batch = f"micro-batch {train.micro_batch}" + (f" x {job.whole.seq_len} tokens" if job.whole.seq_len > 1 else "")
    if train.grad_accumulation > 1:
        batch += f" x {train.grad_accumulation} accumulated"
    scale = job.scenario.cluster.scale.words()
    return f"{line} ({nodes} of {network.name}{f' with {scale}' if scale else ''}); {batch}, {train.precision}"


def _count(parameters: int) -> str:
    """``46.7B``, ``124M``."""
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e9 else f"{parameters / 1e6:.3g}M"


def _strategy(job: Job) -> str:
    parallel = job.scenario.parallel
    shared = mesh_words(job.inputs.mesh) if job.inputs.mesh else ""
    return strategy_words(parallel.strategy, parallel.implemented_by) + (f", {shared}," if shared else "")


def mesh_words(mesh: Mesh) -> str:
    """``tp 8 x pp 16 x dp 128``; ``pp 16 x dp 128, ep 64``. Degrees of 1 go unsaid."""
    degrees = {axis: mesh.size(axis) for axis in ("tp", "cp", "pp", "dp")}
    told = " x ".join(f"{axis} {size}" for axis, size in degrees.items() if size > 1)
    experts = " x ".join(f"{axis} {mesh.size(axis)}" for axis in ("ep", "etp") if mesh.size(axis) > 1)
    return ", ".join(words for words in (told, experts) if words)


def failing_first(judged: Sequence[Verdict]) -> list[Verdict]:
    """In the order in which they are told: what is wrong comes first."""
    return sorted(judged, key=lambda verdict: verdict.ok)
