"""Attention of one block as operations: what makes q, k and v, the core, the output.

Context parallelism is in ``training.context``. Symbols as in ``training.transformer``; q and k have heads of size d,
values of size d' (the same but in latent attention). The core's arithmetic in full is ``2 T s a (d + d')``; a fused
causal kernel computes half of it, or with a window of w < s keys ``w - w^2 / (2 s)`` of the s keys of each query, and
backward adds the scores again: ``3 d + 2 d'`` for each ``d + d'``.
"""

from __future__ import annotations

from simulator.training import elementwise
from simulator.training.architecture import Architecture, Tensors
from simulator.training.batch import Batch
from simulator.training.context import over_ranks
from simulator.training.elementwise import Cost
from simulator.training.kernels import Matrices, branch_norm, elements_op, inputs_kept, products
from simulator.training.operations import Operation
from simulator.training.recompute import Attention, recomputed_attention

EAGER_SCORE_FORWARD_BYTES = 12.0
EAGER_SCORE_BACKWARD_BYTES = 20.0
"""Traffic per score of unfused attention (16-bit): scale, mask and fp32 softmax read and write the matrix again and
again. Together with the products this gives the 34 TFLOP/s measured on an A100 (causal, head 128; FlashAttention-2
benchmark figure, Dao-AILab/flash-attention assets/flash2_a100_fwd_bwd_benchmark.png)."""

STATISTICS_BYTES = 4.0
"""Log-sum-exp of each row of scores, fp32, that a flash kernel keeps."""


def returned(arch: Architecture, batch: Batch) -> Attention:
    """What a fused attention kernel returns."""
    return Attention(
        output_bytes=float(batch.tokens * batch.precision.compute_bytes * arch.attended_size),
        statistics_bytes=STATISTICS_BYTES * arch.num_heads * batch.tokens,
    )


def attention_operations(
    arch: Architecture, batch: Batch, layer: int, parts: dict[str, Tensors], matrices: dict[str, Matrices]
) -> list[Operation]:
    """From the norm before it to the output layer; dropout and the norm after it are not among them."""
    name = f"layers.{layer}"
    operations = _inputs(arch, batch, name, parts, matrices)
    if arch.layout.rotary:
        operations.append(_latent_rotary(arch, batch, name) if arch.latent else _rotary(arch, batch, name))
    core = over_ranks(_core(arch, batch, layer, parts.get("sinks", ())), arch, batch, arch.window_of(layer))
    if "core_attn" in batch.modules:
        core = recomputed_attention(core, qkv_bytes(arch, batch))
    saved = float(batch.tokens * batch.precision.compute_bytes * arch.attended_size)
    return [*operations, core, products(f"{name}.attn.out", name, parts["out"], matrices["out"], batch, saved)]


def _inputs(
    arch: Architecture, batch: Batch, name: str, parts: dict[str, Tensors], matrices: dict[str, Matrices]
) -> list[Operation]:
    """What makes q, k and v of the hidden state, or of latents that it is projected to first."""
    qkv, latents = matrices["qkv"], matrices.get("latent", ())
    kept = inputs_kept(batch, arch.hidden_size, len(latents or qkv))
    if not latents:
        return [products(f"{name}.attn.qkv", name, _qkv_tensors(parts), qkv, batch, kept)]
    each = elementwise.linear_kept_bytes(batch.precision, readers=1, fused=batch.fused)
    width = sum(k for _, k in qkv)
    return [
        products(f"{name}.attn.latent", name, parts["latent"], latents, batch, kept),
        branch_norm(f"{name}.attn.latent_norm", name, parts["latent_norm"], arch, batch, width),
        products(f"{name}.attn.qkv", name, parts["qkv"], qkv, batch, batch.tokens * width * each),
    ]


def _qkv_tensors(parts: dict[str, Tensors]) -> Tensors:
    """With norms of q and k, whose gradients come between those of the matrices: v, k_norm, k, q_norm, q are ready."""
    norms = parts.get("qk_norm", ())
    if not norms:
        return parts["qkv"]
    both = parts["qkv"] + norms
    return tuple(tensor for letter in "qkv" for tensor in both if f".{letter}_" in tensor.name)


def qkv_bytes(arch: Architecture, batch: Batch) -> float:
    """q, k and v as the attention core reads them: eager code has repeated k and v for every query head.

    Values may be a view of more: of latent attention the keys' part without positions, or q and k before rotation.
    """
    heads = arch.num_kv_heads if batch.fused else arch.num_heads
    width = arch.query_size + heads * (arch.head_dim + arch.value_dim)
    if arch.latent and not batch.fused:
        width += heads * (arch.head_dim - arch.latent.rope_dim)
    if arch.layout.values_inside_qkv and not batch.fused:
        width += arch.query_size + arch.kv_size
    return float(batch.tokens * batch.precision.compute_bytes * width)


