# mypy: disable-error-code="import-not-found,misc"
"""A torch model from plain data: real parameters, layers whose forward and backward sleep for a stated time.

A sleeping layer stands for an accelerator: it takes no processor, so communication proceeds beside it as it does beside
kernels on a GPU, even on two cores. Needs torch (extra ``real``); nothing imports this module unless it runs.

Model data: ``{"layers": [{"name", "params": [numel | [shape], ...], "forward_s", "backward_s"}, ...]}``. A layer may
also have ``"buffers": [{"shape": numel | [shape], "dtype": "float32"}, ...]``, ``"saved": numel`` (an activation of so
many elements kept from forward to backward), ``"exchanges"`` (what it sends to ranks that share the model, see
``real_exchanges``), ``"output"`` (bytes that a pipeline sends on after it, see ``real_pipeline``) and ``"unused":
true`` (its parameters take no part, as an expert or a head that a batch does not reach). ``"dtype"`` is that of the
parameters, by default float32.

Order in which a layer's gradients become ready, in its backward after its sleep: last registered tensor first. That is
what torch's own modules do: of nn.Linear (weight, bias) the bias comes first, then the weight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import nn

from simulator.lab.real_exchanges import Exchanges

#: (layer, 'forward' or 'backward', start, end) in seconds of ``time.perf_counter``.
Span = tuple[str, str, float, float]
LAYER_KEYS = {"name", "params", "forward_s", "backward_s", "buffers", "saved", "unused", "exchanges", "output"}


class _Touch(torch.autograd.Function):
    """Lets one parameter take part: the output is the input, the gradient of the parameter is ``value`` everywhere."""

    @staticmethod
    def forward(ctx: Any, x: Any, parameter: Any, value: Callable[[], float]) -> Any:
        ctx.like, ctx.value = (parameter.shape, parameter.dtype), value
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        shape, dtype = ctx.like
        return gradient, torch.full(shape, ctx.value(), dtype=dtype), None


class _Sleep(torch.autograd.Function):
    """Sleeps in forward and, before the gradients of the layer's parameters, in backward. Keeps ``saved`` between."""

    @staticmethod
    def forward(ctx: Any, x: Any, layer: Any) -> Any:
        ctx.layer = layer
        if layer.saved:
            ctx.save_for_backward(torch.empty(layer.saved, dtype=x.dtype))
        layer.sleep("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        layer, _ = ctx.layer, ctx.saved_tensors
        layer.sleep("backward")
        return gradient, None


class Layer(nn.Module):
    """One layer. ``spans`` is where it writes when it ran; ``value`` gives its gradients' value."""

    def __init__(
        self, told: dict[str, Any], dtype: Any, spans: list[Span], value: Callable[[], float],
        groups: Mapping[str, Any],
    ) -> None:  # fmt: skip
        super().__init__()
        self.exchanges = Exchanges(told.get("exchanges") or (), groups)
        self.label, self.spans, self.value = str(told["name"]), spans, value
        self.forward_s, self.backward_s = float(told.get("forward_s", 0)), float(told.get("backward_s", 0))
        self.saved, self.unused = int(told.get("saved", 0)), bool(told.get("unused", False))
        self.names = [f"p{number}" for number, _ in enumerate(told.get("params", []))]
        for name, shape in zip(self.names, told.get("params", []), strict=True):
            self.register_parameter(name, nn.Parameter(torch.zeros(_shape(shape), dtype=dtype)))
        for number, buffer in enumerate(told.get("buffers", [])):
            held = torch.zeros(_shape(buffer["shape"]), dtype=getattr(torch, buffer.get("dtype", "float32")))
            self.register_buffer(f"b{number}", held)

    def forward(self, x: Any) -> Any:
        """Sleep, then pass ``x`` on. Backward sleeps first, then gives the gradients from the last tensor to the first.

        The parameters are looked up by name each time: FSDP puts others in their place.
        """
        if not self.unused:
            for name in self.names:
                x = _Touch.apply(x, getattr(self, name), self.value)
        return _Sleep.apply(x, self)

    def sleep(self, which: str) -> None:
        """Take no processor for as long as the pass takes, note when that was, and send what stands around it."""
        self.exchanges.before(which)
        start = time.perf_counter()
        if which == "forward":
            self.exchanges.asleep("beside forward", self.forward_s)
        elif self.names and self.exchanges.in_halves:
            self.exchanges.asleep("beside input", self.backward_s / 2)
            self.exchanges.asleep("beside weights", self.backward_s / 2)
        else:
            self.exchanges.asleep("beside input", self.backward_s)
        self.spans.append((self.label, which, start, time.perf_counter()))
        self.exchanges.after(which)


class Unit(nn.Module):
    """Consecutive layers that a strategy wraps together."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        """Layer after layer."""
        for layer in self.layers:
            x = layer(x)
        return x


class SleepingModel(Unit):
    """The whole model: units of layers, and between them the layers that belong to no unit (the root's own)."""

    def __init__(self, parts: Sequence[nn.Module], spans: list[Span], dtype: Any) -> None:
        super().__init__(parts)
        self.spans, self.dtype = spans, dtype

    @property
    def units(self) -> list[Unit]:
        """The wrapped units in forward order."""
        return [part for part in self.layers if isinstance(part, Unit)]

    def loss(self, run: Callable[[Any], Any]) -> Any:
        """The scalar that ``run``, this model or what wraps it, gives for a batch that needs no gradient itself."""
        return run(torch.zeros(1, dtype=self.dtype)).sum()


def _shape(told: int | Sequence[int]) -> tuple[int, ...]:
    return (told,) if isinstance(told, int) else tuple(told)


def unit_slices(layers: int, units: Sequence[Sequence[int]] | int | None) -> list[tuple[int, int]]:
    """(first, after last) of each unit. ``units``: layers per unit, or lists of consecutive layers; None: no unit.

    With a number every layer is in a unit, the last one perhaps shorter; with lists the rest is the root's. Raises
    ValueError for units that overlap, are out of order or have gaps.
    """
    if units is None:
        return []
    if isinstance(units, int):
        return [(first, min(first + units, layers)) for first in range(0, layers, units)]
    found = [(unit[0], unit[-1] + 1) for unit in units]
    gaps = any(list(unit) != list(range(*ends)) for unit, ends in zip(units, found, strict=True))
    if gaps or any(after > first for (_, after), (first, _) in pairwise(found)):
        raise ValueError(f"units {units}: expected lists of consecutive layers in order, or layers per unit")
    return found


def build_model(
    told: dict[str, Any], units: Sequence[Sequence[int]] | int | None, speed: float, value: Callable[[], float],
    groups: Mapping[str, Any] | None = None,
) -> SleepingModel:  # fmt: skip
    """The model that ``told`` describes (see the module), for one rank. All parameters are zero.

    units: what a strategy wraps together, see ``unit_slices``. speed: stated times are multiplied by it, for a rank
    that is slower or faster than others. value: what this rank's gradients are, everywhere. groups: axis -> this
    rank's group, of those that exchanges name. Raises ValueError for a key that a layer does not know.
    """
    spans: list[Span] = []
    dtype = getattr(torch, told.get("dtype", "float32"))
    layers: list[nn.Module] = []
    for layer in told["layers"]:
        unknown = set(layer) - LAYER_KEYS
        if unknown:
            raise ValueError(f"layer {layer.get('name')}: {sorted(unknown)}: expected {sorted(LAYER_KEYS)}")
        times = {key: speed * float(layer.get(key, 0)) for key in ("forward_s", "backward_s")}
        layers.append(Layer({**layer, **times}, dtype, spans, value, groups or {}))
    parts, done = [], 0
    for first, after in unit_slices(len(layers), units):
        parts += [*layers[done:first], Unit(layers[first:after])]
        done = after
    return SleepingModel([*parts, *layers[done:]], spans, dtype)


def numel(told: dict[str, Any]) -> int:
    """Elements of all parameters of the model that ``told`` describes."""
    return sum(prod(_shape(shape)) for layer in told["layers"] for shape in layer.get("params", []))
