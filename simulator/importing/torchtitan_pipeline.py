"""Schedule and stages of a torchtitan job with pipeline parallelism.

Sources: torchtitan/distributed/pipeline_parallel.py (2025: ``pipeline_llm``), parallelisms/pipelining_utils.py (2024:
``generate_split_points``). Which of them a file is written for shows in the section of its degree: ``experimental``
until early 2025, ``parallelism`` since.
"""

from __future__ import annotations

import re
from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.model import Model
from simulator.importing.sheet import Option, Sheet
from simulator.importing.stage_cuts import at_points, inner_first, weighted
from simulator.pipelines import PIPELINES, named
from simulator.problems import nearest

#: Where options of parallelism have stood, the latest first.
SECTIONS: Final = ("parallelism", "training", "experimental")
_SCHEDULE, _CSV = "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv"
_EACH: Final = "pipeline_parallel_layers_per_stage"
_FIRST, _LAST = "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers"
_PARTS: Final = ("pipeline_parallel_module_fqns_per_model_part", "module_fqns_per_model_part")
_POINTS: Final = "pipeline_parallel_split_points"
SIZE: Final = "pipeline_parallel_microbatch_size"
COUNTS: Final = ("num_pp_microbatches", "pipeline_parallel_microbatches")
_OVERLAP: Final = "pipeline_parallel_expert_parallel_overlap"
DEGREE: Final = "pipeline_parallel_degree"
_NAME, _LAYER, _BRACKETS = re.compile(r"[\w.]+"), re.compile(r"layers\.(\d{1,6})"), re.compile(r"\[([^\[\]]*)\]")
#: A schedule that torch had for a while, and what took its place.
_RENAMED: Final = {"flexibleinterleaved1f1b": "Interleaved1F1B"}


def taken(sheet: Sheet, *names: str) -> Option | None:
    """An option of parallelism by its names, in any of its sections."""
    return sheet.take(*(f"{section}.{name}" for name in names for section in SECTIONS))


def put_pipeline(sheet: Sheet, model: Model) -> int:
    """Writes schedule, chunks and stages. Returns the number of stages, 1 without a pipeline. Raises ScenarioError."""
    degree = taken(sheet, DEGREE)
    ranks = int(sheet.value("parallel.pp") or 1)
    if ranks == 1 or degree is None:
        for name in (_SCHEDULE, _CSV, _EACH, _FIRST, _LAST, *_PARTS, _POINTS, SIZE, *COUNTS, _OVERLAP):
            option = taken(sheet, name)
            if option is not None:
                sheet.ignore(option.name, "without pipeline parallelism it does nothing")
        return 1
    single = _put_schedule(sheet)
    listed, each = taken(sheet, *_PARTS) or taken(sheet, _POINTS), taken(sheet, _EACH)
    if listed is not None and model.layers is not None:
        with sheet.blaming(listed):
            sizes = _listed(listed, model.layers)
        sheet.put("parallel.stages", list(sizes), listed.said)
        count = len(sizes)
    else:
        count = _put_even(sheet, model, degree, each, ranks * (1 if single else 2))
    _check(sheet, listed or each or degree, count, ranks, single=single)
    if not single:
        given = listed or each
        said = given.said if given else "torchtitan's default: two stages on each rank"
        sheet.put("parallel.chunks", count // ranks, said)
    return count


def _put_schedule(sheet: Sheet) -> bool:
    """Writes ``parallel.schedule``; returns whether a rank has one stage in it."""
    option, table = taken(sheet, _SCHEDULE), taken(sheet, _CSV)
    if table is not None and table.value:
        told = "the order of actions in that file is not read; that of the schedule's name is played"
        sheet.warn(f"{table.said}: {told}", table.name)
    name = "1f1b" if option is None else _named(sheet, option)
    sheet.put("parallel.schedule", name, "torchtitan's default: 1F1B" if option is None else option.said)
    beside = taken(sheet, _OVERLAP)
    if beside is not None:
        sheet.ignore(beside.name, "the schedule says which passes run side by side")
    return PIPELINES[name].chunks == 1


def _named(sheet: Sheet, option: Option) -> str:
    """The schedule that torch knows by this name. Raises ScenarioError."""
    word = "".join(c for c in str(option.value).lower() if c.isalnum())
    known = [kind.torch_name for kind in PIPELINES.values() if kind.torch_name]
    try:
        name = named(_RENAMED.get(word, str(option.value)))
    except ScenarioError:
        name = ""
    if not name or not PIPELINES[name].torch_name:
        raise sheet.error(option, f"accepted: {', '.join(known)}{nearest(str(option.value), known)}")
    return name


def _listed(option: Option, layers: int) -> tuple[int, ...]:
    """Layers of each stage, by the modules of each or by the modules that stages begin at. Raises ValueError."""
    if option.name.endswith(_POINTS):
        return at_points(layers, [_layer(name, layers) for name in _NAME.findall(str(option.value))])
    parts = option.value if isinstance(option.value, list) else _BRACKETS.findall(str(option.value))
    found = [[int(n) for n in _LAYER.findall(str(part))] for part in parts]
    if [n for part in found for n in part] != list(range(layers)):
        raise ValueError(f"expected a list of modules for each stage that has layers.0 to layers.{layers - 1} in order")
    return tuple(len(part) for part in found)


def _layer(name: str, layers: int) -> int:
    """The layer before which a stage begins that begins at this module; norm and output stand behind the last."""
    found = _LAYER.fullmatch(name)
    if found is None and name not in ("norm", "output"):
        raise ValueError("expected modules such as layers.8, norm or output")
    return int(found[1]) if found else layers


def _put_even(sheet: Sheet, model: Model, degree: Option, each: Option | None, count: int) -> int:
    """Writes stages of as many layers as come out even, with the ends' weights. Returns how many there are."""
    first, last = taken(sheet, _FIRST), taken(sheet, _LAST)
    weights = tuple(sheet.whole(o, least=0) if o is not None else 1 for o in (first, last))
    said = ", ".join(option.said for option in (first, last, each) if option is not None)
    if model.layers is None:
        return count
    layers = model.layers
    if not said and degree.name.startswith("experimental."):
        with sheet.blaming(degree):
            sizes = inner_first(layers, count)
        if max(sizes) > min(sizes):
            sheet.put("parallel.stages", list(sizes), f"as torchtitan of 2024 cut {layers} layers into {count} stages")
        return count
    if each is not None:
        count = -(-(layers + sum(weights)) // sheet.whole(each))
    with sheet.blaming(first or last or each or degree):
        sizes = weighted(layers, count, weights[0], weights[1])
    if weights == (1, 1):
        told = f"{said}: embedding and head count as a layer each" if said else (
            "torchtitan's default: the first and the last stage have a layer less")  # fmt: skip
        sheet.put("parallel.embedding_as_layer", True, told)
    else:
        sheet.put("parallel.stages", list(sizes), said)
    return count


def _check(sheet: Sheet, option: Option, count: int, ranks: int, *, single: bool) -> None:
    """Raises ScenarioError, in torchtitan's words, for stages that do not fit ranks and schedule."""
    each = count // ranks
    if count % ranks:
        raise sheet.error(option, f"num_stages {count} must be evenly divisible by pp_degree {ranks}")
    if single and each != 1:
        raise sheet.error(option, f"Single stage schedule requires exactly 1 stage per rank, but got {each}")
    if not single and each < 2:
        raise sheet.error(option, f"Multi-stage schedule requires at least 2 stages per rank, but got {each}")
