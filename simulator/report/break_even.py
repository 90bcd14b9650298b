"""Where a step's communication takes exactly as long as its compute: below, something is exposed, however it overlaps.

Of one rank, with N parameters, T tokens a step and b bytes that it sends per parameter and step:

    communication b N / B = compute 6 N T / F      =>      T* = b F / (6 B)      and      B* = b F / (6 T)

(F: FLOP/s that compute reaches, B: bytes/s that collectives reach), whatever the model's size. The numbers here are the
simulated ones instead of the formula's: all communication of the step against all of its forward and backward, alone,
which grows with the tokens of a micro-batch (latency and launches aside), at the same number of micro-batches.

Limit: this is data parallelism, whose communication does not grow with the tokens. What the ranks of a replica send
each other does, over other links: there is no such point, and none is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.job import Job
from simulator.report.metrics import StepReport
from simulator.report.words import rate_words, sample_words
from simulator.units import format_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """tokens_per_gpu: per step. bandwidth_bytes_per_s: what a rank sends in a step, over the time of its compute.

    now_tokens_per_gpu, now_bytes_per_s: what they are in this step.
    """

    tokens_per_gpu: float
    now_tokens_per_gpu: float
    bandwidth_bytes_per_s: float
    now_bytes_per_s: float


def break_even_of(report: StepReport, job: Job) -> BreakEven | None:
    """None where nothing is sent or nothing computed, and where ranks share a model's operations: then what they send
    grows with the tokens too.
    """
    if job.inputs.mesh:
        return None
    computing_s = report.breakdown.compute - report.copies_s - report.interference_s
    sent = sum(use.wire_bytes_per_rank * use.count for use in report.collectives)
    if not report.comm_total_s or computing_s <= 0 or not sent:
        return None
    tokens = report.tokens_per_step / job.num_ranks
    return BreakEven(
        tokens_per_gpu=tokens * report.comm_total_s / computing_s, now_tokens_per_gpu=tokens,
        bandwidth_bytes_per_s=sent / computing_s, now_bytes_per_s=sent / report.comm_total_s,
    )  # fmt: skip


def break_even_words(report: StepReport, job: Job) -> str:
    """One sentence: below what something must be exposed; '' where nothing is sent or computed."""
    even = break_even_of(report, job)
    if even is None:
        return ""
    rate, now_rate = format_bandwidth(even.bandwidth_bytes_per_s, 3), format_bandwidth(even.now_bytes_per_s, 3)
    tokens, now = rate_words(even.tokens_per_gpu), rate_words(even.now_tokens_per_gpu)
    return (
        f"communication takes as long as forward and backward alone at {tokens} {sample_words(job)} per GPU and step "
        f"(now {now}), or where collectives move {rate} per GPU (now {now_rate})."
    )
