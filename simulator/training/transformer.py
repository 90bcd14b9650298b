"""A transformer as operations: what each part computes, moves and keeps, for one micro-batch.

Symbols: s tokens per sequence, b sequences, T = s b, h hidden size, q = heads x head size, k the same of the key-value
heads, f MLP size, a heads, V vocabulary, e bytes per activation (2 in 16-bit training).

Kept for backward, per block, with fused kernels and a residual stream of e bytes (Korthikanti et al. 2022,
arXiv:2205.05198, equation 1, and its Llama counterpart): GPT-2 with flash attention ``T (16 e h + 4 a)``, with dropout
``2 h`` more for masks of one byte, which is ``s b h 34`` at e = 2; other attention adds ``a s e T``
(``a s T (2 e + 1)`` with dropout) in place of ``4 a T``, more where the softmax is fp32. Llama with SwiGLU
``T e (4 h + 2 q + 2 k + 4 f) + 4 a T``, which for q = h and e = 2 is ``s b (12 h + 4 h kv / a + 8 f + 4 a)``.

Kept with other kernels (ours; equal to the tensors that torch 2.13 saves, ``tests/test_model.py``), with r bytes per
element of the residual stream, 4 under autocast and else e, and c = 1, under eager autocast one per linear layer:
norms ``2 r h``, eager RMSNorm ``2 (4 + r) h``; inputs of q, k, v and of gate, up ``c e h`` each; attention
``e (2 q + 2 k)``, eager ``e 4 q`` as k and v are repeated for all heads; SwiGLU and down ``4 e f`` (GELU ``2 e f``);
norms of q and k ``e (q + k)``, eager ``(4 + e) (q + k)``; scores as ``elementwise.scores_kept_bytes``. So
Llama, eager autocast, q = h: ``s b (34 h + 8 f + 4 a)``; eager 16-bit ``s b (24 h + 8 f + 4 a)``.

What lies between the products is counted in ``training.elementwise``, for eager or fused kernels, time and bytes alike.

Limits: ``torch.compile`` recomputes more than the closed forms of fused kernels say, and keeps less: a Llama block of
f = 2.75 h and kv = a 14 to 18 %, a GPT-2 block up to 6 % (partitioner of torch 2.13). Tables of rotary positions,
which all blocks share, and norms' statistics, 4 or 8 bytes a token, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.training import architecture as shapes
from simulator.training import elementwise
from simulator.training.architecture import Architecture
from simulator.training.elementwise import Cost
from simulator.training.operations import Operation, ParameterTensor, TrainingModel, num_elements
from simulator.training.precision import Precision
from simulator.training.recompute import (
    Attention,
    recomputed_attention,
    recomputed_block,
    recomputed_cheap,
    replayed_bytes,
)

EAGER_SCORE_FORWARD_BYTES = 12.0
EAGER_SCORE_BACKWARD_BYTES = 20.0
"""Traffic per score of unfused attention (16-bit): scale, mask and fp32 softmax read and write the matrix again and
again. Together with the products this gives the 34 TFLOP/s measured on an A100 (causal, head 128; FlashAttention-2
benchmark figure, Dao-AILab/flash-attention assets/flash2_a100_fwd_bwd_benchmark.png)."""

STATISTICS_BYTES = 4.0
"""Log-sum-exp of each row of scores, fp32, that a flash kernel keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch on one rank: its size, and how it is computed.

    ``attention`` is 'eager' or a fused kernel ('flash', 'flash-1', 'flash-3'); ``kernels`` one of
    ``elementwise.KERNELS``; ``recompute`` one of ``recompute.MODES``.
    """

    seq_len: int
    micro_batch: int
    precision: Precision
    attention: str
    kernels: str = "eager"
    recompute: str = "none"

    @property
    def tokens(self) -> int:
        """Tokens in the micro-batch."""
        return self.seq_len * self.micro_batch

    @property
    def fused(self) -> bool:
        """Whether a compiler or a library fuses what lies between the products."""
        return self.kernels == "fused"


def transformer(arch: Architecture, batch: Batch) -> TrainingModel:
    """The whole model in forward order: embedding, blocks, final norm, head, loss."""
    operations = [_embedding(arch, batch)]
    for layer in range(arch.num_layers):
        operations.extend(_checkpointed(_block(arch, batch, layer), arch, batch))
    operations.append(_norm_op("norm", "head", shapes.final_norm_tensors(arch), arch, batch, readers=1))
    operations.append(_head(arch, batch))
    operations.append(_loss(arch, batch))
    tied = (("lm_head", shapes.embedding_tensors(arch)[0].name),) if arch.tie_word_embeddings else ()
    return TrainingModel(
        name=arch.name, operations=tuple(operations), parameters=shapes.parameter_tensors(arch), tied=tied,
        num_parameters=shapes.num_parameters(arch), num_embedding_parameters=shapes.num_embedding_parameters(arch),
        num_layers=arch.num_layers, hidden_size=arch.hidden_size, attention_size=arch.query_size,
        seq_len=batch.seq_len, micro_batch=batch.micro_batch, replayed_bytes=replayed_bytes(operations),
        loss_gradient_bytes=batch.tokens * arch.vocab_size * (4.0 + _logit_copy_bytes(batch)),
    )  # fmt: skip


def _checkpointed(block: list[Operation], arch: Architecture, batch: Batch) -> list[Operation]:
    """The block as activation checkpointing runs it; ``selective`` has seen to its attention already."""
    stream = float(batch.tokens * arch.hidden_size * elementwise.stream_bytes(batch.precision))
    if batch.recompute == "full":
        return recomputed_block(block, stream)
    if batch.recompute != "selective-op":
        return block
    e = batch.precision.compute_bytes
    core = Attention(
        output_bytes=float(batch.tokens * e * arch.query_size),
        statistics_bytes=STATISTICS_BYTES * arch.num_heads * batch.tokens,
    )
    return recomputed_cheap(block, stream, core, element_bytes=e, fused=batch.fused)


def _gemm(
    name: str, layer: str, parameters: tuple[ParameterTensor, ...], shapes_nk: tuple[tuple[int, int], ...],
    batch: Batch, saved: float,
) -> Operation:  # fmt: skip
    """Matrix products of T rows by weights of ``(n, k)``; autocast casts weights and gradients beside them.

    The gradient of a bias is a sum over rows, which reads the output's gradient once more. ``parameters`` may include
    norms' weights whose gradients are ready among those of the matrices.
    """
    e, tokens, precision = batch.precision.compute_bytes, batch.tokens, batch.precision
    elements = sum(tokens * k + n * k + tokens * n for n, k in shapes_nk)
    flop = sum(2.0 * tokens * n * k for n, k in shapes_nk)
    weights = sum(n * k for n, k in shapes_nk)
    cast = weights * (precision.param_bytes + precision.cached_weight_bytes) if precision.cached_weight_bytes else 0
    biases = sum(tensor.name.endswith(".bias") for tensor in parameters)
    bias_sum = e * tokens * sum(n for n, _ in shapes_nk) if biases else 0
    return Operation(
        name=name, layer=layer, kind="gemm",
        parameters=shapes.bias_first(parameters) if precision.cached_weight_bytes else parameters,
        forward_flop=flop, backward_flop=2 * flop, gemm=tuple((tokens, n, k) for n, k in shapes_nk),
        forward_bytes=float(e * elements), backward_bytes=float(2 * e * elements),
        elementwise_forward_bytes=float(cast), elementwise_backward_bytes=float(cast + bias_sum),
        forward_kernels=len(shapes_nk) * (2 if cast else 1),
        backward_kernels=(3 if cast else 2) * len(shapes_nk) + biases, saved_bytes=saved,
    )  # fmt: skip


def _elementwise(
    name: str, layer: str, elements: float, cost: Cost, *, saved: float,
    parameters: tuple[ParameterTensor, ...] = (), kind: str = "elementwise",
) -> Operation:  # fmt: skip
    """An operation bounded by memory traffic: so many elements at a cost in bytes each."""
    return Operation(
        name=name, layer=layer, kind=kind, parameters=parameters, forward_bytes=elements * cost.forward,
        backward_bytes=elements * cost.backward, forward_kernels=cost.kernels[0], backward_kernels=cost.kernels[1],
        saved_bytes=saved,
    )  # fmt: skip


def _embedding(arch: Architecture, batch: Batch) -> Operation:
    """Gather rows; backward zeroes a whole dense gradient and adds each token's row to it."""
    parameters, rows = shapes.embedding_tensors(arch), float(batch.tokens * arch.hidden_size)
    tables, precision = len(parameters), batch.precision
    stream, grad = elementwise.stream_bytes(precision), precision.grad_bytes
    return Operation(
        name="embedding", layer="embedding", kind="embedding", parameters=parameters,
        forward_bytes=tables * rows * (precision.param_bytes + stream),
        backward_bytes=num_elements(parameters) * grad + tables * rows * (stream + 2 * grad),
        forward_kernels=tables, backward_kernels=2 * tables, saved_bytes=rows if arch.dropout else 0.0,
    )  # fmt: skip


