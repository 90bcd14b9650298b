"""Precision and optimizer of an imported job, in the names of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simulator.device import DeviceSpec
from simulator.errors import UnsupportedError
from simulator.importing.cluster import Place
from simulator.importing.sheet import CHANGE_ME, Option, Sheet

#: What to take where a device lacks matrix units for a type.
_INSTEAD: Final = {"bf16": "fp16-mixed", "fp16": "bf16-mixed"}
#: Optimizers by what they keep for each parameter: two moments, one, none. Lower case, without separators.
_SAME: Final = {"adamw": "adamw", "adam": "adam", "sgd": "sgd"}
_LIKE_ADAM: Final = ("lamb", "adamax", "nadam", "radam", "adan")
_ONE_MOMENT: Final = ("lion", "muon", "adagrad", "adadelta", "rmsprop", "adafactor")
_COMPRESSED: Final = ("onebitadam", "onebitlamb", "zerooneadam")


def put_precision(sheet: Sheet, place: Place, name: str, said: str, *, guess: bool = False) -> None:
    """Writes ``train.precision``; another type, with a warning, where the device has no units for the one asked for."""
    dtype, device = name.partition("-")[0], place.spec.device
    if dtype in _INSTEAD and isinstance(device, DeviceSpec) and not _has(device, dtype):
        sheet.warn(f"{device.name} has no {dtype} units: train.precision is {_INSTEAD[dtype]} instead of {name}")
        name = _INSTEAD[dtype]
    (sheet.guess if guess else sheet.put)("train.precision", name, said)


def _has(device: DeviceSpec, dtype: str) -> bool:
    try:
        device.peak_flop_per_s(dtype)
    except UnsupportedError:
        return False
    return True


def put_usual_precision(sheet: Sheet, place: Place) -> None:
    """Writes bf16 autocast, as a guess."""
    put_precision(sheet, place, "bf16-mixed", CHANGE_ME, guess=True)


def put_optimizer(sheet: Sheet, option: Option | None, params: Mapping[str, Any] | None = None) -> None:
    """Writes ``train.optimizer``: the one that keeps as many moments. Momentum makes one of SGD's."""
    if option is None:
        sheet.guess("train.optimizer", "adamw")
        return
    word = "".join(c for c in str(option.value).lower() if c.isalnum())
    plain = word.removeprefix("fused").removeprefix("deepspeed").removeprefix("cpu").removesuffix("8bit")
    if plain == "sgd" and (params or {}).get("momentum"):
        sheet.put("train.optimizer", "sgd-momentum", f"{option.said}, with momentum")
    elif plain in _SAME:
        sheet.put("train.optimizer", _SAME[plain], option.said)
    elif word in _COMPRESSED:
        sheet.guess("train.optimizer", "adamw", f"{option.said}, with two moments")
        sheet.warn(f"{option.said}: gradients are sent whole here, not compressed")
    elif plain in _ONE_MOMENT:
        sheet.guess("train.optimizer", "sgd-momentum", f"{option.said}: one moment of each parameter, as it keeps")
    else:
        known = " as it keeps" if plain in _LIKE_ADAM else " if it keeps them: change me"
        sheet.guess("train.optimizer", "adamw", f"{option.said}: two moments of each parameter,{known}")


def put_no_offload(sheet: Sheet, option: Option | None) -> None:
    """States stay on the GPU in a scenario: a warning where the file moves them to the host."""
    if option is None:
        return
    if sheet.flag(option):
        sheet.warn(f"{option.said}: offload is not in this version, so all states stay on the GPU here", option.name)
    else:
        sheet.ignore(option.name, "as the simulator does it")


def put_clipping(sheet: Sheet, option: Option | None, usual: bool, why: str) -> None:
    """Writes ``train.clip_grad_norm``: whether the largest norm is above zero; what is usual, and why, as a guess."""
    if option is None:
        sheet.guess("train.clip_grad_norm", usual, why)
    elif option.auto:
        sheet.guess("train.clip_grad_norm", True, f"{option.said}; the HF Trainer clips at 1.0 unless told not to")
    else:
        sheet.put("train.clip_grad_norm", sheet.number(option) > 0, option.said)
