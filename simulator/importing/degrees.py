"""Tensor, pipeline, context and expert parallelism in an imported job: written down, or left out."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm, prod
from typing import Final

from simulator.importing.model import Model
from simulator.importing.sheet import Option, Sheet

_KINDS: Final = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


def put_degrees(sheet: Sheet, options: Mapping[str, Option | None]) -> int:
    """Writes ``parallel.tp`` and its like where above 1; returns the ranks that hold one replica.

    With ``--drop-model-parallel`` nothing is written, and a replica is one rank.
    """
    return prod(_put(sheet, key, option) for key, option in options.items())


def put_expert_degree(sheet: Sheet, option: Option | None, model: Model) -> None:
    """Writes ``parallel.ep`` where above 1, of a model that has experts. They are spread over replicas."""
    if option is not None and sheet.whole(option, least=-1) > 1 and not model.experts:
        told = "the model has no experts here" + ("" if sheet.extras.drop_model_parallel else ", so none are shared")
        sheet.warn(f"{option.said}: {told}", option.name)
    else:
        _put(sheet, "ep", option)


def ranks_of_replica(sheet: Sheet, others: int) -> int:
    """The least ranks of a job: those of one replica (``others``), or as many more as its experts are spread over."""
    pp, ep, etp = (int(sheet.value(f"parallel.{key}") or 1) for key in ("pp", "ep", "etp"))
    return lcm(others, pp * ep * etp)


def _put(sheet: Sheet, key: str, option: Option | None) -> int:
    """Writes one degree; returns it, 1 where it is not written."""
    if option is None:
        return 1
    degree = sheet.whole(option, least=-1)
    if degree <= 1:
        sheet.ignore(option.name, "as the simulator does it")
        return 1
    if sheet.extras.drop_model_parallel:
        sheet.warn(f"{option.said}: {_KINDS[key]} parallelism is left out (--drop-model-parallel)", option.name)
        return 1
    sheet.put(f"parallel.{key}", degree, option.said)
    return degree
