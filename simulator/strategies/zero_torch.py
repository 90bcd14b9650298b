"""torch's ZeroRedundancyOptimizer around DistributedDataParallel: each tensor's optimizer state has one owner.

What a steady step runs (torch 2.13, torch/distributed/optim/zero_redundancy_optimizer.py; traced, and compared in
tests/test_real_zero.py):

* DDP all-reduces all gradients, as it does without it: 2 Psi;
* ``_partition_parameters``: tensors, the largest first, go to the rank that has the fewest elements so far;
* ``_local_step``: each rank updates its own tensors; all wait for the busiest;
* ``_sync_params``: rank by rank, one broadcast per tensor from its owner, in the order of the assignment; with
  ``parameters_as_bucket_view`` one per rank, of all its tensors, also by a rank that has none: one fp32 zero. Psi more,
  all after the optimizer, nothing hidden.

Limits: every rank class has the share of the busiest rank, in time and memory. ``overlap_with_ddp`` is not modelled.
Where ranks are folded into one class, a broadcast begins when the one before has reached all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from simulator.plan import Buffer, Compute, Task
from simulator.strategies import ddp
from simulator.strategies.step import Draft, StepInputs, collective
from simulator.training.operations import ParameterTensor, num_elements

#: ``_build_param_buckets``: a rank without parameters has a bucket of one fp32 element.
EMPTY_BUCKET_BYTES = 4.0


def step(inputs: StepInputs) -> Draft:
    """One steady step. A rank alone runs what DDP does."""
    draft = ddp.step(inputs)
    if inputs.num_ranks == 1:
        return draft
    owned = partition(inputs.model.parameters, inputs.num_ranks)
    share = max(map(num_elements, owned)) / inputs.model.num_parameters
    tasks = tuple(_on_a_share(inputs, task, share) for task in draft.tasks)
    resident = tuple(_shared(buffer, share) for buffer in draft.resident)
    return replace(draft, tasks=(*tasks, *_broadcasts(inputs, owned)), resident=resident)


def startup(inputs: StepInputs) -> Draft:
    """What DDP's constructor sends; the optimizer's sends nothing."""
    return ddp.startup(inputs)


def partition(parameters: Sequence[ParameterTensor], num_ranks: int) -> tuple[tuple[ParameterTensor, ...], ...]:
    """The tensors of each rank: largest first (ties: as registered), each to the rank with the fewest elements."""
    owned: list[list[ParameterTensor]] = [[] for _ in range(num_ranks)]
    sizes = [0] * num_ranks
    for tensor in sorted(parameters, key=lambda tensor: -tensor.numel):
        rank = sizes.index(min(sizes))
        owned[rank].append(tensor)
        sizes[rank] += tensor.numel
    return tuple(map(tuple, owned))


def _on_a_share(inputs: StepInputs, task: Task, share: float) -> Task:
    """The optimizer does the busiest rank's share; all else stays."""
    if not isinstance(task, Compute) or task.kind != "optimizer":
        return task
    return replace(task, seconds=inputs.optimizer_share_s(share))


def _shared(buffer: Buffer, share: float) -> Buffer:
    return replace(buffer, size_bytes=buffer.size_bytes * share) if buffer.kind == "optimizer" else buffer


def _broadcasts(inputs: StepInputs, owned: Iterable[Sequence[ParameterTensor]]) -> Iterator[Task]:
    for rank, tensors in enumerate(owned):
        if inputs.parallel.parameters_as_bucket_view:
            size = float(num_elements(tuple(tensors)) * inputs.precision.param_bytes)
            yield _broadcast(inputs, f"of rank {rank}", size or EMPTY_BUCKET_BYTES, f"weights of rank {rank}", rank)
            continue
        for tensor in tensors:
            size = float(tensor.numel * inputs.precision.param_bytes)
            yield _broadcast(inputs, tensor.name, size, f"weights {tensor.name}, rank {rank}'s", rank)


def _broadcast(inputs: StepInputs, what: str, size_bytes: float, purpose: str, root: int) -> Task:
    task = collective(
        inputs, f"broadcast {what}", "broadcast", ddp.AXIS, size_bytes, purpose=purpose, after=("optimizer",)
    )  # fmt: skip
    return replace(task, root=root)
