"""The shape of a decoder-only transformer: its parameter tensors in registration order, and how many there are.

Names and order are those of Hugging Face transformers 5, where all experts of a layer share one tensor for each matrix.
Multi-head latent attention: DeepSeek-V2, arXiv:2405.04434, section 2.1. Experts: Mixtral, arXiv:2401.04088, section 2;
shared ones: DeepSeekMoE, arXiv:2401.06066, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from simulator.training.layout import DENSE_PARTS, EXPERT_PARTS, Layout, Row
from simulator.training.operations import ParameterTensor, num_elements

Tensors = tuple[ParameterTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The MLP of a layer as ``count`` experts of which a router picks ``top_k`` for each token.

    shared_size: width of the MLP that every token passes besides (0: none), all shared experts together; shared_gate:
    whether a gate scales its output. dense_layers: the layers that have a plain MLP instead. router: False leaves out
    the router and what moves tokens, which one lone expert does not need. routed: how many experts the router scores,
    where a rank holds ``count`` of them; the same when 0.
    """

    count: int
    top_k: int
    intermediate_size: int
    shared_size: int = 0
    shared_gate: bool = False
    dense_layers: frozenset[int] = frozenset()
    router: bool = True
    routed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention: keys and values (and queries, unless ``query_rank`` is 0) come from narrow latents.

    rope_dim: the part of each head's query and key that positions turn, one key for all heads.
    """

    query_rank: int
    kv_rank: int
    rope_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A transformer's shape. ``dropout``: whether dropout layers run in training.

    ``head_dim`` times ``num_heads`` need not be ``hidden_size`` (Qwen 3); the heads of values have ``v_head_dim``, the
    same when 0. ``max_positions`` counts the learned positions and is 0 for rotary ones. ``windows`` is how many keys a
    query sees at most in each layer, 0 for all; empty when no layer has a window. ``logit_softcap``: logits pass a tanh
    (Gemma 2).
    """

    name: str
    layout: Layout
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    v_head_dim: int = 0
    max_positions: int = 0
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    dropout: bool = False
    logit_softcap: bool = False
    windows: tuple[int, ...] = ()
    latent: Latent | None = None
    experts: Experts | None = None

    @property
    def query_size(self) -> int:
        """Width of the queries: heads x head size."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys: key-value heads x head size."""
        return self.num_kv_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Size of a head of the values."""
        return self.v_head_dim or self.head_dim

    @property
    def attended_size(self) -> int:
        """Width of what attention returns: heads x head size of the values."""
        return self.num_heads * self.value_dim

    def experts_of(self, layer: int) -> Experts | None:
        """The experts of a layer; None where it has a dense MLP."""
        return None if self.experts is None or layer in self.experts.dense_layers else self.experts

    def window_of(self, layer: int) -> int:
        """How many keys a query of a layer sees at most; 0 for all."""
        return self.windows[layer] if self.windows else 0


@lru_cache(maxsize=64)
def sizes(arch: Architecture) -> dict[str, int]:
    """What the names in a layout's rows stand for; 0 for what the architecture does not have."""
    experts, latent = arch.experts, arch.latent
    rank, rope = (latent.query_rank, latent.rope_dim) if latent else (0, 0)
    kv_up = arch.num_heads * (arch.head_dim - rope + arch.value_dim)
    return {
        "hidden": arch.hidden_size, "vocab": arch.vocab_size,
        "positions": arch.max_positions + arch.layout.extra_positions if arch.max_positions else 0,
        "heads": arch.num_heads, "query": arch.query_size, "key_value": arch.kv_size,
        "qkv": arch.query_size + 2 * arch.kv_size, "attended": arch.attended_size,
        "qk_norm": arch.head_dim if arch.qk_norm else 0,
        "query_rank": rank, "query_of_rank": arch.query_size if rank else 0,
        "query_direct": 0 if rank else arch.query_size,
        "kv_rank": latent.kv_rank if latent else 0, "kv_rank_rope": latent.kv_rank + rope if latent else 0,
        "kv_up": kv_up if latent else 0,
        "mlp": arch.intermediate_size, "gate_up": 2 * arch.intermediate_size,
        "experts": experts.count if experts else 0,
        "routed": (experts.routed or experts.count) if experts and experts.router else 0,
        "expert": experts.intermediate_size if experts else 0,
        "expert_gate_up": 2 * experts.intermediate_size if experts else 0,
        "shared": experts.shared_size if experts else 0,
        "shared_gate": int(experts.shared_gate) if experts else 0,
    }  # fmt: skip


def _tensor(name: str, *shape: int) -> ParameterTensor:
    columns = shape[1] if len(shape) > 2 else None
    return ParameterTensor(name=name, numel=prod(shape), rows=shape[0], columns=columns)


def linear(name: str, outputs: int, inputs: int, *, bias: bool) -> Tensors:
    """Weight, then bias if any, of a linear layer."""
    weight = _tensor(f"{name}.weight", outputs, inputs)
    return (weight, _tensor(f"{name}.bias", outputs)) if bias else (weight,)


def norm(name: str, size: int, *, bias: bool) -> Tensors:
    """Scale, then shift if it is a LayerNorm."""
    weight = _tensor(f"{name}.weight", size)
    return (weight, _tensor(f"{name}.bias", size)) if bias else (weight,)


