"""What a rank holds all through a step: weights, states of the optimizer, and what no tensor shows."""

from __future__ import annotations

from simulator.plan import Buffer
from simulator.strategies.step import StepInputs
from simulator.training.precision import optimizer_state_bytes

#: Memory of each NCCL communicator after the first: 544 MB on 2 GPUs, 688 MB on 4 A100 (NVIDIA/nccl issue 964).
FURTHER_COMMUNICATOR_BYTES = 616e6


def resident_states(
    inputs: StepInputs, *, params: float = 1.0, optimizer_share: float = 1.0, communicators: int = 1
) -> tuple[Buffer, ...]:  # fmt: skip
    """Weights, optimizer states, the model's buffers and what no tensor shows. Shares are of all parameters."""
    count = float(inputs.model.num_parameters)
    states = optimizer_state_bytes(inputs.precision, inputs.optimizer)
    more = max(0, communicators - 1) * FURTHER_COMMUNICATOR_BYTES if inputs.communicator_bytes else 0.0
    communicator = inputs.communicator_bytes + more if inputs.world_size > 1 else 0.0
    held = (
        Buffer(name="weights", kind="params", size_bytes=params * count * inputs.precision.param_bytes),
        Buffer(name="optimizer states", kind="optimizer", size_bytes=optimizer_share * count * states),
        Buffer(name="buffers of the model", kind="buffers", size_bytes=inputs.model.buffer_bytes),
        Buffer(name="context", kind="workspace", size_bytes=inputs.context_bytes),
        Buffer(name="communicator", kind="workspace", size_bytes=communicator),
    )
    return tuple(buffer for buffer in held if buffer.size_bytes)
