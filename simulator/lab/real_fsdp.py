# mypy: disable-error-code="import-not-found,misc"
"""torch's own sharding of parameters for real: fully_shard (FSDP2), also hybrid, and FullyShardedDataParallel (FSDP1).

Needs torch. On gloo their collectives block the launching thread: the order and the bytes are those of a GPU run, the
overlap is not (``real_zero3`` overlaps).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from simulator.lab.real_model import Unit
from simulator.lab.real_training import OPTIMIZERS, Asked, Wrapped, clear, local

BACKWARD_PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, None: None}


def fsdp2(asked: Asked) -> Wrapped:
    """fully_shard on every unit, then on the root with what is left.

    Options: ``mesh`` ([replicas, shards], by default [world]); ``reshard_after_forward`` (true, false, a number of
    ranks, or 'all but last': false for the last unit only); ``root_reshard_after_forward`` (default: fully_shard's
    own); ``param_dtype``, ``reduce_dtype``; ``forward_prefetch``, ``backward_prefetch`` (so many units explicitly);
    ``sync`` ('last', 'every') of micro-steps; ``all_reduce`` ('every', 'last'), hybrid only: 'last' reduce-scatters in
    each synchronised micro-step and all-reduces in the last; ``reshard_after_backward`` ('every', 'last'); ``wait`` for
    reductions at the end of the 'last' micro-step's backward (``set_is_last_backward``), or of 'every'; ``clip``.
    """
    model, options = asked.model, asked.options
    _shard(asked)
    _prefetch(model.units, int(options.get("forward_prefetch", 0)), int(options.get("backward_prefetch", 0)))
    parameters = list(model.parameters())
    optimizer = OPTIMIZERS[asked.optimizer](parameters)

    def before_update() -> None:
        if options.get("clip"):
            torch.nn.utils.clip_grad_norm_(parameters, float(options["clip"]))

    return Wrapped(
        run=model, micro=_micro(asked), before_update=before_update, update=optimizer.step,
        held=lambda: [local(p) for p in parameters], trained=lambda: parameters, clear=lambda: clear(parameters),
    )  # fmt: skip


def _shard(asked: Asked) -> None:
    model, options = asked.model, asked.options
    mesh = asked.mesh()
    policy = MixedPrecisionPolicy(
        param_dtype=_dtype(options.get("param_dtype")), reduce_dtype=_dtype(options.get("reduce_dtype"))
    )
    wanted = options.get("reshard_after_forward", True)
    for number, unit in enumerate(model.units):
        last = number == len(model.units) - 1
        reshard = not last if wanted == "all but last" else wanted
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    root = options.get("root_reshard_after_forward")
    fully_shard(model, mesh=mesh, reshard_after_forward=root, mp_policy=policy)


def _dtype(name: str | None) -> Any:
    return None if name is None else getattr(torch, name)


def _prefetch(units: list[Any], forward: int, backward: int) -> None:
    for number, unit in enumerate(units):
        if forward:
            unit.set_modules_to_forward_prefetch(units[number + 1 : number + 1 + forward])
        if backward:
            unit.set_modules_to_backward_prefetch(units[max(0, number - backward) : number][::-1])


def _micro(asked: Asked) -> Callable[[bool], AbstractContextManager[Any]]:
    model: Any = asked.model
    options = asked.options
    sync, all_reduce = options.get("sync", "last"), options.get("all_reduce", "every")
    reshard, wait = options.get("reshard_after_backward", "every"), options.get("wait", "last")

    def micro(last: bool) -> AbstractContextManager[Any]:
        model.set_is_last_backward(last or wait == "every")
        model.set_requires_gradient_sync(last or sync == "every")
        if all_reduce == "last":
            model.set_requires_all_reduce(last)
        model.set_reshard_after_backward(last or reshard == "every")
        return nullcontext()

    return micro


def fsdp1(asked: Asked) -> Wrapped:
    """FullyShardedDataParallel with every unit wrapped.

    Options: ``sharding`` ('full_shard', 'shard_grad_op', 'hybrid_shard', '_hybrid_shard_zero2'), ``mesh`` for the
    hybrid ones; ``forward_prefetch`` (bool); ``backward_prefetch`` ('pre' by default, 'post', null);
    ``limit_all_gathers``; ``use_orig_params``; ``param_dtype``, ``reduce_dtype``; ``sync``; ``clip``.
    """
    options = asked.options
    strategy = ShardingStrategy[options.get("sharding", "full_shard").upper()]
    place: dict[str, Any] = {"process_group": asked.group}
    if options.get("mesh"):
        place = {"device_mesh": asked.mesh()}
    mixed = MixedPrecision(
        param_dtype=_dtype(options.get("param_dtype")), reduce_dtype=_dtype(options.get("reduce_dtype"))
    )
    wrapped = FullyShardedDataParallel(
        asked.model, **place, sharding_strategy=strategy, auto_wrap_policy=ModuleWrapPolicy({Unit}),
        backward_prefetch=BACKWARD_PREFETCH[options.get("backward_prefetch", "pre")], mixed_precision=mixed,
        forward_prefetch=options.get("forward_prefetch", False),
        limit_all_gathers=options.get("limit_all_gathers", True), device_id=torch.device("cpu"),
        use_orig_params=options.get("use_orig_params", False),
    )  # fmt: skip
    parameters, every = list(wrapped.parameters()), options.get("sync", "last") == "every"
    optimizer = OPTIMIZERS[asked.optimizer](parameters)

    def before_update() -> None:
        if options.get("clip"):
            wrapped.clip_grad_norm_(float(options["clip"]))

    return Wrapped(
        run=wrapped, micro=lambda last: nullcontext() if last or every else wrapped.no_sync(),
        before_update=before_update, update=optimizer.step, held=lambda: parameters, trained=lambda: parameters,
        clear=lambda: clear(parameters),
    )  # fmt: skip
