"""Stages, schedule and sends of Megatron-LM's pipeline.

Sources: NVIDIA/Megatron-LM (Core 0.15), megatron/training/arguments.py (``validate_args``: which flags go together, and
that sends overlap in the interleaved schedule only) and megatron/core/transformer/transformer_block.py
(``get_num_layers_to_build``).
"""

from __future__ import annotations

from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.model import Model
from simulator.importing.sheet import Option, Sheet
from simulator.importing.stage_cuts import of_layout, weighted, with_ends

_PIPED: Final = (
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank",
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split", "pipeline-model-parallel-layout",
    "overlap-p2p-communication", "no-overlap-p2p-communication",
    "overlap-p2p-communication-warmup-flush", "microbatch-group-size-per-virtual-pipeline-stage",
    "standalone-embedding-stage", "defer-embedding-wgrad-compute", "delay-wgrad-compute", "use-tp-pp-dp-mapping",
)  # fmt: skip


def put_megatron_pipeline(sheet: Sheet, model: Model) -> None:
    """Writes schedule, chunks, stages, sends and order of ranks. Raises ScenarioError in Megatron-LM's words."""
    found = {name: sheet.take(f"--{name}") for name in _PIPED}
    ranks = int(sheet.value("parallel.pp") or 1)
    if ranks == 1:
        for option in found.values():
            if option is not None:
                sheet.ignore(option.name, "without pipeline parallelism it does nothing")
        return
    chunks, said = _put_stages(sheet, model, found, ranks)
    sheet.put("parallel.schedule", "interleaved-1f1b" if chunks > 1 else "1f1b", said)
    if chunks > 1:
        sheet.put("parallel.chunks", chunks, said)
    _put_sends(sheet, found, ranks, interleaved=chunks > 1)
    if (mapped := found["use-tp-pp-dp-mapping"]) is not None:
        sheet.put("parallel.order", "tp-cp-ep-pp-dp", mapped.name)
    for name, told in (
        ("standalone-embedding-stage", "the embedding stands with the first layers here"),
        ("delay-wgrad-compute", "each backward makes both gradients at once in this schedule"),
    ):
        if (option := found[name]) is not None:
            sheet.warn(f"{option.name}: {told}", option.name)
    if (option := found["defer-embedding-wgrad-compute"]) is not None:
        sheet.ignore(option.name, "the head's gradients are all made in its backward here")


def _put_sends(sheet: Sheet, found: dict[str, Option | None], ranks: int, *, interleaved: bool) -> None:
    never, asked = found["no-overlap-p2p-communication"], found["overlap-p2p-communication"]
    if not interleaved:
        sheet.put("parallel.overlap_p2p", False, "Megatron-LM overlaps sends in the interleaved schedule only")
    else:
        given = never or asked
        told = given.name if given else "Megatron-LM's default in the interleaved schedule"
        sheet.put("parallel.overlap_p2p", never is None, told)
    if (ends := found["overlap-p2p-communication-warmup-flush"]) is not None:
        sheet.ignore(ends.name, "sends overlap in all of the schedule here, or in none of it")
    group = found["microbatch-group-size-per-virtual-pipeline-stage"]
    if group is not None and sheet.whole(group) != ranks:
        sheet.warn(f"{group.said}: a chunk takes {ranks} micro-batches in turn here, as many as there are ranks",
                   group.name)  # fmt: skip
    elif group is not None:
        sheet.ignore(group.name, "as the simulator does it")


