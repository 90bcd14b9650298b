"""How a family of models builds a block: its modules by name, in the order in which they register their parameters.

A layout is a table. Each row names a module, the part of the block that it belongs to, and its sizes by name
(``architecture.sizes`` says what they are); a row with a size of 0 is not there. Parts tell what runs when:
``attn_norm, latent, latent_norm, qkv, qk_norm, sinks, out, attn_post_norm`` for attention (``latent`` reads the hidden
state where q, k and v are made from something narrower), ``mlp_norm, up, down, mlp_post_norm`` for a dense MLP, and
``router, experts_up, experts_down, shared_up, shared_down, shared_gate`` in its place where a layer has experts.
"""

from __future__ import annotations

from dataclasses import dataclass

DENSE_PARTS = frozenset({"up", "down"})
EXPERT_PARTS = frozenset({"router", "experts_up", "experts_down", "shared_up", "shared_down", "shared_gate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One module's parameters. ``sizes`` name the dimensions of its weight, outputs first.

    bias: 'always', or the flag of the architecture that says whether; '' never. suffix: what follows the module's name
    in that of its weight; stacks of experts are parameters of their own and have none. inputs_first: the stored weight
    has its inputs first.
    """

    part: str
    module: str
    sizes: tuple[str, ...]
    bias: str = ""
    suffix: str = ".weight"
    inputs_first: bool = False


def matrix(
    part: str, module: str, outputs: str, inputs: str, bias: str = "", *, inputs_first: bool = False
) -> Row:  # fmt: skip
    """A linear layer."""
    return Row(part=part, module=module, sizes=(outputs, inputs), bias=bias, inputs_first=inputs_first)


def scale(part: str, module: str, size: str = "hidden", *, shift: bool = False) -> Row:
    """A norm: RMSNorm has a scale, LayerNorm a shift too."""
    return Row(part=part, module=module, sizes=(size,), bias="always" if shift else "")


def stack(
    part: str, module: str, outputs: str, inputs: str, bias: str = "", *, inputs_first: bool = False
) -> Row:  # fmt: skip
    """The same matrix of all experts as one parameter (transformers 5; grouped products need it so)."""
    sizes = ("experts", outputs, inputs)
    return Row(part=part, module=module, sizes=sizes, bias=bias, suffix="", inputs_first=inputs_first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a family's modules are called and ordered, and what kind they are.

    embeddings, final_norm: rows outside blocks, whose modules are whole names; blocks: what the number of a layer
    follows. rms: RMSNorm, else LayerNorm; wide_norm: it multiplies by its weight in fp32, before it casts down.
    gated: the MLP multiplies two branches (SwiGLU, GeGLU). rotary: positions turn q and k. parallel: attention and
    MLP read the same input and are added together. fp32_softmax: unfused attention takes its softmax in fp32.
    wide_router: the router works in fp32. extra_positions: rows of the position table beyond the longest sequence.
    norm_before_blocks: the final norm is registered before the blocks.
    """

    embeddings: tuple[Row, ...]
    blocks: str
    block: tuple[Row, ...]
    final_norm: Row
    head: str = "lm_head"
    rms: bool = True
    wide_norm: bool = False
    gated: bool = True
    rotary: bool = True
    parallel: bool = False
    fp32_softmax: bool = True
    wide_router: bool = False
    extra_positions: int = 0
    norm_before_blocks: bool = False

    @property
    def values_inside_qkv(self) -> bool:
        """Whether q, k and v come out of one matrix and q and k are then made anew, so that v holds all three alive."""
        return self.rotary and sum(row.part == "qkv" for row in self.block) == 1
