"""OPT: GPT-2's block with Llama-like names and k first, a table of positions two longer than the sequence
(arXiv:2205.01068; transformers, models/opt).
"""

from __future__ import annotations

from simulator.errors import UnsupportedError
from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.layout import Layout, matrix, scale

LAYOUT = Layout(
    embeddings=(
        matrix("embedding", "model.decoder.embed_tokens", "vocab", "hidden"),
        matrix("embedding", "model.decoder.embed_positions", "positions", "hidden"),
    ),
    blocks="model.decoder.layers",
    block=(
        matrix("qkv", "self_attn.k_proj", "key_value", "hidden", "qkv_bias"),
        matrix("qkv", "self_attn.v_proj", "key_value", "hidden", "qkv_bias"),
        matrix("qkv", "self_attn.q_proj", "query", "hidden", "qkv_bias"),
        matrix("out", "self_attn.out_proj", "hidden", "query", "output_bias"),
        scale("attn_norm", "self_attn_layer_norm", shift=True),
        matrix("up", "fc1", "mlp", "hidden", "mlp_bias"),
        matrix("down", "fc2", "hidden", "mlp", "mlp_bias"),
        scale("mlp_norm", "final_layer_norm", shift=True),
    ),
    final_norm=scale("norm", "model.decoder.final_layer_norm", shift=True),
    rms=False,
    gated=False,
    rotary=False,
    extra_positions=2,
    norm_before_blocks=True,
)


def _read(config: Config) -> Architecture:
    """Raises UnsupportedError for OPT-350M, which norms after its layers and projects its embedding."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    narrow = config.integer("word_embed_proj_dim", default=hidden)
    if narrow != hidden or not config.flag("do_layer_norm_before", True):
        raise UnsupportedError(
            f"{config.where}: the OPT of 350M alone norms after its layers and projects its embedding"
            f" (word_embed_proj_dim = {narrow}, do_layer_norm_before); not modelled, use another size"
        )
    bias = config.flag("enable_bias", True)
    return Architecture(
        name=config.name,
        layout=LAYOUT,
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        intermediate_size=config.integer("ffn_dim"),
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings"),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        dropout=any(
            config.positive_rate(key, default) for key, default in (("dropout", 0.1), ("attention_dropout", 0.0))
        ),
    )


READERS = {"opt": _read}
