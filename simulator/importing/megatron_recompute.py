"""What Megatron-LM's flags say about activations: recomputation (granularity, method, layers), and offloading.

Source: megatron/training/arguments.py and megatron/core/transformer/transformer_block.py (Core 0.15),
``_checkpointed_forward``: the number of layers counts in each stage of the pipeline, in each of its chunks.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

from simulator.device import DeviceSpec
from simulator.importing.cluster import Place
from simulator.importing.sheet import Option, Sheet
from simulator.training.recompute_modules import MODULES


def put_recompute(sheet: Sheet) -> None:
    """Writes ``train.recompute``, and which layers are one checkpoint or recomputed at all."""
    grain = sheet.take("--recompute-granularity")
    alone = sheet.take("--recompute-activations", "--checkpoint-activations")
    layers, method = sheet.take("--recompute-num-layers"), sheet.take("--recompute-method")
    parts = sheet.take("--recompute-modules")
    if grain is not None and sheet.one_of(grain, ("full", "selective")) == "full":
        sheet.put("train.recompute", "full", grain.said)
        _put_method(sheet, method, layers)
        if parts is not None:
            sheet.ignore(parts.name, "read with --recompute-granularity selective only")
        return
    if grain is not None:
        sheet.put("train.recompute", "selective", grain.said)
    elif alone is not None:
        sheet.put("train.recompute", "selective" if "recompute" in alone.name else "full", alone.name)
    else:
        sheet.put("train.recompute", "none", "no --recompute-activations in the file")
    if parts is not None and grain is not None:
        _put_modules(sheet, parts)
    elif parts is not None:
        sheet.ignore(parts.name, "read with --recompute-granularity selective only")
    for option in (layers, method):
        if option is not None:
            sheet.ignore(option.name, "read with --recompute-granularity full only")


def _put_modules(sheet: Sheet, option: Option) -> None:
    """Parts of a layer by the names that the simulator has too; ``core_attn`` alone is what both do unasked."""
    named = list(dict.fromkeys(str(option.value).split()))
    known = [name for name in named if name in MODULES]
    if len(known) < len(named):
        others = ", ".join(name for name in named if name not in known)
        sheet.warn(f"{option.said}: {others} is not simulated apart; it is kept", option.name)
    if known and known != ["core_attn"]:
        sheet.put("train.recompute_modules", known, option.said)
    elif len(known) == len(named):
        sheet.ignore(option.name, "the attention core, as the simulator does it unasked")


def _put_method(sheet: Sheet, method: Option | None, layers: Option | None) -> None:
    """``uniform`` as groups, ``block`` as the first layers of each stage; neither changes anything at its least."""
    if method is None or layers is None:
        for option in (method, layers):
            if option is not None:
                sheet.warn(
                    f"{option.said}: Megatron-LM takes --recompute-method and --recompute-num-layers together; all "
                    "layers are recomputed one by one", option.name,
                )  # fmt: skip
        return
    number, sizes = sheet.whole(layers), _layers_of_stages(sheet)
    said = f"{method.said}, {layers.said}"
    if sheet.one_of(method, ("uniform", "block")) == "block":
        if sizes and number >= max(sizes):
            sheet.ignore(layers.name, "all layers of each stage, as the simulator does it")
        else:
            sheet.put("train.recompute_layers", number, said)
        return
    common = reduce(gcd, sizes, number)
    if common != number:
        sheet.warn(f"{said}: does not divide the layers of each stage ({', '.join(map(str, dict.fromkeys(sizes)))}); "
                   f"groups of {common} are taken", layers.name)  # fmt: skip
    if common == 1:
        sheet.ignore(layers.name, "layers are recomputed one by one, as the simulator does it")
    else:
        sheet.put("train.recompute_group", common, said)


def _layers_of_stages(sheet: Sheet) -> tuple[int, ...]:
    """Layers of each stage as written down already; none where they are unknown or do not come out even."""
    if given := sheet.value("parallel.stages"):
        return tuple(given)
    layers = sheet.value("model.num_layers")
    count = (sheet.value("parallel.pp") or 1) * (sheet.value("parallel.chunks") or 1)
    return (int(layers) // count,) if layers and int(layers) % count == 0 else ()


def put_activation_offload(sheet: Sheet, place: Place) -> None:
    """Writes ``train.offload_activations``: the share of the layers that ``--cpu-offloading-num-layers`` takes."""
    wanted, number = sheet.take("--cpu-offloading"), sheet.take("--cpu-offloading-num-layers")
    given = number or wanted
    if given is None or (wanted is not None and not sheet.flag(wanted)):
        return
    layers, taken = int(sheet.value("model.num_layers") or 0), sheet.whole(number, least=0) if number else 0
    said = ", ".join(option.said for option in (wanted, number) if option is not None)
    device = place.spec.device
    why = ""
    if not layers:
        why = "the number of layers is not among the flags"
    elif (sheet.value("parallel.pp") or 1) > 1:
        why = "Megatron-LM refuses it beside pipeline parallelism"
    elif (sheet.value("parallel.ep") or 1) > 1:
        why = "not beside experts that are shared"
    elif not isinstance(device, DeviceSpec) or device.host_link is None:
        why = "the device's profile has no rate of copies to the host"
    if why:
        sheet.warn(f"{said}: {why}; activations stay on the device here", given.name)
    elif not taken:
        sheet.ignore(given.name, "no layers, as the simulator does it")
    else:
        sheet.put("train.offload_activations", f"{100 * min(taken, layers) / layers:.4g}%", said)
