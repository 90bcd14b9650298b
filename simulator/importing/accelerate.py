"""An ``accelerate`` YAML: FSDP 1 and 2, DeepSpeed or DDP, how many processes on how many machines; no model, no batch.

Sources: accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin, DeepSpeedPlugin, ParallelismConfig) and
accelerate/utils/constants.py (FSDP_SHARDING_STRATEGY), 1.0 to 1.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulator.errors import UnsupportedError
from simulator.importing.accelerate_reasons import REASONS
from simulator.importing.batch import put_accumulation, put_micro_batch
from simulator.importing.cluster import Place, Ranks, put_cluster
from simulator.importing.deepspeed import put_deepspeed
from simulator.importing.deepspeed_reasons import REASONS as DEEPSPEED_REASONS
from simulator.importing.degrees import put_degrees
from simulator.importing.draft import Draft
from simulator.importing.model import put_model, put_seq_len
from simulator.importing.recipes import put_no_offload, put_optimizer, put_precision
from simulator.importing.sheet import Option, Sheet

_ACCELERATORS: Final = ("GPU", "XPU", "NPU", "MLU", "MUSA", "SDAA", "HPU")
_TYPES: Final = (
    "NO", *(f"MULTI_{name}" for name in _ACCELERATORS), "FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_CPU", "XLA", "TPU",
    "TP",
)  # fmt: skip
#: By number, from 1 on, as torch counts them (torch/distributed/fsdp/api.py).
_STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_ROTATES: Final = {"allgather": "all_gather", "alltoall": "ring"}
_PRECISIONS: Final = {"no": "fp32", "fp32": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "bf16-mixed"}


def import_accelerate(sheet: Sheet) -> Draft:
    """The scenario of the YAML. Raises ScenarioError, or UnsupportedError for a distributed_type that is not played."""
    kind = sheet.take("distributed_type")
    word = "NO" if kind is None else sheet.one_of(kind, _TYPES)
    if kind is not None and word in ("MEGATRON_LM", "MULTI_CPU", "XLA", "TPU", "TP"):
        more = (
            "; import the flags of its launch script with 'simulator import megatron'" if word == "MEGATRON_LM" else ""
        )
        raise UnsupportedError(f"{sheet.file}: {kind.said}: not in this version{more}; accepted: NO, MULTI_GPU, FSDP, "
                               "DEEPSPEED")  # fmt: skip
    ranks = _ranks(sheet, word)
    title = f"Imported from {sheet.file}, an accelerate configuration"
    if word == "DEEPSPEED":
        put_deepspeed(sheet, ranks, _launcher_precision(sheet))
        return sheet.finish(title, {**DEEPSPEED_REASONS, **REASONS})
    _put_step(sheet, ranks, kind, word)
    return sheet.finish(title, REASONS)


def _ranks(sheet: Sheet, word: str) -> Ranks | None:
    """num_processes counts all of them."""
    processes, machines = sheet.take("num_processes"), sheet.take("num_machines")
    nodes = sheet.whole(machines) if machines is not None else None
    if word == "NO":
        return Ranks(total=1, said="distributed_type: NO is one process")
    if processes is None:
        return None
    said = ", ".join(option.said for option in (processes, machines) if option is not None)
    return Ranks(total=sheet.whole(processes), nodes=nodes, said=said)


def _launcher_precision(sheet: Sheet) -> tuple[str, Option] | None:
    """Where the JSON leaves it open: DeepSpeed's own mixed precision in either type."""
    option = sheet.take("mixed_precision")
    if option is None:
        return None
    word = _precision(sheet, option)
    return ("bf16-master" if word in ("bf16", "fp16", "fp8") else "fp32", option)


def _precision(sheet: Sheet, option: Option) -> str:
    if option.value is False:
        return "no"  # an unquoted no, as YAML 1.1 reads it
    word = sheet.one_of(option, tuple(_PRECISIONS))
    if word == "fp8":
        sheet.warn(f"{option.said}: 8-bit products are not in this version; computed in 16 bits")
    return word


