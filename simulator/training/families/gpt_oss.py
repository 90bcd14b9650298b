"""gpt-oss: experts with biases, every second layer with a window of 128, a learned sink beside each head's scores.

Sources: arXiv:2508.10925; transformers, models/gpt_oss.
"""

from __future__ import annotations

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families.experts import experts_of
from simulator.training.families.llama import NORMS, QKVO, decoder, shape
from simulator.training.families.windows import windows_of
from simulator.training.layout import Row, matrix, stack

LAYOUT = decoder(
    (Row(part="sinks", module="self_attn.sinks", sizes=("heads",), suffix=""),),
    QKVO,
    (
        matrix("router", "mlp.router", "routed", "hidden", "always"),
        stack("experts_up", "mlp.experts.gate_up_proj", "expert_gate_up", "hidden", "always", inputs_first=True),
        stack("experts_down", "mlp.experts.down_proj", "hidden", "expert", "always", inputs_first=True),
    ),
    NORMS,
    wide_norm=True,
)


def _read(config: Config) -> Architecture:
    """``intermediate_size`` is that of an expert; ``attention_bias`` is true unless the file says otherwise."""
    bias = config.flag("attention_bias", True)
    return shape(
        config, LAYOUT, intermediate_size=0, experts=experts_of(config, config.integer("intermediate_size")),
        head_dim=config.integer("head_dim", default=64), qkv_bias=bias, output_bias=bias,
        windows=windows_of(config, every=2, default=128),
    )  # fmt: skip


READERS = {"gpt_oss": _read}
