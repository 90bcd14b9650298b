"""torchtitan's JobConfig, as TOML or as ``--section.option=value`` flags, in its old and its new spellings.

Sources: torchtitan/config/job_config.py, distributed/parallel_dims.py (degrees) and models/llama3/infra/parallelize.py
(mixed precision) of pytorch/torchtitan, May 2024 to 2025; later versions write recipes in Python, whose options are
read as flags.
"""

from __future__ import annotations

from math import lcm
from typing import Final

from simulator import shipped
from simulator.errors import ScenarioError
from simulator.importing.batch import put_goal
from simulator.importing.cluster import Place, Ranks, is_sized, put_cluster, usual_world
from simulator.importing.degrees import put_degrees, ranks_of_replica
from simulator.importing.draft import Draft
from simulator.importing.model import Model, put_model, put_seq_len
from simulator.importing.recipes import put_clipping, put_no_offload, put_optimizer, put_precision
from simulator.importing.sheet import CHANGE_ME, Option, Sheet
from simulator.importing.torchtitan_batch import put_batches
from simulator.importing.torchtitan_pipeline import put_pipeline, taken
from simulator.importing.torchtitan_reasons import REASONS
from simulator.importing.torchtitan_ways import put_experts, put_resharding, put_ways
from simulator.problems import nearest

