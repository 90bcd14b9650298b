"""What to change when a step does not fit in memory: only what the numbers of its plan prove. Pure.

Activations are linear in the micro-batch (the curve over the step is scaled as a whole, so the peak may move). What is
whole on every GPU, or on more of them than need be, could be sharded further. Copies that a flag avoids are named.
Limits: a change of strategy gathers weights for a time, which comes on top and is said; how much full recomputation
saves needs a simulation of its own, so only its upper end is told. Where a replica takes several GPUs, what a rank
holds is read off its optimizer states; other layouts need a simulation (``simulator check``) and are not told here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.job import Job
from simulator.parallel_spec import Parallel
from simulator.report.memory import Memory
from simulator.report.words import layer_words
from simulator.strategies import megatron
from simulator.strategies.recomputing import checkpoints_of
from simulator.strategies.sharding import computing_precision
from simulator.training.precision import optimizer_state_bytes
from simulator.training.presets import build_model
from simulator.training.shards import WHOLE, shards_of
from simulator.units import format_gib

#: Changes that save less than this share of the peak are not worth a word.
_LEAST = 0.01
_MOST_CHANGES = 4
#: Strategies whose weights, gradients and states are sharded over all ranks already.
_ALL_SHARDED = ("fsdp", "zero3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to set. saves_bytes: off the peak, at most where ``bound``. enough: whether so much would do."""

    setting: str
    saves_bytes: float
    enough: bool
    why: str
    bound: bool = False

    @property
    def words(self) -> str:
        """``train.micro_batch=1: -12.3 GiB, enough (activations of 1 of 2 samples)``."""
        most, enough = ("at most ", ", perhaps enough") if self.bound else ("", ", enough")
        return f"{self.setting}: {most}-{format_gib(self.saves_bytes)}{enough if self.enough else ''} ({self.why})"


def changes(memory: Memory, job: Job, capacity_bytes: float) -> tuple[Change, ...]:
    """What would bring the peak down: what is enough by itself first, then what saves most.

    Where ranks hold parts of the model, only what is true of any part: fewer samples. The rest counts whole states.
    """
    peak = memory.peak_bytes
    found = [c for c in _all(memory, job, capacity_bytes) if c.saves_bytes > _LEAST * peak]
    return tuple(sorted(found, key=lambda c: (not c.enough, c.bound, -c.saves_bytes))[:_MOST_CHANGES])


def _all(memory: Memory, job: Job, capacity_bytes: float) -> Iterator[Change]:
    over = memory.peak_bytes - capacity_bytes
    yield from _smaller_micro_batch(memory, job, capacity_bytes)
    if not in_pipeline(job) and not _shares_experts(job):  # there weights and gradients of a stage stay whole
        yield from _bucket_views(memory, job, over)
        yield from _sharding(memory, job, over)
        yield from _resharding(memory, job, over)
        yield from _reducing_each_time(memory, job, over)
    yield from _recompute(memory, job, over)


def _smaller_micro_batch(memory: Memory, job: Job, capacity_bytes: float) -> Iterator[Change]:
    now = job.train.micro_batch
    fitting = (b for b in range(now - 1, 0, -1) if memory.peak_with("activations", b / now) <= capacity_bytes)
    best = next(fitting, 1)
    if best < now:
        saved = memory.peak_bytes - memory.peak_with("activations", best / now)
        yield Change(
            setting=f"train.micro_batch={best}", saves_bytes=saved,
            enough=memory.peak_bytes - saved <= capacity_bytes, why=f"activations of {best} of {now} samples",
        )  # fmt: skip


def _bucket_views(memory: Memory, job: Job, over: float) -> Iterator[Change]:
    """Buckets live as long as the model; as views into them, gradients need memory of their own only while fresh.

    Nothing is promised where micro-batches are accumulated: their gradients stay apart until they are reduced.
    """
    parallel, train = job.scenario.parallel, job.train
    if parallel.strategy != "ddp" or parallel.gradient_as_bucket_view or train.grad_accumulation > 1:
        return
    if _bucket_copies(memory):
        saved = memory.peak_bytes - memory.peak_with("grads", 0.0)
        yield Change(
            setting="parallel.gradient_as_bucket_view=true", saves_bytes=saved, enough=over <= saved, bound=True,
            why="gradients live in the buckets instead of beside them",
        )  # fmt: skip


def _bucket_copies(memory: Memory) -> float:
    return sum(h.size_bytes for h in memory.holders if h.kind == "buffers" and h.name.split()[0] == "buckets")


