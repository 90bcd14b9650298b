"""A DeepSpeed JSON: ZeRO stage, buckets, batch, precision; no model and no cluster.

Sources: deepspeed/runtime/config.py (``_set_batch_related_parameters``), deepspeed/runtime/zero/config.py (0.17), and
for "auto" transformers/integrations/deepspeed.py (``trainer_config_finalize``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.cluster import Place, Ranks, put_cluster
from simulator.importing.deepspeed_batch import put_batch, ranks_of
from simulator.importing.deepspeed_parallel import put_deepspeed_degrees, put_deepspeed_ways
from simulator.importing.deepspeed_reasons import OFFLOADS, OTHERWISE, REASONS
from simulator.importing.draft import Draft
from simulator.importing.model import Model, put_model, put_seq_len
from simulator.importing.recipes import put_clipping, put_optimizer, put_precision
from simulator.importing.sheet import AUTO, CHANGE_ME, Option, Sheet

MOST_ELEMENTS: Final = 10**13
_ZERO: Final = "zero_optimization"
#: Key of ``parallel`` -> spellings in ``zero_optimization``, the least a scenario takes, and what the HF Trainer
#: writes for "auto", from the hidden size.
_SIZES: Final[dict[str, tuple[tuple[str, ...], int, Callable[[int], int] | None]]] = {
    "reduce_bucket_size": (("reduce_bucket_size",), 1, lambda hidden: hidden * hidden),
    "prefetch_bucket_size": (
        ("stage3_prefetch_bucket_size", "prefetch_bucket_size"), 0, lambda hidden: int(0.9 * hidden * hidden),
    ),
    "param_persistence_threshold": (
        ("stage3_param_persistence_threshold", "param_persistence_threshold"), 0, lambda hidden: 10 * hidden,
    ),
    "max_live_parameters": (("stage3_max_live_parameters", "max_live_parameters"), 1, None),
    "max_reuse_distance": (("stage3_max_reuse_distance", "max_reuse_distance"), 0, None),
}  # fmt: skip


def import_deepspeed(sheet: Sheet) -> Draft:
    """The step of ZeRO that the JSON configures. Raises ScenarioError, in DeepSpeed's words where batches disagree."""
    put_deepspeed(sheet, None)
    return sheet.finish(f"Imported from {sheet.file}, a DeepSpeed configuration", REASONS)


