"""A layer of routed experts as operations, as one rank runs it; expert parallelism is in ``training.experts``.

Symbols: T tokens, h hidden size, E experts of width f, k chosen for each token, e bytes per activation. The router
scores every expert (``T x E`` logits); each token's row is copied k times, sorted by expert; two grouped products run
all experts (up with its gate, then down) on ``T k`` rows, ``T k / E`` each; the results are weighted and added up.
Arithmetic beside the router's: ``6 T k h f`` forward. Kept: ``T k (4 f + 2 h) e`` where a dense MLP of the same active
width keeps ``T (4 k f + h) e``; with fused kernels ``T k (3 f + h) e``. What is computed is that of Hugging Face's
``grouped_mm_experts_forward`` (transformers 5, integrations/moe.py); MegaBlocks, arXiv:2211.15841, has the grouped
products.

Limits: the experts of one rank have equal rows: where they have not, tiles at the edges waste more. Losses of
the router are left out; group-limited routing (DeepSeek) costs as plain top-k does. Autocast casts the experts'
matrices here, as mixed precision of FSDP does; plain ``torch.autocast`` leaves grouped products in fp32.
Code that runs one expert after another, or separate products on a few streams, is slower: on a B200, with 130 to 500
rows an expert, measured products took 1.5 to 2.5 times as long as ours (SimuMax, Transformer Engine; with 1,000 rows
and more the median error is 9 %, on an A100 5 %, ``tests/test_compute.py``).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.training import elementwise
from simulator.training.architecture import Architecture, Experts, Tensors
from simulator.training.batch import Batch
from simulator.training.experts import busiest_load, with_exchanges
from simulator.training.kernels import Matrices, activation, elements_op, expert_products, inputs_kept, products
from simulator.training.operations import Operation
from simulator.training.tensor import share_of_sequence

ROUTER_INDEX_BYTES = 24.0
"""Kept of each of a token's k choices: its place among the sorted rows and its expert (8 bytes each, int64), and its
weight and what that was normalised from (fp32)."""


def expert_operations(
    arch: Architecture, batch: Batch, layer: int, parts: dict[str, Tensors], matrices: dict[str, Matrices]
) -> list[Operation]:
    """What stands in place of a dense MLP: router, routed experts, shared experts."""
    experts, name = arch.experts_of(layer), f"layers.{layer}"
    assert experts is not None
    whole, batch = batch, own_tokens(batch)
    routed = _routed(arch, batch, experts, name, parts, matrices)
    if experts.router:
        readers = len(matrices["router"]) + len(matrices.get("shared_up", ())) + len(matrices.get("shared_gate", ()))
        kept = inputs_kept(batch, arch.hidden_size, readers)
        router = _router(arch, batch, experts, name, parts["router"], matrices["router"], kept)
        head = [router, _dispatch(arch, batch, name)]
        routed = with_exchanges([*head, *routed, _combine(arch, batch, experts, name)], arch, batch)
    return routed + (_shared(arch, whole, experts, name, parts, matrices) if experts.shared_size else [])


def own_tokens(batch: Batch) -> Batch:
    """The tokens that a rank routes: under sequence parallelism each rank of tp has its part."""
    parts = share_of_sequence(batch)
    return replace(batch, seq_len=batch.seq_len // parts) if parts > 1 else batch


def _rows(batch: Batch, experts: Experts) -> int:
    """Rows of all experts of the rank: as many as its tokens choose, where all ranks have equally many; with uneven
    loads those of the busiest rank. Experts cut over etp see the rows of all ranks that share them.
    """
    load = busiest_load(experts.routed or experts.count, batch.shards)
    return max(1, round(batch.tokens * experts.top_k * batch.shards.etp * load))


def _routed(
    arch: Architecture, batch: Batch, experts: Experts, name: str, parts: dict[str, Tensors],
    matrices: dict[str, Matrices],
) -> list[Operation]:  # fmt: skip
    """The two grouped products and the activation between them."""
    rows, e = _rows(batch, experts), batch.precision.compute_bytes
    into_up = rows * arch.hidden_size * elementwise.linear_kept_bytes(batch.precision, readers=1, fused=batch.fused)
    into_down = float(rows * experts.intermediate_size * e)
    up, down = (
        expert_products(
            f"{name}.mlp.experts.{part}", name, parts[f"experts_{part}"], matrices[f"experts_{part}"], batch, saved,
            rows=rows, experts=experts.count,
        )
        for part, saved in (("up", into_up), ("down", into_down))
    )  # fmt: skip
    between = activation(
        f"{name}.mlp.experts.activation", name, batch, rows, experts.intermediate_size, gated=arch.layout.gated
    )
    return [up, between, down]


def _router(
    arch: Architecture, batch: Batch, experts: Experts, name: str, parameters: Tensors, matrices: Matrices,
    kept: float,
) -> Operation:  # fmt: skip
    """Scores, their softmax (or sigmoid) in fp32, the best k and the sort by expert, in one operation.

    Keeps its input for all that read it (and a copy in fp32 where the router works in fp32: DeepSeek), the scores' fp32
    softmax, and per choice ``ROUTER_INDEX_BYTES``. Its product is priced in the compute type: it is a hundredth of the
    layer's arithmetic.
    """
    e, hidden = batch.precision.compute_bytes, float(batch.tokens * arch.hidden_size)
    widened = hidden * (4 + e) if arch.layout.wide_router and e < 4 else 0.0
    scored = products(f"{name}.mlp.router", name, parameters, matrices, batch, saved=0.0)
    logits = float(batch.tokens * (experts.routed or experts.count))
    cost = elementwise.routing(batch.precision, fused=batch.fused)
    indices = ROUTER_INDEX_BYTES * batch.tokens * experts.top_k
    return replace(
        scored,
        elementwise_forward_bytes=scored.elementwise_forward_bytes + logits * cost.forward + widened,
        elementwise_backward_bytes=scored.elementwise_backward_bytes + logits * cost.backward + widened,
        forward_kernels=scored.forward_kernels + cost.kernels[0],
        backward_kernels=scored.backward_kernels + cost.kernels[1],
        saved_bytes=kept + (4 * hidden if widened else 0) + 4 * logits + indices,
    )


def _dispatch(arch: Architecture, batch: Batch, name: str) -> Operation:
    """Copies each token's row for each of its experts; what it writes is kept as the input of the product after it."""
    assert arch.experts is not None
    elements = float(batch.tokens * arch.experts.top_k * arch.hidden_size)
    cost = elementwise.dispatch(batch.precision, top_k=arch.experts.top_k, fused=batch.fused)
    return elements_op(f"{name}.mlp.dispatch", name, elements, cost, saved=0.0)


