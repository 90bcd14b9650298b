"""Activation checkpointing: keep less of a block in forward, run parts of it again before its backward.

* ``full``: each block keeps its input (``2 s b h`` bytes in 16 bits, 4 where the residual stream is fp32) and runs its
  whole forward again: a third more arithmetic than 3 forwards. One block at a time is alive in full, beside its input.
  Megatron-LM's methods (``--recompute-method``, megatron/core/transformer/transformer_block.py,
  ``_checkpointed_forward``) say which blocks: ``uniform`` makes groups of blocks that keep the input of the first and
  run again all at once, all alive together; ``block`` recomputes the first blocks of each pipeline stage one by one,
  and the others keep all. Of a rank with several stages (chunks) each counts by itself.
* ``selective`` (Korthikanti et al. 2022, arXiv:2205.05198, section 5): only the attention core runs again, so its
  scores (``5 a s`` per ``s b h`` term) are not kept. A fused kernel keeps none anyway; there it saves only statistics.
  Other parts of a block may be named beside or in place of it (``recompute_modules``).
* ``selective-op`` (torchtitan's ``selective_ac_option = "op"``, torchtitan/parallelisms/parallelize_llama.py; PyTorch's
  ``create_selective_checkpoint_contexts``): each block keeps its input, what a fused attention kernel returns (output
  and statistics), and the output of every second product ``aten.mm``, the first of the block included. In the order
  of Llama's forward (q, k, v, out, gate, up, down) these are q, v, gate and down; k, out, up and all between the
  products run again. A product with a bias is an ``aten.addmm``, which the policy does not name. A compiled block does
  not keep the output of its last product, which only a residual sum reads (torch 2.13, min-cut partitioner). Bytes and
  products run again are those that torch 2.13 keeps and runs (traced; ``tests/test_recompute.py``).

Limits: frameworks call other things selective too (every second block); not modelled. While ``selective-op`` runs a
block again, its q and v are counted before and after what follows them; PyTorch frees them once they have been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from simulator.training.operations import Operation

MODES = ("none", "selective", "selective-op", "full")
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Which blocks ``full`` runs again, and how many at once; which parts of all blocks ``selective`` does.

    layers: blocks of each stage that are run again, its first ones (None: all). group: blocks of one checkpoint.
    stages: blocks of each stage of the pipeline; empty for one stage. modules: what of each block ``selective`` runs
    again (``recompute_modules.MODULES``).
    """

    layers: int | None = None
    group: int = 1
    stages: tuple[int, ...] = ()
    modules: tuple[str, ...] = ("core_attn",)

    def spans(self, num_layers: int) -> Iterator[range]:
        """The blocks of each checkpoint, in the order of the model; a block that is in none keeps all."""
        start = 0
        for size in self.stages or (num_layers,):
            end = start + (size if self.layers is None else min(size, self.layers))
            yield from (range(first, min(first + self.group, end)) for first in range(start, end, self.group))
            start += size


