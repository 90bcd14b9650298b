"""Pipeline, sequence, tensor and expert parallelism in a DeepSpeed JSON.

Sources: deepspeed/runtime/config.py (``get_pipeline_config``, ``sequence_parallel_size``, tensor and expert parallel
configurations), runtime/pipe/engine.py and schedule.py (1F1B; ZeRO-1 at most), sequence/layer.py (Ulysses),
runtime/tensor_parallel (AutoTP), 0.14 to 0.19. The number of stages is often in the program, not in the file.
"""

from __future__ import annotations

from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.degrees import put_degrees, put_expert_degree
from simulator.importing.model import Model
from simulator.importing.sheet import Option, Sheet

_STAGES, _TENSOR = "pipeline.stages", ("tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size")
#: Also how an accelerate YAML says it.
_SEQUENCE: Final = ("sequence_parallel_size", "parallelism_config.parallelism_config_sp_size")
_EXPERTS: Final = "expert_parallel"


def put_deepspeed_degrees(sheet: Sheet) -> int:
    """Writes tp, pp and cp. Returns the ranks that hold one replica of the model."""
    stages = sheet.take(_STAGES)
    if stages is not None and stages.auto:
        sheet.ignore(stages.name, "auto: the program says how many stages there are; set parallel.pp")
        stages = None
    return put_degrees(sheet, {"tp": sheet.take(*_TENSOR), "pp": stages, "cp": sheet.take(*_SEQUENCE)})


def put_deepspeed_ways(sheet: Sheet, model: Model, stage: int) -> None:
    """Writes how the degrees work. stage: of ZeRO.

    Raises ScenarioError, in DeepSpeed's words, for ZeRO-2 and 3 in a pipeline.
    """
    _put_pipeline(sheet, stage)
    if sheet.value("parallel.cp") is not None:
        sheet.put("parallel.cp_method", "ulysses", _said(sheet, *_SEQUENCE))
    if sheet.value("parallel.tp") is not None:  # AutoTP sums activations over tp; they are whole on each rank
        told = f"{_said(sheet, *_TENSOR)}: AutoTP does not share the sequence"
        sheet.put("parallel.sequence_parallel", False, told)
    _put_experts(sheet, model)


def _put_experts(sheet: Sheet, model: Model) -> None:
    switch, degree = sheet.take(f"{_EXPERTS}.enabled"), sheet.take(f"{_EXPERTS}.autoep_size")
    width = sheet.take(f"{_EXPERTS}.expert_tensor_parallel_size")
    if switch is None or not sheet.flag(switch):
        _ignore(sheet, "expert parallelism is not enabled", switch, degree, width)
        return
    put_expert_degree(sheet, degree, model)
    if width is not None and (sheet.value("parallel.ep") or 1) > 1:
        sheet.put("parallel.etp", sheet.whole(width), width.said)
    _ignore(sheet, "its sizes say it", switch)


def _ignore(sheet: Sheet, why: str, *options: Option | None) -> None:
    for option in options:
        if option is not None:
            sheet.ignore(option.name, why)


def _said(sheet: Sheet, *names: str) -> str:
    option = sheet.take(*names)
    assert option is not None, "its degree is written"
    return option.said


def _put_pipeline(sheet: Sheet, stage: int) -> None:
    """1F1B (``TrainSchedule``), whose sends keep their sender waiting; its layers are checkpoints if it says so."""
    cut, every = sheet.take("pipeline.partition"), sheet.take("pipeline.activation_checkpoint_interval")
    if every is not None and sheet.whole(every, least=0) > 0:
        sheet.put("train.recompute", "full", every.said)
        if sheet.whole(every) > 1:
            sheet.warn(f"{every.said}: each layer is a checkpoint of its own here")
    if sheet.value("parallel.pp") is None:
        _ignore(sheet, "no stages are given", cut)
        return
    said = _said(sheet, _STAGES)
    if stage > 1:
        told = f"ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism; zero_optimization.stage is {stage}"
        raise ScenarioError(f"{sheet.file}: {said}: {told}")
    sheet.put("parallel.schedule", "1f1b", f"{said}: DeepSpeed's schedule")
    if cut is not None and cut.value != "uniform":
        sheet.warn(f"{cut.said}: stages have equal numbers of layers here", cut.name)
