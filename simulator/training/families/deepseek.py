"""DeepSeek V2 and V3 (and Kimi K2): latent attention, fine-grained experts, shared experts; GLM 4.5 without latents.

Sources: arXiv:2405.04434 (V2), 2412.19437 (V3), 2508.06471 (GLM 4.5); transformers,
models/{deepseek_v2,deepseek_v3,glm4_moe}. Kimi K2's file names DeepSeek's classes.
"""

from __future__ import annotations

from simulator.training.architecture import Architecture, Experts, Latent
from simulator.training.config_values import Config
from simulator.training.families.experts import (
    ROUTER,
    STACKS,
    dense_width,
    experts_of,
    first_layers,
)
from simulator.training.families.llama import GATED_MLP, NORMS, QK_NORM, QKVO, decoder, shape
from simulator.training.layout import matrix, scale

LATENT = (
    matrix("latent", "self_attn.q_proj", "query_direct", "hidden"),
    matrix("latent", "self_attn.q_a_proj", "query_rank", "hidden", "qkv_bias"),
    scale("latent_norm", "self_attn.q_a_layernorm", "query_rank"),
    matrix("qkv", "self_attn.q_b_proj", "query_of_rank", "query_rank"),
    matrix("latent", "self_attn.kv_a_proj_with_mqa", "kv_rank_rope", "hidden", "qkv_bias"),
    scale("latent_norm", "self_attn.kv_a_layernorm", "kv_rank"),
    matrix("qkv", "self_attn.kv_b_proj", "kv_up", "kv_rank"),
    matrix("out", "self_attn.o_proj", "hidden", "attended", "output_bias"),
)
SHARED = (
    matrix("shared_up", "mlp.shared_experts.gate_proj", "shared", "hidden"),
    matrix("shared_up", "mlp.shared_experts.up_proj", "shared", "hidden"),
    matrix("shared_down", "mlp.shared_experts.down_proj", "hidden", "shared"),
)
_MLP = (GATED_MLP, STACKS, ROUTER, SHARED)
DEEPSEEK = decoder(LATENT, *_MLP, NORMS, wide_router=True)
GLM = decoder(QKVO, QK_NORM, *_MLP, NORMS, wide_router=True)


def _deepseek(config: Config) -> Architecture:
    """Heads of q and k are a part without positions beside one with; a null ``q_lora_rank``: queries without latent."""
    nope, rope = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    rank = config.integer("q_lora_rank") if config.is_set("q_lora_rank") else 0
    latent = Latent(query_rank=rank, kv_rank=config.integer("kv_lora_rank"), rope_dim=rope)
    heads, dense = config.integer("num_attention_heads"), first_layers(config)
    return shape(
        config, DEEPSEEK, latent=latent, num_kv_heads=heads, head_dim=nope + rope,
        v_head_dim=config.integer("v_head_dim"), intermediate_size=dense_width(config, dense),
        experts=_experts(config, dense),
    )  # fmt: skip


def _glm(config: Config) -> Architecture:
    """Biases of q, k and v alone, as Qwen 2 has."""
    dense = first_layers(config)
    return shape(
        config, GLM, output_bias=False, qk_norm=config.flag("use_qk_norm", False),
        intermediate_size=dense_width(config, dense), experts=_experts(config, dense),
    )  # fmt: skip


def _experts(config: Config, dense: frozenset[int]) -> Experts:
    """Shared experts are one MLP of their widths together."""
    width, shared = config.integer("moe_intermediate_size"), config.integer("n_shared_experts", default=0, least=0)
    return experts_of(config, width, dense=dense, shared_size=shared * width)


READERS = {"deepseek_v3": _deepseek, "deepseek_v2": _deepseek, "kimi_k2": _deepseek, "glm4_moe": _glm}
