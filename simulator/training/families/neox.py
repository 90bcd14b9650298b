"""GPT-NeoX and Pythia: attention and MLP side by side, LayerNorm, biases, rotary positions (arXiv:2204.06745,
2304.01373; transformers, models/gpt_neox).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.layout import Layout, matrix, scale

LAYOUT = Layout(
    embeddings=(matrix("embedding", "gpt_neox.embed_in", "vocab", "hidden"),),
    blocks="gpt_neox.layers",
    block=(
        scale("attn_norm", "input_layernorm", shift=True),
        scale("mlp_norm", "post_attention_layernorm", shift=True),
        matrix("qkv", "attention.query_key_value", "qkv", "hidden", "qkv_bias"),
        matrix("out", "attention.dense", "hidden", "query", "output_bias"),
        matrix("up", "mlp.dense_h_to_4h", "mlp", "hidden", "always"),
        matrix("down", "mlp.dense_4h_to_h", "hidden", "mlp", "always"),
    ),
    final_norm=scale("norm", "gpt_neox.final_layer_norm", shift=True),
    rms=False,
    gated=False,
    parallel=True,
)
IN_TURN = replace(LAYOUT, parallel=False)


def _read(config: Config) -> Architecture:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    bias = config.flag("attention_bias", True)
    return Architecture(
        name=config.name,
        layout=LAYOUT if config.flag("use_parallel_residual", True) else IN_TURN,
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        intermediate_size=config.integer("intermediate_size"),
        vocab_size=config.integer("vocab_size"),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=bias,
        output_bias=bias,
        dropout=any(config.positive_rate(key, 0.0) for key in ("hidden_dropout", "attention_dropout")),
    )


READERS = {"gpt_neox": _read}
