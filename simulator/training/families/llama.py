"""Llama and its kin: RMSNorm, rotary positions, grouped queries, a gated MLP.

Mistral adds a window, Qwen 2 biases of q, k and v, Qwen 3 norms of q and k. Sources: arXiv:2302.13971 (Llama),
2310.06825 (Mistral), 2407.10671 (Qwen 2), 2505.09388 (Qwen 3); transformers,
models/{llama,mistral,qwen2,qwen3,smollm3}.
"""

from __future__ import annotations

from typing import Any

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families.windows import windows_of
from simulator.training.layout import Layout, Row, matrix, scale

QKVO = (
    matrix("qkv", "self_attn.q_proj", "query", "hidden", "qkv_bias"),
    matrix("qkv", "self_attn.k_proj", "key_value", "hidden", "qkv_bias"),
    matrix("qkv", "self_attn.v_proj", "key_value", "hidden", "qkv_bias"),
    matrix("out", "self_attn.o_proj", "hidden", "query", "output_bias"),
)
QK_NORM = (
    scale("qk_norm", "self_attn.q_norm", "qk_norm"),
    scale("qk_norm", "self_attn.k_norm", "qk_norm"),
)  # fmt: skip
GATED_MLP = (
    matrix("up", "mlp.gate_proj", "mlp", "hidden", "mlp_bias"),
    matrix("up", "mlp.up_proj", "mlp", "hidden", "mlp_bias"),
    matrix("down", "mlp.down_proj", "hidden", "mlp", "mlp_bias"),
)
NORMS = (
    scale("attn_norm", "input_layernorm"),
    scale("mlp_norm", "post_attention_layernorm"),
)  # fmt: skip


def decoder(*parts: tuple[Row, ...], wide_norm: bool = False, wide_router: bool = False) -> Layout:
    """A layout with Llama's names around its blocks, the rows of which come in ``parts``."""
    return Layout(
        embeddings=(matrix("embedding", "model.embed_tokens", "vocab", "hidden"),), blocks="model.layers",
        block=tuple(row for part in parts for row in part), final_norm=scale("norm", "model.norm"),
        wide_norm=wide_norm, wide_router=wide_router,
    )  # fmt: skip


LAYOUT = decoder(QKVO, QK_NORM, GATED_MLP, NORMS)


def shape(config: Config, layout: Layout, **traits: Any) -> Architecture:
    """What all families with Llama's keys share; ``traits`` are fields of ``Architecture`` that they set otherwise."""
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    bias = config.flag("attention_bias", False)
    shared: dict[str, Any] = {
        "name": config.name,
        "layout": layout,
        "num_layers": config.integer("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": config.integer("num_key_value_heads", default=heads),
        "head_dim": traits.get("head_dim") or config.integer("head_dim", default=max(hidden // heads, 1)),
        "vocab_size": config.integer("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", False),
        "qkv_bias": bias,
        "output_bias": bias,
    }
    if "intermediate_size" not in traits:
        shared["intermediate_size"] = config.integer("intermediate_size")
    return Architecture(**{**shared, **traits})


def _llama(config: Config) -> Architecture:
    return shape(config, LAYOUT, mlp_bias=config.flag("mlp_bias", False))


def _mistral(config: Config) -> Architecture:
    return shape(config, LAYOUT, windows=windows_of(config, every=1))


def _qwen2(config: Config) -> Architecture:
    """Biases of q, k and v whatever ``attention_bias`` says."""
    return shape(config, LAYOUT, qkv_bias=True, output_bias=False, windows=qwen_windows(config))


def _qwen3(config: Config) -> Architecture:
    head_dim = config.integer("head_dim", default=128)
    return shape(config, LAYOUT, qk_norm=True, head_dim=head_dim, windows=qwen_windows(config))


def qwen_windows(config: Config) -> tuple[int, ...]:
    """Windows only where ``use_sliding_window`` says so, from layer ``max_window_layers`` on (28 when left out)."""
    if not config.flag("use_sliding_window", False):
        return ()
    first = config.integer("max_window_layers", default=28, least=0)
    return windows_of(config, first=first, every=1)


def _smollm3(config: Config) -> Architecture:
    tied = config.flag("tie_word_embeddings", True)
    return shape(config, LAYOUT, mlp_bias=config.flag("mlp_bias", False), tie_word_embeddings=tied)


READERS = {"llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "qwen3": _qwen3, "smollm3": _smollm3}
