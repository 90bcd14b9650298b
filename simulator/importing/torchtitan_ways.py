"""How tensor, context and expert parallelism work in a torchtitan job, and what FSDP keeps gathered beside them.

Sources: torchtitan/config/job_config.py, models/llama3/infra/parallelize.py (``apply_tp``, ``apply_fsdp``),
distributed/expert_parallel.py and distributed/parallel_dims.py, 2024 and 2025. Ranks stand as here: tp is the fastest
dimension, then cp, dp and pp; experts are spread over dp, cp and tp.
"""

from __future__ import annotations

from typing import Final

from simulator.importing.degrees import put_expert_degree
from simulator.importing.model import Model
from simulator.importing.sheet import Option, Sheet
from simulator.importing.torchtitan_pipeline import taken

_ROTATES: Final = {"allgather": "all_gather", "alltoall": "ring"}
_BALANCERS: Final = {"headtail": True, "ptrr": True, "none": False}
_BACKENDS: Final = {"standard": False, "deepep": True, "hybridep": True}


def put_ways(sheet: Sheet) -> None:
    """Writes how tensor and context parallelism work. Raises ScenarioError."""
    _put_tensor(sheet)
    _put_context(sheet)


def _used(sheet: Sheet, key: str, what: str, *options: Option | None) -> bool:
    """Whether a degree is above 1; where it is not, the options count as ignored."""
    if (sheet.value(f"parallel.{key}") or 1) > 1:
        return True
    for option in options:
        if option is not None:
            sheet.ignore(option.name, f"without {what} parallelism it does nothing")
    return False


def _put_tensor(sheet: Sheet) -> None:
    pieces = taken(sheet, "enable_async_tensor_parallel") or sheet.take("compile.enable_async_tensor_parallel")
    loss = taken(sheet, "disable_loss_parallel")
    shares = taken(sheet, "enable_sequence_parallel")
    if not _used(sheet, "tp", "tensor", pieces, loss, shares):
        return
    if pieces is not None:
        sheet.put("parallel.async_tp", sheet.flag(pieces), pieces.said)
        if sheet.flag(pieces) and sheet.value("train.kernels") != "fused":
            sheet.warn(f"{pieces.said}: torchtitan takes it with a compiled model only")
    if shares is not None:
        sheet.put("parallel.sequence_parallel", sheet.flag(shares), shares.said)
    if loss is not None and sheet.flag(loss):
        told = "logits stay cut over tp here and the loss is computed on the parts; they are not gathered first"
        sheet.warn(f"{loss.said}: {told}", loss.name)
    elif loss is not None:
        sheet.ignore(loss.name, "as the simulator does it")


def _put_context(sheet: Sheet) -> None:
    way, balance = taken(sheet, "context_parallel_rotate_method"), taken(sheet, "context_parallel_load_balancer")
    if not _used(sheet, "cp", "context", way, balance):
        return
    word = "allgather" if way is None else sheet.one_of(way, tuple(_ROTATES))
    said = "torchtitan's default rotate method: allgather" if way is None else way.said
    sheet.put("parallel.cp_method", _ROTATES[word], said)
    if balance is not None:
        sheet.put("parallel.cp_balanced", _BALANCERS[sheet.one_of(balance, tuple(_BALANCERS))], balance.said)


def put_experts(sheet: Sheet, model: Model) -> None:
    """Writes ep; experts are cut over tp besides if ``expert_tensor_parallel_degree`` says so, or where ep is 1."""
    degree, width = taken(sheet, "expert_parallel_degree"), taken(sheet, "expert_tensor_parallel_degree")
    backend, tp = taken(sheet, "expert_parallel_comm_backend"), int(sheet.value("parallel.tp") or 1)
    put_expert_degree(sheet, degree, model)
    if not _used(sheet, "ep", "expert", width, backend):
        if model.experts and tp > 1:
            sheet.put("parallel.etp", tp, "torchtitan cuts experts over tp where they are not spread over ep")
        return
    if width is not None:
        size = sheet.whole(width)
        if size not in (1, tp):
            raise sheet.error(width, f"Currently we only support ETP=TP or ETP=1; tensor_parallel_degree is {tp}")
        sheet.put("parallel.etp", size, width.said)
    if backend is not None:
        once = _BACKENDS[sheet.one_of(backend, tuple(_BACKENDS))]
        sheet.put("parallel.deduplicate", once, backend.said)


def put_resharding(sheet: Sheet, model: Model) -> None:
    """Writes ``parallel.reshard_after_forward`` where states are sharded.

    By default the last block stayed gathered until mid-2025, norm and output since then; ``local_batch_size`` came at
    about the same time. In a pipeline the default keeps all (``reshard_after_forward = not pp_enabled``).
    """
    option = taken(sheet, "fsdp_reshard_after_forward")
    if sheet.value("parallel.strategy") == "ddp":
        if option is not None:
            sheet.ignore(option.name, "nothing is sharded")
        return
    word = "default" if option is None else sheet.one_of(option, ("default", "always", "never"))
    said = "torchtitan's default" if option is None else option.said
    piped = (sheet.value("parallel.pp") or 1) > 1
    if word == "default" and piped:
        sheet.put("parallel.reshard_after_forward", False, f"{said}: nothing is resharded in a pipeline")
    elif word != "never" and (piped or _keeps_for_experts(sheet, model)):
        where = "in a pipeline" if piped else "beside experts, with several micro-batches,"
        sheet.put("parallel.reshard_after_forward", False, f"{said}: not {where} here")
        told = "weights stay gathered from the first forward to the last backward here: more memory, less is sent"
        sheet.warn(f"{said}: {where} {told}")
    elif word == "default" and sheet.options.get("training.local_batch_size") is None:
        told = f"{said}: all blocks but the last, as with the spellings of the file"
        sheet.put("parallel.reshard_after_forward", "not-last", told)
    else:
        said += ": all blocks, not norm and output" if word == "default" else ""
        sheet.put("parallel.reshard_after_forward", word != "never", said)


def _keeps_for_experts(sheet: Sheet, model: Model) -> bool:
    """Whether gradients of experts are reduced among other ranks, once in several micro-batches."""
    tp, ep, etp = (int(sheet.value(f"parallel.{key}") or 1) for key in ("tp", "ep", "etp"))
    return model.experts > 0 and ep * etp != tp and sheet.value("train.grad_accumulation") > 1
