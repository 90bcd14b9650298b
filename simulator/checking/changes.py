"""What could be set otherwise in a scenario, as overrides, each with what it does in words. Nothing is simulated here.

The batch of a step stays what it is wherever that is possible: a smaller micro-batch is accumulated more often. A
change that does alter it says so. What cannot be (a batch that does not divide, a key that a strategy lacks) is left
out, or refused by ``load_scenario`` and then skipped by the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.checking.mapping import parallel_with
from simulator.job import Job
from simulator.network.graph import Network
from simulator.scaling import faster_network


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """overrides: ``key=value`` each, as on the command line. alters_batch: whether a step holds other tokens.

    hardware: whether it asks for other machines. ladder: changes of one ladder do ever more of the same, so that none
    above one that is enough need be tried. only_room: computes more, and only gives room in memory for it.
    """

    overrides: tuple[str, ...]
    why: str
    alters_batch: bool = False
    hardware: bool = False
    ladder: str = ""
    only_room: bool = False

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(override.partition("=")[0] for override in self.overrides)


def changes_of(job: Job, network: Network, *, memory_only: bool = False) -> tuple[Change, ...]:
    """All single changes worth trying, in a fixed order. memory_only: only those that can take less memory."""
    more_work = () if memory_only else (*_larger_micro_batches(job), *_larger_batches(job))
    return (
        *_smaller_micro_batches(job), *_recompute(job), *_strategies(job, network), *_details(job), *more_work,
        *_rest_of_node(job), *_nodes(job, network), *(() if memory_only else _network(job)),
    )  # fmt: skip


def _smaller_micro_batches(job: Job) -> Iterator[Change]:
    now, times = job.train.micro_batch, job.train.grad_accumulation
    for part in (2, 4, 8, 16, 32):
        if now % part == 0:
            yield Change(
                overrides=(f"train.micro_batch={now // part}", f"train.grad_accumulation={times * part}"),
                why="smaller micro-batches, accumulated",
                ladder="smaller micro-batches",
            )


def _larger_micro_batches(job: Job) -> Iterator[Change]:
    now, times = job.train.micro_batch, job.train.grad_accumulation
    for factor in (2, 4, 8):
        if times % factor == 0:
            yield Change(
                overrides=(f"train.micro_batch={now * factor}", f"train.grad_accumulation={times // factor}"),
                why="larger micro-batches, fewer of them",
                ladder="larger micro-batches",
            )


#: From the least work to the most.
_RECOMPUTE = {
    "none": "nothing runs twice",
    "selective": "attention runs again in backward",
    "selective-op": "every second product runs again in backward",
    "full": "layers run again in backward",
}


def _recompute(job: Job) -> Iterator[Change]:
    if job.model.measured:
        return
    modes, now = list(_RECOMPUTE), job.train.recompute
    for mode, why in _RECOMPUTE.items():
        if mode != now or (mode == "full" and job.train.recompute_layers is not None):
            more = mode == now or modes.index(mode) > modes.index(now)
            yield Change(overrides=tuple(recomputing(job, mode)), why=why, only_room=more)


def recomputing(job: Job, mode: str) -> Iterator[str]:
    """Overrides that recompute in that mode, whole layers all of them."""
    if mode != job.train.recompute:
        yield f"train.recompute={mode}"
    keys = ("recompute_layers", "recompute_group") if mode != "full" else ("recompute_layers",)
    if mode != "selective":
        keys = (*keys, "recompute_modules")
    yield from (f"train.{key}=null" for key in keys if getattr(job.train, key) is not None)


#: Keys of one strategy that another does not read would be refused: they go when the strategy changes.
_STRATEGIES = (
    ("zero1", "optimizer states sharded"), ("zero2", "gradients sharded too"), ("zero3", "weights sharded too"),
    ("fsdp", "all states sharded, layers gathered as they are needed"), ("ddp", "nothing sharded"),
)  # fmt: skip


def _strategies(job: Job, network: Network) -> Iterator[Change]:
    if job.num_ranks == 1:
        return
    now = job.scenario.parallel.strategy
    for name, why in _STRATEGIES:
        if name != now:
            yield Change(overrides=(parallel_with(job, strategy=name),), why=why)
    for size in _shard_sizes(job, network):
        hosts = size * network.num_nodes // job.num_ranks
        inside = "inside a node" if hosts <= 1 else f"over {hosts} nodes"
        yield Change(
            overrides=(f"parallel={{strategy: hsdp, shard_size: {size}}}",),
            why=f"states sharded {inside}, replicated across",
            ladder="shards",
        )


def _shard_sizes(job: Job, network: Network) -> Iterator[int]:
    """GPUs of a node, of 2, 4, ... nodes (of many nodes of 4, 16, ...), up to half of all, unless the scenario has just
    that; of a torus none, whose rows are no nodes, and none of replicas that take several ranks.
    """
    if network.torus_shape or job.inputs.mesh:
        return
    size = job.num_ranks // max(1, network.num_nodes)
    now = job.scenario.parallel.shard_size or size if job.scenario.parallel.strategy == "hsdp" else None
    most = job.num_ranks // 2
    factor = 2 if most < 64 * size else 4
    while 1 < size <= most:
        if job.num_ranks % size == 0 and size != now:
            yield size
        size *= factor


def _details(job: Job) -> Iterator[Change]:
    """Settings of the strategy as it is."""
    parallel = job.scenario.parallel
    if parallel.strategy == "ddp":
        if parallel.overlap != "bucketed":
            yield Change(overrides=("parallel.overlap=bucketed",), why="gradients sent while backward runs")
        elif not parallel.gradient_as_bucket_view:
            yield Change(
                overrides=("parallel.gradient_as_bucket_view=true",), why="gradients live in the buckets themselves"
            )
            for cap in (10, 50, 100, 200):
                yield Change(overrides=(f"parallel.bucket_cap={cap} MiB",), why="buckets of another size")
        if parallel.comm_hook == "none" and job.inputs.precision.reduce_bytes > 2:
            yield Change(overrides=("parallel.comm_hook=bf16",), why="gradients sent in 16 bits")
    if parallel.strategy in ("fsdp", "hsdp"):
        if parallel.reshard_after_forward is True:
            yield Change(
                overrides=("parallel.reshard_after_forward=false",), why="weights kept from forward to backward"
            )
        if job.train.grad_accumulation > 1 and not parallel.sync_each_micro_batch:
            yield Change(
                overrides=("parallel.sync_each_micro_batch=true",), why="gradients sharded after each micro-batch"
            )
        if parallel.reduce_dtype != "bf16" and job.inputs.precision.reduce_bytes > 2:
            yield Change(overrides=("parallel.reduce_dtype=bf16",), why="gradients sent in 16 bits")


def _larger_batches(job: Job) -> Iterator[Change]:
    for factor in (2, 4, 8, 16, 32, 64):
        yield Change(
            overrides=(f"train.grad_accumulation={job.train.grad_accumulation * factor}",),
            why=f"a batch of {factor} times the tokens", alters_batch=True, ladder="accumulation",
        )  # fmt: skip
    if job.train.micro_batch > 1 or job.train.grad_accumulation == 1:
        for factor in (2, 4):
            yield Change(
                overrides=(f"train.micro_batch={job.train.micro_batch * factor}",),
                why=f"a batch of {factor} times the tokens", alters_batch=True, ladder="micro-batch",
            )  # fmt: skip


def _rest_of_node(job: Job) -> Iterator[Change]:
    """More GPUs of each host, where the scenario leaves some idle; more than it has are refused, and so not tried. A
    single GPU has nothing to share: FSDP comes with the others.
    """
    now, times = job.scenario.cluster.gpus_per_node, job.train.grad_accumulation
    strategy = ("parallel={strategy: fsdp}",) if job.num_ranks == 1 else ()
    if now is None:
        return
    for factor in (2, 4, 8):
        fewer = (f"train.grad_accumulation={times // factor}",) if times % factor == 0 else ()
        yield Change(
            overrides=(f"cluster.gpus_per_node={now * factor}", *strategy, *fewer),
            why=f"{factor} times the GPUs of a host", alters_batch=not fewer,
            ladder="GPUs of a host" if fewer else "GPUs of a host and batch",
        )  # fmt: skip


def _nodes(job: Job, network: Network) -> Iterator[Change]:
    """More hosts share the states; each keeps its batch, so a step's grows, unless accumulation can shrink."""
    if network.torus_shape or job.scenario.cluster.shape is not None:
        return
    times = job.train.grad_accumulation
    for factor in (2, 4):
        more = f"cluster.nodes={network.num_nodes * factor}"
        if times % factor == 0:
            yield Change(
                overrides=(more, f"train.grad_accumulation={times // factor}"),
                why=f"{factor} times the hosts",
                ladder="hosts",
            )
        else:
            yield Change(
                overrides=(more,),
                why=f"{factor} times the hosts, and the tokens of a batch",
                alters_batch=True,
                ladder="hosts and batch",
            )


def _network(job: Job) -> Iterator[Change]:
    """Another network between the nodes, everything else as it is; what it costs is not known here."""
    for factor in (2, 4):
        overrides = faster_network(job.scenario, factor)
        if overrides:
            yield Change(
                overrides=overrides, why=f"a network between nodes that is {factor} times as fast", hardware=True,
                ladder="network",
            )  # fmt: skip
