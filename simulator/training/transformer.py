"""A transformer as operations: what each part computes, moves and keeps, for one micro-batch.

Symbols: s tokens per sequence, b sequences, T = s b, h hidden size, q = heads x head size, k the same of the key-value
heads, f MLP size, a heads, V vocabulary, e bytes per activation (2 in 16-bit training).

Kept for backward, per block, with fused kernels and a residual stream of e bytes (Korthikanti et al. 2022,
arXiv:2205.05198, equation 1, and its Llama counterpart): GPT-2 with flash attention ``T (16 e h + 4 a)``, with dropout
``2 h`` more for masks of one byte, which is ``s b h 34`` at e = 2; other attention adds ``a s e T``
(``a s T (2 e + 1)`` with dropout) in place of ``4 a T``, more where the softmax is fp32. Llama with SwiGLU
``T e (4 h + 2 q + 2 k + 3 f) + 4 a T``, which for q = h and e = 2 is ``s b (12 h + 4 h kv / a + 6 f + 4 a)``: gate, up
and the input of down, as a fused SwiGLU activates its gate again.

Kept with other kernels (ours; equal to the tensors that torch 2.13 saves, ``tests/test_model.py``), with r bytes per
element of the residual stream, 4 under autocast and else e, and c = 1, under eager autocast one per linear layer:
norms ``2 r h``, eager RMSNorm ``2 (4 + r) h``; inputs of q, k, v and of gate, up ``c e h`` each; attention
``e (2 q + 2 k)``, eager ``e 4 q`` as k and v are repeated for all heads; SwiGLU and down ``4 e f`` (GELU ``2 e f``);
norms of q and k ``e (q + k)``, eager ``(4 + e) (q + k)``; scores as ``elementwise.scores_kept_bytes``. So
Llama, eager autocast, q = h: ``s b (34 h + 8 f + 4 a)``; eager 16-bit ``s b (24 h + 8 f + 4 a)``.

Attention is in ``training.attention``, experts are in ``training.moe``. What lies between the products is counted in
``training.elementwise``, for eager or fused kernels, time and bytes alike.

Limits: ``torch.compile`` recomputes more than the closed forms of fused kernels say, and keeps less: a Llama block of
f = 2.75 h and kv = a up to 4 %, a GPT-2 block up to 6 % (partitioner of torch 2.13). Tables of rotary positions,
which all blocks share, and norms' statistics, 4 or 8 bytes a token, are left out; so are multi-token prediction heads
(DeepSeek-V3), towers for images, and the soft cap of Gemma 2's attention scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from simulator.training import architecture as shapes
from simulator.training import elementwise
from simulator.training.architecture import Architecture, Tensors
from simulator.training.attention import attention_operations, returned
from simulator.training.batch import Batch
from simulator.training.context import check_sequence
from simulator.training.kernels import (
    Matrices,
    activation,
    branch_norm,
    elements_op,
    inputs_kept,
    products,
    stream_norm,
)
from simulator.training.moe import expert_operations
from simulator.training.operations import Operation, TrainingModel, num_elements
from simulator.training.recompute import recomputed_blocks, recomputed_cheap, replayed_bytes
from simulator.training.recompute_modules import check_modules, recomputed_modules
from simulator.training.tensor import exchanging, local, sent_on_bytes


def transformer(arch: Architecture, batch: Batch) -> TrainingModel:
    """The whole model in forward order: embedding, blocks, final norm, head, loss; of it the part that one rank of
    tensor, context and expert parallelism has (``batch.shards``).
    """
    arch = local(arch, batch.shards)
    check_sequence(arch, batch)
    check_modules(arch, batch.modules)
    passed_on = sent_on_bytes(arch, batch)
    operations = _sends(exchanging(_embedding(arch, batch), arch, batch), passed_on)
    blocks = (exchanging(_block(arch, batch, layer), arch, batch) for layer in range(arch.num_layers))
    blocks = (recomputed_modules(block, arch, batch) for block in blocks)
    operations.extend(_checkpointed([_sends(block, passed_on) for block in blocks], arch, batch))
    norm = stream_norm("norm", "head", shapes.final_norm_tensors(arch), arch, batch, readers=1)
    operations += exchanging([norm, _head(arch, batch), _loss(arch, batch)], arch, batch)
    parameters = shapes.parameter_tensors(arch)
    tied = (("lm_head", shapes.embedding_tensors(arch)[0].name),) if arch.tie_word_embeddings else ()
    return TrainingModel(
        name=arch.name, operations=tuple(operations), parameters=parameters, tied=tied,
        num_parameters=num_elements(parameters), num_inactive_parameters=shapes.num_inactive_parameters(arch),
        num_embedding_parameters=shapes.num_embedding_parameters(arch),
        num_layers=arch.num_layers, hidden_size=arch.hidden_size,
        attention_size=(arch.query_size + arch.attended_size) / 2, attention_span=_attention_span(arch, batch),
        seq_len=batch.seq_len, micro_batch=batch.micro_batch, replayed_bytes=replayed_bytes(operations),
        loss_gradient_bytes=batch.tokens * arch.vocab_size * (4.0 + _logit_copy_bytes(batch)),
    )  # fmt: skip


def _attention_span(arch: Architecture, batch: Batch) -> float:
    """Keys that a query sees in the full score matrix, the mean over layers: the sequence, or a shorter window."""
    spans = [min(batch.seq_len, window or batch.seq_len) for window in arch.windows]
    return sum(spans) / len(spans) if spans else batch.seq_len


def _checkpointed(blocks: list[list[Operation]], arch: Architecture, batch: Batch) -> Iterator[Operation]:
    """The blocks as activation checkpointing runs them; ``selective`` has seen to their parts already."""
    stream, done = sent_on_bytes(arch, batch), 0
    if batch.recompute == "selective-op":
        e, core = batch.precision.compute_bytes, returned(arch, batch)
        for block in blocks:
            yield from recomputed_cheap(block, stream, core, element_bytes=e, fused=batch.fused)
        return
    for checkpoint in batch.checkpoints.spans(len(blocks)) if batch.recompute == "full" else ():
        yield from chain.from_iterable(blocks[done : checkpoint.start])
        together = list(chain.from_iterable(blocks[checkpoint.start : checkpoint.stop]))
        yield from recomputed_blocks(together, stream)
        done = checkpoint.stop
    yield from chain.from_iterable(blocks[done:])


def _sends(operations: list[Operation], size_bytes: float) -> list[Operation]:
    """The residual stream leaves the last of them: what a stage that ends there sends on."""
    return [*operations[:-1], replace(operations[-1], output_bytes=size_bytes)]


def _embedding(arch: Architecture, batch: Batch) -> list[Operation]:
    """Gather rows; backward zeroes a whole dense gradient and adds each token's row to it. BLOOM norms the result."""
    parameters, rows = shapes.embedding_tensors(arch), float(batch.tokens * arch.hidden_size)
    tables, precision = len(parameters), batch.precision
    stream, grad = elementwise.stream_bytes(precision), precision.grad_bytes
    gather = Operation(
        name="embedding", layer="embedding", kind="embedding", parameters=parameters,
        forward_bytes=tables * rows * (precision.param_bytes + stream),
        backward_bytes=num_elements(parameters) * grad + tables * rows * (stream + 2 * grad),
        forward_kernels=tables, backward_kernels=2 * tables, saved_bytes=rows if arch.dropout else 0.0,
    )  # fmt: skip
    norm = shapes.embedding_norm_tensors(arch)
    return [gather, stream_norm("embedding_norm", "embedding", norm, arch, batch, readers=1)] if norm else [gather]


