"""A model as the ordered list of things one rank's compute stream runs: the nouns every strategy works on.

FLOP counts are what the kernels execute (a multiply-add is two), so that dividing by a rate gives a time:
``2 m n k`` per matrix product, backward twice that, and for fused causal attention only the half of the score matrix
that is computed. What a *report* calls model FLOP is another convention, kept apart in ``training.flop``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTensor:
    """One trainable tensor: its name as the framework registers it and its number of elements.

    rows: size of its first dimension, along which FSDP2 cuts it; a vector, of ``numel`` rows, when left out. columns:
    size of the second dimension of a stack of experts, which is cut where there are more ranks than experts.
    """

    name: str
    numel: int
    rows: int | None = None
    columns: int | None = None

    def rows_over(self, ranks: int) -> int:
        """Slices that FSDP2 hands out to so many ranks.

        Experts are cut inside where there are more ranks than experts, as torchtitan places them (``Shard(1)``,
        torchtitan/models/llama4/infra/parallelize.py); a bare ``fully_shard`` would pad them to one expert a rank.
        """
        rows = self.rows or self.numel
        return self.columns if self.columns is not None and ranks > rows else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferTensor:
    """A tensor of a module that is not trained, such as a running mean. dtype: one of ``BUFFER_BYTES``."""

    name: str
    numel: int
    dtype: str = "float32"

    @property
    def size_bytes(self) -> float:
        return float(self.numel * BUFFER_BYTES[self.dtype])


#: When an exchange takes place. 'before' and 'after' keep the compute stream waiting; 'beside' runs while the forward,
#: or the half of the backward that makes the gradient of the input or of the weights, does; what follows needs both.
MOMENTS_OF_EXCHANGES = (
    "before forward", "beside forward", "after forward", "before backward", "beside input", "beside weights",
    "after backward",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What an operation sends between the ranks that share the model, once for each micro-batch.

    axis: tp, cp, ep, etp. op, size_bytes: the collective, and its size as nccl-tests counts it. when: one of
    ``MOMENTS_OF_EXCHANGES``. purpose: what the bytes are, in words for reports. count: how many equal ones in a row.
    pieces: into how many the forward is cut that it runs beside; the last one has nothing beside it, as what was sent
    first is what it needs. 1: all of it has.
    """

    axis: str
    op: str
    size_bytes: float
    when: str
    purpose: str
    count: int = 1
    pieces: int = 1

    @property
    def covers(self) -> float:
        """The share of the forward that it runs beside."""
        return 1.0 if self.pieces == 1 else (self.pieces - 1) / self.pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing a compute stream runs, for one micro-batch on one rank.

    ``parameters`` are in the order whose reverse is that in which their gradients are ready, all of them when this
    operation's backward ends. ``gemm`` lists ``(m, n, k)`` of each forward matrix product: an ``m x k`` input times
    a ``k x n`` weight; backward runs ``(m, k, n)`` and ``(n, k, m)`` for each. With ``gemm_groups`` above 1 each is
    one kernel of so many products (experts) that share the m rows evenly, each with a weight of its own.
    ``forward_bytes`` is memory traffic of the main kernels, which overlaps their arithmetic;
    ``elementwise_*_bytes`` is traffic of further kernels that run after it (casts of weights, eager softmax).
    ``*_kernels`` is how many kernels are launched. ``forward_s`` and ``backward_s``, when given, are measured times
    and replace the roofline. ``saved_bytes`` stays allocated until backward. ``attention`` names the fused kernel
    of an attention operation. ``replayed`` are operations whose forward, or what is left of it, is run again just
    before this one's backward (activation checkpointing): their forward costs what running them again does, their
    ``saved_bytes`` is what that brings back; ``backward_flop`` does not count it. ``exchanges`` are what it sends
    to the ranks that share the model with this one. ``output_bytes`` is what the next stage of a pipeline is sent.
    """

    name: str
    layer: str
    kind: str
    parameters: tuple[ParameterTensor, ...] = ()
    forward_flop: float = 0.0
    backward_flop: float = 0.0
    gemm: tuple[tuple[int, int, int], ...] = ()
    gemm_groups: int = 1
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    elementwise_forward_bytes: float = 0.0
    elementwise_backward_bytes: float = 0.0
    forward_kernels: int = 1
    backward_kernels: int = 2
    forward_s: float | None = None
    backward_s: float | None = None
    saved_bytes: float = 0.0
    head_dim: int = 0
    seq_len: int = 0
    attention: str = "flash"
    replayed: tuple[Operation, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    output_bytes: float = 0.0


#: Bytes per element of the types that buffers have.
BUFFER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1}
KINDS = ("gemm", "attention", "elementwise", "embedding", "loss", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingModel:
    """One rank's whole model for one micro-batch.

    ``operations`` are in forward order; backward runs them in reverse. ``parameters`` are all tensors in the order the
    framework registers them, each once. ``tied`` pairs an operation that uses a tensor it does not own with that
    tensor's name: a tied output head has no parameters of its own, so the shared gradient is ready only when the
    embedding's backward, the last of all, ends. ``loss_gradient_bytes`` is the transient gradient of the logits, alive
    at the start of backward when all activations are too; ``replayed_bytes`` the activations of one block while it is
    run again (0 without recomputation). ``buffers`` are the modules' tensors without gradient, in the order in which
    they are registered: DDP broadcasts them.
    """

    name: str
    operations: tuple[Operation, ...]
    parameters: tuple[ParameterTensor, ...]
    tied: tuple[tuple[str, str], ...] = ()
    num_parameters: int
    num_inactive_parameters: int = 0
    num_embedding_parameters: int = 0
    num_layers: int
    hidden_size: int = 0
    attention_size: float = 0
    attention_span: float = 0
    seq_len: int = 1
    micro_batch: int = 1
    loss_gradient_bytes: float = 0.0
    replayed_bytes: float = 0.0
    buffers: tuple[BufferTensor, ...] = ()

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token's forward pass uses: all of a dense model, of experts only those chosen."""
        return self.num_parameters - self.num_inactive_parameters

    @property
    def buffer_bytes(self) -> float:
        """Bytes of all buffers."""
        return sum((buffer.size_bytes for buffer in self.buffers), start=0.0)

    @property
    def tokens(self) -> int:
        """Tokens (or samples, when a sample is no sequence) in one micro-batch of one rank."""
        return self.seq_len * self.micro_batch

    @property
    def measured(self) -> bool:
        """Whether every operation's time is given, so that no device is needed."""
        return all(operation.kind == "measured" for operation in self.operations)

    @property
    def forward_flop(self) -> float:
        """FLOP the forward kernels of one micro-batch execute."""
        return sum(operation.forward_flop for operation in self.operations)

    @property
    def backward_flop(self) -> float:
        """FLOP the backward kernels of one micro-batch execute."""
        return sum(operation.backward_flop for operation in self.operations)

    @property
    def replayed_flop(self) -> float:
        """FLOP of forward work done a second time, when activations are recomputed."""
        return sum(again.forward_flop for operation in self.operations for again in operation.replayed)

    @property
    def saved_bytes(self) -> float:
        """Activations alive when the forward pass of one micro-batch ends."""
        return sum(operation.saved_bytes for operation in self.operations)


def num_elements(parameters: tuple[ParameterTensor, ...]) -> int:
    """Total number of elements."""
    return sum(tensor.numel for tensor in parameters)
