"""GPT-2: LayerNorm, learned positions, GELU, biases everywhere, a tied head (transformers, models/gpt2).

Its matrices are stored with inputs first (``Conv1D``).
"""

from __future__ import annotations

from simulator.errors import ScenarioError
from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.layout import Layout, matrix, scale

LAYOUT = Layout(
    embeddings=(
        matrix("embedding", "transformer.wte", "vocab", "hidden"),
        matrix("embedding", "transformer.wpe", "positions", "hidden"),
    ),
    blocks="transformer.h",
    block=(
        scale("attn_norm", "ln_1", shift=True),
        matrix("qkv", "attn.c_attn", "qkv", "hidden", "always", inputs_first=True),
        matrix("out", "attn.c_proj", "hidden", "query", "always", inputs_first=True),
        scale("mlp_norm", "ln_2", shift=True),
        matrix("up", "mlp.c_fc", "mlp", "hidden", "always", inputs_first=True),
        matrix("down", "mlp.c_proj", "hidden", "mlp", "always", inputs_first=True),
    ),
    final_norm=scale("norm", "transformer.ln_f", shift=True),
    rms=False,
    gated=False,
    rotary=False,
    fp32_softmax=False,
)


def _read(config: Config) -> Architecture:
    hidden = config.integer("n_embd", "hidden_size")
    heads = config.integer("n_head", "num_attention_heads")
    if hidden % heads:
        raise ScenarioError(f"{config.where}: n_embd = {hidden} is not a multiple of n_head = {heads}")
    return Architecture(
        name=config.name,
        layout=LAYOUT,
        num_layers=config.integer("n_layer", "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        intermediate_size=config.integer("n_inner", "intermediate_size", default=4 * hidden),
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("n_positions", "n_ctx", "max_position_embeddings"),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        dropout=any(config.positive_rate(key, 0.1) for key in ("resid_pdrop", "attn_pdrop")),
    )


READERS = {"gpt2": _read}
