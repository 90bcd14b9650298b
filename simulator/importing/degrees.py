"""Tensor, pipeline, context and expert parallelism in an imported job: written down, or left out."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from simulator.importing.sheet import Option, Sheet

_KINDS: Final = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


def put_degrees(sheet: Sheet, options: Mapping[str, Option | None]) -> int:
    """Writes ``parallel.tp`` and its like where above 1; returns the ranks that hold one replica.

    Experts are spread over replicas, so they do not count. With ``--drop-model-parallel`` nothing is written, and a
    replica is one rank.
    """
    above: dict[str, int] = {}
    for key, option in options.items():
        degree = sheet.whole(option, least=-1) if option is not None else 1
        if option is None:
            continue
        if degree <= 1:
            sheet.ignore(option.name, "as the simulator does it")
        elif sheet.extras.drop_model_parallel:
            sheet.warn(f"{option.said}: {_KINDS[key]} parallelism is left out (--drop-model-parallel)", option.name)
        else:
            above[key] = degree
            sheet.put(f"parallel.{key}", degree, option.said)
    return prod(degree for key, degree in above.items() if key != "ep")