def _norm_op(
    name: str, layer: str, parameters: tuple[ParameterTensor, ...], arch: Architecture, batch: Batch, *, readers: int
) -> Operation:
    """A norm that ``readers`` linear layers read, with the residual addition before it (none before the final norm)."""
    elements, rms = float(batch.tokens * arch.hidden_size), arch.family != "gpt2"
    cost = elementwise.norm(batch.precision, rms=rms, readers=readers, residual=layer != "head", fused=batch.fused)
    saved = elements * elementwise.norm_kept_bytes(batch.precision, rms=rms, fused=batch.fused)
    return _elementwise(name, layer, elements, cost, saved=saved, parameters=shapes.bias_first(parameters))


def _qkv_inputs_bytes(arch: Architecture, batch: Batch) -> float:
    """q, k and v as the attention core reads them: eager code has repeated k and v for every query head."""
    kv_size = arch.kv_size if batch.fused else arch.query_size
    return float(batch.tokens * batch.precision.compute_bytes * (arch.query_size + 2 * kv_size))


def _qkv_tensors(part: dict[str, tuple[ParameterTensor, ...]]) -> tuple[ParameterTensor, ...]:
    """With norms of q and k, whose gradients come between those of the matrices: v, k_norm, k, q_norm, q are ready."""
    if not part["qk_norm"]:
        return part["qkv"]
    both = part["qkv"] + part["qk_norm"]
    return tuple(tensor for letter in "qkv" for tensor in both if f".{letter}_" in tensor.name)


