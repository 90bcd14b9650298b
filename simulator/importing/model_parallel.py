"""How tensor, pipeline and context parallelism work in an imported job: what Megatron-LM and torchtitan set about them.

Sources: megatron/training/arguments.py (Core 0.15); torchtitan/config/job_config.py, distributed/pipeline_parallel.py.
"""

from __future__ import annotations

from typing import Final

from simulator.importing.sheet import Sheet

_RINGS: Final = {"p2p": "ring", "all_gather": "all_gather", "a2a": "ulysses"}
_ROTATES: Final = {"allgather": "all_gather", "alltoall": "ring"}


def put_megatron_ways(sheet: Sheet) -> None:
    """Sequence parallelism, interleaving, order of ranks, sends and rings. Megatron-LM's defaults are written too."""
    degrees = {key: sheet.value(f"parallel.{key}") or 1 for key in ("tp", "pp", "cp", "ep")}
    shares, virtual = sheet.take("--sequence-parallel"), sheet.take("--num-layers-per-virtual-pipeline-stage")
    chunks, way = sheet.take("--num-virtual-stages-per-pipeline-rank"), sheet.take("--cp-comm-type")
    mapped, width = sheet.take("--use-tp-pp-dp-mapping"), sheet.take("--expert-tensor-parallel-size")
    if degrees["tp"] > 1:
        said = shares.name if shares else "no --sequence-parallel among the flags"
        sheet.put("parallel.sequence_parallel", shares is not None, said)
    elif shares is not None:
        sheet.ignore(shares.name, "without tensor parallelism it does nothing")
    given = virtual or chunks
    if given is not None and degrees["pp"] > 1:
        layers = int(sheet.value("model.num_layers") or 0)
        count = sheet.whole(given)
        if virtual is not None and layers:
            count = max(1, layers // degrees["pp"] // count)
        sheet.put("parallel.schedule", "interleaved-1f1b" if count > 1 else "1f1b", given.said)
        if count > 1:
            sheet.put("parallel.chunks", count, given.said)
    elif given is not None:
        sheet.ignore(given.name, "without pipeline parallelism it does nothing")
    if mapped is not None and degrees["pp"] > 1:
        sheet.put("parallel.order", "tp-cp-ep-pp-dp", mapped.name)
    elif mapped is not None:
        sheet.ignore(mapped.name, "without pipeline parallelism it does nothing")
    if way is not None and degrees["cp"] > 1 and str(way.value) in _RINGS:
        sheet.put("parallel.cp_method", _RINGS[str(way.value)], way.said)
    if width is not None and degrees["ep"] > 1:
        sheet.put("parallel.etp", sheet.whole(width), width.said)
    elif width is None and degrees["ep"] > 1 and degrees["tp"] > 1:
        sheet.put("parallel.etp", degrees["tp"], "Megatron-LM's default: as the tensor-parallel size")


def put_torchtitan_ways(sheet: Sheet) -> None:
    """Schedule, async TP, and how context parallelism gathers keys and values. torchtitan's order has pp outside."""
    names = ("parallelism", "experimental")
    schedule = sheet.take(*(f"{section}.pipeline_parallel_schedule" for section in names))
    pieces = sheet.take(*(f"{section}.enable_async_tensor_parallel" for section in names))
    way = sheet.take(*(f"{section}.context_parallel_rotate_method" for section in names))
    if schedule is not None and (sheet.value("parallel.pp") or 1) > 1:
        sheet.put("parallel.schedule", str(schedule.value), schedule.said)
    elif schedule is not None:
        sheet.ignore(schedule.name, "without pipeline parallelism it does nothing")
    if pieces is not None and (sheet.value("parallel.tp") or 1) > 1:
        sheet.put("parallel.async_tp", sheet.flag(pieces), pieces.said)
    elif pieces is not None:
        sheet.ignore(pieces.name, "without tensor parallelism it does nothing")
    if way is not None and (sheet.value("parallel.cp") or 1) > 1:
        sheet.put("parallel.cp_method", _ROTATES[sheet.one_of(way, tuple(_ROTATES))], way.said)
    elif way is not None:
        sheet.ignore(way.name, "without context parallelism it does nothing")