#: Names of model and flavor, letters and digits only, whose shipped model has another name.
_MODELS: Final = {
    "llama3405b": "llama-3.1-405b", "llama38b": "llama-3-8b", "llama370b": "llama-3-70b", "llama31b": "llama-3.2-1b",
    "llama33b": "llama-3.2-3b", "deepseekv3671b": "deepseek-v3", "deepseekv3236b": "deepseek-v2",
    "deepseekv316b": "deepseek-v2-lite",
}  # fmt: skip
_MODEL_PARALLEL: Final = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
}
_HALVES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def import_torchtitan(sheet: Sheet) -> Draft:
    """FSDP2, HSDP or DDP as the degrees say. Raises ScenarioError for degrees or batches that do not fit."""
    others = put_degrees(sheet, {key: taken(sheet, name) for key, name in _MODEL_PARALLEL.items()})
    replicate = taken(sheet, "data_parallel_replicate_degree")
    shard = taken(sheet, "data_parallel_shard_degree", "data_parallel_degree")
    model = _put_model(sheet)
    put_experts(sheet, model)
    place = put_cluster(sheet, _ranks(sheet, replicate, shard, others))
    replicas = max(1, place.world // others)
    _put_strategy(sheet, replicate, shard, replicas)
    put_batches(sheet, replicas, put_pipeline(sheet, model))
    put_goal(sheet, sheet.take("training.steps"), _sequences(sheet, replicas))
    _put_rest(sheet)
    put_ways(sheet)
    put_resharding(sheet, model)
    _put_types(sheet, place)
    return sheet.finish(f"Imported from {sheet.file}, a torchtitan configuration", REASONS)


def _ranks(sheet: Sheet, replicate: Option | None, shard: Option | None, others: int) -> Ranks | None:
    """All degrees multiplied, where the shards are counted; else as many as the others divide."""
    launched = _launched(sheet)
    copies = sheet.whole(replicate) if replicate is not None else 1
    parts = -1 if shard is None else sheet.whole(shard, least=-1)
    if parts == 0:
        assert shard is not None
        raise sheet.error(shard, "expected a number of ranks, or -1 for all that are left")
    if parts > 0:
        said = " x ".join(option.said for option in (replicate, shard) if option is not None)
        total = copies * parts * others
        if launched is not None and launched.total != total:
            sheet.warn(
                f"{launched.said}: {launched.total} ranks are launched, the degrees need {total}, which are taken"
            )
        return Ranks(total=total, said=said + (f" x {others}" if others > 1 else ""))
    if launched is not None and not is_sized(sheet):
        return launched
    least, usual = lcm(copies * others, ranks_of_replica(sheet, others)), usual_world(sheet)
    if is_sized(sheet) or least == 1:
        return None
    return Ranks(
        total=max(usual // least, 1) * least, said=f"a multiple of the {least} that the degrees need", guess=True
    )


def _launched(sheet: Sheet) -> Ranks | None:
    """torchrun's ranks, where the file is a launch script."""
    each, nodes = sheet.take("nproc_per_node"), sheet.take("nnodes")
    if each is None:
        return None
    count = sheet.whole(nodes, most=10_000) if nodes is not None else 1
    said = ", ".join(option.said for option in (each, nodes) if option is not None)
    return Ranks(total=sheet.whole(each, most=100) * count, nodes=count, said=said)


def _put_strategy(sheet: Sheet, replicate: Option | None, shard: Option | None, replicas: int) -> None:
    copies = sheet.whole(replicate) if replicate is not None else 1
    if replicas % copies:
        assert replicate is not None
        raise sheet.error(replicate, f"does not divide the {replicas} data-parallel ranks; change it or --gpus")
    parts = sheet.whole(shard, least=-1) if shard is not None else -1
    if parts > 0 and parts * copies != replicas:
        assert shard is not None
        sheet.warn(
            f"{shard.said}: with {replicas} data-parallel ranks (--nodes, --gpus) there are {replicas // copies}"
        )
    size, kind = replicas // copies * int(sheet.value("parallel.cp") or 1), sheet.take("training.data_parallel_type")
    said = ", ".join(option.said for option in (replicate, shard) if option) or "torchtitan shards over all ranks"
    if size == 1 or (kind is not None and kind.value == "ddp"):
        sheet.put("parallel.strategy", "ddp", kind.said if size > 1 and kind else f"{said}: nothing is sharded")
        return
    said += ", and over cp" if size > replicas // copies else ""
    sheet.put("parallel.strategy", "hsdp" if copies > 1 else "fsdp", said)
    if copies > 1:
        sheet.put("parallel.shard_size", size, said)


def _put_model(sheet: Sheet) -> Model:
    name, flavor = sheet.take("model.name"), sheet.take("model.flavor", "model.size")
    told = " ".join(str(option.value) for option in (name, flavor) if option is not None)
    word = "".join(c for c in told.lower() if c.isalnum())
    known = {"".join(c for c in preset if c.isalnum()): preset for preset in shipped.names("preset")}
    special = _MODELS.get(word)
    preset = special if special in known.values() else known.get(word)
    if preset is not None and sheet.extras.model is None:
        model = put_model(sheet, f"model.name, model.flavor: {told}", preset)
        sheet.put("model.preset", preset, f"model.name, model.flavor: {told}")
    elif flavor is not None and sheet.extras.model is None:
        near = nearest(told.lower().replace(" ", "-"), shipped.names("preset"))
        raise ScenarioError(
            f"{sheet.file}: model.name, model.flavor: '{told}' is no shipped model; give --model PRESET or --model "
            f"config.json{near}"
        )
    else:
        if name is not None and sheet.extras.model is None:
            sheet.ignore(name.name, "names no shipped model without a flavor")
        model = put_model(sheet)
    put_seq_len(sheet, model, sheet.take("training.seq_len", "training.max_context_length"))
    return model


def _sequences(sheet: Sheet, replicas: int) -> int:
    """Sequences of one step of all ranks."""
    return int(sheet.value("train.micro_batch") * sheet.value("train.grad_accumulation") * replicas)


def _put_types(sheet: Sheet, place: Place) -> None:
    """fp32 shards, gathered in ``mixed_precision_param``; or all in ``training.dtype``."""
    weights, param = sheet.take("training.dtype"), sheet.take("training.mixed_precision_param")
    reduce = sheet.take("training.mixed_precision_reduce")
    if weights is not None and sheet.one_of(weights, ("bfloat16", "float32")) == "bfloat16":
        put_precision(sheet, place, "bf16", weights.said)
    elif param is not None and sheet.one_of(param, tuple(_HALVES)) == "float32":
        sheet.put("train.precision", "fp32", param.said)
    elif param is not None:
        put_precision(sheet, place, f"{_HALVES[sheet.one_of(param, tuple(_HALVES))]}-mixed", param.said)
    else:
        put_precision(sheet, place, "bf16-mixed", "torchtitan's default mixed_precision_param: bfloat16")
    if reduce is not None:
        dtype = _HALVES[sheet.one_of(reduce, tuple(_HALVES))]
        if sheet.value("parallel.reshard_after_forward") is not None:
            sheet.put("parallel.reduce_dtype", dtype, reduce.said)
        else:
            sheet.ignore(reduce.name, "read where states are sharded only")


def _put_rest(sheet: Sheet) -> None:
    _put_recompute(sheet)
    compiled = sheet.take("training.compile", "compile.enable", "model.compile")
    if compiled is not None:
        sheet.put("train.kernels", "fused" if sheet.flag(compiled) else "eager", compiled.said)
    put_optimizer(sheet, sheet.take("optimizer.name"))
    put_clipping(sheet, sheet.take("training.max_norm"), True, f"{CHANGE_ME}; torchtitan's default max_norm is 1.0")
    converters = sheet.take("model.converters", "float8.enable_float8_linear")
    words = str(converters.value).lower() if converters is not None else ""
    if converters is not None and any(word in words for word in ("float8", "mx", "true")):
        sheet.warn(f"{converters.said}: 8-bit products are not in this version; computed in 16 bits", converters.name)
    elif converters is not None:
        sheet.ignore(converters.name, "no 8-bit products")
    put_no_offload(sheet, sheet.take("training.enable_cpu_offload", "experimental.enable_cpu_offload"))


def _put_recompute(sheet: Sheet) -> None:
    mode, kind = sheet.take("activation_checkpoint.mode"), sheet.take("activation_checkpoint.selective_ac_option")
    word = "selective" if mode is None else sheet.one_of(mode, ("none", "selective", "full", "memory_budget"))
    said = "torchtitan's default mode: selective" if mode is None else mode.said
    every = str(kind.value) if kind is not None else "2"
    if word in ("none", "full"):
        sheet.put("train.recompute", word, said)
        if kind is not None:
            sheet.ignore(kind.name, "read by mode selective only")
    elif word == "selective" and every in ("op", "1"):
        told = f"{said}, {kind.said}" if kind is not None else said
        sheet.put("train.recompute", "full" if every == "1" else "selective-op", told)
    else:
        told = f"{said}{f', {kind.said}' if kind else ''}: selective-op is the nearest that a scenario has"
        sheet.guess("train.recompute", "selective-op", told)
