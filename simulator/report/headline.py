"""What was simulated, in one line; and the order in which judgements are told. Plain text, no console."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.job import Job
from simulator.network.graph import Network
from simulator.report.metrics import StepReport
from simulator.report.verdict import Verdict
from simulator.report.words import strategy_words


def headline(report: StepReport, job: Job, network: Network) -> str:
    """Model, strategy, cluster and batch in one line."""
    train = job.train
    size = f"{_count(job.model.num_parameters)} parameters"
    if job.model.num_inactive_parameters:
        size += f", {_count(job.model.num_active_parameters)} active"
    nodes = f"{network.num_nodes} node{'s' if network.num_nodes != 1 else ''}"
    gpus = f"{job.num_ranks:,} GPU{'s' if job.num_ranks != 1 else ''}"
    line = f"{job.model.name} ({size}), {_strategy(job)} on {gpus}"
    batch = f"micro-batch {train.micro_batch}" + (f" x {job.model.seq_len} tokens" if job.model.seq_len > 1 else "")
    if train.grad_accumulation > 1:
        batch += f" x {train.grad_accumulation} accumulated"
    scale = job.scenario.cluster.scale.words()
    return f"{line} ({nodes} of {network.name}{f' with {scale}' if scale else ''}); {batch}, {train.precision}"


def _count(parameters: int) -> str:
    """``46.7B``, ``124M``."""
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e9 else f"{parameters / 1e6:.3g}M"


def _strategy(job: Job) -> str:
    parallel = job.scenario.parallel
    return strategy_words(parallel.strategy, parallel.implemented_by)


def failing_first(judged: Sequence[Verdict]) -> list[Verdict]:
    """In the order in which they are told: what is wrong comes first."""
    return sorted(judged, key=lambda verdict: verdict.ok)
