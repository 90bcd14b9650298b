"""Context parallelism: each rank of ``cp`` has a part of every sequence; keys and values travel in one of three ways.

Symbols: s, b, a, h as ever, c ranks, e bytes; keys and values of one rank, ``2 (s/c) b h_kv e``, are a chunk.

* ``ring`` (Liu et al., arXiv:2310.01889; Megatron-LM ``cp_comm_type p2p``): c - 1 chunks go to the next rank while
  attention works on the one before, and nothing goes beside the last; backward sends them again, and as many of their
  gradients, in each of its c steps something (Transformer Engine, context_parallel.py). Each of c steps is a
  kernel of its own on s/c keys, whose result is added to those before (Transformer Engine, context_parallel.py,
  ``flash_attn_fwd_out_correction``, ``dq.add_``): two reads and a write of e bytes a value.
* ``all_gather`` (Llama 3, arXiv:2407.21783, section 3.3.2; torch's default ``_CPOptions.rotate_method``): all chunks
  before attention, nothing beside it; backward gathers again and reduce-scatters the gradients. The same volume.
* ``ulysses`` (arXiv:2309.14509; ``a2a``): all-to-alls exchange parts of the sequence for heads, of q, k, v before and
  of the result after, and back again in backward. Key-value heads fewer than ranks are sent several times. Kept
  besides is the kernel's own result, since the output layer keeps the one that was sent.

Causal attention: a rank with one piece from each end of the sequence has equal work (``cp_balanced``; 2 c pieces);
with neighbouring tokens the last rank has ``(2 c - 1) / c`` times the mean, and all wait for it. Ulysses has no such
question. Latent attention sends keys and values of all heads, as the kernel reads them, and not the narrow latents.

Limits: layers with a window compute less and send as much. Buffers of chunks on their way are left out of memory.
torch 2.13 runs its gather beside the rank's own chunk, and sends gradients round a ring instead.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from simulator.errors import ScenarioError
from simulator.training.architecture import Architecture
from simulator.training.batch import Batch
from simulator.training.operations import Exchange, Operation

AXIS = "cp"
#: Passes over a value when what one step made is added to the sum: read both, write one.
ADDITION_PASSES = 3


def check_sequence(arch: Architecture, batch: Batch) -> None:
    """Raises ScenarioError for a sequence that cp, or tp in sequence parallelism, does not divide."""
    shards = batch.shards
    pieces = shards.cp * (2 if shards.cp > 1 and shards.cp_balanced and shards.cp_method != "ulysses" else 1)
    if batch.seq_len % pieces:
        told = "twice cp, since each rank has a piece from both ends" if pieces > shards.cp else "cp"
        raise ScenarioError(
            f"parallel.cp: train.seq_len {batch.seq_len} is no multiple of {pieces} ({told}); "
            f"{_accepted(batch.seq_len, pieces // shards.cp)}"
        )
    if shards.sequence_parallel and batch.seq_len // shards.cp % shards.tp:
        raise ScenarioError(
            f"parallel.tp: {batch.seq_len // shards.cp} tokens of a sequence on each rank of cp are no multiple of tp "
            f"{shards.tp}, which sequence parallelism needs"
        )
    if shards.cp > 1 and shards.cp_method == "ulysses":
        _check_heads(arch.num_heads, arch.num_kv_heads, shards.cp)


def _accepted(seq_len: int, pieces: int) -> str:
    """The degrees that cut a sequence into so many pieces a rank."""
    found = [n for n in range(1, min(seq_len, 1024) + 1) if n == 1 or seq_len % (n * pieces) == 0]
    return f"accepted: {', '.join(map(str, found))}"


def _check_heads(heads: int, kv_heads: int, cp: int) -> None:
    """Key-value heads are shared, or each is on as many ranks as any other. Raises ScenarioError."""
    fits = [n for n in range(1, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
    if cp not in fits:
        what = f"{heads} heads" if heads % cp else f"{kv_heads} key-value heads"
        raise ScenarioError(
            f"parallel.cp: {cp} does not divide the {what} on each rank of tp; ulysses shares heads; accepted: "
            f"{', '.join(map(str, fits))}"
        )


def over_ranks(core: Operation, arch: Architecture, batch: Batch, window: int = 0) -> Operation:
    """The attention core of one layer on one rank, with what it sends and the work of the busiest rank.

    core: that of the rank's own queries and all keys, as much as the mean rank has.
    """
    shards = batch.shards
    if shards.cp == 1:
        return core
    sent = {"ring": _ring, "all_gather": _gathered, "ulysses": _by_heads}[shards.cp_method](arch, batch)
    core = replace(core, exchanges=(*core.exchanges, *sent))
    if shards.cp_method == "ulysses":
        return replace(core, saved_bytes=core.saved_bytes + _kept_by_heads(arch, batch))
    core = _of_busiest(core, batch, window)
    return _in_steps(core, arch, batch) if shards.cp_method == "ring" else core


# ----------------------------------------------------------------------------------------------------------- arithmetic


def spans(seq_len: int, window: int, cp: int, *, balanced: bool) -> tuple[float, ...]:
    """Keys that a query computes under a causal mask, the mean over the queries of each rank of cp.

    balanced: rank i has pieces i and 2 cp - 1 - i of 2 cp; else part i of cp. window: keys seen at most, 0 for all.
    """
    pieces = 2 * cp if balanced else cp
    size = seq_len / pieces
    ends = [_keys_until(size * n, window or seq_len) for n in range(pieces + 1)]
    each = [(after - before) / size for before, after in pairwise(ends)]
    return tuple((each[i] + each[-1 - i]) / 2 for i in range(cp)) if balanced else tuple(each)


def _keys_until(position: float, window: float) -> float:
    """Keys of all queries up to a position together: ``x^2 / 2``, and ``window`` for each query beyond the window."""
    inside = min(position, window)
    return inside**2 / 2 + window * (position - inside)


def _of_busiest(core: Operation, batch: Batch, window: int) -> Operation:
    """The arithmetic of the rank that has most; eager attention computes the whole matrix, as much on each."""
    if core.kind != "attention":
        return core
    found = spans(batch.seq_len, window, batch.shards.cp, balanced=batch.shards.cp_balanced)
    more = max(found) * len(found) / sum(found)
    return replace(core, forward_flop=more * core.forward_flop, backward_flop=more * core.backward_flop)


def _in_steps(core: Operation, arch: Architecture, batch: Batch) -> Operation:
    """A ring's kernels, one for each chunk of keys, and the sums of what they return."""
    cp, unit = batch.shards.cp, float(batch.tokens * batch.precision.compute_bytes * ADDITION_PASSES)
    keys = arch.num_kv_heads * (arch.head_dim + arch.value_dim)
    forward, backward = (cp - 1) * unit * arch.attended_size, (cp - 1) * unit * (arch.query_size + keys)
    return replace(
        core, seq_len=core.seq_len // cp,
        elementwise_forward_bytes=core.elementwise_forward_bytes + forward,
        elementwise_backward_bytes=core.elementwise_backward_bytes + backward,
        forward_kernels=cp * core.forward_kernels + cp - 1, backward_kernels=cp * core.backward_kernels + 2 * (cp - 1),
    )  # fmt: skip


