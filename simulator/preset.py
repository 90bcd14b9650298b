"""The input noun of a shipped model: a Hugging Face configuration, or the name of a network built in code."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from simulator.fields import Frozen

Builder = Literal["lecture-mlp", "resnet-18"]


class PresetSpec(Frozen):
    """One file of ``presets/``: either ``config`` (keys of a ``config.json``) or ``builder``.

    ``parameters`` is the published number of trainable parameters, checked by a test against what we build.
    """

    name: str
    title: str
    parameters: int = Field(gt=0)
    source: str = Field(min_length=1)
    config: dict[str, Any] | None = None
    builder: Builder | None = None

    @model_validator(mode="after")
    def _one_form(self) -> PresetSpec:
        if (self.config is None) == (self.builder is None):
            raise ValueError("a preset holds either 'config' or 'builder'")
        return self
