"""Two small networks that are not transformers: the lecture notes' MLP and ResNet-18.

Both are lists of layers with exact parameter tensors; a sample stands where a token stands elsewhere. Attention, fused
kernels and recomputation do not apply to them.
"""

from __future__ import annotations

from simulator.training.architecture import bias_first, linear, norm
from simulator.training.operations import BufferTensor, Operation, ParameterTensor, TrainingModel, num_elements
from simulator.training.precision import Precision

RESNET_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and stride of the four stages of two basic blocks (He et al. 2015, arXiv:1512.03385, table 1, 18-layer)."""

RESNET_CLASSES = 1000
IMAGE_SIZE = 224


def lecture_mlp(
    *, micro_batch: int, precision: Precision, layers: int = 8, width: int = 1024, outputs: int = 10
) -> TrainingModel:
    """``layers`` x (Linear(width) + LayerNorm(width)), then a linear head: 34 tensors, 8.4 M parameters.

    The notes print both counts but not the head. Eight blocks of four tensors (two weights, two biases) are 32; we take
    the other two as a linear head with a bias, and its ten outputs are our choice: with 8 x 1,051,648 = 8,413,184 in
    the blocks, any head of up to 35 outputs still reads 8.4 M.
    """
    operations: list[Operation] = []
    for index in range(layers):
        operations.append(_linear(f"layers.{index}.linear", width, width, micro_batch, precision))
        operations.append(_layer_norm(f"layers.{index}.norm", width, micro_batch, precision))
    operations.append(_linear("head", outputs, width, micro_batch, precision))
    return _model(f"cs-mlp-{layers}x{width}", operations, micro_batch, num_layers=layers, hidden=width)


def _model(
    name: str, operations: list[Operation], micro_batch: int, *, num_layers: int, hidden: int,
    buffers: tuple[BufferTensor, ...] = (),
) -> TrainingModel:  # fmt: skip
    parameters = tuple(tensor for operation in operations for tensor in _registered(operation))
    return TrainingModel(
        name=name, operations=tuple(operations), parameters=parameters, num_parameters=num_elements(parameters),
        num_layers=num_layers, hidden_size=hidden, micro_batch=micro_batch, buffers=buffers,
    )  # fmt: skip


def _registered(operation: Operation) -> tuple[ParameterTensor, ...]:
    """The one layer's tensors as PyTorch registers them, weight before bias."""
    return tuple(sorted(operation.parameters, key=lambda tensor: tensor.name.endswith(".bias")))


def _linear(name: str, outputs: int, inputs: int, rows: int, precision: Precision) -> Operation:
    e, flop = precision.compute_bytes, 2.0 * rows * outputs * inputs
    traffic = float(e * (rows * inputs + outputs * inputs + rows * outputs))
    tensors = linear(name, outputs, inputs, bias=True)
    return Operation(
        name=name, layer=name, kind="gemm",
        parameters=bias_first(tensors) if precision.cached_weight_bytes else tensors,
        forward_flop=flop, backward_flop=2 * flop, gemm=((rows, outputs, inputs),),
        forward_bytes=traffic, backward_bytes=2 * traffic, backward_kernels=3, saved_bytes=float(e * rows * inputs),
    )  # fmt: skip


def _layer_norm(name: str, size: int, rows: int, precision: Precision) -> Operation:
    unit = float(rows * size * precision.compute_bytes)
    return Operation(
        name=name, layer=name, kind="elementwise",
        parameters=bias_first(norm(name, size, bias=True)),
        forward_bytes=2 * unit, backward_bytes=3 * unit, saved_bytes=unit,
    )  # fmt: skip


def resnet18(*, micro_batch: int, precision: Precision) -> TrainingModel:
    """ResNet-18 on 224 x 224 images: 62 tensors in registration order, 11,689,512 parameters, 1.81 GMAC per image.

    A convolution is priced as the matrix product it is: rows are output pixels, the inner size is channels x kernel.
    Batch norm and ReLU are one operation; its buffers (mean, variance, counter) are what DDP broadcasts.
    """
    operations = _convolution("conv1", "bn1", 3, 64, 7, 2, IMAGE_SIZE // 2, micro_batch, precision)
    size, channels = IMAGE_SIZE // 4, 64
    for stage, (width, stride) in enumerate(RESNET_STAGES, start=1):
        size //= stride
        for block in range(2):
            prefix = f"layer{stage}.{block}"
            first = stride if block == 0 else 1
            parts = [("conv1", "bn1", channels, 3, first), ("conv2", "bn2", width, 3, 1)]
            if channels != width:
                parts.append(("downsample.0", "downsample.1", channels, 1, stride))
            for conv, batch_norm, inputs, kernel, step in parts:
                operations += _convolution(
                    f"{prefix}.{conv}",
                    f"{prefix}.{batch_norm}",
                    inputs,
                    width,
                    kernel,
                    step,
                    size,
                    micro_batch,
                    precision,
                )
            channels = width
    operations.append(_linear("fc", RESNET_CLASSES, channels, micro_batch, precision))
    norms = [operation for operation in operations if operation.kind == "elementwise"]
    buffers = tuple(buffer for operation in norms for buffer in _statistics(operation))
    return _model("resnet-18", operations, micro_batch, num_layers=18, hidden=channels, buffers=buffers)


def _statistics(batch_norm: Operation) -> tuple[BufferTensor, ...]:
    """A running mean and variance, fp32, together as many as the parameters, and an int64 counter."""
    width = num_elements(batch_norm.parameters) // 2
    return (
        BufferTensor(name=f"{batch_norm.name}.running_mean", numel=width),
        BufferTensor(name=f"{batch_norm.name}.running_var", numel=width),
        BufferTensor(name=f"{batch_norm.name}.num_batches_tracked", numel=1, dtype="int64"),
    )


def _convolution(
    name: str, norm_name: str, inputs: int, outputs: int, kernel: int, stride: int, size: int, images: int,
    precision: Precision,
) -> list[Operation]:  # fmt: skip
    """A bias-free convolution to ``size x size`` pixels, and the batch norm (with ReLU) after it."""
    e, rows, inner = precision.compute_bytes, images * size * size, inputs * kernel * kernel
    flop = 2.0 * rows * outputs * inner
    pixels_in = rows * stride * stride * inputs
    traffic = float(e * (pixels_in + inner * outputs + rows * outputs))
    unit = float(e * rows * outputs)
    return [
        Operation(
            name=name, layer=name, kind="gemm", parameters=linear(name, outputs, inner, bias=False),
            forward_flop=flop, backward_flop=2 * flop, gemm=((rows, outputs, inner),),
            forward_bytes=traffic, backward_bytes=2 * traffic, saved_bytes=float(e * pixels_in),
        ),
        Operation(
            name=norm_name, layer=name, kind="elementwise", parameters=bias_first(norm(norm_name, outputs, bias=True)),
            forward_bytes=5 * unit, backward_bytes=8 * unit, forward_kernels=2, saved_bytes=unit,
        ),
    ]  # fmt: skip