def _block(arch: Architecture, batch: Batch, layer: int) -> list[Operation]:
    """One transformer block, forward order; a norm is there where the layout has one."""
    name, parts = f"layers.{layer}", shapes.block_tensors(arch, layer)
    matrices, hidden = shapes.block_matrices(arch, layer), arch.hidden_size
    mlp = _mlp(arch, batch, layer, parts, matrices)
    attention = attention_operations(arch, batch, layer, parts, matrices)
    readers = len(matrices.get("latent") or matrices["qkv"])
    into_mlp = _mlp_readers(arch, layer, matrices)
    if arch.layout.parallel and not parts.get("mlp_norm"):
        readers += into_mlp
    operations = []
    if parts.get("attn_norm"):
        operations.append(stream_norm(f"{name}.attn_norm", name, parts["attn_norm"], arch, batch, readers=readers))
    operations += attention + _dropout(arch, batch, f"{name}.attn.dropout", name)
    alone = not parts.get("attn_norm")
    if after := parts.get("attn_post_norm"):
        operations.append(branch_norm(f"{name}.attn_post_norm", name, after, arch, batch, hidden, residual=alone))
    if parts.get("mlp_norm"):
        operations.append(stream_norm(f"{name}.mlp_norm", name, parts["mlp_norm"], arch, batch, readers=into_mlp))
    operations += mlp + _dropout(arch, batch, f"{name}.mlp.dropout", name)
    if after := parts.get("mlp_post_norm"):
        operations.append(branch_norm(f"{name}.mlp_post_norm", name, after, arch, batch, hidden, residual=alone))
    return operations


