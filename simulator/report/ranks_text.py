"""What one has to know of a step whose ranks differ: which of them are merged, and how tokens and gradients count."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.job import Job
from simulator.report.words import sample_words


def rank_notes(job: Job) -> Iterator[str]:
    """Sentences for the text report; none where all ranks are equal."""
    works = {ranks.work for ranks in job.step.classes}
    if job.merged_ranks:
        several = len(works) > 1 and any(len(groups) > 1 for groups in job.step.axes.values())
        unless = f"unless groups share links{' (about: batches differ from group to group)' if several else ''}"
        yield (
            f"Jitter is simulated with few kinds of ranks: {job.merged_ranks:,} that are never the last run as the "
            f"median of their kind, which changes their waiting but not the step, {unless}."
        )
    if len(works) > 1:
        unit = sample_words(job)
        mean = job.micro_batch_of_all * job.ranks_of_replica / job.num_ranks
        yield (
            f"Batches differ: {unit} count what each rank has, {mean:.4g} sequences of a micro-batch on average. "
            "Averaging over ranks weighs each rank alike: for the gradient of the whole batch, multiply each rank's "
            f"loss by its own micro-batch / {mean:.4g}."
        )
