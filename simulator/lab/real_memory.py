# mypy: disable-error-code="import-not-found,misc"
"""Bytes of live tensors of a real run, by kind, at the peak of a step. Needs torch.

A dispatch mode sees every tensor that an operation makes, and a weak reference tells when its storage is gone; what
``UntypedStorage.resize_`` takes and gives is counted too, since FSDP frees that way. To see the buckets that
DistributedDataParallel's reducer makes, the mode must be on from the construction of the model. Not seen: copies that
gloo makes in its own threads (the input of a reduce-scatter once more), which a GPU run does not have either.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

#: Operator of ``c10d`` -> the kind of each of its tensor arguments, by position.
KINDS_OF_C10D = {
    "_allgather_base_": {0: "gathered"}, "allgather_": {0: "gathered"}, "allreduce_": {0: "bucket"},
    "_reduce_scatter_base_": {0: "gradient", 1: "reduce input"},
    "reduce_scatter_": {0: "gradient", 1: "reduce input"},
}  # fmt: skip
#: Kinds that stay whatever the tensor is used for later.
SETTLED = {"parameter", "buffer", "gradient", "optimizer"}


class LiveBytes(TorchDispatchMode):
    """While entered, counts. ``peak``: kind -> bytes when their sum was largest since ``restart``.

    Kinds: parameter, buffer, gradient, optimizer; gathered (output of an all-gather), reduce input, bucket (what is
    all-reduced and is no gradient), unsharded (what FSDP gives back by resizing); forward, backward (other tensors
    made then: activations, temporaries).
    """

    def __init__(self) -> None:
        super().__init__()
        self.now: Counter[str] = Counter()
        self.peak: dict[str, int] = {}
        self._most = 0
        self._kinds: dict[int, tuple[str, int]] = {}
        self._updating = False

    def restart(self) -> None:
        """Forget the peak so far."""
        self._most, self.peak = 0, {}
        self._look()

    def settle(self, kind: str, tensors: Any) -> None:
        """These tensors are of this kind from now on."""
        for tensor in tensors:
            self._see(tensor, kind)

    def updating(self, update: Callable[[], None]) -> Callable[[], None]:
        """The same, and what it makes counts as the optimizer's."""

        def run() -> None:
            self._updating = True
            update()
            self._updating = False

        return run

    def __enter__(self) -> Any:
        resize = torch.UntypedStorage.resize_
        self._resize = resize

        def counted(storage: Any, *args: Any, **kwargs: Any) -> Any:
            done = resize(storage, *args, **kwargs)
            if id(storage) in self._kinds:
                kind = self._kinds[id(storage)][0]
                self._count(storage, "unsharded" if kind in ("forward", "backward") else kind)
            return done

        torch.UntypedStorage.resize_ = counted
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*args)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # comes back with the local tensors
        made = function(*args, **(kwargs or {}))
        if function.namespace == "c10d":
            name = function._schema.name.partition("::")[2]
            for position, kind in KINDS_OF_C10D.get(name, {}).items():
                self.settle(kind, _tensors(args[position]))
        else:
            kind = "optimizer" if self._updating else "backward" if _in_backward() else "forward"
            if kind == "backward" and function is torch.ops.aten.full.default:
                kind = "gradient"  # that is how sleeping layers make theirs, see real_model
            for tensor in _tensors(made):
                self._see(tensor, kind, only_new=True)
        return made

    def _see(self, tensor: Any, kind: str, only_new: bool = False) -> None:
        held = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        if held.device.type != "cpu":
            return
        storage = held.untyped_storage()
        known = self._kinds.get(id(storage))
        if known and (only_new or (known[0] in SETTLED and kind not in SETTLED) or known[0] == "parameter"):
            kind = known[0]
        self._count(storage, kind)

    def _count(self, storage: Any, kind: str) -> None:
        key, size = id(storage), storage.nbytes()
        known = self._kinds.get(key)
        if known and known == (kind, size):
            return
        if known:
            self.now[known[0]] -= known[1]
        else:
            weakref.finalize(storage, self._gone, key)
        self._kinds[key] = (kind, size)
        self.now[kind] += size
        self._look()

    def _gone(self, key: int) -> None:
        kind, size = self._kinds.pop(key)
        self.now[kind] -= size

    def _look(self) -> None:
        total = sum(self.now.values())
        if total >= self._most:  # or equal: what was just made may have become of another kind
            self._most, self.peak = total, {kind: size for kind, size in sorted(self.now.items()) if size}


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() >= 0)


def _tensors(held: Any) -> list[Any]:
    if isinstance(held, torch.Tensor):
        return [held]
    return [tensor for inner in held for tensor in _tensors(inner)] if isinstance(held, list | tuple) else []
