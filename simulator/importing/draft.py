"""What an import reads and makes, as frozen values: extra settings from the command line, entries, ignored options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What the command line says besides the file; it wins over the file. None: not said.

    ``gpus`` counts all of them. ``inline`` writes a model's sizes instead of the path of its config.json;
    ``drop_model_parallel`` leaves tensor, pipeline, context and expert parallelism out.
    """

    model: str | None = None
    topology: str | None = None
    nodes: int | None = None
    gpus: int | None = None
    seq_len: int | None = None
    micro_batch: int | None = None
    grad_accumulation: int | None = None
    inline: bool = False
    drop_model_parallel: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the scenario: ``place`` is its key (``train.micro_batch``), ``comment`` where the value came from."""

    place: str
    value: Any
    comment: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """An option of the file that the scenario does not hold, and why."""

    option: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A scenario to be written. ``warnings``: what the file asks for and the scenario does otherwise."""

    title: str
    entries: tuple[Entry, ...]
    ignored: tuple[Ignored, ...]
    warnings: tuple[str, ...]

    def value(self, place: str) -> Any:
        """The value of one key, None when it is not written."""
        return next((entry.value for entry in self.entries if entry.place == place), None)
