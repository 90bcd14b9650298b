"""Memory traffic of what lies between the matrix products, kernel by kernel, in bytes per element.

Two ways to run the same mathematics. ``eager``: PyTorch as Hugging Face and others write models, one kernel per line of
code, each reading its inputs from memory and writing its result back. ``fused``: what ``torch.compile``, Transformer
Engine or Apex make of it, each input read once and each result written once.

The counts are ours, from the kernels PyTorch launches: ``LlamaRMSNorm`` in 16 bits casts up (2 + 4), squares (4 + 4),
averages (4), scales (4 + 4), casts down (4 + 2) and multiplies by the weight (2 + 2), 36 bytes where a fused kernel
needs 4. Under ``torch.autocast`` the residual stream and the norms are fp32, and every linear layer casts its input.

What is kept for backward (the ``*_kept_bytes``) follows from the same kernels: an eager RMSNorm keeps its fp32 input
and the normalised input, autocast one 16-bit input for each linear layer. Checked against the tensors torch 2.13 saves.

Symbols: e bytes of an activation in the compute type, r of the residual stream, n linear layers that read the norm.
Limits: no caches (an input that the second-level cache still holds costs nothing), no Hugging Face ``gelu_new`` (eight
kernels; we count one GELU kernel, as ``torch.nn.GELU``).
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.training.precision import Precision

KERNELS = ("eager", "fused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes per element and kernels launched, forward and backward."""

    forward: float
    backward: float
    kernels: tuple[int, int]

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            forward=self.forward + other.forward, backward=self.backward + other.backward,
            kernels=(self.kernels[0] + other.kernels[0], self.kernels[1] + other.kernels[1]),
        )  # fmt: skip


NOTHING = Cost(forward=0.0, backward=0.0, kernels=(0, 0))


def stream_bytes(precision: Precision) -> int:
    """Bytes of an element of the residual stream: fp32 under autocast, whose embedding and norms return fp32."""
    return 4 if precision.cached_weight_bytes else precision.compute_bytes


def norm_kept_bytes(precision: Precision, *, rms: bool, fused: bool, wide: bool = False) -> float:
    """Bytes per element a norm of the residual stream keeps.

    ``LayerNorm`` and any fused norm: its input, r. ``LlamaRMSNorm``: the input in fp32 (4, the stream itself where that
    is fp32) and the normalised input in the stream's type (r), or in fp32 where the weight multiplies it there
    (``wide``: Gemma, OLMo 2, gpt-oss). Statistics (4 or 8 bytes a token) are left out.
    """
    r = stream_bytes(precision)
    return float((8 if wide else 4 + r) if rms and not fused else r)


def linear_kept_bytes(precision: Precision, *, readers: int, fused: bool) -> float:
    """Bytes per element of the input that ``readers`` linear layers share; eager autocast casts it for each anew."""
    copies = readers if precision.cached_weight_bytes and not fused else 1
    return float(copies * precision.compute_bytes)


def qk_norm_kept_bytes(precision: Precision, *, fused: bool, wide: bool = False) -> float:
    """Bytes per element of q and k that their RMSNorms keep: as ``norm_kept_bytes``, in the compute type."""
    e = precision.compute_bytes
    return float(e if fused else 8 if wide else 4 + e)


def scores_kept_bytes(precision: Precision, *, fp32_softmax: bool, dropout: bool, fused: bool) -> float:
    """Bytes per score of attention that is not flash.

    The softmax's output, e, and with dropout a mask and what it leaves, 2 e + 1. Autocast, and models that ask for it
    (``fp32_softmax``: Llama), run the softmax in fp32: its output takes 4, and eager code keeps the 16-bit copy too.
    """
    e = precision.compute_bytes
    softmax = 4 if fp32_softmax or precision.cached_weight_bytes else e
    copy = e if dropout or (softmax > e and not fused) else 0
    return float(softmax + copy + dropout)