#: Every block by itself.
EVERY_BLOCK = Checkpoints()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What a fused attention kernel returns, bytes: its output, and statistics for its backward."""

    output_bytes: float
    statistics_bytes: float


def recomputed_blocks(block: list[Operation], input_bytes: float) -> list[Operation]:
    """``full``: the operations of a block, or of several in a row that are one checkpoint, all run again before the
    backward of the last, which comes first. Only the input of the first is kept, by its first operation.
    """
    kept = [replace(operation, saved_bytes=0.0) for operation in block]
    kept[0] = replace(kept[0], saved_bytes=input_bytes)
    kept[-1] = replace(kept[-1], replayed=tuple(block))
    return kept


def recomputed_attention(core: Operation, input_bytes: float) -> Operation:
    """``selective``: the attention core keeps q, k and v only, and runs its forward again."""
    return replace(core, saved_bytes=input_bytes, replayed=(core,))


def recomputed_cheap(
    block: list[Operation], input_bytes: float, attention: Attention, *, element_bytes: int, fused: bool
) -> list[Operation]:
    """``selective-op``: the operations of one block; what is run again is run before the backward of the last.

    element_bytes: of an activation. fused: whether a compiler sees the block as a whole.
    """
    kept = _outputs_bytes(block, attention, element_bytes)
    again = [_run_again(op, outputs, is_last=op is block[-1]) for op, outputs in zip(block, kept, strict=True)]
    made = [replace(op, saved_bytes=sum(outputs)) for op, outputs in zip(block, kept, strict=True)]
    if fused and block[-1].gemm:
        made[-1] = replace(made[-1], saved_bytes=0.0)
    made[0] = replace(made[0], saved_bytes=made[0].saved_bytes + input_bytes)
    made[-1] = replace(made[-1], replayed=tuple(_beyond_kept(again, kept)))
    return made


def _outputs_bytes(block: Iterable[Operation], attention: Attention, element_bytes: int) -> list[tuple[float, ...]]:
    """Per operation, bytes kept of what it returns: one number for each product (0: run again), none for the rest."""
    number, found = count(), []
    for operation in block:
        has_bias = any(tensor.name.endswith(".bias") for tensor in operation.parameters)
        is_mm = operation.gemm and operation.parameters and not has_bias and _is_plain(operation)
        outputs = tuple(
            float(element_bytes * m * n) if is_mm and next(number) % 2 == 0 else 0.0 for m, n, _ in operation.gemm
        )
        fused = operation.kind == "attention"
        found.append((attention.output_bytes, attention.statistics_bytes) if fused else outputs)
    return found


def _is_plain(operation: Operation) -> bool:
    """Whether the policy counts its products: not grouped ones of experts (``aten._grouped_mm``), nor the router's,
    which torchtitan runs again always (``per_op_sac_force_recompute_mm_shapes_by_fqns``, moe.router.gate), nor scores.
    """
    return operation.gemm_groups == 1 and _part(operation) not in ("mlp.router", "attn.core")


def _run_again(operation: Operation, kept: tuple[float, ...], *, is_last: bool) -> Operation:
    """Nothing of a fused attention kernel, nor of a product at the very end: the replay stops at its inputs."""
    if operation.kind == "attention":
        # its inputs are exchanged anew where the kernel keeps them exchanged; a ring or a gather is its backward's own
        return replace(
            operation, kind="elementwise", forward_flop=0.0, backward_flop=0.0, forward_bytes=0.0, forward_kernels=0,
            elementwise_forward_bytes=0.0, exchanges=tuple(e for e in operation.exchanges if e.op == "all_to_all"),
        )  # fmt: skip
    left = tuple(shape for shape, held in zip(operation.gemm, kept, strict=True) if not held and not is_last)
    return operation if left == operation.gemm else _of_products(operation, left)


def _of_products(operation: Operation, left: tuple[Shape, ...]) -> Operation:
    """The forward of some of an operation's products: their arithmetic, traffic, casts of weights and kernels."""
    moved, weights = (sum(map(of, left)) / sum(map(of, operation.gemm)) for of in (_elements, _weights))
    return replace(
        operation, kind="gemm" if left else "elementwise", gemm=left, backward_flop=0.0,
        forward_flop=sum(2.0 * m * n * k for m, n, k in left), forward_bytes=moved * operation.forward_bytes,
        elementwise_forward_bytes=weights * operation.elementwise_forward_bytes,
        forward_kernels=len(left) * operation.forward_kernels // len(operation.gemm),
    )  # fmt: skip


def _elements(shape: Shape) -> int:
    m, n, k = shape
    return m * k + n * k + m * n


def _weights(shape: Shape) -> int:
    _, n, k = shape
    return n * k


def _beyond_kept(again: list[Operation], kept: list[tuple[float, ...]]) -> Iterator[Operation]:
    """What running the block once more brings back: what each keeps for its backward, less what is there already.

    The output of the attention kernel is the input of the product after it, a kept gate that of the activation.
    """
    outputs = {_part(operation): sizes for operation, sizes in zip(again, kept, strict=True)}
    returned, statistics = outputs["attn.core"]
    there = {"attn.core": statistics, "attn.out": returned, **_inputs_made(outputs)}
    for operation in again:
        yield replace(operation, saved_bytes=operation.saved_bytes - there.get(_part(operation), 0.0))


#: What reads an output that is kept, by what makes it: its input is there already.
_READ_BY = {"mlp.up": "mlp.activation", "mlp.shared.up": "mlp.shared.activation"}


def _inputs_made(outputs: dict[str, tuple[float, ...]]) -> dict[str, float]:
    return {_READ_BY[part]: sum(sizes) for part, sizes in outputs.items() if part in _READ_BY}


def _part(operation: Operation) -> str:
    """``attn.core`` of ``layers.5.attn.core``."""
    return operation.name.removeprefix(f"{operation.layer}.")


def replayed_bytes(operations: Iterable[Operation]) -> float:
    """The most that one replay brings back to life beyond what the operations keep."""
    return max((_brought_back(operation) for operation in operations if operation.replayed), default=0.0)


def _brought_back(operation: Operation) -> float:
    """An operation that runs only itself again still has what it keeps."""
    found = sum(again.saved_bytes for again in operation.replayed)
    alone = len(operation.replayed) == 1 and operation.replayed[0].name == operation.name
    return found - operation.saved_bytes if alone else found