def _rotary(arch: Architecture, batch: Batch, name: str) -> Operation:
    """Rotate q and k, after their norms if any; eager code also repeats each key-value head for its query heads."""
    elements = float(batch.tokens * (arch.query_size + arch.kv_size))
    wide = arch.layout.wide_norm
    cost = elementwise.rotary(batch.precision, qk_norm=arch.qk_norm, fused=batch.fused, wide=wide)
    if arch.kv_size < arch.query_size and not batch.fused:
        # k and v: read kv_size, write query_size each; backward adds the copies' gradients up again.
        repeat = 2.0 * batch.precision.compute_bytes
        cost += Cost(forward=repeat, backward=repeat, kernels=(2, 2))
    kept = elementwise.qk_norm_kept_bytes(batch.precision, fused=batch.fused, wide=wide) if arch.qk_norm else 0.0
    return elements_op(f"{name}.attn.rotary", name, elements, cost, saved=elements * kept)


def _latent_rotary(arch: Architecture, batch: Batch, name: str) -> Operation:
    """Rotates the narrow part of each query and the one narrow key, and copies both parts of q and k together.

    Hugging Face's ``DeepseekV3Attention``: ``torch.cat`` of the queries, and two copies into an empty tensor of keys.
    """
    assert arch.latent is not None
    turned, whole = arch.latent.rope_dim * (arch.num_heads + 1), arch.query_size + arch.kv_size
    turn = elementwise.rotary(batch.precision, qk_norm=False, fused=batch.fused)
    copied = 2.0 * batch.precision.compute_bytes
    share = turned / whole
    cost = Cost(
        forward=share * turn.forward + copied, backward=share * turn.backward + copied,
        kernels=(turn.kernels[0] + 3, turn.kernels[1] + 3),
    )  # fmt: skip
    return elements_op(f"{name}.attn.rotary", name, float(batch.tokens * whole), cost, saved=0.0)


def _core(arch: Architecture, batch: Batch, layer: int, sinks: Tensors) -> Operation:
    """Scores and values. Flash: causal part, backward computes the scores again. Eager: the full matrix."""
    tokens, e, seq, heads = batch.tokens, batch.precision.compute_bytes, batch.seq_len, arch.num_heads
    keys, values = arch.query_size, arch.attended_size
    name, saved = f"layers.{layer}", qkv_bytes(arch, batch)
    traffic = float(tokens * e * (keys + values + arch.num_kv_heads * (arch.head_dim + arch.value_dim)))
    if batch.attention != "eager":
        span = keys_computed(seq, arch.window_of(layer))
        return Operation(
            name=f"{name}.attn.core", layer=name, kind="attention", parameters=sinks,
            forward_flop=2.0 * tokens * span * (keys + values),
            backward_flop=2.0 * tokens * span * (3 * keys + 2 * values),
            forward_bytes=traffic, backward_bytes=2 * traffic + tokens * e * values, backward_kernels=3,
            saved_bytes=saved + STATISTICS_BYTES * heads * tokens, head_dim=arch.head_dim, seq_len=seq,
            attention=batch.attention,
        )  # fmt: skip
    full, scores = 2.0 * tokens * seq * (keys + values), float(heads * seq * tokens)
    kept = scores * elementwise.scores_kept_bytes(
        batch.precision, fp32_softmax=arch.layout.fp32_softmax, dropout=arch.dropout, fused=batch.fused
    )
    return Operation(
        name=f"{name}.attn.core", layer=name, kind="gemm", parameters=sinks, forward_flop=full, backward_flop=2 * full,
        gemm=((heads * tokens, seq, arch.head_dim), (heads * tokens, arch.value_dim, seq)),
        forward_bytes=traffic, backward_bytes=2 * traffic,
        elementwise_forward_bytes=scores * EAGER_SCORE_FORWARD_BYTES * e / 2,
        elementwise_backward_bytes=scores * EAGER_SCORE_BACKWARD_BYTES * e / 2,
        forward_kernels=6, backward_kernels=8, saved_bytes=saved + kept, head_dim=arch.head_dim, seq_len=seq,
    )  # fmt: skip


def keys_computed(seq_len: int, window: int) -> float:
    """Keys that a causal kernel computes for each query, on average: half of all, fewer with a window."""
    if not window or window >= seq_len:
        return seq_len / 2
    return window - window**2 / (2 * seq_len)
