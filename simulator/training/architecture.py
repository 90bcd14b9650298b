"""The shape of a decoder-only transformer: its parameter tensors in registration order, and how many there are.

Two lineages: Llama (RMSNorm, rotary positions, gated MLP; Mistral and Qwen differ in biases and norms of q and k) and
GPT-2 (LayerNorm, learned positions, GELU MLP, biases everywhere, tied head). Names are those of Hugging Face.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.training.operations import ParameterTensor, num_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A transformer's shape. ``family`` is 'llama' or 'gpt2'; ``dropout`` whether dropout layers run in training.

    ``head_dim`` times ``num_heads`` need not be ``hidden_size`` (Qwen 3); ``max_positions`` counts rows of GPT-2's
    learned position table and is 0 for rotary positions.
    """

    name: str
    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int = 0
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    dropout: bool = False

    @property
    def query_size(self) -> int:
        """Width of the queries, and of the attention output: heads x head size."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys (and of the values): key-value heads x head size."""
        return self.num_kv_heads * self.head_dim


def _tensor(name: str, *shape: int) -> ParameterTensor:
    numel = 1
    for size in shape:
        numel *= size
    return ParameterTensor(name=name, numel=numel, rows=shape[0])


def linear(name: str, outputs: int, inputs: int, *, bias: bool) -> tuple[ParameterTensor, ...]:
    """Weight, then bias if any, of a linear layer."""
    weight = _tensor(f"{name}.weight", outputs, inputs)
    return (weight, _tensor(f"{name}.bias", outputs)) if bias else (weight,)


def norm(name: str, size: int, *, bias: bool) -> tuple[ParameterTensor, ...]:
    """Scale, then shift if it is a LayerNorm."""
    weight = _tensor(f"{name}.weight", size)
    return (weight, _tensor(f"{name}.bias", size)) if bias else (weight,)


def bias_first(tensors: tuple[ParameterTensor, ...]) -> tuple[ParameterTensor, ...]:
    """Each ``weight, bias`` pair as ``bias, weight``, for what makes the weight's gradient ready first.

    An operation's gradients are ready in the reverse of the order its tensors are stored in (torch 2.13, order of the
    post-accumulate hooks): norms, and linear layers under autocast, make the weight's ready before the bias's.
    """
    swapped: list[ParameterTensor] = []
    for tensor in tensors:
        swapped.insert(len(swapped) - tensor.name.endswith(".bias"), tensor)
    return tuple(swapped)


def block_tensors(arch: Architecture, layer: int) -> dict[str, tuple[ParameterTensor, ...]]:
    """Parameter tensors of one block by part, parts in registration order.

    Parts: ``attn_norm, qkv, qk_norm, out, mlp_norm, up, down`` (``up`` includes the gate of a gated MLP).
    """
    if arch.family == "gpt2":
        return _gpt2_block(arch, f"transformer.h.{layer}")
    return _llama_block(arch, f"model.layers.{layer}")


def _llama_block(arch: Architecture, prefix: str) -> dict[str, tuple[ParameterTensor, ...]]:
    attention, mlp, hidden = f"{prefix}.self_attn", f"{prefix}.mlp", arch.hidden_size
    qkv = tuple(
        tensor
        for part, size in (("q", arch.query_size), ("k", arch.kv_size), ("v", arch.kv_size))
        for tensor in linear(f"{attention}.{part}_proj", size, hidden, bias=arch.qkv_bias)
    )
    qk_norm = tuple(_tensor(f"{attention}.{part}_norm.weight", arch.head_dim) for part in "qk") if arch.qk_norm else ()
    return {
        "qkv": qkv,
        "out": linear(f"{attention}.o_proj", hidden, arch.query_size, bias=arch.output_bias),
        "qk_norm": qk_norm,
        "up": linear(f"{mlp}.gate_proj", arch.intermediate_size, hidden, bias=arch.mlp_bias)
        + linear(f"{mlp}.up_proj", arch.intermediate_size, hidden, bias=arch.mlp_bias),
        "down": linear(f"{mlp}.down_proj", hidden, arch.intermediate_size, bias=arch.mlp_bias),
        "attn_norm": norm(f"{prefix}.input_layernorm", hidden, bias=False),
        "mlp_norm": norm(f"{prefix}.post_attention_layernorm", hidden, bias=False),
    }


def _gpt2_block(arch: Architecture, prefix: str) -> dict[str, tuple[ParameterTensor, ...]]:
    hidden = arch.hidden_size
    return {
        "attn_norm": norm(f"{prefix}.ln_1", hidden, bias=True),
        "qkv": linear(f"{prefix}.attn.c_attn", 3 * hidden, hidden, bias=True),
        "out": linear(f"{prefix}.attn.c_proj", hidden, hidden, bias=True),
        "qk_norm": (),
        "mlp_norm": norm(f"{prefix}.ln_2", hidden, bias=True),
        "up": linear(f"{prefix}.mlp.c_fc", arch.intermediate_size, hidden, bias=True),
        "down": linear(f"{prefix}.mlp.c_proj", hidden, arch.intermediate_size, bias=True),
    }


def embedding_tensors(arch: Architecture) -> tuple[ParameterTensor, ...]:
    """The token table, then GPT-2's position table."""
    if arch.family == "gpt2":
        return (
            _tensor("transformer.wte.weight", arch.vocab_size, arch.hidden_size),
            _tensor("transformer.wpe.weight", arch.max_positions, arch.hidden_size),
        )
    return (_tensor("model.embed_tokens.weight", arch.vocab_size, arch.hidden_size),)


def final_norm_tensors(arch: Architecture) -> tuple[ParameterTensor, ...]:
    """The norm before the head."""
    gpt2 = arch.family == "gpt2"
    return norm("transformer.ln_f" if gpt2 else "model.norm", arch.hidden_size, bias=gpt2)


def head_tensors(arch: Architecture) -> tuple[ParameterTensor, ...]:
    """The output head's own table; empty when it is tied to the token embedding."""
    return () if arch.tie_word_embeddings else (_tensor("lm_head.weight", arch.vocab_size, arch.hidden_size),)


def parameter_tensors(arch: Architecture) -> tuple[ParameterTensor, ...]:
    """All trainable tensors in the order Hugging Face registers them, each once."""
    blocks = tuple(
        tensor for layer in range(arch.num_layers) for part in block_tensors(arch, layer).values() for tensor in part
    )
    return embedding_tensors(arch) + blocks + final_norm_tensors(arch) + head_tensors(arch)


def num_parameters(arch: Architecture) -> int:
    """Trainable elements; a tied head is counted once."""
    return num_elements(parameter_tensors(arch))


def num_embedding_parameters(arch: Architecture) -> int:
    """Elements of the input tables (tokens and positions)."""
    return num_elements(embedding_tensors(arch))
