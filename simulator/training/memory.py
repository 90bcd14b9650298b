"""Bytes of one rank's memory by kind, for data parallelism without sharding.

At the peak, the start of the last micro-batch's backward, these are alive together, for P parameters:

    P (weights + autocast's 16-bit copies + gradients + optimizer states, bytes each, ``training.precision``)
    + P x reduced bytes, if gradients are copied to buckets beside them
    + activations of all operations (``training.transformer`` has the formulas, by kernels and precision)
    + the larger of: gradient of the logits, activations of one block that is run again (recomputation)
    + buffers + context + communicator

The optimizer step needs less: like its time (``compute.optimizer_time_s``) it is that of a fused kernel, which works in
place. PyTorch's ``foreach`` variant would need one more copy of the weights, after the activations are gone.

Context and communicator are what no tensor shows; the device file has both with their sources. Allocator fragmentation
(2 to 10 % of what is reserved) and temporaries of single kernels are not added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulator.training.operations import TrainingModel
from simulator.training.precision import Precision, optimizer_state_bytes

MEMORY_KINDS = ("params", "grads", "optimizer", "activations", "gathered", "buffers", "workspace")
START_OF_BACKWARD = "start of backward"


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
    context_bytes: float,
    communicator_bytes: float,
    gradient_as_bucket_view: bool = True,
) -> Memory:
    """Memory of one rank under DDP. One rank alone has no communicator and no buckets.

    ``context_bytes`` and ``communicator_bytes`` are ``DeviceSpec.context`` and ``.communicator``; 0 without a device.
    """
    parameters = float(model.num_parameters)
    weights, grads = parameters * precision.param_bytes, parameters * precision.grad_bytes
    copies = 0.0 if gradient_as_bucket_view or num_ranks == 1 else parameters * precision.reduce_bytes
    overhead = context_bytes + (communicator_bytes if num_ranks > 1 else 0.0)
    cached = parameters * precision.cached_weight_bytes
    # The gradient of the logits is gone when the first block is run again.
    activations = model.saved_bytes + max(model.loss_gradient_bytes, model.replayed_bytes)
    return Memory(
        by_kind_bytes=MappingProxyType(
            {
                "params": weights + cached,
                "grads": grads,
                "optimizer": parameters * optimizer_state_bytes(precision, optimizer),
                "activations": activations,
                "gathered": 0.0,
                "buffers": copies + model.buffer_bytes,
                "workspace": overhead,
            }
        ),
        peak_at=START_OF_BACKWARD,
    )


def ddp_state_bytes(num_parameters: float, bytes_per_parameter: float) -> float:
    """Model states of each rank under DDP, whatever the number of ranks: nothing is sharded (ZeRO, table 1)."""
    return num_parameters * bytes_per_parameter


def largest_ddp_model(memory_bytes: float, bytes_per_parameter: float) -> float:
    """Parameters whose states alone fill a device under DDP; activations and workspace come on top."""
    return memory_bytes / bytes_per_parameter