def _mlp_readers(arch: Architecture, layer: int, matrices: dict[str, Matrices]) -> int:
    """How many layers read the norm before the MLP: up and gate; or router, experts and what is shared."""
    experts = arch.experts_of(layer)
    if experts is None:
        return len(matrices["up"])
    beside = ("router", "shared_up", "shared_gate")
    return 1 + sum(len(matrices.get(part, ())) for part in beside)


def _mlp(
    arch: Architecture, batch: Batch, layer: int, parts: dict[str, Tensors], matrices: dict[str, Matrices]
) -> list[Operation]:
    """Up (with its gate), activation, down; or experts."""
    if arch.experts_of(layer):
        return expert_operations(arch, batch, layer, parts, matrices)
    name, ffn, up = f"layers.{layer}", arch.intermediate_size, matrices["up"]
    kept, unit = inputs_kept(batch, arch.hidden_size, len(up)), float(batch.tokens * batch.precision.compute_bytes)
    if arch.layout.parallel and not parts.get("mlp_norm") and not batch.precision.cached_weight_bytes:
        kept = 0.0  # the very tensor that q, k and v keep
    return [
        products(f"{name}.mlp.up", name, parts["up"], up, batch, kept),
        activation(f"{name}.mlp.activation", name, batch, batch.tokens, ffn, gated=arch.layout.gated),
        products(f"{name}.mlp.down", name, parts["down"], matrices["down"], batch, unit * ffn),
    ]


def _dropout(arch: Architecture, batch: Batch, name: str, layer: str) -> list[Operation]:
    """Keeps a mask of one byte per element; nothing when the model trains without dropout."""
    if not arch.dropout:
        return []
    elements = float(batch.tokens * arch.hidden_size)
    cost = elementwise.dropout(batch.precision, fused=batch.fused)
    return [elements_op(name, layer, elements, cost, saved=elements)]


def _head(arch: Architecture, batch: Batch) -> Operation:
    saved = float(batch.tokens * arch.hidden_size * batch.precision.compute_bytes)
    matrix = ((arch.vocab_size, arch.hidden_size),)
    return products("lm_head", "head", shapes.head_tensors(arch), matrix, batch, saved=saved)


def _logit_copy_bytes(batch: Batch) -> float:
    """Bytes per logit beside the fp32 copy: the 16-bit logits themselves, none when they are fp32 already."""
    return float(batch.precision.compute_bytes) if batch.precision.compute_bytes < 4 else 0.0


def _loss(arch: Architecture, batch: Batch) -> Operation:
    """Cross entropy: keeps the logits (2 bytes) and their fp32 log-softmax (4), 6 T V in 16-bit training.

    A compiled loss would keep less; most compiled runs compile the model and leave the loss outside. A soft cap keeps
    its tanh besides.
    """
    logits = float(batch.tokens * arch.vocab_size)
    cost, kept = elementwise.cross_entropy(batch.precision, fused=batch.fused), 4 + _logit_copy_bytes(batch)
    if arch.logit_softcap:
        cost += elementwise.softcap(batch.precision, fused=batch.fused)
        kept += batch.precision.compute_bytes
    return elements_op("loss", "head", logits, cost, saved=logits * kept, kind="loss")
