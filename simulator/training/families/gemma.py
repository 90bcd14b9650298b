"""Gemma 1, 2 and 3: wide heads, a tied table of 256,000 tokens, GeGLU; from Gemma 2 norms before and after each part.

Gemma 2 alternates windows and full attention and caps its logits, Gemma 3 has five windows to one full layer and norms
of q and k; of the larger Gemma 3, which see images, only the language model is read. Sources: arXiv:2403.08295,
2408.00118, 2503.19786; transformers, models/{gemma,gemma2,gemma3}, whose defaults these are.
"""

from __future__ import annotations

from typing import Any

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families.llama import GATED_MLP, NORMS, QK_NORM, QKVO, decoder, shape
from simulator.training.families.windows import windows_of
from simulator.training.layout import Layout, scale

FOUR_NORMS = (
    scale("attn_norm", "input_layernorm"),
    scale("attn_post_norm", "post_attention_layernorm"),
    scale("mlp_norm", "pre_feedforward_layernorm"),
    scale("mlp_post_norm", "post_feedforward_layernorm"),
)
FIRST = decoder(QKVO, GATED_MLP, NORMS, wide_norm=True)
LATER = decoder(QKVO, QK_NORM, GATED_MLP, FOUR_NORMS, wide_norm=True)

TEXT_OF_GEMMA3 = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208, "hidden_size": 2304,
    "intermediate_size": 9216, "num_hidden_layers": 26, "sliding_window": 4096,
}  # fmt: skip
"""Defaults of ``Gemma3TextConfig``: the files of 4B and above leave out what equals them."""


def _shape(config: Config, layout: Layout, **traits: Any) -> Architecture:
    tied = config.flag("tie_word_embeddings", True)
    return shape(
        config, layout, tie_word_embeddings=tied, head_dim=config.integer("head_dim", default=256), **traits
    )  # fmt: skip


def _gemma(config: Config) -> Architecture:
    return _shape(config, FIRST)


def _gemma2(config: Config) -> Architecture:
    capped = config.values.get("final_logit_softcapping", 30.0) is not None
    return _shape(config, LATER, logit_softcap=capped, windows=windows_of(config, every=2, default=4096))


def _gemma3(config: Config) -> Architecture:
    text = config.inside("text_config", TEXT_OF_GEMMA3) if config.is_set("text_config") else config
    pattern = text.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _shape(text, LATER, qk_norm=True, windows=windows_of(text, every=pattern, default=4096))


READERS = {"gemma": _gemma, "gemma2": _gemma2, "gemma3": _gemma3, "gemma3_text": _gemma3}
