"""BLOOM: GPT-2's block with biases of positions on the scores (ALiBi) and a norm after the embedding
(arXiv:2211.05100; transformers, models/bloom).
"""

from __future__ import annotations

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.layout import Layout, matrix, scale

LAYOUT = Layout(
    embeddings=(
        matrix("embedding", "transformer.word_embeddings", "vocab", "hidden"),
        scale("norm", "transformer.word_embeddings_layernorm", shift=True),
    ),
    blocks="transformer.h",
    block=(
        scale("attn_norm", "input_layernorm", shift=True),
        matrix("qkv", "self_attention.query_key_value", "qkv", "hidden", "always"),
        matrix("out", "self_attention.dense", "hidden", "query", "always"),
        scale("mlp_norm", "post_attention_layernorm", shift=True),
        matrix("up", "mlp.dense_h_to_4h", "mlp", "hidden", "always"),
        matrix("down", "mlp.dense_4h_to_h", "hidden", "mlp", "always"),
    ),
    final_norm=scale("norm", "transformer.ln_f", shift=True),
    rms=False,
    gated=False,
    rotary=False,
)


def _read(config: Config) -> Architecture:
    hidden = config.integer("hidden_size", "n_embed")
    heads = config.integer("n_head", "num_attention_heads")
    return Architecture(
        name=config.name,
        layout=LAYOUT,
        num_layers=config.integer("n_layer", "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        intermediate_size=4 * hidden,
        vocab_size=config.integer("vocab_size"),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        dropout=any(config.positive_rate(key, 0.0) for key in ("hidden_dropout", "attention_dropout")),
    )


READERS = {"bloom": _read}
