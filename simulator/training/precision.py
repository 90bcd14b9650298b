"""Training precisions: which matrix units run, and how many bytes each parameter costs in each kind of state.

The three recipes that are all called "mixed precision" differ in what they keep and what they send:

* ``bf16-mixed`` / ``fp16-mixed``: ``torch.autocast``. Weights, gradients and moments are fp32 (4 + 4 + 8 = 16 bytes);
  products run on 16-bit copies of the weights that autocast caches (2 more); DDP reduces fp32 gradients.
* ``bf16-master``: Apex, Megatron, DeepSpeed and the lecture notes. 16-bit weights and gradients, fp32 master and
  moments (2 + 2 + 12 = 16 bytes); gradients are reduced in 16 bits.
* ``bf16-moments``: as ``bf16-master`` with bf16 moments, 2 + 2 + 4 + 2 + 2 = 12 bytes: the lecture's smaller
  recipe, whose states of 6.7 B parameters fill 80 GB under DDP, against 5 B at 16 bytes.
* ``bf16``: all 16-bit, no master (2 + 2 + 4 = 8 bytes).

Source of the byte counts: ZeRO (arXiv:1910.02054, section 3.1) and the PyTorch autocast documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from simulator.errors import ScenarioError
from simulator.problems import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes per parameter of each state; ``moment_bytes`` is of one moment. ``dtype`` picks the peak rate."""

    name: str
    dtype: str
    compute_bytes: int
    param_bytes: int
    grad_bytes: int
    master_bytes: int
    moment_bytes: int
    cached_weight_bytes: int
    reduce_bytes: int


def _precision(
    name: str, dtype: str, compute: int, param: int, grad: int, master: int, moment: int, cached: int
) -> Precision:
    """All our recipes reduce gradients in the dtype they are kept in."""
    return Precision(
        name=name, dtype=dtype, compute_bytes=compute, param_bytes=param, grad_bytes=grad, master_bytes=master,
        moment_bytes=moment, cached_weight_bytes=cached, reduce_bytes=grad,
    )  # fmt: skip


PRECISIONS = {
    row.name: row
    for row in (
        #          name            dtype  compute param grad master moment cached
        _precision("bf16-mixed",   "bf16", 2,      4,    4,   0,     4,     2),
        _precision("fp16-mixed",   "fp16", 2,      4,    4,   0,     4,     2),
        _precision("bf16-master",  "bf16", 2,      2,    2,   4,     4,     0),
        _precision("bf16-moments", "bf16", 2,      2,    2,   4,     2,     0),
        _precision("bf16",         "bf16", 2,      2,    2,   0,     2,     0),
        _precision("tf32",         "tf32", 4,      4,    4,   0,     4,     0),
        _precision("fp32",         "fp32", 4,      4,    4,   0,     4,     0),
    )
}  # fmt: skip

MOMENTS = {"adamw": 2, "adam": 2, "sgd": 0, "sgd-momentum": 1}
"""How many moments an optimizer keeps per parameter."""


def _chosen(table: dict[str, Any], kind: str, name: str) -> Any:
    if name in table:
        return table[name]
    raise ScenarioError(f"{kind} '{name}' is unknown; accepted are {', '.join(table)}{nearest(name, table)}")


def precision_named(name: str) -> Precision:
    """The row of ``PRECISIONS``. Raises ScenarioError with the nearest name."""
    return cast(Precision, _chosen(PRECISIONS, "precision", name))


def num_moments(optimizer: str) -> int:
    """Moments per parameter of an optimizer. Raises ScenarioError with the nearest name."""
    return cast(int, _chosen(MOMENTS, "optimizer", optimizer))


def optimizer_state_bytes(precision: Precision, optimizer: str) -> int:
    """Bytes per parameter of the optimizer: master weights (if kept apart) and moments."""
    return precision.master_bytes + num_moments(optimizer) * precision.moment_bytes


def state_bytes_per_parameter(precision: Precision, optimizer: str = "adamw") -> int:
    """Weights + gradients + optimizer states: 16 for AdamW with mixed precision. Autocast's cache is not counted."""
    return precision.param_bytes + precision.grad_bytes + optimizer_state_bytes(precision, optimizer)


def optimizer_traffic_bytes(precision: Precision, optimizer: str) -> int:
    """Memory traffic of a fused optimizer step, bytes per parameter.

    Reads the gradient, the fp32 weights (or the weights themselves) and the moments; writes weights and moments, and
    the 16-bit weights when a master is kept. AdamW in fp32: 4 reads + 3 writes of 4 bytes = 28.
    """
    states = optimizer_state_bytes(precision, optimizer)
    weights = precision.param_bytes
    if precision.master_bytes:
        return precision.grad_bytes + 2 * states + weights
    return precision.grad_bytes + 2 * (weights + states)
