"""Mixtures of experts as configurations spell them."""

from __future__ import annotations

from simulator.errors import ScenarioError
from simulator.training.architecture import Experts
from simulator.training.config_values import Config
from simulator.training.layout import matrix, stack

COUNT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
"""The three spellings of the number of routed experts (Mixtral, Qwen and OLMoE, DeepSeek and GLM)."""
CHOSEN_KEYS = ("num_experts_per_tok", "experts_per_token", "moe_topk", "num_experts_per_token")

ROUTER = (matrix("router", "mlp.gate", "routed", "hidden"),)
STACKS = (
    stack("experts_up", "mlp.experts.gate_up_proj", "expert_gate_up", "hidden"),
    stack("experts_down", "mlp.experts.down_proj", "hidden", "expert"),
)


def expert_count(config: Config) -> int:
    """How many routed experts a layer has, by any of the spellings."""
    return config.integer(*COUNT_KEYS)


def experts_of(
    config: Config, width: int, *, dense: frozenset[int] = frozenset(), shared_size: int = 0, shared_gate: bool = False
) -> Experts:  # fmt: skip
    """Routed experts of the given width. Raises ScenarioError when more are chosen than there are."""
    count, top_k = expert_count(config), config.integer(*CHOSEN_KEYS)
    if top_k > count:
        key = next(key for key in CHOSEN_KEYS if config.is_set(key))
        told = next(key for key in COUNT_KEYS if config.is_set(key))
        raise ScenarioError(f"{config.where}: {key} = {top_k} is more than {told} = {count}")
    return Experts(
        count=count, top_k=top_k, intermediate_size=width, shared_size=shared_size, shared_gate=shared_gate,
        dense_layers=dense,
    )  # fmt: skip


def first_layers(config: Config) -> frozenset[int]:
    """Dense layers by ``first_k_dense_replace`` and ``moe_layer_freq`` (every so many layers, or 0 and 1 for each)."""
    layers, dense = config.integer("num_hidden_layers"), config.integer("first_k_dense_replace", default=0, least=0)
    if isinstance(config.values.get("moe_layer_freq"), list):
        marks = config.integers("moe_layer_freq")
        if len(marks) != layers:
            raise ScenarioError(f"{config.where}: moe_layer_freq: expected {layers} numbers, one for each layer")
        return frozenset(layer for layer, mark in enumerate(marks) if not mark)
    step = config.integer("moe_layer_freq", default=1)
    return frozenset(layer for layer in range(layers) if layer < dense or layer % step)


def stepped_layers(config: Config) -> frozenset[int]:
    """Dense layers by ``decoder_sparse_step`` (every so many layers has experts) and ``mlp_only_layers``."""
    layers, step = config.integer("num_hidden_layers"), config.integer("decoder_sparse_step", default=1)
    named = frozenset(config.integers("mlp_only_layers"))
    return frozenset(layer for layer in range(layers) if layer in named or (layer + 1) % step)


def dense_width(config: Config, dense: frozenset[int]) -> int:
    """Width of the MLP of dense layers; 0 where all layers have experts, whatever the file says."""
    return config.integer("intermediate_size") if dense else 0