def whole_bytes(job: Job, *, as_now: bool = False) -> dict[str, float]:
    """Bytes of the model states that a rank holds when nothing is sharded over data parallelism, by kind. In a pipeline
    those of all its stages together.

    as_now: in the types of the scenario's implementation; else in those of its precision.
    """
    precision, count = job.inputs.precision, float(job.model.num_parameters)
    if as_now and job.scenario.parallel.implemented_by == "megatron":
        precision = megatron.states(precision)
    return {
        "params": count * precision.param_bytes, "grads": count * precision.grad_bytes,
        "optimizer": count * optimizer_state_bytes(precision, job.inputs.optimizer),
    }  # fmt: skip


def _sharding(memory: Memory, job: Job, over: float) -> Iterator[Change]:
    """Zero for what is sharded over all ranks already. FSDP has neither buckets nor whole weights cast by autocast.

    Ranks are those of data parallelism.
    """
    strategy, ranks = job.scenario.parallel.strategy, job.inputs.num_ranks
    if ranks == 1:
        return
    whole, held = whole_bytes(job), memory.by_kind_bytes
    spared = {kind: max(0.0, held[kind] - size / ranks) for kind, size in whole.items()}
    if strategy == "ddp":
        saved = min(spared["optimizer"], whole["optimizer"])
        yield Change(
            setting="parallel.strategy=zero1", saves_bytes=saved, enough=over <= saved,
            why=f"1/{ranks} of the optimizer states on each GPU",
        )  # fmt: skip
    if strategy not in _ALL_SHARDED:
        saved = sum(spared.values()) + _bucket_copies(memory) + _kept_by_autocast(job)
        yield Change(
            setting="parallel.strategy=fsdp", saves_bytes=saved, enough=over <= saved, bound=True,
            why=f"1/{ranks} of all states on each GPU, and the layers that it gathers",
        )  # fmt: skip


def in_pipeline(job: Job) -> bool:
    """Whether ranks hold stages of the model."""
    return job.inputs.mesh is not None and job.inputs.mesh.pp > 1


def _shares_experts(job: Job) -> bool:
    return job.inputs.mesh is not None and job.inputs.mesh.shares_experts


def _kept_by_autocast(job: Job) -> float:
    """Activations, at the end of a forward, that FSDP does not keep: it computes in 16 bits, without autocast."""
    precision = computing_precision(job.inputs.precision, Parallel(strategy="fsdp"))
    if precision == job.inputs.precision or job.device is None or job.scenario.model is None or job.model.measured:
        return 0.0
    train = job.train
    sharded = build_model(
        job.scenario.model, seq_len=train.seq_len, micro_batch=train.micro_batch, precision=precision,
        attention=train.attention, kernels=train.kernels or job.device.kernels, recompute=train.recompute,
        checkpoints=checkpoints_of(train),
        shards=shards_of(job.scenario.parallel, job.inputs.node_size * job.scenario.parallel.tp) if job.inputs.mesh
        else WHOLE,
    )  # fmt: skip
    now, then = (m.saved_bytes + m.loss_gradient_bytes + m.replayed_bytes for m in (job.model, sharded))
    return max(0.0, now - then)


def _resharding(memory: Memory, job: Job, over: float) -> Iterator[Change]:
    gathered = memory.by_kind_bytes["gathered"]
    if gathered and job.scenario.parallel.reshard_after_forward is False:
        yield Change(
            setting="parallel.reshard_after_forward=true", saves_bytes=gathered, enough=over <= gathered, bound=True,
            why="all but a few of the gathered layers are freed again",
        )  # fmt: skip


def _reducing_each_time(memory: Memory, job: Job, over: float) -> Iterator[Change]:
    """FSDP that accumulates without sync keeps whole gradients from the first micro-batch to the last."""
    parallel = job.scenario.parallel
    if parallel.strategy not in ("fsdp", "hsdp") or parallel.sync_each_micro_batch or job.train.grad_accumulation == 1:
        return
    saved = max(0.0, memory.by_kind_bytes["grads"] - whole_bytes(job)["grads"] / job.inputs.num_ranks)
    yield Change(
        setting="parallel.sync_each_micro_batch=true", saves_bytes=saved, enough=over <= saved, bound=True,
        why="gradients are sharded after each micro-batch",
    )  # fmt: skip


def _recompute(memory: Memory, job: Job, over: float) -> Iterator[Change]:
    train = job.train
    if (train.recompute == "full" and train.recompute_layers is None) or job.model.measured:
        return
    blocks = [op for op in job.model.operations if layer_words(op.layer) != op.layer]
    kept = sum(op.saved_bytes for op in blocks)
    if in_pipeline(job):  # some of the blocks, for several micro-batches
        kept = memory.by_kind_bytes["activations"]
    setting = "train.recompute_layers=null" if train.recompute_layers else "train.recompute=full"
    yield Change(
        setting=setting, saves_bytes=kept, enough=over <= kept, bound=True,
        why="layers keep their inputs only and run forward again",
    )  # fmt: skip