def _put_stages(sheet: Sheet, model: Model, found: dict[str, Option | None], ranks: int) -> tuple[int, str]:
    """Writes the layers of stages where they are not simply even. Returns chunks of each rank, and who says so."""
    layout = found["pipeline-model-parallel-layout"]
    if layout is not None:
        return _put_layout(sheet, model, layout, ranks)
    first, last = found["decoder-first-pipeline-num-layers"], found["decoder-last-pipeline-num-layers"]
    ends = [o for o in (found["account-for-embedding-in-pipeline-split"], found["account-for-loss-in-pipeline-split"])
            if o is not None]  # fmt: skip
    chunks, said = _chunks(sheet, model, found, ranks, len(ends))
    if model.layers is None:
        return chunks, said
    layers = model.layers
    uneven = first or last
    if uneven is not None:
        if ends:
            raise sheet.error(ends[0], f"does not support uneven pipeline stages ({uneven.name})")
        given = _size(sheet, first), _size(sheet, last)
        with sheet.blaming(uneven):
            sizes = with_ends(layers, ranks, chunks, *given)
        sheet.put("parallel.stages", list(sizes), ", ".join(o.said for o in (first, last) if o is not None))
        return chunks, said
    blamed = found["num-virtual-stages-per-pipeline-rank"] or sheet.take("--pipeline-model-parallel-size")
    assert blamed is not None, "there is a pipeline"
    if (layers + len(ends)) % (ranks * chunks):
        counted = f"{layers} layers" + (f" and {len(ends)} for {' and '.join(o.name for o in ends)}" if ends else "")
        each = f" x {chunks} virtual stages" if chunks > 1 else ""
        raise sheet.error(blamed, f"{counted} must be divisible by {ranks} pipeline ranks{each}")
    if len(ends) == 2:
        sheet.put("parallel.embedding_as_layer", True, ", ".join(o.name for o in ends))
    elif ends:
        before = int(ends[0].name == "--account-for-embedding-in-pipeline-split")
        with sheet.blaming(ends[0]):
            sizes = weighted(layers, ranks * chunks, before, 1 - before)
        sheet.put("parallel.stages", list(sizes), ends[0].name)
    return chunks, said


def _size(sheet: Sheet, option: Option | None) -> int | None:
    return None if option is None else sheet.whole(option, least=0)


def _chunks(
    sheet: Sheet, model: Model, found: dict[str, Option | None], ranks: int, ends: int
) -> tuple[int, str]:  # fmt: skip
    """Virtual stages of each rank, and who says so."""
    each, count = found["num-layers-per-virtual-pipeline-stage"], found["num-virtual-stages-per-pipeline-rank"]
    if each is not None and count is not None:
        raise ScenarioError(f"{sheet.file}: {each.name} and {count.name} cannot be set at the same time")
    if count is not None:
        return sheet.whole(count), count.said
    if each is None:
        return 1, "no --num-layers-per-virtual-pipeline-stage among the flags"
    if found["decoder-first-pipeline-num-layers"] or found["decoder-last-pipeline-num-layers"]:
        raise sheet.error(each, "uneven stages go with --num-virtual-stages-per-pipeline-rank")
    if model.layers is None:
        return 1, f"{each.said}, of a model whose layers are unknown"
    total = model.layers + ends
    if total % (ranks * sheet.whole(each)):
        told = f"{total // ranks} of {total} layers on each of {ranks} pipeline ranks" if total % ranks == 0 else (
            f"{total} layers over {ranks} pipeline ranks")  # fmt: skip
        raise sheet.error(each, f"does not divide {told}")
    return total // ranks // sheet.whole(each), each.said


def _put_layout(sheet: Sheet, model: Model, layout: Option, ranks: int) -> tuple[int, str]:
    """Stages letter by letter."""
    with sheet.blaming(layout):
        stages = of_layout(str(layout.value))
    if len(stages) % ranks:
        raise sheet.error(layout, f"has {len(stages)} stages, which must be divisible by {ranks} pipeline ranks")
    sizes = [stage.count("t") for stage in stages]
    if model.layers is not None and sum(sizes) != model.layers:
        raise sheet.error(layout, f"has {sum(sizes)} layers; the model has {model.layers}")
    if any("E" in stage for stage in stages[1:]) or any("L" in stage for stage in stages[:-1]):
        sheet.warn(f"{layout.name}: embedding and loss stand in the first and the last stage here")
    if any("m" in stage for stage in stages):
        sheet.warn(f"{layout.name}: heads for several tokens (m) are not in this version")
    sheet.put("parallel.stages", sizes, layout.said)
    return len(stages) // ranks, layout.said
