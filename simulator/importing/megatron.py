"""Flags of Megatron-LM's ``pretrain_gpt.py``, in a launch script or a plain list: model, batch, distributed optimizer.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (defaults and checks) and core/distributed (Core 0.15).
"""

from __future__ import annotations

from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.batch import put_accumulation, put_accumulation_of, put_goal, put_micro_batch
from simulator.importing.cluster import Place, Ranks, is_sized, put_cluster, usual_world
from simulator.importing.degrees import put_degrees, ranks_of_replica
from simulator.importing.draft import Draft
from simulator.importing.megatron_model import put_megatron_model
from simulator.importing.megatron_parallel import put_megatron_experts, put_megatron_ways
from simulator.importing.megatron_pipeline import put_megatron_pipeline
from simulator.importing.megatron_reasons import REASONS
from simulator.importing.megatron_recompute import put_activation_offload, put_recompute
from simulator.importing.model import put_seq_len
from simulator.importing.recipes import put_clipping, put_no_offload, put_optimizer, put_precision
from simulator.importing.sheet import CHANGE_ME, MOST, Option, Sheet

_DEGREES: Final = {
    "tp": "tensor-model-parallel-size", "pp": "pipeline-model-parallel-size", "cp": "context-parallel-size",
}  # fmt: skip
#: Behind the name of a flag in a branch that may run or not.
IN_AN_IF: Final = " (in an if)"
#: Elements of a bucket, at least and for each rank (core/distributed/distributed_data_parallel.py), of 4 bytes each.
_LEAST_BUCKET, _BUCKET_PER_RANK, _GRADIENT_BYTES = 40_000_000, 1_000_000, 4


def import_megatron(sheet: Sheet) -> Draft:
    """The scenario of the flags. Raises ScenarioError, in Megatron-LM's words for a batch that does not fit."""
    others = put_degrees(sheet, {key: flag(sheet, name) for key, name in _DEGREES.items()})
    whole, local = flag(sheet, "global-batch-size"), flag(sheet, "micro-batch-size")
    model = put_megatron_model(sheet)
    put_megatron_experts(sheet, model)
    place = put_cluster(sheet, _ranks(sheet, others, whole, local))
    if place.world % others:
        raise ScenarioError(f"{sheet.file}: {place.world} ranks are not divisible by tensor x pipeline x context "
                            f"parallel size {others}; change --gpus, or give --drop-model-parallel")  # fmt: skip
    replicas = place.world // others
    put_seq_len(sheet, model, flag(sheet, "seq-length", "encoder-seq-length"))
    micro = put_micro_batch(sheet, local)
    if whole is not None:
        put_accumulation_of(sheet, whole, micro, replicas)
    else:
        put_accumulation(sheet)
    _put_goal(sheet, replicas)
    _put_strategy(sheet, replicas)
    put_megatron_pipeline(sheet, model)
    put_megatron_ways(sheet, model, place)
    _put_types(sheet, place)
    _put_rest(sheet)
    put_activation_offload(sheet, place)
    _tell_undecided(sheet)
    return sheet.finish(f"Imported from {sheet.file}, flags of Megatron-LM", REASONS)


def flag(sheet: Sheet, *names: str) -> Option | None:
    """A flag by its name without dashes."""
    return sheet.take(*(f"--{name}" for name in names))


def _tell_undecided(sheet: Sheet) -> None:
    """Flags in a branch of the script that may run or not: worth a warning where they would change the step."""
    for name in [name for name in sheet.options if name.endswith(IN_AN_IF)]:
        told = f"{name.removesuffix(IN_AN_IF)} stands in an if whose condition the script leaves open: not taken"
        if sheet.takes(name.removesuffix(IN_AN_IF)):
            sheet.warn(told, name)
        else:
            sheet.ignore(name, told)


