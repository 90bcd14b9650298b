"""Bytes of one rank's memory by kind, for data parallelism without sharding.

At the peak, the start of the last micro-batch's backward, weights, gradients, optimizer states, all activations and the
gradient of the logits are alive together; with recomputation, one block's activations instead of that gradient if they
are larger. The optimizer step is the other candidate: no activations, but one more copy
of the weights (``foreach`` AdamW, PyTorch documentation of ``torch.optim.AdamW``). The larger is reported.

Workspace is what no tensor shows: the CUDA context (0.5 to 0.9 GiB) and the first communicator (1.4 to 1.6 GB), as
reported in NVIDIA/nccl issues 964 and 1685. Allocator fragmentation (2 to 10 % of what is reserved) is not added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulator.training.operations import TrainingModel
from simulator.training.precision import Precision, optimizer_state_bytes

MEMORY_KINDS = ("params", "grads", "optimizer", "activations", "gathered", "buffers", "workspace")
CONTEXT_BYTES = 0.7 * 2**30
COMMUNICATOR_BYTES = 1.5e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak bytes of one rank by kind, in the order of ``MEMORY_KINDS``, and where the peak is.

    ``params`` counts weights and the 16-bit copies autocast caches; ``buffers`` DDP's bucket copies of gradients and
    the model's own buffers; ``gathered`` is for sharded strategies and 0 here.
    """

    by_kind_bytes: Mapping[str, float]
    peak_at: str

    @property
    def peak_bytes(self) -> float:
        """Sum over kinds."""
        return sum(self.by_kind_bytes.values())

    def fits(self, capacity_bytes: float) -> bool:
        """Whether the peak is at most the capacity."""
        return self.peak_bytes <= capacity_bytes


def ddp_memory(
    model: TrainingModel,
    precision: Precision,
    optimizer: str,
    *,
    num_ranks: int,
    gradient_as_bucket_view: bool = True,
) -> Memory:
    """Memory of one rank under DDP. One rank alone has no communicator and no buckets."""
    parameters = float(model.num_parameters)
    weights, grads = parameters * precision.param_bytes, parameters * precision.grad_bytes
    copies = 0.0 if gradient_as_bucket_view or num_ranks == 1 else parameters * precision.reduce_bytes
    overhead = CONTEXT_BYTES + (COMMUNICATOR_BYTES if num_ranks > 1 else 0.0)
    cached = parameters * precision.cached_weight_bytes
    # The gradient of the logits is gone when the first block is run again.
    activations = model.saved_bytes + max(model.loss_gradient_bytes, model.replayed_bytes)
    backward = activations + cached
    step = weights
    at_step = step > backward
    return Memory(
        by_kind_bytes=MappingProxyType(
            {
                "params": weights + (0.0 if at_step else cached),
                "grads": grads,
                "optimizer": parameters * optimizer_state_bytes(precision, optimizer),
                "activations": 0.0 if at_step else activations,
                "gathered": 0.0,
                "buffers": copies + model.buffer_bytes,
                "workspace": overhead + (step if at_step else 0.0),
            }
        ),
        peak_at="optimizer step" if at_step else "start of backward",
    )


def ddp_state_bytes(num_parameters: float, bytes_per_parameter: float) -> float:
    """Model states of each rank under DDP, whatever the number of ranks: nothing is sharded (ZeRO, table 1)."""
    return num_parameters * bytes_per_parameter


def largest_ddp_model(memory_bytes: float, bytes_per_parameter: float) -> float:
    """Parameters whose states alone fill a device under DDP; activations and workspace come on top."""
    return memory_bytes / bytes_per_parameter