def norm(
    precision: Precision, *, rms: bool, readers: int, residual: bool, fused: bool, wide: bool = False
) -> Cost:  # fmt: skip
    """A norm of the residual stream and, if ``residual``, the addition before it; ``readers`` linear layers follow.

    Fused: read r, write e; backward reads each reader's gradient, the input, and writes one gradient.
    """
    e, r = precision.compute_bytes, stream_bytes(precision)
    autocast = r > e
    if fused:
        add = Cost(forward=e + r, backward=r + (e if autocast else 0), kernels=(0, 0)) if residual else NOTHING
        return Cost(forward=r + e, backward=readers * e + 2 * r, kernels=(1, 2)) + add
    own = _rms_norm(r, wide=wide) if rms else Cost(forward=2.0 * r, backward=5.0 * r, kernels=(1, 2))
    gather = Cost(forward=0.0, backward=3.0 * r * (readers - 1), kernels=(0, readers - 1))
    casts = _cast(r, e, readers) if autocast else NOTHING
    return own + gather + casts + (_residual(e, r) if residual else NOTHING)


def _rms_norm(size: int, *, wide: bool = False) -> Cost:
    """``LlamaRMSNorm`` on elements of ``size`` bytes; wide: its weight multiplies in fp32.

    Forward in fp32: square 8, mean 4, scale 8, weight 2 x size; 16 bits add a cast each way. Backward: gradients of
    weight (read 2, write 1, sum) and of its input (2), of the scale (12 + 4), of the input by it (8), of mean and
    square (4 + 8 + 12), and their sum (12).
    """
    casts, weighted = 0 if size == 4 else 6, 4 if wide else size
    return Cost(
        forward=20.0 + 2 * weighted + 2 * casts, backward=60.0 + 6 * weighted + 2 * casts,
        kernels=(6, 11) if size == 4 else (8, 13),
    )  # fmt: skip


def _cast(wide: int, narrow: int, count: int) -> Cost:
    return Cost(forward=float(count * (wide + narrow)), backward=float(count * (wide + narrow)), kernels=(count, count))


def _residual(e: int, r: int) -> Cost:
    """Forward: read both, write one. Backward: the two gradients of the stream are added (and cast for the branch)."""
    cast = r + e if r > e else 0
    return Cost(forward=2.0 * r + e, backward=3.0 * r + cast, kernels=(1, 1 + bool(cast)))


def rotary(precision: Precision, *, qk_norm: bool, fused: bool, wide: bool = False) -> Cost:
    """Per element of q and k: two products, a rotated copy (negate half, concatenate), a sum; norms of q and k."""
    e = precision.compute_bytes
    if fused:
        return Cost(forward=2.0 * e, backward=(3.0 if qk_norm else 2.0) * e, kernels=(1, 1))
    turn = Cost(forward=10.0 * e, backward=10.0 * e, kernels=(10, 10))
    if not qk_norm:
        return turn
    one = _rms_norm(e, wide=wide)
    return turn + Cost(forward=one.forward, backward=one.backward, kernels=(2 * one.kernels[0], 2 * one.kernels[1]))


def activation(precision: Precision, *, gated: bool, fused: bool) -> Cost:
    """SwiGLU: ``silu`` then a product, five passes forward and nine backward, fused three and six. GELU: two, three."""
    e = precision.compute_bytes
    if not gated:
        return Cost(forward=2.0 * e, backward=3.0 * e, kernels=(1, 1))
    if fused:
        return Cost(forward=3.0 * e, backward=6.0 * e, kernels=(1, 1))
    return Cost(forward=5.0 * e, backward=9.0 * e, kernels=(2, 3))


def branch_norm(precision: Precision, *, residual: bool, fused: bool, wide: bool = False) -> Cost:
    """An RMSNorm of what a layer returned, in the compute type, and the residual addition after it if ``residual``."""
    e, r = precision.compute_bytes, stream_bytes(precision)
    own = Cost(forward=2.0 * e, backward=3.0 * e, kernels=(1, 2)) if fused else _rms_norm(e, wide=wide)
    if not residual:
        return own
    add = Cost(forward=2.0 * r, backward=float(r), kernels=(0, 0)) if fused else _residual(e, r)
    return own + add