def _put_step(sheet: Sheet, ranks: Ranks | None, kind: Option | None, word: str) -> None:
    dense = {key: sheet.take(f"parallelism_config.parallelism_config_{key}_size") for key in ("tp", "cp")}
    others = put_degrees(sheet, dense)
    _put_ways(sheet, dense)
    place = put_cluster(sheet, ranks)
    model = put_model(sheet)
    mixed = sheet.take("mixed_precision")
    named = _precision(sheet, mixed) if mixed is not None else "no"
    if word == "FSDP":
        shared = max(1, place.world // others) * int(sheet.value("parallel.cp") or 1)
        _put_fsdp(sheet, place, shared, named)
    else:
        sheet.put("parallel.strategy", "ddp", kind.said if kind is not None else "no distributed_type in the file")
        sheet.put("train.recompute", "none", "no fsdp_activation_checkpointing in the file")
        for name in [name for name in sheet.options if name.startswith("fsdp_config.")]:
            sheet.ignore(name, f"accelerate reads it for distributed_type FSDP alone, here {word}")
    put_seq_len(sheet, model)
    put_micro_batch(sheet, None)
    put_accumulation(sheet, sheet.take("gradient_accumulation_steps"))
    said = mixed.said if mixed is not None else "no mixed_precision in the file"
    put_precision(sheet, place, _PRECISIONS[named], said)
    put_optimizer(sheet, None)
    _put_compiled(sheet)


def _put_ways(sheet: Sheet, degrees: Mapping[str, Option | None]) -> None:
    """transformers' plans of tp sum activations; torch's context parallelism gathers unless told to rotate."""
    tp, way = degrees["tp"], sheet.take("parallelism_config.parallelism_config_cp_comm_strategy")
    if sheet.value("parallel.tp") is not None and tp is not None:
        sheet.put("parallel.sequence_parallel", False, f"{tp.said}: transformers' plans do not share the sequence")
    if sheet.value("parallel.cp") is None:
        if way is not None:
            sheet.ignore(way.name, "without context parallelism it does nothing")
        return
    word = "allgather" if way is None else sheet.one_of(way, tuple(_ROTATES))
    said = "accelerate's default cp_comm_strategy: allgather" if way is None else way.said
    sheet.put("parallel.cp_method", _ROTATES[word], said)


def fsdp(sheet: Sheet, name: str) -> Option | None:
    """An option of fsdp_config, with or without its prefix."""
    return sheet.take(f"fsdp_config.fsdp_{name}", f"fsdp_config.{name}")


def _put_fsdp(sheet: Sheet, place: Place, replicas: int, precision: str) -> None:
    version = fsdp(sheet, "version")
    second = version is not None and sheet.whole(version, most=2) == 2
    said = f"distributed_type: FSDP, {version.said if version is not None else 'fsdp_version is 1 when left out'}"
    shards, name = _sharding(sheet, second=second)
    copies, size = _copies(sheet)
    if name == "NO_SHARD":
        sheet.put("parallel.strategy", "ddp", f"{shards}: as DDP does")
        _unread(sheet)
        return
    if copies > 1 and size is not None:
        _put_group(sheet, replicas, copies, size)
    elif name.startswith("HYBRID"):
        sheet.put("parallel.strategy", "hsdp" if place.per_node > 1 else "ddp", f"{shards}: shards over a node's GPUs")
    else:
        sheet.put("parallel.strategy", "fsdp", shards)
    if sheet.value("parallel.strategy") == "ddp":
        _unread(sheet)
        return
    sheet.put("parallel.implementation", "fsdp2" if second else "fsdp1", said)
    _put_reshard(sheet, name, shards, second=second)
    _put_prefetch(sheet, second=second)
    _put_wrap(sheet)
    recompute = fsdp(sheet, "activation_checkpointing")
    whole = recompute is not None and sheet.flag(recompute)
    sheet.put("train.recompute", "full" if whole else "none", recompute.said if recompute else "not in fsdp_config")
    if precision in ("bf16", "fp16", "fp8"):
        dtype = "fp16" if precision == "fp16" else "bf16"
        sheet.put("parallel.reduce_dtype", dtype, "accelerate reduces gradients in the type of mixed_precision")
    put_no_offload(sheet, fsdp(sheet, "offload_params"))


def _unread(sheet: Sheet) -> None:
    """What DDP does not read."""
    for name in ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "auto_wrap_policy", "min_num_params",
                 "reshard_after_forward", "activation_checkpointing", "version"):  # fmt: skip
        option = fsdp(sheet, name)
        if option is not None:
            sheet.ignore(option.name, "nothing is sharded")


