"""A model given by measured layer times: the lab's sleeping layers, or what a user's profiler printed."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.training.operations import Exchange, Operation, ParameterTensor, TrainingModel, num_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """One layer, or ``repeat`` equal ones: tensor sizes (elements), seconds forward and backward, bytes kept.

    output_bytes: what a pipeline sends on after it. exchanges: what it sends inside a replica.
    """

    name: str
    params: tuple[int, ...]
    forward_s: float
    backward_s: float
    activation_bytes: float = 0.0
    output_bytes: float = 0.0
    exchanges: tuple[Exchange, ...] = ()
    repeat: int = 1


def measured_model(layers: tuple[MeasuredLayer, ...], *, name: str, seq_len: int, micro_batch: int) -> TrainingModel:
    """The layers in the order given, repeats expanded as ``name.0``, ``name.1``, ...; times are for one micro-batch."""
    operations = tuple(
        _operation(layer, layer.name if layer.repeat == 1 else f"{layer.name}.{index}")
        for layer in layers
        for index in range(layer.repeat)
    )
    parameters = tuple(tensor for operation in operations for tensor in operation.parameters)
    return TrainingModel(
        name=name,
        operations=operations,
        parameters=parameters,
        num_parameters=num_elements(parameters),
        num_layers=len(operations),
        seq_len=seq_len,
        micro_batch=micro_batch,
    )


def _operation(layer: MeasuredLayer, name: str) -> Operation:
    if len(layer.params) == 1:
        tensors: tuple[ParameterTensor, ...] = (ParameterTensor(name=f"{name}.weight", numel=layer.params[0]),)
    else:
        tensors = tuple(ParameterTensor(name=f"{name}.{i}", numel=numel) for i, numel in enumerate(layer.params))
    return Operation(
        name=name,
        layer=name,
        kind="measured",
        parameters=tuple(tensor for tensor in tensors if tensor.numel),
        forward_s=layer.forward_s,
        backward_s=layer.backward_s,
        saved_bytes=layer.activation_bytes,
        output_bytes=layer.output_bytes,
        exchanges=layer.exchanges,
    )