def routing(precision: Precision, *, fused: bool) -> Cost:
    """Per logit of a router, after its product. Eager: upcast, softmax in fp32 (4 + 4), the best k (4); backward
    scatters their gradients (4), softmax (4 + 4 + 4), downcast. The sort of all choices by expert, their counts and
    offsets are kernels of almost no bytes. Fused: logits read and probabilities written once each way.
    """
    e = precision.compute_bytes
    if fused:
        return Cost(forward=e + 4.0, backward=4.0 + e, kernels=(3, 2))
    cast = 4 + e if e < 4 else 0
    return Cost(forward=12.0 + cast, backward=16.0 + cast, kernels=(10, 6))


def dispatch(precision: Precision, *, top_k: int, fused: bool) -> Cost:
    """Per element of the k copies of each row. Reads a row of the norm's output, writes it; autocast casts the copy.

    Backward adds the copies' gradients: eager ``index_put_`` zeroes the sum (1/k), and reads and rewrites it for each
    copy; fused, a sum over a token's k rows.
    """
    e, r = precision.compute_bytes, stream_bytes(precision)
    cast = r + e if r > e else 0
    if fused:
        return Cost(forward=float(r + e), backward=e + r / top_k, kernels=(1, 1))
    return Cost(
        forward=2.0 * r + cast, backward=cast + r / top_k + 3.0 * r,
        kernels=(1 + bool(cast), 2 + bool(cast)),
    )  # fmt: skip


def combine(precision: Precision, *, top_k: int, fused: bool) -> Cost:
    """Per element of the k rows of each token: times their weights (fp32), back to the tokens' order, summed.

    Eager: product e + 4, gather 4 + 4, sum 4 + 4/k, cast. Backward: gather of the sum's gradient (4/k, zeroes 4, read
    and rewritten 4 + 8), gradient of the rows 8 and its cast 4 + e, of the weights 4 + e + 4 and its sum 4. Fused: the
    experts' activation has applied the weights (Megatron-LM, ``weighted_bias_swiglu_impl`` of
    core/fusions/fused_bias_swiglu.py), so that rows are read once and the sum written, and backward the reverse.
    """
    e = precision.compute_bytes
    if fused:
        return Cost(forward=e + e / top_k, backward=e + e / top_k, kernels=(1, 1))
    cast = 4 + e if e < 4 else 0
    return Cost(
        forward=16.0 + e + (4.0 + cast) / top_k, backward=36.0 + e + cast + (4.0 + cast) / top_k,
        kernels=(4, 6),
    )  # fmt: skip


def shared_sum(precision: Precision, *, gated: bool, fused: bool) -> Cost:
    """Adds what shared experts return to what routed ones do, scaled by a sigmoid first if ``gated``."""
    e = precision.compute_bytes
    if fused:
        return Cost(forward=3.0 * e, backward=(4.0 if gated else 2.0) * e, kernels=(1, 1))
    add = Cost(forward=3.0 * e, backward=0.0, kernels=(1, 0))
    return add + Cost(forward=2.0 * e, backward=5.0 * e, kernels=(2, 4)) if gated else add


def softcap(precision: Precision, *, fused: bool) -> Cost:
    """Per logit ``c tanh(x / c)``: divide, tanh, multiply; backward the same three, tanh reads its output too."""
    e = precision.compute_bytes
    if fused:
        return Cost(forward=2.0 * e, backward=3.0 * e, kernels=(1, 1))
    return Cost(forward=6.0 * e, backward=7.0 * e, kernels=(3, 3))


def dropout(precision: Precision, *, fused: bool) -> Cost:
    """Read, write, and a mask of one byte; fused, only the mask."""
    bytes_each = 1.0 if fused else 2.0 * precision.compute_bytes + 1
    return Cost(forward=bytes_each, backward=bytes_each, kernels=(0, 0) if fused else (1, 1))


def cross_entropy(precision: Precision, *, fused: bool) -> Cost:
    """Per logit. Eager: upcast (2 + 4), log-softmax (4 + 4); backward zeroes the gradient (4), log-softmax (4 + 4 + 4),
    downcast (4 + 2). Fused: the logits are read twice forward, and read and overwritten backward.
    """
    e = precision.compute_bytes
    if fused:
        return Cost(forward=2.0 * e, backward=2.0 * e, kernels=(2, 1))
    cast = 4 + e if e < 4 else 0
    return Cost(forward=8.0 + cast, backward=16.0 + cast, kernels=(3, 4))
