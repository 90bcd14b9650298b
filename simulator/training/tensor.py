"""Tensor and sequence parallelism: the part of a transformer that one rank of ``tp`` has, and what it sends the others.

Source: Megatron-LM, megatron/core/tensor_parallel/{layers,mappings,cross_entropy}.py; Shoeybi et al., arXiv:1909.08053,
section 3; Korthikanti et al., arXiv:2205.05198, section 4.2. Each rank has heads / tp, MLP width / tp and vocabulary /
tp (padded up): first matrices are cut by columns, second ones by rows, so that a pair needs one sum. Key-value heads
that are fewer than ranks are held several times. Norms are whole on every rank.

Messages, s b h e bytes each (e per activation, s of one rank of cp), per layer and micro-batch:

* without sequence parallelism: an all-reduce after each of the two second matrices forward, and of the gradients of the
  inputs of the two first ones backward, beside the product that makes gradients of weights
  (``linear_with_grad_accumulation_and_async_allreduce``);
* with it: all-gather before a first matrix, reduce-scatter after a second one: 2 + 2 forward. Backward 4 + 2: the
  output's gradient is gathered; the input, of which only a part was kept, is gathered anew beside the product that
  makes the input's gradient; and that is reduce-scattered beside the product that makes those of weights.

Norms, dropout and what is kept of inputs are then shared over the sequence, each rank a tp-th. The embedding's rows are
summed (or reduce-scattered) as vocabularies are cut; the head gathers its input; the loss needs three all-reduces of
one fp32 number for each token: the largest logit, the target's, and the sum of exponentials.

``async_tp``: all-gathers and reduce-scatters run in pieces beside the product that they feed or follow (PyTorch,
``torch.distributed._symmetric_memory``; NVIDIA's ``--tp-comm-overlap``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from simulator.errors import ScenarioError
from simulator.training.architecture import Architecture
from simulator.training.batch import Batch
from simulator.training.elementwise import stream_bytes
from simulator.training.experts import check_experts, local_experts
from simulator.training.operations import Exchange, Operation, ParameterTensor
from simulator.training.shards import Shards

AXIS = "tp"
#: Parts of a block that work on every row alike, and so on a part of the sequence.
SEQUENCE_PARTS = frozenset({
    "attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "attn.dropout", "mlp.dropout", "embedding_norm", "norm",
    "attn.latent", "attn.latent_norm", "mlp.sum", "mlp.shared.gate",
})  # fmt: skip
#: Bytes of what the vocabulary-parallel loss sums for each token, three times.
LOSS_BYTES, LOSS_SUMS = 4.0, 3


def local(arch: Architecture, shards: Shards) -> Architecture:
    """The sizes of one rank's part. Raises ScenarioError for heads or widths that tp does not divide."""
    tp, experts = shards.tp, arch.experts
    if experts is None and shards.ep > 1:
        raise ScenarioError(f"parallel.ep: {arch.name} has no experts to share; accepted: 1")
    check_experts(arch, shards)
    if experts is not None and shards.ep * shards.etp > 1:
        experts = local_experts(experts, shards, arch.name)
    if tp == 1:
        return replace(arch, experts=experts) if experts is not arch.experts else arch
    _refuse("attention heads", arch.num_heads, tp, arch.name)
    kv = arch.num_kv_heads
    if max(kv, tp) % min(kv, tp):
        accepted = ", ".join(str(n) for n in range(1, arch.num_heads + 1) if _fits(arch, n))
        raise ScenarioError(
            f"parallel.tp: {tp} neither divides the {kv} key-value heads of {arch.name} nor is a multiple of them; "
            f"accepted: {accepted}"
        )
    if arch.intermediate_size:
        _refuse("columns of the MLP", arch.intermediate_size, tp, arch.name)
    if experts is not None and not shards.sequence_parallel:
        raise ScenarioError(
            "parallel.sequence_parallel: false leaves every rank of tp with the same tokens for its experts; with tp "
            "above 1 and experts it has to be true (Megatron-LM refuses it too)"
        )
    if experts is not None and experts.shared_size:
        _refuse("columns of the shared experts", experts.shared_size, tp, arch.name)
        experts = replace(experts, shared_size=experts.shared_size // tp)
    return replace(
        arch, num_heads=arch.num_heads // tp, num_kv_heads=max(1, arch.num_kv_heads // tp), experts=experts,
        intermediate_size=arch.intermediate_size // tp, vocab_size=-(-arch.vocab_size // tp),
    )  # fmt: skip


def _fits(arch: Architecture, tp: int) -> bool:
    """Whether heads of both kinds can be shared over so many ranks."""
    return arch.num_heads % tp == 0 and max(arch.num_kv_heads, tp) % min(arch.num_kv_heads, tp) == 0


def _refuse(what: str, count: int, tp: int, name: str) -> None:
    if count % tp:
        accepted = ", ".join(str(n) for n in range(1, min(count, 1024) + 1) if count % n == 0)
        raise ScenarioError(f"parallel.tp: {tp} does not divide the {count} {what} of {name}; accepted: {accepted}")


#: Second matrices, whose biases are added to a part of the sequence.
_SECOND = ("attn.out", "mlp.down", "mlp.shared.down")


def summed_parameters(operations: Sequence[Operation], *, sequence_parallel: bool) -> tuple[ParameterTensor, ...]:
    """Parameters that every rank of tp holds whole and has a part of the gradient of: those of norms, routers and
    others that work on a part of the sequence, biases that are added to it, and in any case norms of single heads.
    """
    found: list[ParameterTensor] = []
    head_dims = {operation.layer: operation.head_dim for operation in operations if operation.head_dim}
    for operation in operations:
        part = operation.name.removeprefix(f"{operation.layer}.")
        if operation.kind == "measured":
            continue
        if part == "attn.qkv":
            size = head_dims.get(operation.layer, 0)
            found += (t for t in operation.parameters if t.numel == size and _is_norm(t))
        elif sequence_parallel and (part in SEQUENCE_PARTS or part == "mlp.router"):
            found += operation.parameters
        elif sequence_parallel and part in _SECOND:
            found += (tensor for tensor in operation.parameters if tensor.name.endswith("bias"))
    return tuple(found)


def _is_norm(tensor: ParameterTensor) -> bool:
    return "norm" in tensor.name.split(".")[-2]


def share_of_sequence(batch: Batch) -> int:
    """Over how many ranks norms and kept inputs are shared."""
    return batch.shards.tp if batch.shards.sequence_parallel else 1


def message_bytes(arch: Architecture, batch: Batch) -> float:
    """The hidden state of a micro-batch, in the compute type."""
    return float(batch.tokens * arch.hidden_size * batch.precision.compute_bytes)


def sent_on_bytes(arch: Architecture, batch: Batch) -> float:
    """What a stage of a pipeline sends to the next: the residual stream, of which each rank has its part (Megatron-LM,
    schedules.py, ``get_tensor_shapes``).
    """
    return float(batch.tokens * arch.hidden_size * stream_bytes(batch.precision) / share_of_sequence(batch))


def exchanging(operations: Iterable[Operation], arch: Architecture, batch: Batch) -> list[Operation]:
    """The operations of a block, or of what is around the blocks, with what they send and share over the sequence."""
    if batch.shards.tp == 1:
        return list(operations)
    sent = _with_sequence if batch.shards.sequence_parallel else _without_sequence
    roles, found = _roles(arch, batch), []
    for operation in operations:
        part = operation.name.removeprefix(f"{operation.layer}.")
        if batch.shards.sequence_parallel:
            operation = _shared(operation, part, batch.shards.tp, roles)
        extra = sent(*roles[part]) if part in roles else ()
        if part == "loss":
            extra = (_exchange("all_reduce", LOSS_BYTES * batch.tokens, "after forward", "of the loss", LOSS_SUMS),)
        extra = _beside(extra) if batch.shards.async_tp and part != "embedding" else extra
        found.append(replace(operation, exchanges=(*operation.exchanges, *extra)))
    return found


#: What a part does: 'embedding', or the 'first' or 'second' matrix of a pair, and the bytes that travel for it.
_Role = tuple[str, float]


def _roles(arch: Architecture, batch: Batch) -> dict[str, _Role]:
    """The parts that send something.

    Latent attention: down-projections are whole on every rank, so it is the narrow latents that are gathered and whose
    gradients are summed; where queries have no latent their matrix reads the hidden state as ever. Attention and MLP
    side by side are added before they are summed, and gather once if they read the same norm.
    """
    hidden, latent = message_bytes(arch, batch), arch.latent
    pairs = {"attn.qkv": "attn.out", "mlp.up": "mlp.down", "mlp.shared.up": "mlp.shared.down", "lm_head": ""}
    found: dict[str, _Role] = {"embedding": ("embedding", hidden)}
    for first, second in pairs.items():
        found[first] = ("first", hidden)
        found |= {second: ("second", hidden)} if second else {}
    if latent is not None and latent.query_rank:
        width = latent.query_rank + latent.kv_rank + latent.rope_dim
        found["attn.qkv"] = ("first", float(batch.tokens * width * batch.precision.compute_bytes))
    elif latent is not None:
        found["attn.latent"] = found.pop("attn.qkv")
    if arch.layout.parallel:
        del found["attn.out"]
        if all(row.part != "mlp_norm" for row in arch.layout.block):
            del found["mlp.up"]
    return found


def _shared(operation: Operation, part: str, tp: int, roles: dict[str, _Role]) -> Operation:
    """Rows shared over the sequence: all of what norms and dropout do, and the inputs that first matrices keep."""
    if part in SEQUENCE_PARTS and part not in roles:
        return scaled(operation, 1 / tp)
    if part in ("attn.qkv", "attn.latent", "mlp.up", "mlp.shared.up", "lm_head", "embedding"):
        return replace(operation, saved_bytes=operation.saved_bytes / tp)
    return operation


def scaled(operation: Operation, share: float) -> Operation:
    """The operation on a share of its rows."""
    return replace(
        operation, forward_flop=share * operation.forward_flop, backward_flop=share * operation.backward_flop,
        gemm=tuple((max(1, round(share * m)), n, k) for m, n, k in operation.gemm),
        forward_bytes=share * operation.forward_bytes, backward_bytes=share * operation.backward_bytes,
        elementwise_forward_bytes=share * operation.elementwise_forward_bytes,
        elementwise_backward_bytes=share * operation.elementwise_backward_bytes,
        saved_bytes=share * operation.saved_bytes,
    )  # fmt: skip


def _exchange(op: str, size_bytes: float, when: str, what: str, count: int = 1) -> Exchange:
    return Exchange(axis=AXIS, op=op, size_bytes=size_bytes, when=when, purpose=f"sums {what}" if count > 1 else what,
                    count=count)  # fmt: skip


def _without_sequence(role: str, size: float) -> tuple[Exchange, ...]:
    if role == "first":
        return (_exchange("all_reduce", size, "beside weights", "gradients of activations"),)
    return (_exchange("all_reduce", size, "after forward", "activations" if role == "second" else "embedded tokens"),)


def _with_sequence(role: str, size: float) -> tuple[Exchange, ...]:
    if role == "first":
        return (
            _exchange("all_gather", size, "before forward", "activations"),
            _exchange("all_gather", size, "beside input", "activations again"),
            _exchange("reduce_scatter", size, "beside weights", "gradients of activations"),
        )
    what = "activations" if role == "second" else "embedded tokens"
    return (
        _exchange("reduce_scatter", size, "after forward", what),
        _exchange("all_gather", size, "before backward", f"gradients of {what}"),
    )


def _beside(exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    """What is sent in pieces while the product runs: the gather before and the reduce-scatter after it."""
    moved = {"before forward": "beside forward", "after forward": "beside forward", "before backward": "beside input"}
    return tuple(e if e.op == "all_reduce" else replace(e, when=moved.get(e.when, e.when)) for e in exchanges)
