"""How tensor, context and expert parallelism work in a Megatron-LM job.

Sources: NVIDIA/Megatron-LM (Core 0.15), megatron/training/arguments.py (defaults and checks),
core/transformer/moe/token_dispatcher.py (what a dispatcher sends, DeepEP in ``flex``) and moe_utils.py (capacity,
``group_limited_topk``).
"""

from __future__ import annotations

from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.cluster import Place
from simulator.importing.degrees import put_expert_degree
from simulator.importing.model import Model
from simulator.importing.sheet import Option, Sheet

_RINGS: Final = {"p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "ulysses",
                 "a2a+p2p": "ring"}  # fmt: skip
_DISPATCHERS: Final = ("allgather", "alltoall", "alltoall_seq", "flex")


def put_megatron_ways(sheet: Sheet, model: Model, place: Place) -> None:
    """Writes how tp, cp and ep work. Raises ScenarioError for flags that exclude each other."""
    _check_fsdp(sheet)
    _put_tensor(sheet)
    _put_context(sheet)
    _put_dispatch(sheet, place)
    _put_capacity(sheet, model)


def _check_fsdp(sheet: Sheet) -> None:
    option = sheet.take("--use-torch-fsdp2")
    for key, what in (("pp", "pipeline"), ("ep", "expert")):
        if option is not None and (sheet.value(f"parallel.{key}") or 1) > 1:
            raise ScenarioError(f"{sheet.file}: {option.name} is not supported with {what} parallelism; leave it out")


def _put_tensor(sheet: Sheet) -> None:
    shares, pieces = sheet.take("--sequence-parallel"), sheet.take("--tp-comm-overlap")
    if (sheet.value("parallel.tp") or 1) == 1:
        _idle(sheet, "tensor", shares, pieces)
        return
    said = shares.name if shares else "no --sequence-parallel among the flags"
    sheet.put("parallel.sequence_parallel", shares is not None, said)
    if pieces is not None and shares is None:
        raise ScenarioError(f"{sheet.file}: {pieces.name}: Megatron-LM takes it with --sequence-parallel only")
    if pieces is not None:
        sheet.put("parallel.async_tp", True, pieces.name)


def _idle(sheet: Sheet, what: str, *options: Option | None) -> None:
    for option in options:
        if option is not None:
            sheet.ignore(option.name, f"without {what} parallelism it does nothing")


def _put_context(sheet: Sheet) -> None:
    """One way for all layers, or one for each (``--cp-comm-type p2p p2p a2a``)."""
    way, sizes = sheet.take("--cp-comm-type"), sheet.take("--hierarchical-context-parallel-sizes")
    if (sheet.value("parallel.cp") or 1) == 1:
        _idle(sheet, "context", way, sizes)
        return
    if way is None:
        sheet.put("parallel.cp_method", "ring", "Megatron-LM's default: p2p")
        return
    words = [sheet.one_of(Option(way.name, word), tuple(_RINGS)) for word in str(way.value).split()] or ["p2p"]
    most = max(_RINGS, key=words.count)
    sheet.put("parallel.cp_method", _RINGS[most], way.said)
    if len(set(words)) > 1:
        sheet.warn(f"{way.said}: all layers have the way of most of them here, {most}")
    if "a2a+p2p" in words:
        sheet.warn(f"{way.said}: two levels of context parallelism are not in this version; a ring over all of them is "
                   "played (p2p)")  # fmt: skip
    if sizes is not None:
        sheet.ignore(sizes.name, "one level of context parallelism here")