def _block(arch: Architecture, batch: Batch, layer: int) -> list[Operation]:
    """One transformer block, forward order."""
    name, part = f"layers.{layer}", shapes.block_tensors(arch, layer)
    tokens, e = batch.tokens, batch.precision.compute_bytes
    hidden, ffn, query = arch.hidden_size, arch.intermediate_size, arch.query_size
    unit, precision = float(tokens * e), batch.precision
    gated = arch.family != "gpt2"
    qkv = ((query, hidden), (arch.kv_size, hidden), (arch.kv_size, hidden)) if gated else ((3 * hidden, hidden),)
    up = ((ffn, hidden), (ffn, hidden)) if gated else ((ffn, hidden),)
    into_qkv, into_up = (
        tokens * hidden * elementwise.linear_kept_bytes(precision, readers=readers, fused=batch.fused)
        for readers in (len(qkv), len(up))
    )
    operations = [
        _norm_op(f"{name}.attn_norm", name, part["attn_norm"], arch, batch, readers=len(qkv)),
        _gemm(f"{name}.attn.qkv", name, _qkv_tensors(part), qkv, batch, saved=into_qkv),
    ]
    if gated:
        operations.append(_rotary(arch, batch, name))
    core = _attention(arch, batch, name)
    inputs = _qkv_inputs_bytes(arch, batch)
    operations.append(recomputed_attention(core, inputs) if batch.recompute == "selective" else core)
    operations.append(_gemm(f"{name}.attn.out", name, part["out"], ((hidden, query),), batch, saved=unit * query))
    operations.extend(_dropout(arch, batch, f"{name}.attn.dropout", name))
    operations.append(_norm_op(f"{name}.mlp_norm", name, part["mlp_norm"], arch, batch, readers=len(up)))
    operations.append(_gemm(f"{name}.mlp.up", name, part["up"], up, batch, saved=into_up))
    operations.append(_activation(batch, name, ffn, gated=gated))
    operations.append(_gemm(f"{name}.mlp.down", name, part["down"], ((hidden, ffn),), batch, saved=unit * ffn))
    operations.extend(_dropout(arch, batch, f"{name}.mlp.dropout", name))
    return operations


