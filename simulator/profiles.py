"""Profiles of devices, libraries and models, read and checked once for as long as their files say the same.

The points of a sweep, and a topology and its scenario, name the same few profiles again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from simulator.library import LIBRARIES, AlphaBetaLibrary, CalibratedLibrary, NcclLibrary
from simulator.problems import Problem, nearest, show
from simulator.text_file import read_text
from simulator.yaml_source import Source, parse, validate

ModelT = TypeVar("ModelT", bound=BaseModel)


def profile(path: Path, model: type[ModelT]) -> ModelT:
    """The file as a frozen ``model``. Raises ScenarioError with every problem of it."""
    found = _validated(read_text(path), path, model)
    assert isinstance(found, model)
    return found


def library_at(
    path: Path, *, also_known: Iterable[str] = ()
) -> tuple[Source, AlphaBetaLibrary | NcclLibrary | CalibratedLibrary]:
    """The library of a file, as it stands there, and the document. Raises ScenarioError.

    also_known: names offered when there is no such file.
    """
    return _library(read_text(path, also_known=also_known), path)


@lru_cache(maxsize=64)
def _validated(text: str, path: Path, model: type[BaseModel]) -> BaseModel:
    return validate(parse(text, str(path), directory=path.parent), model)


@lru_cache(maxsize=32)
def _library(text: str, path: Path) -> tuple[Source, AlphaBetaLibrary | NcclLibrary | CalibratedLibrary]:
    source = parse(text, str(path), directory=path.parent)
    model = source.value.get("model", "alpha_beta")
    if not isinstance(model, str) or model not in LIBRARIES:
        message = f"unknown model {show(model)}; accepted: {', '.join(LIBRARIES)}{nearest(str(model), LIBRARIES)}"
        raise source.error(*source.problems, Problem(loc=("model",), message=message))
    return source, validate(source, LIBRARIES[model])
