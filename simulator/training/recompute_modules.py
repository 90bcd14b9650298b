"""``selective`` recomputation of named parts of a block: what they return is not kept but made again when needed.

Names and what they cover are Megatron-LM's (``--recompute-modules``, megatron/core/transformer/transformer_config.py):

* ``core_attn``: the attention core (``training.attention`` sees to it);
* ``layernorm``: the norms before attention and MLP: their input is kept, the input of the products after them is not;
* ``mla_up_proj``: of latent attention the norms of latents, the projections up and the rotation: q, k and v are not
  kept, the latents are;
* ``moe_act``: the activation of experts, shared ones too: the input of the second product is not kept;
* ``mlp``, ``moe``: a whole dense MLP, or layer of experts, with all that it sends, keeping its input alone.

``mlp_act``, which Megatron-LM does not name, is ``moe_act`` of a dense MLP, as the fused SwiGLU of xFormers runs
(``_SwiGLUFusedFunc`` in xformers/ops/swiglu_op.py keeps gate and up, and makes their product again in backward).
DeepSeek-V3 recomputed norms, up-projections and SwiGLU (arXiv:2412.19437, sections 3.2.3 and 3.3.3): ``layernorm``,
``mla_up_proj`` and ``moe_act``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from simulator.errors import ScenarioError
from simulator.training.architecture import Architecture
from simulator.training.attention import qkv_bytes
from simulator.training.batch import Batch
from simulator.training.elementwise import stream_bytes
from simulator.training.moe import ROUTER_INDEX_BYTES, own_tokens
from simulator.training.operations import Operation
from simulator.training.recompute import recomputed_blocks
from simulator.training.tensor import share_of_sequence

_Parts = dict[str, Operation]


def check_modules(arch: Architecture, modules: Sequence[str]) -> None:
    """Raises ScenarioError for a part that the model does not have, or that is inside another one named."""
    lacking = {
        "mla_up_proj": "latent attention" if arch.latent is None else "",
        "moe_act": "experts" if arch.experts is None else "", "moe": "experts" if arch.experts is None else "",
    }  # fmt: skip
    for name in modules:
        if lacking.get(name):
            raise ScenarioError(f"train.recompute_modules: {arch.name} has no {lacking[name]}; leave {name} out")
    for whole, part in (("moe", "moe_act"), ("mlp", "mlp_act")):
        if whole in modules and part in modules:
            raise ScenarioError(f"train.recompute_modules: {whole} runs {part} again already; leave one of them out")


def recomputed_modules(block: Sequence[Operation], arch: Architecture, batch: Batch) -> list[Operation]:
    """The operations of a block, those of ``batch.modules`` run again."""
    parts: _Parts = {operation.name.removeprefix(f"{operation.layer}."): operation for operation in block}
    for name in batch.modules:
        if name in _CHANGES:
            parts |= _CHANGES[name](parts, arch, batch)
    return list(parts.values())


def _without_norms(parts: _Parts, arch: Architecture, batch: Batch) -> _Parts:
    """The first reader of each norm makes it run again: what all readers share hangs on the first."""
    readers = {
        "attn_norm": "attn.latent" if "attn.latent" in parts else "attn.qkv",
        "mlp_norm": "mlp.router" if "mlp.router" in parts else "mlp.up",
    }
    input_bytes = float(batch.tokens * arch.hidden_size * stream_bytes(batch.precision)) / share_of_sequence(batch)
    found: _Parts = {}
    for norm, reader in readers.items():
        if norm not in parts or reader not in parts:
            continue
        left = _of_router(arch, batch) if reader == "mlp.router" else 0.0
        back = parts[norm].saved_bytes - input_bytes + parts[reader].saved_bytes - left
        found[norm] = replace(parts[norm], saved_bytes=input_bytes)
        found[reader] = _runs(parts[reader], left, [replace(parts[norm], saved_bytes=back)])
    return found


def _of_router(arch: Architecture, batch: Batch) -> float:
    """What a router keeps beside its input."""
    experts, tokens = arch.experts, own_tokens(batch).tokens
    assert experts is not None, "only experts have a router"
    return tokens * (4.0 * (experts.routed or experts.count) + ROUTER_INDEX_BYTES * experts.top_k)


def _without_up_projections(parts: _Parts, arch: Architecture, batch: Batch) -> _Parts:
    """q, k and v, and what the products that make them read, come back for the backward of the attention core."""
    norm, up, turn, core = (parts[name] for name in ("attn.latent_norm", "attn.qkv", "attn.rotary", "attn.core"))
    made = qkv_bytes(arch, batch)
    again = (replace(norm, saved_bytes=0.0), up, replace(turn, saved_bytes=made))
    return {
        "attn.qkv": replace(up, saved_bytes=0.0),
        "attn.core": replace(core, saved_bytes=core.saved_bytes - made, replayed=(*again, *core.replayed)),
    }


def _without_activations(places: Sequence[str]) -> Callable[[_Parts, Architecture, Batch], _Parts]:
    def change(parts: _Parts, arch: Architecture, _batch: Batch) -> _Parts:
        found: _Parts = {}
        for place in places:
            if f"{place}.activation" not in parts:
                continue
            made, reader = parts[f"{place}.activation"], parts[f"{place}.down"]
            kept = reader.saved_bytes * (2 if arch.layout.gated else 1)
            back = made.saved_bytes - kept + reader.saved_bytes
            found[f"{place}.activation"] = replace(made, saved_bytes=kept)
            found[f"{place}.down"] = _runs(reader, 0.0, [replace(made, saved_bytes=back)])
        return found

    return change


def _whole(first: str) -> Callable[[_Parts, Architecture, Batch], _Parts]:
    """All of an MLP that begins with ``first`` is run again; a layer of the other kind is left as it is."""

    def change(parts: _Parts, arch: Architecture, batch: Batch) -> _Parts:
        if first not in parts:
            return {}
        inside = [name for name in parts if name.startswith("mlp.") and not name.endswith(("norm", "dropout"))]
        beside = _of_router(arch, batch) if first == "mlp.router" else 0.0
        kept = recomputed_blocks([parts[name] for name in inside], parts[first].saved_bytes - beside)
        return dict(zip(inside, kept, strict=True))

    return change


def _runs(operation: Operation, saved_bytes: float, again: Sequence[Operation]) -> Operation:
    """The operation keeps so much, and runs others again before its backward."""
    return replace(operation, saved_bytes=saved_bytes, replayed=(*operation.replayed, *again))


_CHANGES: dict[str, Callable[[_Parts, Architecture, Batch], _Parts]] = {
    "layernorm": _without_norms,
    "mla_up_proj": _without_up_projections,
    "mlp_act": _without_activations(["mlp"]),
    "moe_act": _without_activations(["mlp.experts", "mlp.shared"]),
    "mlp": _whole("mlp.up"),
    "moe": _whole("mlp.router"),
}
#: What ``train.recompute_modules`` may name.
MODULES = ("core_attn", *_CHANGES)
