# mypy: disable-error-code="import-not-found,misc"
"""Data parallelism for real: none, three ways by hand and torch's DistributedDataParallel. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from simulator.lab.real_training import LEARNING_RATE, OPTIMIZERS, Asked, Wrapped, clear

#: torch's compression hooks; its ``bf16_compress_hook`` is the second behind a check for NCCL.
HOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": lambda group, bucket: default_hooks._compress_hook(torch.bfloat16, group, bucket),
}
#: Options of DistributedDataParallel that are passed on as they are; ``bucket_cap_mb`` only where it is given, since
#: giving it changes the first bucket (1 MiB by default).
PASSED_ON = ("bucket_cap_mb", "gradient_as_bucket_view", "find_unused_parameters", "static_graph", "broadcast_buffers")


def alone(asked: Asked) -> Wrapped:
    """No other rank has the same part of the model: nothing is reduced."""
    return _by_hand(asked, lambda gradients: None)


def naive(asked: Asked) -> Wrapped:
    """After backward, one blocking all-reduce per tensor, in registration order."""
    return _by_hand(asked, lambda gradients: [dist.all_reduce(g, group=asked.group) for g in gradients])


def flat(asked: Asked) -> Wrapped:
    """After backward, one all-reduce of all gradients copied together."""

    def reduce(gradients: list[Any]) -> None:
        together = torch._utils._flatten_dense_tensors(gradients)
        dist.all_reduce(together, group=asked.group)
        for gradient, part in zip(
            gradients, torch._utils._unflatten_dense_tensors(together, gradients), strict=True
        ):  # fmt: skip
            gradient.copy_(part)

    return _by_hand(asked, reduce)


def _by_hand(asked: Asked, reduce: Callable[[list[Any]], Any]) -> Wrapped:
    parameters, every = list(asked.model.parameters()), asked.options.get("sync", "last") == "every"
    optimizer = OPTIMIZERS[asked.optimizer](parameters)

    def after_backward(last: bool) -> None:
        if last or every:
            gradients = [p.grad for p in parameters if p.grad is not None]
            reduce(gradients)
            torch._foreach_div_(gradients, asked.world)

    return Wrapped(
        run=asked.model, after_backward=after_backward, update=optimizer.step, held=lambda: parameters,
        trained=lambda: parameters, clear=lambda: clear(parameters),
    )  # fmt: skip


def per_parameter(asked: Asked) -> Wrapped:
    """An all-reduce per tensor, launched in backward when its gradient is ready; all are awaited after it."""
    parameters, every = list(asked.model.parameters()), asked.options.get("sync", "last") == "every"
    optimizer = OPTIMIZERS[asked.optimizer](parameters)
    pending: list[tuple[Any, Any]] = []
    syncs = [True]

    def ready(parameter: Any) -> None:
        if syncs[0]:
            pending.append((dist.all_reduce(parameter.grad, group=asked.group, async_op=True), parameter.grad))

    def micro(last: bool) -> AbstractContextManager[Any]:
        syncs[0] = last or every
        return nullcontext()

    def after_backward(_last: bool) -> None:
        for work, gradient in pending:
            work.wait()
            gradient.div_(asked.world)
        pending.clear()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(ready)
    return Wrapped(
        run=asked.model, micro=micro, after_backward=after_backward, update=optimizer.step, held=lambda: parameters,
        trained=lambda: parameters, clear=lambda: clear(parameters),
    )  # fmt: skip


def ddp(asked: Asked) -> Wrapped:
    """DistributedDataParallel. Options: PASSED_ON, ``hook`` ('fp16', 'bf16'), ``sync`` ('last': no_sync before)."""
    wrapped, parameters = _wrap(asked), list(asked.model.parameters())
    optimizer = OPTIMIZERS[asked.optimizer](parameters)
    return Wrapped(
        run=wrapped, micro=_syncing(asked, wrapped), update=optimizer.step, held=lambda: parameters,
        trained=lambda: parameters, clear=lambda: clear(parameters),
    )  # fmt: skip


def zero1_torch(asked: Asked) -> Wrapped:
    """DistributedDataParallel and ZeroRedundancyOptimizer: whole tensors have owners, which broadcast them.

    Options: those of ``ddp``, and ``parameters_as_bucket_view``. The optimizer 'none' would own nothing: sgd instead.
    """
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "none": torch.optim.SGD}
    wrapped, parameters = _wrap(asked), list(asked.model.parameters())
    optimizer = ZeroRedundancyOptimizer(
        parameters, optimizer_class=kinds[asked.optimizer], process_group=asked.group, lr=LEARNING_RATE,
        parameters_as_bucket_view=asked.options.get("parameters_as_bucket_view", False),
    )  # fmt: skip
    return Wrapped(
        run=wrapped, micro=_syncing(asked, wrapped), update=optimizer.step, held=lambda: parameters,
        trained=lambda: parameters, clear=lambda: clear(parameters),
    )  # fmt: skip


def _wrap(asked: Asked) -> Any:
    options = {name: asked.options[name] for name in PASSED_ON if name in asked.options}
    wrapped = DistributedDataParallel(asked.model, process_group=asked.group, **options)
    hook = asked.options.get("hook")
    if hook:
        wrapped.register_comm_hook(asked.group, HOOKS[hook])
    return wrapped


def _syncing(asked: Asked, wrapped: Any) -> Callable[[bool], AbstractContextManager[Any]]:
    every = asked.options.get("sync", "last") == "every"
    return lambda last: nullcontext() if last or every else wrapped.no_sync()
