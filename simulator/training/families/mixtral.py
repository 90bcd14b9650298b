"""Mixtral: Mistral with eight experts in each layer, two for each token (arXiv:2401.04088)."""

from __future__ import annotations

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families.experts import ROUTER, STACKS, experts_of
from simulator.training.families.llama import NORMS, QKVO, decoder, shape
from simulator.training.families.windows import windows_of

LAYOUT = decoder(QKVO, ROUTER, STACKS, NORMS)


def _read(config: Config) -> Architecture:
    """``intermediate_size`` is that of an expert; no layer is dense."""
    experts = experts_of(config, config.integer("intermediate_size"))
    return shape(config, LAYOUT, intermediate_size=0, experts=experts, windows=windows_of(config, every=1))


READERS = {"mixtral": _read}