def _combine(arch: Architecture, batch: Batch, experts: Experts, name: str) -> Operation:
    """Weights each row, puts rows back in the order of tokens, adds up a token's k; keeps the rows for the weights,
    which fused kernels apply before the second product.
    """
    elements = float(batch.tokens * experts.top_k * arch.hidden_size)
    cost = elementwise.combine(batch.precision, top_k=experts.top_k, fused=batch.fused)
    saved = 0.0 if batch.fused else elements * batch.precision.compute_bytes
    return elements_op(f"{name}.mlp.combine", name, elements, cost, saved=saved)


def _shared(
    arch: Architecture, batch: Batch, experts: Experts, name: str, parts: dict[str, Tensors],
    matrices: dict[str, Matrices],
) -> list[Operation]:  # fmt: skip
    """The MLP that every token passes, its gate (Qwen 1.5 MoE), and the sum with the routed experts' results."""
    tokens, e, width = batch.tokens, batch.precision.compute_bytes, experts.shared_size
    hidden, into_down = float(tokens * arch.hidden_size), float(tokens * width * e)
    found = [
        products(f"{name}.mlp.shared.up", name, parts["shared_up"], matrices["shared_up"], batch, 0.0),
        activation(f"{name}.mlp.shared.activation", name, batch, tokens, width, gated=arch.layout.gated),
        products(f"{name}.mlp.shared.down", name, parts["shared_down"], matrices["shared_down"], batch, into_down),
    ]  # fmt: skip
    if experts.shared_gate:
        found.append(
            products(f"{name}.mlp.shared.gate", name, parts["shared_gate"], matrices["shared_gate"], batch, 0.0)
        )
    added = elementwise.shared_sum(batch.precision, gated=experts.shared_gate, fused=batch.fused)
    saved = hidden * e if experts.shared_gate else 0.0
    return [*found, elements_op(f"{name}.mlp.sum", name, hidden, added, saved=saved)]
