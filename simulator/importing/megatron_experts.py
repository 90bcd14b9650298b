"""The experts of Megatron-LM's GPT model, from its flags.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (``_add_moe_args``, Core 0.15): two experts a token, as
wide as the MLP, unless told otherwise; ``--moe-layer-freq`` says which layers have them.
"""

from __future__ import annotations

import re
from typing import Final

from simulator.importing.sheet import MOST, Option, Sheet

_USUAL_CHOICES: Final = 2
_LARGEST: Final = 100 * MOST
#: ``[0]*3`` of a pattern such as ``([0]*3+[1]*58)``.
_RUN = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")
_WHOLE = re.compile(r"\((.*)\)(?:\*(\d{1,4}))?")


def put_experts(sheet: Sheet, layers: int, *, llama: bool) -> int:
    """Writes the sizes of experts; returns how many a layer has, 0 for a dense model. Raises ScenarioError."""
    names = ("moe-router-topk", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-layer-freq")
    experts, (top, width, shared, often) = sheet.take("--num-experts"), (sheet.take(f"--{name}") for name in names)
    if experts is None or sheet.whole(experts, least=0, most=100_000) <= 1 or not llama:
        if experts is not None and not llama:
            told = "by its sizes a model without --swiglu or RMSNorm is dense here; give --model with a config.json"
            sheet.warn(f"{experts.said}: {told}", experts.name)
        for option in (top, width, shared, often):
            if option is not None:
                sheet.ignore(option.name, "the model has no experts here")
        return 0
    count = sheet.whole(experts)
    sheet.put("model.num_experts", count, experts.said)
    chosen = _USUAL_CHOICES if top is None else sheet.whole(top, most=count)
    sheet.put("model.num_experts_per_tok", chosen, top.said if top else "Megatron-LM's default --moe-router-topk")
    size = sheet.value("model.intermediate_size") if width is None else sheet.whole(width, most=_LARGEST)
    said = width.said if width else "no --moe-ffn-hidden-size: as wide as the MLP"
    sheet.put("model.moe_intermediate_size", size, said)
    if shared is not None:
        sheet.put("model.shared_expert_intermediate_size", sheet.whole(shared, most=_LARGEST), shared.said)
    if often is not None:
        _put_dense_layers(sheet, often, layers)
    return count


def _put_dense_layers(sheet: Sheet, often: Option, layers: int) -> None:
    """Layers without experts, where they are the first ones."""
    pattern = _pattern(sheet, often, layers)
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    if len(pattern) != layers:
        raise sheet.error(often, f"has {len(pattern)} layers; the model has {layers}")
    if 0 in pattern[dense:]:
        sheet.warn(f"{often.said}: all layers from number {dense} on have experts here", often.name)
    if dense:
        sheet.put("model.first_k_dense_replace", dense, often.said)
    elif 0 not in pattern:
        sheet.ignore(often.name, "as the simulator does it")


def _pattern(sheet: Sheet, often: Option, layers: int) -> list[int]:
    """1 for each layer with experts: every so many, or runs that are added up. Raises ScenarioError."""
    text = "".join(c for c in str(often.value) if c not in "'\" ")
    if text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text):
        return [int(number % int(text) == 0) for number in range(layers)]
    whole = _WHOLE.fullmatch(text)
    found: list[int] = []
    for part in (whole[1] if whole else text).split("+"):
        run = _RUN.fullmatch(part)
        if run is None or len(found) > layers:
            raise sheet.error(often, "expected every how many layers, or a list such as ([0]*3+[1]*58)")
        found += [int(c) for c in run[1].split(",")] * int(run[2] or 1)
    return found * int((whole and whole[2]) or 1)
