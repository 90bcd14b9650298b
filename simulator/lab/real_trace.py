# mypy: disable-error-code="import-not-found,misc"
"""What a step communicates, in the order in which it is launched. Needs torch.

All ways to a collective in torch 2.13 end in the dispatcher's ``c10d`` operations: Python calls (FSDP, hand-written
loops), DistributedDataParallel's reducer in C++ and its construction, and functional collectives (DTensor, gradient
clipping), the last under ``_c10d_functional``. A dispatch mode sees each with its tensors and its process group, in the
thread that launches it. So a reduce-scatter is one although gloo runs an all-reduce inside, where profiler events named
``gloo:*`` and the flight recorder show the latter, and patches of ``torch.distributed`` miss the reducer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

#: operation, bytes as nccl-tests counts them (all-gather, reduce-scatter: the whole gathered buffer), group size
Launched = tuple[str, int, int]

#: Operator of ``c10d`` -> its name, and the argument that holds the bytes that count.
C10D = {
    "allreduce_": ("all_reduce", 0), "allreduce_coalesced_": ("all_reduce", 0),
    "allgather_": ("all_gather", 0), "_allgather_base_": ("all_gather", 0), "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 1), "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0), "reduce_": ("reduce", 0), "gather_": ("gather", 0), "scatter_": ("scatter", 1),
    "alltoall_": ("all_to_all", 1), "alltoall_base_": ("all_to_all", 1), "barrier": ("barrier", None),
    "monitored_barrier_": ("barrier", None),
    "send": ("send", 0), "recv_": ("recv", 0), "recv_any_source_": ("recv", 0),
}  # fmt: skip
#: The same of ``_c10d_functional``; None: the input, times the group's size.
FUNCTIONAL = {
    "all_reduce": "all_reduce", "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce", "broadcast": "broadcast", "broadcast_": "broadcast",
    "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}  # fmt: skip


class Recorder(TorchDispatchMode):
    """While entered, appends every collective that this thread launches to ``launched``."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[Launched] = []

    def __enter__(self) -> Any:
        _RECORDING.append(self)
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        _RECORDING.remove(self)
        super().__exit__(*args)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _TOGETHER:
            return function(*args, **(kwargs or {}))
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a DTensor first turns into local tensors and collectives, which come back here
        namespace = function.namespace
        if namespace == "c10d":
            self._note(*_of_c10d(function, args))
        elif namespace == "_c10d_functional" and (found := _of_functional(function, args)):
            self._note(*found)
        return function(*args, **(kwargs or {}))

    def _note(self, op: str, size_bytes: int, group_size: int) -> None:
        if op:
            self.launched.append((op, size_bytes, group_size))


#: Recorders that are on, and whether what is launched now is a part of something noted already.
_TOGETHER: list[Launched] = []
_RECORDING: list[Recorder] = []


@contextmanager
def noted_as(op: str, size_bytes: int, group_size: int) -> Iterator[None]:
    """Messages that are launched meanwhile are one operation to the innermost recorder."""
    for recorder in _RECORDING[-1:]:
        recorder.launched.append((op, size_bytes, group_size))
    _TOGETHER.append((op, size_bytes, group_size))
    try:
        yield
    finally:
        _TOGETHER.pop()


def _of_c10d(function: Any, args: Any) -> Launched:
    name = function._schema.name.partition("::")[2]
    if name not in C10D:
        return "", 0, 0
    op, holds = C10D[name]
    group = next(dist.ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject))
    return op, 0 if holds is None else sum(map(_bytes, _tensors(args[holds]))), group.size()


def _of_functional(function: Any, args: Any) -> Launched | None:
    name = function._schema.name.partition("::")[2]
    if name not in FUNCTIONAL:
        return None
    op = FUNCTIONAL[name]
    group = dist.distributed_c10d._resolve_process_group(next(a for a in reversed(args) if isinstance(a, str)))
    size = sum(map(_bytes, _tensors(args[0])))
    return op, size * (group.size() if op == "all_gather" else 1), group.size()


def _tensors(held: Any) -> Iterator[Any]:
    if isinstance(held, torch.Tensor):
        yield held
    elif held is not None:
        for inner in held:
            yield from _tensors(inner)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def timed(step: Callable[[], None], begin: float) -> list[Any]:
    """Run a step under torch's profiler: [[op, bytes, group size, start, end], ...] in launch order.

    Seconds from ``begin`` (of ``time.perf_counter``), None of what the profiler does not see: start is when a worker of
    gloo takes the collective up, which may be after its launch, or when a send or receive is posted; end is when its
    data is there. Those of a reduce-scatter are of the all-reduce inside: the copy of its input comes before (in the
    launching thread), that of its output when it is awaited. The profiler costs the launching thread some tens of
    microseconds per operation.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        with torch.profiler.record_function(_BEGIN):
            offset_s = time.perf_counter() - begin
        with Recorder() as recorder:
            step()
        time.sleep(_SETTLE_S)
    events = sorted(profile.events(), key=lambda event: event.time_range.start)
    zero = next(event.time_range.start for event in events if event.name == _BEGIN)
    left = [event for event in events if event.name.startswith("gloo:")]
    found = []
    for op, size, group_size in recorder.launched:
        event = next((e for e in left if e.name == f"gloo:{_INSIDE.get(op, op)}"), None)
        ends: list[float | None] = [None, None]
        if event is not None:
            left.remove(event)
            ends = [(at - zero) * 1e-6 + offset_s for at in (event.time_range.start, event.time_range.end)]
        found.append([op, size, group_size, *ends])
    return found


#: gloo's threads note an end after they have told of it: the last one's would be late if the profiler began its work,
#: which keeps the processors busy for 100 ms and more, before everyone has come to this point.
_SETTLE_S = 0.2
#: Where the clock of the profiler is tied to ours.
_BEGIN = "the step begins"
#: What gloo runs for an operation, where that has another name.
_INSIDE = {"reduce_scatter": "all_reduce"}
