"""Steps of DeepSpeed as ``data/deepspeed_traces.yaml`` holds them, and what our plans of the same steps send."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from stepping import inputs_of, plan_of

from simulator.plan import Communicate
from simulator.strategies.step import StepInputs
from simulator.training.operations import Operation, ParameterTensor, TrainingModel

#: In the order of the file, which says what each entry means.
TRACES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "data" / "deepspeed_traces.yaml").read_text(encoding="utf-8")
)
#: (collective, bytes of its whole buffer), or ("backward", micro-batch whose forward ended here)
Event = tuple[str, int]


def traced(case: Mapping[str, Any]) -> list[Event]:
    """What DeepSpeed called."""
    return [(name, int(number)) for name, number in (event.split() for event in case["trace"])]


def planned(case: Mapping[str, Any], *, streams: bool = True) -> list[Event]:
    """What our plan of the same step calls, in issue order."""
    found: list[Event] = []
    for task in plan_of(step(case, streams=streams)).tasks:
        if isinstance(task, Communicate):
            found.append((task.op, round(task.message_bytes)))
        elif task.kind == "forward" and task.name.endswith((": head", ": all operations")):
            found += [("backward", micro) for micro in _micro_batches(task.name, case["micro_batches"])]
    return found


def _micro_batches(name: str, micro_batches: int) -> list[int]:
    """Whose forward a task ends: one, or all between the first and the last, planned as one task."""
    number = name.removeprefix("forward").partition(":")[0].strip()
    return [int(number)] if number.isdigit() else list(range(1, micro_batches - 1))


def step(case: Mapping[str, Any], **changed: Any) -> StepInputs:
    """The inputs of DeepSpeed's step: its settings are our keys, without the prefix ``stage3_``."""
    zero = dict(case["zero"])
    parallel = {"strategy": f"zero{zero.pop('stage')}"}
    parallel |= {key.removeprefix("stage3_"): value for key, value in zero.items()}
    precision = "bf16-master" if case["dtype"] == "bf16" else "fp32"
    return inputs_of(
        model(case), case["world"], parallel, precision=precision, micro_batches=case["micro_batches"],
        copy_bytes_per_s=1e6, **changed,
    )  # fmt: skip


def model(case: Mapping[str, Any]) -> TrainingModel:
    """Linear(5, hidden), blocks of LayerNorm and two Linear, Linear(hidden, out); a norm's bias comes first."""
    hidden = case["hidden"]
    operations = [_linear("embed", 5, hidden)]
    for index, width in enumerate(case["mlps"]):
        name = f"layers.{index}"
        norm = (_tensor(f"{name}.norm.bias", hidden), _tensor(f"{name}.norm.weight", hidden))
        operations += [
            Operation(name=f"{name}.norm", layer=f"{name}.norm", kind="elementwise", parameters=norm),
            _linear(f"{name}.up", hidden, width), _linear(f"{name}.down", width, hidden, bias=False),
        ]  # fmt: skip
    operations.append(_linear("head", hidden, case["out"]))
    tensors = tuple(
        tensor for op in operations for tensor in (op.parameters if op.kind == "gemm" else op.parameters[::-1])
    )
    return TrainingModel(
        name="residual MLPs", operations=tuple(operations), parameters=tensors,
        num_parameters=sum(tensor.numel for tensor in tensors), num_layers=len(case["mlps"]),
    )  # fmt: skip


def _tensor(name: str, numel: int) -> ParameterTensor:
    return ParameterTensor(name=name, numel=numel)


def _linear(name: str, width: int, out: int, *, bias: bool = True) -> Operation:
    tensors = (_tensor(f"{name}.weight", width * out), *([_tensor(f"{name}.bias", out)] if bias else []))
    return Operation(name=name, layer=name, kind="gemm", parameters=tensors)