def put_megatron_experts(sheet: Sheet, model: Model) -> None:
    """Writes ep and etp: experts are cut over as many ranks as the rest unless told otherwise, also where ep is 1."""
    put_expert_degree(sheet, sheet.take("--expert-model-parallel-size"), model)
    width, tp = sheet.take("--expert-tensor-parallel-size"), int(sheet.value("parallel.tp") or 1)
    if not model.experts or (tp == 1 and (sheet.value("parallel.ep") or 1) == 1):
        if width is not None:
            sheet.ignore(width.name, "without experts, or without tensor and expert parallelism, it does nothing")
    elif width is not None:
        sheet.put("parallel.etp", sheet.whole(width), width.said)
    elif tp > 1:
        sheet.put("parallel.etp", tp, "Megatron-LM's default: as the tensor-parallel size")


def _put_dispatch(sheet: Sheet, place: Place) -> None:
    """All-to-alls, one copy for each expert; or one for each node, as DeepEP sends them."""
    kind, backend = sheet.take("--moe-token-dispatcher-type"), sheet.take("--moe-flex-dispatcher-backend")
    deep, beside = sheet.take("--moe-enable-deepep"), sheet.take("--overlap-moe-expert-parallel-comm")
    groups, most = sheet.take("--moe-router-num-groups"), sheet.take("--moe-router-group-topk")
    if (sheet.value("parallel.ep") or 1) == 1:
        _idle(sheet, "expert", kind, backend, deep, beside, groups, most)
        return
    word = "allgather" if kind is None else sheet.one_of(kind, _DISPATCHERS)
    if word == "flex":
        said = ", ".join(o.said for o in (kind, deep, backend) if o is not None)
        sheet.put("parallel.deduplicate", True, f"{said}: a token goes to each node once")
    else:
        _idle(sheet, "the flex dispatcher's", deep, backend)
    if word == "allgather":
        said = "--moe-token-dispatcher-type (default: allgather)" if kind is None else kind.said
        sheet.warn(f"{said}: tokens go by all-to-alls here (alltoall); gathers of all tokens send more")
    elif word != "flex" and kind is not None:
        sheet.ignore(kind.name, "as the simulator does it")
    if beside is not None:
        sheet.warn(f"{beside.name}: what experts send keeps their micro-batch waiting here", beside.name)
    _put_nodes(sheet, place, groups, most)


def _put_nodes(sheet: Sheet, place: Place, groups: Option | None, most: Option | None) -> None:
    """Groups of experts, of which a token takes some, as nodes: a node holds several, or a group is on several."""
    if groups is None or most is None or sheet.whole(most, least=0) == 0:
        for option in (groups, most):
            if option is not None:
                sheet.ignore(option.name, "read with --moe-router-num-groups and --moe-router-group-topk only")
        return
    ranks = int(sheet.value("parallel.ep")) * int(sheet.value("parallel.etp") or 1)
    nodes, count = max(1, ranks // place.per_node), sheet.whole(groups)
    reached = min(nodes, sheet.whole(most) * max(1, nodes // count))
    if nodes == 1 or reached == nodes:
        for option in (groups, most):
            sheet.ignore(option.name, f"limits nothing: experts are on {nodes} node{'s' if nodes > 1 else ''} here")
        return
    sheet.put("parallel.expert_nodes", reached, f"{groups.said}, {most.said}: experts are on {nodes} nodes")


def _put_capacity(sheet: Sheet, model: Model) -> None:
    """Dropped are tokens beyond the capacity; buffers are padded to it with a flag of its own only."""
    factor, pads = sheet.take("--moe-expert-capacity-factor"), sheet.take("--moe-pad-expert-input-to-capacity")
    if factor is None or not model.experts or sheet.number(factor) <= 0:
        for option in (factor, pads):
            if option is not None:
                sheet.ignore(option.name, "no token is dropped" if model.experts else "the model has no experts here")
    elif pads is None and sheet.number(factor) >= 1:
        sheet.ignore(factor.name, "loads are even here, so no expert is full; buffers would be padded with "
                     "--moe-pad-expert-input-to-capacity only")  # fmt: skip
    else:
        said = ", ".join(o.said for o in (factor, pads) if o is not None)
        sheet.put("parallel.capacity_factor", sheet.number(factor), said)