def _rotary(arch: Architecture, batch: Batch, name: str) -> Operation:
    """Rotate q and k, after their norms if any; eager code also repeats each key-value head for its query heads."""
    elements = float(batch.tokens * (arch.query_size + arch.kv_size))
    cost = elementwise.rotary(batch.precision, qk_norm=arch.qk_norm, fused=batch.fused)
    if arch.kv_size < arch.query_size and not batch.fused:
        # k and v: read kv_size, write query_size each; backward adds the copies' gradients up again.
        repeat = 2.0 * batch.precision.compute_bytes
        cost += Cost(forward=repeat, backward=repeat, kernels=(2, 2))
    kept = elementwise.qk_norm_kept_bytes(batch.precision, fused=batch.fused) if arch.qk_norm else 0.0
    return _elementwise(f"{name}.attn.rotary", name, elements, cost, saved=elements * kept)


def _attention(arch: Architecture, batch: Batch, name: str) -> Operation:
    """Scores and values. Flash: causal half, backward recomputes the scores (2.5 x). Eager: the full matrix."""
    tokens, e, seq = batch.tokens, batch.precision.compute_bytes, batch.seq_len
    query, heads = arch.query_size, arch.num_heads
    full = 4.0 * tokens * seq * query
    saved = _qkv_inputs_bytes(arch, batch)
    traffic = float(tokens * e * (2 * query + 2 * arch.kv_size))
    if batch.attention != "eager":
        return Operation(
            name=f"{name}.attn.core", layer=name, kind="attention", forward_flop=full / 2, backward_flop=1.25 * full,
            forward_bytes=traffic, backward_bytes=2 * traffic + tokens * e * query, backward_kernels=3,
            saved_bytes=saved + STATISTICS_BYTES * heads * tokens, head_dim=arch.head_dim, seq_len=seq,
            attention=batch.attention,
        )  # fmt: skip
    scores = float(heads * seq * tokens)
    kept = scores * elementwise.scores_kept_bytes(
        batch.precision, fp32_softmax=arch.family != "gpt2", dropout=arch.dropout, fused=batch.fused
    )
    return Operation(
        name=f"{name}.attn.core", layer=name, kind="gemm", forward_flop=full, backward_flop=2 * full,
        gemm=((heads * tokens, seq, arch.head_dim), (heads * tokens, arch.head_dim, seq)),
        forward_bytes=traffic, backward_bytes=2 * traffic,
        elementwise_forward_bytes=scores * EAGER_SCORE_FORWARD_BYTES * e / 2,
        elementwise_backward_bytes=scores * EAGER_SCORE_BACKWARD_BYTES * e / 2,
        forward_kernels=6, backward_kernels=8, saved_bytes=saved + kept, head_dim=arch.head_dim, seq_len=seq,
    )  # fmt: skip


def _activation(batch: Batch, name: str, ffn: int, *, gated: bool) -> Operation:
    """SwiGLU keeps gate, up and silu(gate): 3 f; GELU keeps its input: f."""
    elements = float(batch.tokens * ffn)
    saved = elements * batch.precision.compute_bytes * (3 if gated else 1)
    cost = elementwise.activation(batch.precision, gated=gated, fused=batch.fused)
    return _elementwise(f"{name}.mlp.activation", name, elements, cost, saved=saved)


def _dropout(arch: Architecture, batch: Batch, name: str, layer: str) -> list[Operation]:
    """Keeps a mask of one byte per element; nothing when the model trains without dropout."""
    if not arch.dropout:
        return []
    elements = float(batch.tokens * arch.hidden_size)
    cost = elementwise.dropout(batch.precision, fused=batch.fused)
    return [_elementwise(name, layer, elements, cost, saved=elements)]


def _head(arch: Architecture, batch: Batch) -> Operation:
    saved = float(batch.tokens * arch.hidden_size * batch.precision.compute_bytes)
    shape = ((arch.vocab_size, arch.hidden_size),)
    return _gemm("lm_head", "head", shapes.head_tensors(arch), shape, batch, saved=saved)


def _logit_copy_bytes(batch: Batch) -> float:
    """Bytes per logit beside the fp32 copy: the 16-bit logits themselves, none when they are fp32 already."""
    return float(batch.precision.compute_bytes) if batch.precision.compute_bytes < 4 else 0.0


def _loss(arch: Architecture, batch: Batch) -> Operation:
    """Cross entropy: keeps the logits (2 bytes) and their fp32 log-softmax (4), 6 T V in 16-bit training.

    A compiled loss would keep less; most compiled runs compile the model and leave the loss outside.
    """
    logits = float(batch.tokens * arch.vocab_size)
    cost = elementwise.cross_entropy(batch.precision, fused=batch.fused)
    return _elementwise("loss", "head", logits, cost, saved=logits * (4 + _logit_copy_bytes(batch)), kind="loss")
