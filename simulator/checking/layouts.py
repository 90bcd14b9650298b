"""Layouts of a model over the GPUs of a job: which are worth a simulation, as changes of the scenario. Pure.

The rule that they follow is that of practice (Narayanan et al. 2021, arXiv:2104.04473, section 5: tensor parallelism up
to the GPUs of a node, pipeline stages across nodes, data parallelism with what is left); the search simulates them, so
it shows whether the rule holds here. For each degree of tensor parallelism up to a node (of context parallelism for
long sequences, of expert parallelism for experts) come the fewest stages that leave room, with and without
recomputation, and twice as many. The samples of a step stay what they are: with fewer replicas each accumulates more.
Never proposed: products that do not divide the ranks, more stages than layers, fewer micro-batches than stages, and
what by ``room`` cannot fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.checking.changes import Change, recomputing
from simulator.checking.mapping import parallel_with
from simulator.checking.room import Degrees, Room, room_of
from simulator.job import Job
from simulator.network.graph import Network

#: So many layouts are simulated, and so many variants of the best.
MOST_LAYOUTS, MOST_REFINED = 16, 2
#: From this length on a sequence is worth cutting: Llama 3 does at 128k, arXiv:2407.21783, table 4; others at 32k.
_LONG_SEQUENCE = 32_768
_MOST_TP, _MOST_CP, _MOST_STAGES = 64, 16, 64
_MOST_GATHERED = 4
#: Variants with more passes than this take more than about 5 s each, and are not simulated.
_MOST_PASSES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """strategy: of data parallelism; ZeRO-1 is Megatron's. chunks: stages on each rank of the pipeline."""

    degrees: Degrees
    strategy: str
    recompute: str
    chunks: int = 1
    schedule: str | None = None


def layouts_of(job: Job, network: Network) -> tuple[Layout, ...]:
    """Those worth a simulation, the least cut first; none for measured layers, a single rank, or a torus."""
    if job.model.measured or job.device is None or job.num_ranks == 1 or network.torus_shape:
        return ()
    room = room_of(job)
    found: dict[Layout, None] = {}
    for base in _bases(job, network, room):
        found |= dict.fromkeys(_by_stages(job, room, base))
    order = sorted(found, key=lambda one: (one.recompute == "full", one.degrees.replica, one.degrees.pp))
    return tuple(order[:MOST_LAYOUTS])


def change_of(layout: Layout, job: Job) -> Change:
    """The layout as overrides of the scenario."""
    d, train = layout.degrees, job.train
    degrees = {name: size for name, size in (("tp", d.tp), ("cp", d.cp), ("ep", d.ep), ("pp", d.pp)) if size > 1}
    more = {"implementation": "megatron"} if layout.strategy == "zero1" else {}
    pipeline: dict[str, object] = {"chunks": layout.chunks} if layout.chunks > 1 else {}
    pipeline |= {"schedule": layout.schedule} if layout.schedule else {}
    gone = tuple(name for name in ("tp", "cp", "ep", "pp", "chunks", "schedule", "stages") if name not in degrees)
    block = parallel_with(job, gone, strategy=layout.strategy, **more, **degrees, **pipeline)
    again = recomputing(job, layout.recompute) if layout.recompute != train.recompute else ()
    return Change(overrides=(block, *_train(job, d), *again), why=_words(layout))


def refined(layout: Layout, job: Job) -> Iterator[Layout]:
    """Variants of a layout that may have room: chunks against the bubble, other micro-batches, nothing run again."""
    assert job.device is not None, "a layout has one"
    room, capacity = room_of(job), _capacity_bytes(job)
    for one in _variants(layout, job):
        if room.least_bytes(one.degrees, one.strategy, one.recompute) <= capacity and _passes(one) <= _MOST_PASSES:
            yield one