def put_deepspeed(sheet: Sheet, ranks: Ranks | None, precision: tuple[str, Option] | None = None) -> None:
    """All of the scenario. ``ranks`` and ``precision``: what a launcher says besides."""
    others = put_deepspeed_degrees(sheet)
    place = put_cluster(sheet, ranks or ranks_of(sheet, others))
    if place.world % others:
        raise ScenarioError(f"{sheet.file}: {place.world} ranks are not divisible by tensor x pipeline x sequence "
                            f"parallel size {others}; change --gpus, or give --drop-model-parallel")  # fmt: skip
    model = put_model(sheet)
    put_deepspeed_ways(sheet, model, put_stage(sheet, model))
    put_seq_len(sheet, model)
    put_batch(sheet, place.world // others)
    _put_types(sheet, place, precision)
    _put_update(sheet)


def put_stage(sheet: Sheet, model: Model) -> int:
    """``parallel``: the stage and the sizes that it reads. Returns the stage."""
    option = sheet.take(f"{_ZERO}.stage", _ZERO, "deepspeed_config.zero_stage")
    stage = 0 if option is None else _stage(sheet, option)
    said = "no zero_optimization: stage 0" if option is None else option.said
    if stage == 0:
        sheet.put("parallel.strategy", "ddp", said)
        sheet.put("parallel.overlap", "none", f"{said}: DeepSpeed reduces after the backward then")
    else:
        sheet.put("parallel.strategy", f"zero{stage}", said)
        launched = sheet.take("distributed_type")
        told = launched.said if launched is not None else "a DeepSpeed configuration"
        sheet.put("parallel.implementation", "deepspeed", told)
        _put_sizes(sheet, stage, model)
    _put_flags(sheet, stage)
    _warn(sheet)
    return stage


def _stage(sheet: Sheet, option: Option) -> int:
    if isinstance(option.value, bool):
        return int(option.value)
    return sheet.whole(option, least=0, most=3)


def _put_sizes(sheet: Sheet, stage: int, model: Model) -> None:
    for key, (spellings, least, automatic) in _SIZES.items():
        option = sheet.take(*(f"{_ZERO}.{name}" for name in spellings))
        if option is None:
            continue
        if key != "reduce_bucket_size" and stage != 3:
            sheet.ignore(option.name, "read by stage 3 only")
        elif not option.auto:
            size = sheet.whole(option, least=0, most=MOST_ELEMENTS)
            least_said = f" (the least that a scenario takes is {least})" if size < least else ""
            sheet.put(f"parallel.{key}", max(size, least), option.said + least_said)
        elif automatic is not None and model.hidden_size is not None:
            told = f"{option.said}, as the HF Trainer sets it for a hidden size of {model.hidden_size}"
            sheet.guess(f"parallel.{key}", automatic(model.hidden_size), told)
        else:
            sheet.ignore(option.name, f"{AUTO}: DeepSpeed's own default")


def _put_flags(sheet: Sheet, stage: int) -> None:
    overlap = sheet.take(f"{_ZERO}.overlap_comm")
    if overlap is not None and stage == 0:
        sheet.ignore(overlap.name, "stage 0 does not overlap")
    elif overlap is not None and not overlap.auto:
        sheet.put("parallel.overlap_comm", sheet.flag(overlap), overlap.said)
    elif overlap is not None:
        sheet.ignore(overlap.name, f"{AUTO}: DeepSpeed's own default")
    whole = sheet.take(f"{_ZERO}.use_multi_rank_bucket_allreduce")
    if whole is not None and stage in (1, 2):
        sheet.put("parallel.use_multi_rank_bucket_allreduce", sheet.flag(whole), whole.said)
    elif whole is not None:
        sheet.ignore(whole.name, "read by stages 1 and 2 only")


def _warn(sheet: Sheet) -> None:
    """Options that would change the step, and are not in this version."""
    for name in OFFLOADS:
        device = sheet.take(f"{_ZERO}.{name}.device", f"{_ZERO}.{name}", f"deepspeed_config.{name}_device")
        if device is not None and device.value not in ("none", False, {}):
            sheet.warn(
                f"{device.said}: offload is not in this version, so all states stay on the GPU here", device.name
            )
    for name, (harmless, told) in OTHERWISE.items():
        option = sheet.take(name)
        if option is None:
            continue
        if option.value in harmless or option.auto:
            sheet.ignore(option.name, "as the simulator does it")
        else:
            sheet.warn(f"{option.said}: {told}", option.name)


def _put_types(sheet: Sheet, place: Place, launcher: tuple[str, Option] | None) -> None:
    """16-bit weights with fp32 masters in either 16-bit mode: DeepSpeed's own mixed precision, not autocast."""
    autocast = sheet.take("torch_autocast.enabled")
    bf16 = sheet.take("bf16.enabled", "bfloat16.enabled")
    fp16 = sheet.take("fp16.enabled")
    masters = "16-bit weights, fp32 masters"
    if autocast is not None and not autocast.auto and sheet.flag(autocast):
        dtype = sheet.take("torch_autocast.dtype")
        half = dtype is not None and str(dtype.value) in ("float16", "fp16", "half")
        put_precision(sheet, place, "fp16-mixed" if half else "bf16-mixed", (dtype or autocast).said)
    elif bf16 is not None and not bf16.auto and sheet.flag(bf16):
        put_precision(sheet, place, "bf16-master", f"{bf16.said}: {masters}")
    elif fp16 is not None and not fp16.auto and sheet.flag(fp16):
        told = f"{fp16.said}: {masters}; bytes and rates of fp16 are those of bf16"
        put_precision(sheet, place, "bf16-master", told)
    elif launcher is not None:
        put_precision(sheet, place, launcher[0], launcher[1].said)
    elif bf16 is None and fp16 is None:
        sheet.put("train.precision", "fp32", "neither bf16 nor fp16 in the file")
    elif any(option is not None and option.auto for option in (bf16, fp16)):
        put_precision(
            sheet,
            place,
            "bf16-master",
            " and ".join(f"{one.name} is {AUTO}" for one in (bf16, fp16) if one is not None),
            guess=True,
        )
    else:
        sheet.put("train.precision", "fp32", f"{(bf16 or fp16 or Option('', '')).said}")


def _put_update(sheet: Sheet) -> None:
    kind = sheet.take("optimizer.type")
    momentum = sheet.take("optimizer.params.momentum")
    put_optimizer(sheet, kind, {"momentum": momentum.value} if momentum else None)
    clipping = sheet.take("gradient_clipping", "deepspeed_config.gradient_clipping")
    put_clipping(sheet, clipping, False, f"{CHANGE_ME}; DeepSpeed's default is 0")