def bias_first(tensors: Tensors) -> Tensors:
    """Each ``weight, bias`` pair as ``bias, weight``, for what makes the weight's gradient ready first.

    An operation's gradients are ready in the reverse of the order its tensors are stored in (torch 2.13, order of the
    post-accumulate hooks): norms, and linear layers under autocast, make the weight's ready before the bias's.
    """
    swapped: list[ParameterTensor] = []
    for tensor in tensors:
        swapped.insert(len(swapped) - tensor.name.endswith("bias"), tensor)
    return tuple(swapped)


def _shape(known: Mapping[str, int], row: Row) -> tuple[int, ...]:
    return tuple([known[name] for name in row.sizes])


def row_tensors(arch: Architecture, row: Row, prefix: str = "", known: Mapping[str, int] | None = None) -> Tensors:
    """Weight, then bias, of one row of a layout; none when a size is 0. known: ``sizes`` of it, where they are at hand:
    an architecture takes long to hash.
    """
    shape, name = _shape(known or sizes(arch), row), f"{prefix}{row.module}"
    if 0 in shape:
        return ()
    weight = _tensor(f"{name}{row.suffix}", *((*shape[:-2], shape[-1], shape[-2]) if row.inputs_first else shape))
    if row.bias != "always" and not (row.bias and getattr(arch, row.bias)):
        return (weight,)
    bias = (shape[0], shape[1]) if len(shape) > 2 else shape[:1]
    return (weight, _tensor(f"{name}{'.bias' if row.suffix else '_bias'}", *bias))


def _block_rows(arch: Architecture, layer: int) -> Iterator[Row]:
    absent = DENSE_PARTS if arch.experts_of(layer) else EXPERT_PARTS
    return (row for row in arch.layout.block if row.part not in absent)


def block_tensors(arch: Architecture, layer: int) -> dict[str, Tensors]:
    """Parameter tensors of one block by part (see ``layout``); parts that it does not have are empty."""
    found: dict[str, Tensors] = {row.part: () for row in arch.layout.block}
    prefix, known = f"{arch.layout.blocks}.{layer}.", sizes(arch)
    for row in _block_rows(arch, layer):
        found[row.part] += row_tensors(arch, row, prefix, known)
    return found


def block_matrices(arch: Architecture, layer: int) -> dict[str, tuple[tuple[int, int], ...]]:
    """``(outputs, inputs)`` of the matrices of one block by part; of a stack of experts those of one expert."""
    found: dict[str, tuple[tuple[int, int], ...]] = {row.part: () for row in arch.layout.block}
    known = sizes(arch)
    for row in _block_rows(arch, layer):
        shape = _shape(known, row)
        if len(shape) > 1 and 0 not in shape:
            found[row.part] += ((shape[-2], shape[-1]),)
    return found


def embedding_tensors(arch: Architecture) -> Tensors:
    """The token table, then a table of learned positions."""
    return tuple(tensor for row in arch.layout.embeddings if len(row.sizes) > 1 for tensor in row_tensors(arch, row))


def embedding_norm_tensors(arch: Architecture) -> Tensors:
    """The norm after the embedding; most families have none."""
    return tuple(tensor for row in arch.layout.embeddings if len(row.sizes) == 1 for tensor in row_tensors(arch, row))


def final_norm_tensors(arch: Architecture) -> Tensors:
    """The norm before the head."""
    return row_tensors(arch, arch.layout.final_norm)


def head_tensors(arch: Architecture) -> Tensors:
    """The output head's own table; empty when it is tied to the token embedding."""
    if arch.tie_word_embeddings:
        return ()
    return linear(arch.layout.head, arch.vocab_size, arch.hidden_size, bias=False)


def parameter_tensors(arch: Architecture) -> Tensors:
    """All trainable tensors in the order Hugging Face registers them, each once."""
    known = sizes(arch)
    blocks = tuple(
        tensor
        for layer in range(arch.num_layers)
        for row in _block_rows(arch, layer)
        for tensor in row_tensors(arch, row, f"{arch.layout.blocks}.{layer}.", known)
    )
    final = final_norm_tensors(arch)
    body = final + blocks if arch.layout.norm_before_blocks else blocks + final
    return embedding_tensors(arch) + embedding_norm_tensors(arch) + body + head_tensors(arch)


def num_parameters(arch: Architecture) -> int:
    """Trainable elements; a tied head is counted once."""
    return num_elements(parameter_tensors(arch))


def num_inactive_parameters(arch: Architecture) -> int:
    """Elements of the experts that a token does not pass: what "active parameters" leave out."""
    experts = arch.experts
    if experts is None:
        return 0
    sparse = next((layer for layer in range(arch.num_layers) if arch.experts_of(layer)), None)
    if sparse is None:
        return 0
    parts = block_tensors(arch, sparse)
    one = num_elements(parts["experts_up"] + parts["experts_down"]) // experts.count
    layers = sum(arch.experts_of(layer) is not None for layer in range(arch.num_layers))
    return layers * max(0, experts.count - experts.top_k) * one


def num_active_parameters(arch: Architecture) -> int:
    """Elements that one token's forward pass uses, embedding and head included."""
    return num_parameters(arch) - num_inactive_parameters(arch)


def num_embedding_parameters(arch: Architecture) -> int:
    """Elements of the input tables (tokens and positions)."""
    return num_elements(embedding_tensors(arch))