def _variants(layout: Layout, job: Job) -> Iterator[Layout]:
    d, layers = layout.degrees, job.whole.num_layers
    if d.pp > 1 and d.micro_batches % d.pp == 0:
        yield from (replace(layout, chunks=chunks) for chunks in (2, 4) if layers >= d.pp * chunks)
        if layers >= 2 * d.pp:
            yield replace(layout, chunks=2, schedule="zb1p")
    if d.micro_batches % 2 == 0 and d.micro_batches >= 4 * d.pp:
        larger = replace(d, micro_batch=2 * d.micro_batch, micro_batches=d.micro_batches // 2)
        yield replace(layout, degrees=larger)
    yield from (replace(layout, recompute=mode) for mode in ("none", "full") if mode != layout.recompute)


def _passes(layout: Layout) -> int:
    """Forwards of a step over all stages: what a simulation takes time for."""
    return layout.degrees.pp * layout.chunks * layout.degrees.micro_batches


def _capacity_bytes(job: Job) -> float:
    return job.device.memory * job.scenario.limits.memory if job.device else 0.0


def neighbours_of(job: Job, network: Network) -> Iterator[Change]:
    """One degree of a layout that is there, twice or half as large; the batch of a step stays."""
    if job.inputs.mesh is None:
        return
    now = _degrees_now(job)
    for name, most, told in (
        ("tp", _node_size(job, network), "ranks share each product"), ("pp", job.whole.num_layers, "stages"),
        ("cp", _MOST_CP, "ranks share a sequence"), ("ep", job.num_ranks, "ranks share the experts"),
    ):  # fmt: skip
        size = int(getattr(now, name))
        if (name == "ep" and size == 1) or (name == "cp" and job.train.seq_len < _LONG_SEQUENCE):
            continue
        for other in (2 * size, size // 2):
            moved = _same_batch(job, replace(now, **{name: other})) if 1 <= other <= most else None
            if moved is not None:
                yield Change(
                    overrides=(f"parallel.{name}={other}", *_train(job, moved)), why=f"{other} {told}, not {size}"
                )
    yield from _of_pipelines(job, now)
    if job.scenario.parallel.sequence_parallel is False:
        yield Change(overrides=("parallel.sequence_parallel=true",), why="norms share the sequence")


def _of_pipelines(job: Job, now: Degrees) -> Iterator[Change]:
    """More chunks, and gradients of weights where the bubble is."""
    parallel, layers = job.scenario.parallel, job.whole.num_layers
    if now.pp == 1 or now.micro_batches % now.pp or parallel.stages is not None:
        return
    for chunks in (2, 4):
        if chunks > (parallel.chunks or 1) and layers >= chunks * now.pp:
            named = ("parallel.schedule=interleaved-1f1b",) if parallel.schedule else ()
            yield Change(
                overrides=(*named, f"parallel.chunks={chunks}"), why=f"{chunks} stages on each rank: a smaller bubble"
            )
    for schedule, chunks in (("zb-h1", 1), ("zb1p", 2)):
        if parallel.schedule != schedule and layers >= chunks * now.pp:
            yield Change(
                overrides=(f"parallel.schedule={schedule}", f"parallel.chunks={chunks}"),
                why="gradients of weights fill the bubble",
            )


def _train(job: Job, degrees: Degrees) -> Iterator[str]:
    wanted = {"micro_batch": degrees.micro_batch, "grad_accumulation": degrees.micro_batches}
    return (f"train.{key}={value}" for key, value in wanted.items() if value != getattr(job.train, key))


def _by_stages(job: Job, room: Room, base: Degrees) -> Iterator[Layout]:
    """The fewest stages that leave room with recomputation, without, and twice as many."""
    capacity = _capacity_bytes(job)
    free, again = False, False
    pp = 1
    while pp <= min(_MOST_STAGES, job.whole.num_layers):
        degrees = _same_batch(job, replace(base, pp=pp))
        enough, pp = free, 2 * pp
        if degrees is None:
            continue
        for strategy in _strategies(degrees):
            if room.least_bytes(degrees, strategy, job.train.recompute) <= capacity:
                free = True
                if not (degrees.replica == base.ep == 1):  # a change of strategy alone is tried before
                    yield Layout(degrees=degrees, strategy=strategy, recompute=job.train.recompute)
            elif not again and room.least_bytes(degrees, strategy, "full") <= capacity:
                again = True
                yield Layout(degrees=degrees, strategy=strategy, recompute="full")
        if enough:
            return


def _strategies(degrees: Degrees) -> tuple[str, ...]:
    """FSDP only without stages, and with few micro-batches, as it gathers all weights again for each."""
    few = degrees.pp == degrees.ep == 1 and degrees.micro_batches <= _MOST_GATHERED
    return ("fsdp", "zero1") if few else ("zero1",)


def _bases(job: Job, network: Network, room: Room) -> Iterator[Degrees]:
    """Degrees inside a stage: of tensor parallelism, with it the context's for long sequences; or the experts'."""
    node = _node_size(job, network)
    for tp in _powers(min(_MOST_TP, node)):
        yield Degrees(tp=tp)
    if job.train.seq_len >= _LONG_SEQUENCE:
        for cp in _powers(_MOST_CP):
            if cp > 1:
                yield Degrees(tp=max(_powers(min(_MOST_TP, node))), cp=cp)
    if room.experts:
        for ep in _powers(job.num_ranks):
            if ep >= min(node, job.num_ranks) > 1:
                yield Degrees(ep=ep)


def _same_batch(job: Job, degrees: Degrees) -> Degrees | None:
    """With the micro-batches that keep the samples of a step; None where they do not come out even or are too few.

    Micro-batches are as large as now where a pipeline then still has four for each stage, else smaller.
    """
    samples = job.train.micro_batch * job.train.grad_accumulation * (job.num_ranks // job.ranks_of_replica)
    if job.num_ranks % degrees.replica:
        return None
    dp = job.num_ranks // degrees.replica
    if samples % dp or (dp * degrees.tp * degrees.cp) % degrees.ep:
        return None
    each = samples // dp
    wanted = 1 if degrees.pp == 1 else 4 * degrees.pp
    sizes = [size for size in range(job.train.micro_batch, 0, -1) if each % size == 0]
    size = next((size for size in sizes if each // size >= wanted), 1)
    if each // size < degrees.pp:
        return None
    return replace(degrees, dp=dp, micro_batch=size, micro_batches=each // size)


def _degrees_now(job: Job) -> Degrees:
    mesh, train = job.inputs.mesh, job.train
    assert mesh is not None, "a layout that is there"
    return Degrees(
        tp=mesh.tp, cp=mesh.cp, ep=mesh.ep, pp=mesh.pp, dp=mesh.dp, micro_batch=train.micro_batch,
        micro_batches=train.grad_accumulation,
    )  # fmt: skip


def _node_size(job: Job, network: Network) -> int:
    return max(1, job.num_ranks // max(1, network.num_nodes))


def _powers(most: int) -> list[int]:
    return [2**n for n in range(max(1, most).bit_length())]


def _words(layout: Layout) -> str:
    d = layout.degrees
    parts = {"tp": d.tp, "cp": d.cp, "ep": d.ep, "pp": d.pp}
    told = " x ".join(f"{name} {size}" for name, size in parts.items() if size > 1) or "one rank holds the model"
    return f"{told}, {d.dp} replicas"
