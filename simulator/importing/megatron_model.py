"""The sizes of Megatron-LM's GPT model, from its flags."""

from __future__ import annotations

from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.megatron_experts import put_experts
from simulator.importing.model import Model, put_model
from simulator.importing.sheet import MOST, Option, Sheet

#: Vocabularies of tokenizers that have one size, before padding.
_VOCABULARIES: Final = {"gpt2bpetokenizer": 50257, "llama2tokenizer": 32000}
_PADDED_TO: Final = 128
_FEED_FORWARD: Final = 4
#: Flags that say how large the model is.
_SIZES: Final = (
    "num-layers", "hidden-size", "num-attention-heads", "swiglu", "normalization", "group-query-attention",
    "num-query-groups", "kv-channels", "ffn-hidden-size", "padded-vocab-size", "vocab-size", "tokenizer-type",
    "untie-embeddings-and-output-weights", "max-position-embeddings", "num-experts", "moe-router-topk",
    "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-layer-freq",
)  # fmt: skip
_LARGEST: Final = 100 * MOST


def put_megatron_model(sheet: Sheet) -> Model:
    """Writes ``model``: as ``--model`` says, else by the flags' sizes, else a guess. Raises ScenarioError."""
    layers, hidden, heads = (_flag(sheet, name) for name in ("num-layers", "hidden-size", "num-attention-heads"))
    if sheet.extras.model is not None or layers is None or hidden is None or heads is None:
        missing = [name for name, option in (("--num-layers", layers), ("--hidden-size", hidden),
                                             ("--num-attention-heads", heads)) if option is None]  # fmt: skip
        if missing and sheet.extras.model is None:
            sheet.warn(f"{', '.join(missing)}: not in the file, so its model is unknown; give --model")
        for option in (_flag(sheet, name) for name in _SIZES):
            if option is not None:
                sheet.ignore(option.name, "the model is that of model.preset or model.hf")
        return put_model(sheet)
    width, llama = sheet.whole(hidden, most=10 * MOST), _put_family(sheet)
    sheet.put("model.num_layers", sheet.whole(layers, most=100_000), layers.said)
    sheet.put("model.hidden_size", width, hidden.said)
    sheet.put("model.num_attention_heads", sheet.whole(heads, most=100_000), heads.said)
    _put_heads(sheet, width, sheet.whole(heads, most=100_000), llama=llama)
    _put_widths(sheet, width, llama=llama)
    positions = _put_positions(sheet, llama=llama)
    count = sheet.whole(layers, most=100_000)
    latent = _flag(sheet, "multi-latent-attention")
    if latent is not None:
        sheet.warn(f"{latent.name}: attention has no latents by the flags' sizes here; give --model with a config.json",
                   latent.name)  # fmt: skip
    return Model(
        name="the flags", hidden_size=width, positions=positions, learned_positions=None if llama else positions,
        layers=count, experts=put_experts(sheet, count, llama=llama),
    )  # fmt: skip


def _flag(sheet: Sheet, name: str) -> Option | None:
    return sheet.take(f"--{name}")


def _put_family(sheet: Sheet) -> bool:
    """Whether the model is of the llama family: a gated MLP, or RMSNorm."""
    norm, gated = _flag(sheet, "normalization"), _flag(sheet, "swiglu")
    said = ", ".join(option.said for option in (gated, norm) if option is not None)
    llama = gated is not None or (norm is not None and norm.value == "RMSNorm")
    sheet.put("model.family", "llama" if llama else "gpt2", said or "neither --swiglu nor --normalization RMSNorm")
    return llama


def _put_heads(sheet: Sheet, width: int, heads: int, *, llama: bool) -> None:
    grouped, groups = _flag(sheet, "group-query-attention"), _flag(sheet, "num-query-groups")
    if groups is not None and (grouped is None or not llama):
        sheet.ignore(groups.name, "read with --group-query-attention, by the llama family")
    elif groups is not None and grouped is not None:
        said = f"{grouped.name}, {groups.said}"
        sheet.put("model.num_key_value_heads", sheet.whole(groups, most=100_000), said)
    size = _flag(sheet, "kv-channels")
    if size is not None and not llama:
        sheet.ignore(size.name, "hidden_size / num_attention_heads for gpt2")
    elif size is not None:
        sheet.put("model.head_dim", sheet.whole(size), size.said)
    elif width % heads:
        told = f"--hidden-size = {width}: expected a multiple of --num-attention-heads {heads}, or --kv-channels"
        raise ScenarioError(f"{sheet.file}: {told}")


def _put_widths(sheet: Sheet, width: int, *, llama: bool) -> None:
    inner = _flag(sheet, "ffn-hidden-size")
    if inner is not None:
        sheet.put("model.intermediate_size", sheet.whole(inner, most=_LARGEST), inner.said)
    else:
        usual = int(_FEED_FORWARD * width * 2 / 3) // 64 * 64 if llama else _FEED_FORWARD * width
        sheet.put("model.intermediate_size", max(usual, 1), "Megatron-LM's default without --ffn-hidden-size")
    _put_vocabulary(sheet)
    untied = _flag(sheet, "untie-embeddings-and-output-weights")
    said = untied.name if untied else "no --untie-embeddings-and-output-weights in the file"
    sheet.put("model.tie_word_embeddings", untied is None, said)


def _put_vocabulary(sheet: Sheet) -> None:
    size = sheet.take("--padded-vocab-size", "--vocab-size")
    kind = _flag(sheet, "tokenizer-type")
    if size is not None:
        sheet.put("model.vocab_size", sheet.whole(size, most=_LARGEST), size.said)
        if kind is not None:
            sheet.ignore(kind.name, "the vocabulary's size says it")
        return
    known = _VOCABULARIES.get(str(kind.value).lower() if kind is not None else "gpt2bpetokenizer")
    said = kind.said if kind is not None else "no --vocab-size in the file; GPT-2's"
    if known is None:
        known, said = _VOCABULARIES["llama2tokenizer"], f"{said} has a file of its own; Llama 2's size"
    padded = -(-known // _PADDED_TO) * _PADDED_TO
    sheet.guess("model.vocab_size", padded, f"{said}, padded to a multiple of {_PADDED_TO}: change me")


def _put_positions(sheet: Sheet, *, llama: bool) -> int | None:
    option = _flag(sheet, "max-position-embeddings") or _flag(sheet, "seq-length")
    if option is None:
        if not llama:
            sheet.guess("model.max_position_embeddings", 4096)
        return None if llama else 4096
    positions = sheet.whole(option, most=1_000 * MOST)
    sheet.put("model.max_position_embeddings", positions, option.said)
    return positions