def _sharding(sheet: Sheet, *, second: bool) -> tuple[str, str]:
    """Who says how states are sharded, and torch's name of it."""
    option = fsdp(sheet, "sharding_strategy")
    if option is None and not second:
        option = fsdp(sheet, "reshard_after_forward")  # its name in accelerate from 1.6 on, for FSDP 1 too
    if option is None or (second and not isinstance(option.value, str | int)):
        return "no sharding strategy in the file: FULL_SHARD", "FULL_SHARD"
    if isinstance(option.value, bool) or str(option.value).lower() in ("true", "false"):
        return option.said, "FULL_SHARD" if sheet.flag(option) else "SHARD_GRAD_OP"
    text = str(option.value)
    if text.isascii() and text.isdigit() and len(text) < 9:
        return option.said, _STRATEGIES[sheet.whole(option, most=len(_STRATEGIES)) - 1]
    return option.said, sheet.one_of(option, _STRATEGIES)


def _copies(sheet: Sheet) -> tuple[int, Option | None]:
    """How many replicas of the shards, and the option that says so; dp_shard_size follows from it."""
    replicate = sheet.take("parallelism_config.parallelism_config_dp_replicate_size")
    shard = sheet.take("parallelism_config.parallelism_config_dp_shard_size")
    if shard is not None:
        sheet.whole(shard, least=-1)
        sheet.ignore(shard.name, "what the other sizes leave")
    return (sheet.whole(replicate), replicate) if replicate is not None else (1, None)


def _put_group(sheet: Sheet, replicas: int, copies: int, option: Option) -> None:
    if replicas % copies:
        raise sheet.error(option, f"does not divide the {replicas} data-parallel ranks; change it or --gpus")
    if replicas == copies:
        sheet.put("parallel.strategy", "ddp", f"{option.said}: one rank in each group of shards")
    else:
        sheet.put("parallel.strategy", "hsdp", option.said)
        sheet.put("parallel.shard_size", replicas // copies, f"{replicas} data-parallel ranks, {option.said}")


def _put_reshard(sheet: Sheet, name: str, said: str, *, second: bool) -> None:
    keeps = name in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")
    option = fsdp(sheet, "reshard_after_forward") if second else None
    if option is not None and isinstance(option.value, bool | str) and str(option.value).lower() in ("true", "false"):
        keeps, said = not sheet.flag(option), option.said
    elif option is not None:
        keeps, said = sheet.one_of(option, _STRATEGIES) in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"), option.said
    sheet.put("parallel.reshard_after_forward", not keeps, said)


def _put_prefetch(sheet: Sheet, *, second: bool) -> None:
    back = sheet.take(*(f"fsdp_config.{name}" for name in (
        "fsdp_backward_prefetch", "fsdp_backward_prefetch_policy", "backward_prefetch",
    )))  # fmt: skip
    ahead, limit = fsdp(sheet, "forward_prefetch"), fsdp(sheet, "limit_all_gathers")
    if second:
        for option in (back, ahead, limit):
            if option is not None:
                sheet.ignore(option.name, "FSDP 2 does not read it")
        return
    if back is not None:
        word = sheet.one_of(back, ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "1", "2", "None"))
        when: dict[str, str | int] = {"BACKWARD_PRE": "pre", "1": "pre", "BACKWARD_POST": "post", "2": "post"}
        sheet.put("parallel.backward_prefetch", when.get(word, 0), back.said)
    else:
        sheet.put("parallel.backward_prefetch", 0, "not in fsdp_config: accelerate prefetches nothing then")
    if ahead is not None:
        sheet.put("parallel.forward_prefetch", int(sheet.flag(ahead)), ahead.said)
    if limit is not None:
        sheet.put("parallel.limit_all_gathers", sheet.flag(limit), limit.said)


def _put_wrap(sheet: Sheet) -> None:
    option = fsdp(sheet, "auto_wrap_policy")
    word = "TRANSFORMER_BASED_WRAP"
    if option is not None:
        word = sheet.one_of(option, ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP", "1", "2", "3"))
    least = fsdp(sheet, "min_num_params")
    if option is not None and word in ("NO_WRAP", "3"):
        sheet.put("parallel.wrap", "root", option.said)
    elif option is not None and word in ("SIZE_BASED_WRAP", "2"):
        sheet.guess("parallel.wrap", "block", f"{option.said}: each block, which is what most sizes come to")
    else:
        sheet.put("parallel.wrap", "block", option.said if option is not None else "not in fsdp_config")
    if least is not None:
        sheet.whole(least, least=0, most=10**13)
        sheet.ignore(least.name, "units are whole blocks here")


def _put_compiled(sheet: Sheet) -> None:
    backend = sheet.take("dynamo_config.dynamo_backend", "dynamo_backend")
    if backend is not None and str(backend.value).lower() == "inductor":
        sheet.put("train.kernels", "fused", backend.said)
    elif backend is not None:
        sheet.ignore(backend.name, "kernels are those of eager mode")
