"""Qwen's mixtures of experts: Qwen 1.5 and 2 with shared experts behind a gate, Qwen 3 without.

Sources: arXiv:2407.10671 (Qwen 2), 2505.09388 (Qwen 3); transformers, models/{qwen2_moe,qwen3_moe}.
"""

from __future__ import annotations

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families.experts import ROUTER, STACKS, dense_width, experts_of, stepped_layers
from simulator.training.families.llama import GATED_MLP, NORMS, QK_NORM, QKVO, decoder, qwen_windows, shape
from simulator.training.layout import matrix

SHARED = (
    matrix("shared_up", "mlp.shared_expert.gate_proj", "shared", "hidden"),
    matrix("shared_up", "mlp.shared_expert.up_proj", "shared", "hidden"),
    matrix("shared_down", "mlp.shared_expert.down_proj", "hidden", "shared"),
    matrix("shared_gate", "mlp.shared_expert_gate", "shared_gate", "hidden"),
)
QWEN2 = decoder(QKVO, GATED_MLP, ROUTER, STACKS, SHARED, NORMS)
QWEN3 = decoder(QKVO, QK_NORM, GATED_MLP, STACKS, ROUTER, NORMS)


def _qwen2(config: Config) -> Architecture:
    dense = stepped_layers(config)
    experts = experts_of(
        config, config.integer("moe_intermediate_size"), dense=dense, shared_gate=True,
        shared_size=config.integer("shared_expert_intermediate_size"),
    )  # fmt: skip
    return shape(
        config, QWEN2, intermediate_size=dense_width(config, dense), experts=experts,
        qkv_bias=config.flag("qkv_bias", True), output_bias=False, windows=qwen_windows(config),
    )  # fmt: skip


def _qwen3(config: Config) -> Architecture:
    dense = stepped_layers(config)
    experts = experts_of(config, config.integer("moe_intermediate_size"), dense=dense)
    return shape(
        config, QWEN3, intermediate_size=dense_width(config, dense), experts=experts, qk_norm=True,
        windows=qwen_windows(config),
    )  # fmt: skip


READERS = {"qwen2_moe": _qwen2, "qwen3_moe": _qwen3}
