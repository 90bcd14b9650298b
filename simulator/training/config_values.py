"""Values of a Hugging Face configuration, each checked; an error names the file, the key and what is accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.errors import ScenarioError
from simulator.model_spec import MAX_LAYERS

#: As for models written in a scenario: above it (or above MAX_LAYERS) a typing error is likelier than a model.
MAX_SIZE = 100_000_000


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of a configuration. ``where`` names its origin in errors."""

    values: Mapping[str, Any]
    where: str

    @property
    def model_type(self) -> str:
        return str(self.values.get("model_type"))

    @property
    def name(self) -> str:
        """What the file calls its model; the type of the model where it does not."""
        return str(self.values.get("name") or self.values.get("_name_or_path") or self.model_type)

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of ``keys`` that is set; ``default`` when none is. Raises ScenarioError for anything else."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                kind = "a positive integer" if least else "an integer of at least 0"
                raise ScenarioError(f"{self.where}: {key} = {value!r}: expected {kind}")
            most = MAX_LAYERS if "layer" in key else MAX_SIZE
            if value > most:
                raise ScenarioError(f"{self.where}: {key} = {value}: at most {most:,} is accepted")
            return value
        if default is None:
            raise ScenarioError(
                f"{self.where}: key '{keys[0]}' is missing; model_type '{self.model_type}' needs it"
            )  # fmt: skip
        return default

    def flag(self, key: str, default: bool) -> bool:
        """True or false; ``default`` when it is not set or null."""
        value = self.values.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ScenarioError(f"{self.where}: {key} = {value!r}: expected true or false")
        return value

    def is_set(self, key: str) -> bool:
        """Whether a key holds anything but null."""
        return self.values.get(key) is not None

    def positive_rate(self, key: str, default: float) -> bool:
        """Whether a rate such as that of a dropout is above 0."""
        value = self.values.get(key, default)
        return isinstance(value, int | float) and value > 0

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers of at least 0; empty when it is not set."""
        value = self.values.get(key)
        if value is None:
            return ()
        whole = isinstance(value, Sequence) and all(isinstance(item, int) and item >= 0 for item in value)
        if not whole or isinstance(value, str):
            raise ScenarioError(f"{self.where}: {key} = {value!r}: expected a list of integers of at least 0")
        return tuple(value)

    def inside(self, key: str, defaults: Mapping[str, Any]) -> Config:
        """What ``key`` holds, if anything, before the keys around it, before ``defaults``."""
        inner = self.values.get(key)
        layers = [inner] if isinstance(inner, Mapping) else []
        return Config(_Layers((*layers, self.values, defaults)), self.where)


class _Layers(Mapping[str, Any]):
    """Looks a key up in one mapping after another; asks no more of them than it has to."""

    def __init__(self, layers: tuple[Mapping[str, Any], ...]) -> None:
        self._layers = layers

    def __getitem__(self, key: str) -> Any:
        for layer in self._layers:
            if key in layer:
                return layer[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for layer in self._layers for key in layer))

    def __len__(self) -> int:
        return len(list(iter(self)))
