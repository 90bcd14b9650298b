"""Falcon: one key-value head (7B) or a few (40B, 180B), attention and MLP side by side, no biases (arXiv:2311.16867;
transformers, models/falcon).
"""

from __future__ import annotations

from simulator.errors import UnsupportedError
from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.layout import Layout, Row, matrix, scale

_MATRICES = (
    matrix("qkv", "self_attention.query_key_value", "qkv", "hidden", "qkv_bias"),
    matrix("out", "self_attention.dense", "hidden", "query", "output_bias"),
    matrix("up", "mlp.dense_h_to_4h", "mlp", "hidden", "mlp_bias"),
    matrix("down", "mlp.dense_4h_to_h", "hidden", "mlp", "mlp_bias"),
)


def _layout(*norms: Row) -> Layout:
    return Layout(
        embeddings=(matrix("embedding", "transformer.word_embeddings", "vocab", "hidden"),),
        blocks="transformer.h", block=_MATRICES + norms,
        final_norm=scale("norm", "transformer.ln_f", shift=True), rms=False, gated=False, parallel=True,
    )  # fmt: skip


ONE_NORM = _layout(scale("attn_norm", "input_layernorm", shift=True))
TWO_NORMS = _layout(scale("attn_norm", "ln_attn", shift=True), scale("mlp_norm", "ln_mlp", shift=True))


def _read(config: Config) -> Architecture:
    """``new_decoder_architecture`` has a norm for each branch and ``num_kv_heads``; else ``multi_query`` says one."""
    hidden = config.integer("hidden_size", "n_embed")
    heads = config.integer("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture", False)
    if config.flag("alibi", False) or not config.flag("parallel_attn", True):
        raise UnsupportedError(
            f"{config.where}: Falcon with alibi, or without parallel_attn (Falcon-RW), is not modelled;"
            " accepted are 7B, 40B and 180B"
        )
    shared = 1 if config.flag("multi_query", True) else heads
    bias = config.flag("bias", False)
    return Architecture(
        name=config.name,
        layout=TWO_NORMS if new else ONE_NORM,
        num_layers=config.integer("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=config.integer("num_kv_heads", "n_head_kv", default=heads) if new else shared,
        head_dim=max(hidden // heads, 1),
        intermediate_size=config.integer("ffn_hidden_size", default=4 * hidden),
        vocab_size=config.integer("vocab_size"),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        dropout=any(config.positive_rate(key, 0.0) for key in ("hidden_dropout", "attention_dropout")),
    )


READERS = {"falcon": _read}
