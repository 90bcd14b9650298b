"""How a model is trained: one optimizer step, as each rank of data parallelism sees it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from simulator.errors import UnitError
from simulator.fields import Count, Frozen, Items, errors_at
from simulator.ranks_spec import UnevenBatch
from simulator.units import parse_fraction

Precision = Literal["bf16-mixed", "fp16-mixed", "bf16-master", "bf16-moments", "bf16", "tf32", "fp32"]


Module = Literal["core_attn", "layernorm", "mla_up_proj", "mlp_act", "moe_act", "mlp", "moe"]


def _offloaded(value: Any) -> float:
    if isinstance(value, bool):
        return float(value)
    try:
        share = parse_fraction(value)
    except UnitError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UnitError("expected true, false, or a share of the layers from 0% to 100%, such as 50%")
    return share


#: A share of layers; true is all of them, false none.
OffloadedShare = Annotated[
    float, BeforeValidator(_offloaded), WithJsonSchema({"type": ["boolean", "string", "number"], "examples": ["50%"]})
]


class Train(Frozen):
    """One optimizer step, as each data-parallel rank sees it."""

    seq_len: Annotated[int, Field(ge=1, le=1_000_000_000)] = Field(
        default=1, description="tokens in a sequence; only measured layers and image models can do without"
    )
    micro_batch: Count = Field(description="sequences of one forward and backward pass on one rank")
    grad_accumulation: Count = Field(default=1, description="micro-batches added up before the optimizer steps")
    uneven: Items[UnevenBatch] = Field(
        default=(), description="ranks with a micro-batch of their own: [{ranks: [0, 1], micro_batch: 2}]"
    )
    host_syncs: Literal["never", "step", "micro_batch"] = Field(
        default="never",
        description="how often the host waits for the device, as loss.item() does: at the end of each step, or of each "
        "micro-batch",
    )
    precision: Precision = Field(default="bf16-mixed", description="types of compute, parameters and gradients")
    optimizer: Literal["adamw", "adam", "sgd", "sgd-momentum"] = Field(
        default="adamw", description="optimizer, which decides the bytes of its state"
    )
    attention: Literal["flash", "flash-1", "flash-3", "eager"] = Field(
        default="flash",
        description="attention kernel: FlashAttention 2 (flash), 1 or 3, or one that keeps its score matrix (eager)",
    )
    kernels: Literal["eager", "fused"] | None = Field(
        default=None,
        description="element-wise work: one kernel per operation (eager), or fused by a compiler; left out: as the "
        "device's usual framework does it",
    )
    recompute: Literal["none", "selective", "selective-op", "full"] = Field(
        default="none",
        description="activations dropped in forward and computed again in backward: of attention alone (selective), "
        "of all but attention and every second product (selective-op, as torchtitan), or of whole blocks (full)",
    )
    recompute_layers: Count | None = Field(
        default=None,
        description="with recompute full: how many layers are recomputed, the first ones of each pipeline stage (each "
        "chunk); the others keep all (Megatron's method block); all layers when left out",
    )
    recompute_group: Count | None = Field(
        default=None,
        description="with recompute full: layers of one checkpoint, which keeps the input of the first and runs all of "
        "them again at once (Megatron's method uniform); 1 when left out",
    )
    recompute_modules: Annotated[Items[Module], Field(min_length=1)] | None = Field(
        default=None,
        description="with recompute selective: the parts of every layer that are recomputed, by Megatron's names: "
        "core_attn, layernorm, mla_up_proj, moe_act, mlp, moe; mlp_act is the activation of dense MLPs; [core_attn] "
        "when left out",
    )
    offload_activations: OffloadedShare = Field(
        default=0.0,
        description="whether what layers keep for backward waits in host memory: true, or a share of the layers, the "
        "first ones; copied over the host link after a layer's forward, fetched one layer ahead in backward",
        json_schema_extra={"default": False},
    )
    clip_grad_norm: bool = Field(
        default=False, description="whether the norm of all gradients is computed before the optimizer steps"
    )
    mfu: Literal["6N", "6N+attention", "6N-no-embedding+attention"] = Field(
        default="6N+attention", description="which FLOP count the reported MFU is defined by"
    )

    @model_validator(mode="after")
    def _recomputes_layers(self) -> Train:
        """Which layers, and how many at once, is asked of whole layers alone."""
        given = [key for key in ("recompute_layers", "recompute_group") if getattr(self, key) is not None]
        problems: list[tuple[tuple[str | int, ...], str]] = [
            ((key,), f"needs recompute full; got recompute {self.recompute}") for key in given
            if self.recompute != "full"
        ]  # fmt: skip
        modules = self.recompute_modules
        if modules is not None and self.recompute != "selective":
            problems.append((("recompute_modules",), f"needs recompute selective; got recompute {self.recompute}"))
        elif modules is not None and len(set(modules)) != len(modules):
            problems.append((("recompute_modules",), f"names a part twice; got [{', '.join(modules)}]"))
        if len(given) == 2 and not problems:
            told = (
                "cannot stand beside recompute_layers, whose layers are checkpoints of their own; give one of the two"
            )
            problems = [(("recompute_group",), told)]
        if problems:
            raise errors_at("Train", *problems)
        return self
