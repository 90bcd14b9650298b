# mypy: disable-error-code="import-not-found,misc"
"""The strategies that a real run knows, by name, with the options that each accepts. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NamedTuple

from simulator.lab.real_ddp import PASSED_ON, alone, ddp, flat, naive, per_parameter, zero1_torch
from simulator.lab.real_fsdp import fsdp1, fsdp2
from simulator.lab.real_training import Asked, Wrapped
from simulator.lab.real_zero import zero1, zero2
from simulator.lab.real_zero3 import zero3


class Strategy(NamedTuple):
    """wrap: puts the strategy around a model. options: what it accepts, besides those of every strategy."""

    wrap: Callable[[Asked], Wrapped]
    options: frozenset[str]


#: Accepted by all: what is wrapped together, whether micro-steps before the last communicate.
EVERYWHERE = frozenset({"units", "sync"})
_DDP = frozenset({*PASSED_ON, "hook"})
_ZERO3 = frozenset(
    {"prefetch", "forward_prefetch", "backward_prefetch", "reshard_after_forward", "keep_last", "reduces_in_flight"}
)
_SHARDED = frozenset({"mesh", "forward_prefetch", "backward_prefetch", "param_dtype", "reduce_dtype", "clip"})
_FSDP2 = _SHARDED | {
    "reshard_after_forward",
    "root_reshard_after_forward",
    "all_reduce",
    "reshard_after_backward",
    "wait",
}
_FSDP1 = _SHARDED | {"sharding", "limit_all_gathers", "use_orig_params"}
STRATEGIES = {
    "alone": Strategy(alone, frozenset()),
    "naive": Strategy(naive, frozenset()),
    "flat": Strategy(flat, frozenset()),
    "per_parameter": Strategy(per_parameter, frozenset()),
    "ddp": Strategy(ddp, _DDP),
    "zero1_torch": Strategy(zero1_torch, _DDP | {"parameters_as_bucket_view"}),
    "zero1": Strategy(zero1, frozenset({"by_unit"})),
    "zero2": Strategy(zero2, frozenset({"reduces_in_flight"})),
    "zero3": Strategy(zero3, _ZERO3),
    "fsdp2": Strategy(fsdp2, _FSDP2),
    "fsdp1": Strategy(fsdp1, _FSDP1),
}


def check(name: str, options: Iterable[str]) -> Strategy:
    """The strategy of this name. Raises ValueError for a name or an option that is not known."""
    strategy = STRATEGIES[_known("strategy", name, sorted(STRATEGIES))]
    for option in options:
        _known(f"{name}: option", option, sorted(strategy.options | EVERYWHERE))
    return strategy


def _known(what: str, word: str, accepted: list[str]) -> str:
    if word in accepted:
        return word
    near = get_close_matches(word, accepted, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{what} {word!r}: expected one of {', '.join(accepted)}{hint}")
