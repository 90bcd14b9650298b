"""torchtitan's JobConfig, as TOML or as ``--section.option=value`` flags, in its old and its new spellings.

Sources: torchtitan/config/job_config.py, distributed/parallel_dims.py (degrees) and models/llama3/infra/parallelize.py
(mixed precision, resharding) of pytorch/torchtitan, May 2024 to 2025; later versions write recipes in Python.
"""

from __future__ import annotations

from typing import Final

from simulator import shipped
from simulator.errors import ScenarioError
from simulator.importing.batch import MOST_GLOBAL, put_accumulation, put_accumulation_of, put_goal, put_micro_batch
from simulator.importing.cluster import Place, Ranks, is_sized, put_cluster, usual_world
from simulator.importing.degrees import put_degrees
from simulator.importing.draft import Draft
from simulator.importing.model import put_model, put_seq_len
from simulator.importing.model_parallel import put_torchtitan_ways
from simulator.importing.recipes import put_clipping, put_no_offload, put_optimizer, put_precision
from simulator.importing.sheet import CHANGE_ME, Option, Sheet
from simulator.importing.torchtitan_reasons import REASONS
from simulator.problems import nearest

_SECTIONS: Final = ("parallelism", "training", "experimental")
#: Names of model and flavor, letters and digits only, whose shipped model has another name.
_MODELS: Final = {
    "llama3405b": "llama-3.1-405b", "llama38b": "llama-3-8b", "llama370b": "llama-3-70b", "llama31b": "llama-3.2-1b",
    "llama33b": "llama-3.2-3b", "deepseekv3671b": "deepseek-v3", "deepseekv3236b": "deepseek-v2",
    "deepseekv316b": "deepseek-v2-lite",
}  # fmt: skip
_MODEL_PARALLEL: Final = {
    "tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree", "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
}  # fmt: skip
_HALVES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def import_torchtitan(sheet: Sheet) -> Draft:
    """FSDP2, HSDP or DDP as the degrees say. Raises ScenarioError for degrees or batches that do not fit."""
    others = put_degrees(sheet, {key: _degree_of(sheet, name) for key, name in _MODEL_PARALLEL.items()})
    replicate, shard = _degree_of(sheet, "data_parallel_replicate_degree"), _shard(sheet)
    place = put_cluster(sheet, _ranks(sheet, replicate, shard, others))
    _put_model(sheet)
    replicas = max(1, place.world // others)
    _put_strategy(sheet, replicate, shard, replicas)
    _put_batches(sheet, replicas)
    put_torchtitan_ways(sheet)
    put_goal(sheet, sheet.take("training.steps"), _sequences(sheet, replicas))
    _put_types(sheet, place)
    _put_rest(sheet)
    return sheet.finish(f"Imported from {sheet.file}, a torchtitan configuration", REASONS)


def _degree_of(sheet: Sheet, name: str) -> Option | None:
    return sheet.take(*(f"{section}.{name}" for section in _SECTIONS))


def _shard(sheet: Sheet) -> Option | None:
    names = ("data_parallel_shard_degree", "data_parallel_degree")
    return sheet.take(*(f"{section}.{name}" for name in names for section in _SECTIONS))


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
    if is_sized(sheet) or copies * others == 1:
        return None
    least, usual = copies * others, usual_world(sheet)
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
    size, kind = replicas // copies, sheet.take("training.data_parallel_type")
    said = ", ".join(option.said for option in (replicate, shard) if option) or "torchtitan shards over all ranks"
    if size == 1 or (kind is not None and kind.value == "ddp"):
        sheet.put("parallel.strategy", "ddp", kind.said if size > 1 and kind else f"{said}: nothing is sharded")
        _put_resharding(sheet, sharded=False)
        return
    sheet.put("parallel.strategy", "hsdp" if copies > 1 else "fsdp", said)
    if copies > 1:
        sheet.put("parallel.shard_size", size, said)
    _put_resharding(sheet, sharded=True)


def _put_resharding(sheet: Sheet, *, sharded: bool) -> None:
    """By default the last block stayed gathered until mid-2025, norm and output since then; ``local_batch_size`` came
    at about the same time.
    """
    option = sheet.take("parallelism.fsdp_reshard_after_forward")
    if not sharded:
        if option is not None:
            sheet.ignore(option.name, "nothing is sharded")
        return
    word = "default" if option is None else sheet.one_of(option, ("default", "always", "never"))
    said = "torchtitan's default" if option is None else option.said
    if word == "default" and sheet.options.get("training.local_batch_size") is None:
        said += ": all blocks but the last, as with the spellings of the file"
        sheet.put("parallel.reshard_after_forward", "not-last", said)
        return
    said += ": all blocks, not norm and output" if word == "default" else ""
    sheet.put("parallel.reshard_after_forward", word != "never", said)


def _put_model(sheet: Sheet) -> None:
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
    put_seq_len(sheet, model, sheet.take("training.seq_len"))


def _put_batches(sheet: Sheet, replicas: int) -> None:
    local = sheet.take("training.local_batch_size", "training.batch_size")
    micro = put_micro_batch(sheet, local, 8, "torchtitan's default")
    whole = sheet.take("training.global_batch_size")
    steps = sheet.take("training.gradient_accumulation_steps")
    if whole is not None and sheet.whole(whole, least=-1, most=MOST_GLOBAL) != -1:
        put_accumulation_of(sheet, whole, micro, replicas)
    elif steps is not None or sheet.extras.grad_accumulation is not None:
        put_accumulation(sheet, steps)
    else:
        said = "no global_batch_size in the file" if whole is None else f"{whole.said}: local batches alone"
        sheet.put("train.grad_accumulation", 1, said)


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
