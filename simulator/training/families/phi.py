"""Phi-3 and Phi-4: Llama's block with q, k and v, and gate and up, each in one matrix (arXiv:2404.14219).

transformers, models/phi3.
"""

from __future__ import annotations

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families.llama import NORMS, decoder, shape
from simulator.training.families.windows import windows_of
from simulator.training.layout import matrix

LAYOUT = decoder(
    (
        matrix("out", "self_attn.o_proj", "hidden", "query"),
        matrix("qkv", "self_attn.qkv_proj", "qkv", "hidden"),
        matrix("up", "mlp.gate_up_proj", "gate_up", "hidden"),
        matrix("down", "mlp.down_proj", "hidden", "mlp"),
    ),
    NORMS,
)


def _phi3(config: Config) -> Architecture:
    return shape(config, LAYOUT, qkv_bias=False, output_bias=False, windows=windows_of(config, every=1))


READERS = {"phi3": _phi3}
