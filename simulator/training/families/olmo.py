"""OLMo 2 and 3 norm what attention and MLP return, not what they read, and norm q and k over all heads; OLMoE has 64
experts behind Llama's norms.

Sources: arXiv:2501.00656 (OLMo 2), 2409.02060 (OLMoE); transformers, models/{olmo2,olmo3,olmoe}.
"""

from __future__ import annotations

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families.experts import ROUTER, STACKS, experts_of
from simulator.training.families.llama import GATED_MLP, NORMS, QKVO, decoder, shape
from simulator.training.families.windows import windows_of
from simulator.training.layout import scale

WIDE_QK_NORM = (
    scale("qk_norm", "self_attn.q_norm", "query"),
    scale("qk_norm", "self_attn.k_norm", "key_value"),
)  # fmt: skip
NORMS_AFTER = (
    scale("attn_post_norm", "post_attention_layernorm"),
    scale("mlp_post_norm", "post_feedforward_layernorm"),
)
OLMO2 = decoder(QKVO, WIDE_QK_NORM, GATED_MLP, NORMS_AFTER, wide_norm=True)
OLMOE = decoder(QKVO, WIDE_QK_NORM, ROUTER, STACKS, NORMS)


def _olmo2(config: Config) -> Architecture:
    return shape(config, OLMO2, qk_norm=True)


def _olmo3(config: Config) -> Architecture:
    return shape(config, OLMO2, qk_norm=True, windows=windows_of(config, every=4, default=4096))


def _olmoe(config: Config) -> Architecture:
    """``intermediate_size`` is that of an expert."""
    experts = experts_of(config, config.integer("intermediate_size"))
    return shape(config, OLMOE, intermediate_size=0, experts=experts, qk_norm=True)


READERS = {"olmo2": _olmo2, "olmo3": _olmo3}
MIXTURES = {"olmoe": _olmoe}