def _ranks(sheet: Sheet, others: int, whole: Option | None, local: Option | None) -> Ranks | None:
    """torchrun's ranks, else as many as the global batch divides over. others: ranks of one replica."""
    least = ranks_of_replica(sheet, others)
    each, nodes = flag(sheet, "nproc-per-node"), flag(sheet, "nnodes")
    if each is not None:
        count = sheet.whole(nodes) if nodes is not None else 1
        total = sheet.whole(each) * count
        if total > MOST:
            raise sheet.error(each, f"with {count:,} nodes more than {MOST:,} ranks")
        said = ", ".join(option.said for option in (each, nodes) if option is not None)
        if total % least and not is_sized(sheet):
            more = -(-total // least) * least
            what = "one replica" if least == others else "one replica and hold its experts"
            sheet.warn(f"{said}: {total} ranks cannot be {least} that make {what}; {more} are taken")
            return Ranks(total=more, said=f"{said}, times what the model-parallel sizes need")
        return Ranks(total=total, nodes=count, said=said)
    if is_sized(sheet) or (whole is None and least == 1):
        return None
    micro = sheet.extras.micro_batch or (sheet.whole(local) if local is not None else 1)
    units = max(1, sheet.whole(whole) // micro) if whole is not None else 0
    some = least // others  # replicas that the ranks come in
    most = max(1, usual_world(sheet) // least)
    times = next((n for n in range(most, 0, -1) if units % (n * some) == 0), 1)
    return Ranks(total=times * least, said="as many as the global batch divides over", guess=True)


def _put_goal(sheet: Sheet, replicas: int) -> None:
    iterations, samples = flag(sheet, "train-iters"), flag(sheet, "train-samples")
    if samples is not None:
        put_goal(sheet, samples)
    else:
        batch = sheet.value("train.micro_batch") * sheet.value("train.grad_accumulation") * replicas
        put_goal(sheet, iterations, int(batch))


def _put_strategy(sheet: Sheet, replicas: int) -> None:
    """Megatron's own data parallelism, its distributed optimizer, or torch's FSDP2."""
    sharded = flag(sheet, "use-torch-fsdp2", "use-megatron-fsdp", "use-custom-fsdp")
    optimizer = flag(sheet, "use-distributed-optimizer")
    reduce, gather = flag(sheet, "overlap-grad-reduce"), flag(sheet, "overlap-param-gather")
    bucket = flag(sheet, "ddp-bucket-size")
    if sharded is not None:
        sheet.put("parallel.strategy", "fsdp", sharded.name)
        if sharded.name != "--use-torch-fsdp2":
            sheet.warn(f"{sharded.name}: played as torch's FSDP2")
        _unread(sheet, "FSDP does not read it", optimizer, reduce, gather, bucket)
    elif optimizer is not None:
        _put_distributed_optimizer(sheet, optimizer, reduce, gather, bucket)
    else:
        sheet.put("parallel.strategy", "ddp", "no --use-distributed-optimizer in the file")
        _unread(sheet, "read by the distributed optimizer only", gather)
        _put_buckets(sheet, replicas, reduce, bucket)


def _unread(sheet: Sheet, why: str, *options: Option | None) -> None:
    for option in options:
        if option is not None:
            sheet.ignore(option.name, why)


def _put_distributed_optimizer(
    sheet: Sheet, optimizer: Option, reduce: Option | None, gather: Option | None, bucket: Option | None
) -> None:
    if gather is not None and reduce is None:
        raise ScenarioError(
            f"{sheet.file}: --overlap-param-gather: Megatron-LM takes it with --overlap-grad-reduce only"
        )
    sheet.put("parallel.strategy", "zero1", optimizer.name)
    sheet.put("parallel.implementation", "megatron", optimizer.name)
    sheet.put("parallel.overlap_grad_reduce", reduce is not None, reduce.name if reduce else "not among the flags")
    sheet.put("parallel.overlap_param_gather", gather is not None, gather.name if gather else "not among the flags")
    if bucket is not None:
        sheet.put("parallel.reduce_bucket_size", sheet.whole(bucket, most=10**13), bucket.said)


def _put_buckets(sheet: Sheet, replicas: int, reduce: Option | None, bucket: Option | None) -> None:
    """Without overlap all gradients are one bucket, after the backward."""
    if reduce is None:
        sheet.put("parallel.overlap", "none", "no --overlap-grad-reduce in the file")
        _unread(sheet, "one bucket without --overlap-grad-reduce", bucket)
        return
    sheet.put("parallel.overlap", "bucketed", reduce.name)
    size = sheet.whole(bucket, most=10**13) if bucket else max(_LEAST_BUCKET, _BUCKET_PER_RANK * replicas)
    said = bucket.said if bucket else "Megatron-LM's default"
    sheet.put("parallel.bucket_cap", f"{size * _GRADIENT_BYTES} B", f"{said}: {size:,} elements of fp32")


def _put_types(sheet: Sheet, place: Place) -> None:
    half = flag(sheet, "bf16", "fp16")
    short = flag(sheet, "grad-reduce-in-bf16")
    ddp = sheet.value("parallel.strategy") == "ddp"
    if half is None:
        sheet.put("train.precision", "fp32", "neither --bf16 nor --fp16")
        _unread(sheet, "weights are fp32", short)
    elif ddp and short is None:
        told = f"{half.name}: gradients and states in fp32"
        put_precision(sheet, place, "bf16-mixed" if half.name == "--bf16" else "fp16-mixed", told)
    else:
        put_precision(sheet, place, "bf16-master", f"{half.name}: 16-bit weights, fp32 masters")
        if short is not None and not ddp:
            sheet.warn(f"{short.name}: gradients are reduced in fp32 here, twice the bytes", short.name)
    eight = flag(sheet, "fp8-format", "fp8")
    if eight is not None:
        sheet.warn(f"{eight.said}: 8-bit products are not in this version; computed in 16 bits", eight.name)


def _put_rest(sheet: Sheet) -> None:
    put_recompute(sheet)
    _put_attention(sheet)
    put_optimizer(sheet, flag(sheet, "optimizer") or Option("--optimizer (default)", "adam"))
    put_clipping(sheet, flag(sheet, "clip-grad"), True, f"{CHANGE_ME}; Megatron-LM clips at 1.0 unless told not to")
    put_no_offload(sheet, flag(sheet, "optimizer-cpu-offload"))


def _put_attention(sheet: Sheet) -> None:
    flash, backend = flag(sheet, "use-flash-attn"), flag(sheet, "attention-backend")
    if backend is not None and backend.value in ("unfused", "local"):
        sheet.put("train.attention", "eager", backend.said)
    elif backend is not None and backend.value == "flash":
        sheet.put("train.attention", "flash", backend.said)
    elif flash is not None:
        sheet.put("train.attention", "flash", flash.name)
    elif backend is not None:
        sheet.guess("train.attention", "flash", f"{backend.said}: a fused kernel, as FlashAttention 2 is")
