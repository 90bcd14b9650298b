"""Families of models: how each reads its ``config.json`` and how it calls its modules.

To add one, write a module here with a layout and ``READERS``, and name it below; every ``model_type`` in ``READERS``
is then accepted, and a test file in tests/data/hf_configs makes the tests cover it.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.training.architecture import Architecture
from simulator.training.config_values import Config
from simulator.training.families import (
    bloom,
    deepseek,
    falcon,
    gemma,
    gpt2,
    gpt_oss,
    llama,
    mixtral,
    neox,
    olmo,
    opt,
    phi,
    qwen_moe,
)

Reader = Callable[[Config], Architecture]

_WITH_EXPERTS: dict[str, Reader] = {
    **mixtral.READERS,
    **qwen_moe.READERS,
    **deepseek.READERS,
    **gpt_oss.READERS,
    **olmo.MIXTURES,
}
#: Types whose layers have experts.
MIXTURES = tuple(_WITH_EXPERTS)

#: ``model_type`` -> what reads it; the most used come first, as errors list them.
READERS: dict[str, Reader] = {
    **llama.READERS,
    **_WITH_EXPERTS,
    **gemma.READERS,
    **phi.READERS,
    **olmo.READERS,
    **gpt2.READERS,
    **neox.READERS,
    **opt.READERS,
    **falcon.READERS,
    **bloom.READERS,
}
