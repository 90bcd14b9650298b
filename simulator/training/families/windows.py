"""Sliding windows: which layers' queries see only the last keys, as configurations spell it."""

from __future__ import annotations

from simulator.errors import ScenarioError
from simulator.training.config_values import Config

SLIDING, FULL = "sliding_attention", "full_attention"


def windows_of(config: Config, *, every: int, first: int = 0, default: int | None = None) -> tuple[int, ...]:
    """The window of each layer, 0 for none; empty when no layer has one.

    ``layer_types`` names each layer's kind where it is given. Otherwise, from layer ``first`` on, of each ``every``
    layers all but the last have the window (with ``every`` = 1 all). default: the window when ``sliding_window`` is not
    in the file; a null there means none.
    """
    known = "sliding_window" in config.values or default is None
    if known and not config.is_set("sliding_window"):
        return ()
    window = config.integer("sliding_window", default=default)
    layers = config.integer("num_hidden_layers")
    kinds = config.values.get("layer_types")
    if kinds is not None:
        return _told(config, kinds, layers, window)

    def sliding(layer: int) -> bool:
        return layer >= first and (every == 1 or (layer + 1) % every != 0)

    return tuple(window if sliding(layer) else 0 for layer in range(layers))


def _told(config: Config, kinds: object, layers: int, window: int) -> tuple[int, ...]:
    """Raises ScenarioError for kinds that are not plain attention, and for too few of them."""
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ScenarioError(f"{config.where}: layer_types: expected a list of {layers} kinds, one for each layer")
    for kind in kinds:
        if kind not in (SLIDING, FULL):
            raise ScenarioError(
                f"{config.where}: layer_types: {kind!r} is not modelled; accepted are '{FULL}' and '{SLIDING}'"
            )
    return tuple(window if kind == SLIDING else 0 for kind in kinds)
