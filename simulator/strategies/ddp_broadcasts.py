"""What rank 0 broadcasts under DistributedDataParallel: weights and buffers at construction, buffers before a forward.

PyTorch 2.13, torch/nn/parallel/distributed.py (``_sync_module_states``, ``_sync_buffers``) and
torch/csrc/distributed/c10d/comm.cpp (``broadcast_coalesced``); compared with real runs in tests/test_real_ddp_steps.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.plan import Buffer, Task
from simulator.strategies.buckets import coalesced
from simulator.strategies.step import Draft, StepInputs, collective, copy

AXIS = "dp"
#: Parameters and buffers are broadcast in groups that close at this many bytes (torch.nn.parallel.distributed).
BROADCAST_GROUP_BYTES = 250 * 2**20


def of_micro(inputs: StepInputs, micro: int) -> str:
    """Names tell the micro-batch where several are reduced."""
    return f" @{micro}" if inputs.parallel.sync_each_micro_batch and inputs.micro_batches > 1 else ""


def broadcast_buffers(inputs: StepInputs, micro: int) -> Iterator[Task]:
    """Before a forward: the model's buffers, flat by dtype. Forward waits until they are copied back."""
    if inputs.num_ranks == 1 or inputs.parallel.overlap != "bucketed":
        return
    buffers = inputs.model.buffers
    for flat in coalesced([(b.dtype, b.size_bytes) for b in buffers], BROADCAST_GROUP_BYTES):
        what = f"{flat.dtype} buffers {buffers[flat.members[0]].name}{of_micro(inputs, micro)}"
        made = Buffer(name=f"flat {what}", kind="buffers", size_bytes=flat.size_bytes)
        join = copy(inputs, f"flatten {what}", flat.size_bytes, allocates=(made,))
        sent = collective(
            inputs, f"broadcast {what}", "broadcast", AXIS, flat.size_bytes, after=(join.name,),
            purpose=f"{len(flat.members)} {flat.dtype} buffers",
        )  # fmt: skip
        yield join
        yield sent
        yield copy(
            inputs, f"copy {what}", flat.size_bytes, after=(sent.name,), kernels=len(flat.members), frees=(made.name,)
        )  # fmt: skip


def startup(inputs: StepInputs) -> Draft:
    """What DDP's constructor sends: parameter count, shapes, then weights and buffers, coalesced, from rank 0."""
    if inputs.num_ranks == 1:
        return Draft(tasks=())
    params, width = inputs.model.parameters, inputs.precision.param_bytes
    own = "float32" if width == 4 else inputs.precision.dtype
    tensors = [(own, tensor.numel * float(width)) for tensor in params]
    tensors += [(buffer.dtype, buffer.size_bytes) for buffer in inputs.model.buffers]
    calls = [
        ("check parameter count", "all_gather", 8.0 * inputs.num_ranks),
        ("broadcast shapes", "broadcast", 16.0 * len(params)),
    ]  # fmt: skip
    for number, flat in enumerate(coalesced(tensors, BROADCAST_GROUP_BYTES)):
        what = "parameters" if flat.members[0] < len(params) else "buffers"
        calls.append((f"broadcast {what} {number}", "broadcast", flat.size_bytes))
    tasks = tuple(
        collective(inputs, name, op, AXIS, size_bytes, purpose="construction of DDP") for name, op, size_bytes in calls
    )
    return Draft(tasks=tasks, axes={AXIS: inputs.everyone})