def _kept_by_heads(arch: Architecture, batch: Batch) -> float:
    """The kernel's own result, and copies of key-value heads; eager code has made these before they are sent."""
    copies = max(1, batch.shards.cp // arch.num_kv_heads) if batch.fused else 1
    result = float(batch.tokens * batch.precision.compute_bytes * arch.attended_size)
    return result + (copies - 1) * chunk_bytes(arch, batch)


# ------------------------------------------------------------------------------------------------------------- messages


def chunk_bytes(arch: Architecture, batch: Batch) -> float:
    """Keys and values of one rank."""
    width = arch.num_kv_heads * (arch.head_dim + arch.value_dim)
    return float(batch.tokens * width * batch.precision.compute_bytes)


def _exchange(op: str, size_bytes: float, when: str, purpose: str, count: int = 1) -> Exchange:
    return Exchange(axis=AXIS, op=op, size_bytes=size_bytes, when=when, purpose=purpose, count=count)


def _ring(arch: Architecture, batch: Batch) -> tuple[Exchange, ...]:
    size, steps = chunk_bytes(arch, batch), batch.shards.cp - 1
    return (
        replace(_exchange("send_recv", size, "beside forward", "keys and values", steps), pieces=steps + 1),
        _exchange("send_recv", size, "beside input", "keys and values again", steps),
        _exchange("send_recv", size, "beside input", "gradients of keys and values", steps),
    )


def _gathered(arch: Architecture, batch: Batch) -> tuple[Exchange, ...]:
    size = chunk_bytes(arch, batch) * batch.shards.cp
    return (
        _exchange("all_gather", size, "before forward", "keys and values"),
        _exchange("all_gather", size, "before backward", "keys and values again"),
        _exchange("reduce_scatter", size, "after backward", "gradients of keys and values"),
    )


def _by_heads(arch: Architecture, batch: Batch) -> tuple[Exchange, ...]:
    each = batch.tokens * batch.precision.compute_bytes
    heads = max(arch.num_kv_heads, batch.shards.cp)
    inputs = (arch.query_size, heads * arch.head_dim, heads * arch.value_dim)
    words = ("queries", "keys", "values")
    result = float(each * arch.attended_size)
    return (
        *(
            _exchange("all_to_all", float(each * w), "before forward", what)
            for w, what in zip(inputs, words, strict=True)
        ),
        _exchange("all_to_all", result, "after forward", "results of attention"),
        _exchange("all_to_all", result, "before backward", "gradients of results"),
        *(
            _exchange("all_to_all", float(each * w), "after backward", f"gradients of {what}")
            for w, what in zip(inputs, words, strict=True)
        ),
    )  # fmt: skip
