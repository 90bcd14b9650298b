"""Field types for input models: a quantity is text with a unit in YAML and a float in SI inside.

Used by ``scenario``, ``topology`` and ``device``. Each type carries its JSON Schema (a string with an
example), so editors complete it and ``simulator schema`` explains it. Bounds are wide: they only keep
out values that would overflow later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from simulator import units
from simulator.errors import UnitError

ItemT = TypeVar("ItemT")


class Frozen(BaseModel):
    """Base of every input model: frozen, unknown keys refused, strict types (no ``"4"`` for 4)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Quantity:
    """Runs a parser and checks the bounds; text in, SI float out."""

    def __init__(self, parse: Callable[[object], float], low: str, high: str) -> None:
        self.parse = parse
        self.low, self.low_value = low, parse(low)
        self.high, self.high_value = high, parse(high)

    def __call__(self, value: Any) -> float:
        number = self.parse(value)
        if number < 0 and self.low_value == 0:
            raise UnitError("must not be negative")
        if number <= 0 and self.low_value > 0:
            raise UnitError("must be greater than zero")
        if not self.low_value <= number <= self.high_value:
            raise UnitError(f"must lie between {self.low} and {self.high}")
        return number


def _quantity(parse: Callable[[object], float], example: str, low: str, high: str) -> tuple[Any, Any]:
    schema = {"type": "string", "examples": [example], "description": f"with a unit, such as '{example}'"}
    return BeforeValidator(_Quantity(parse, low, high)), WithJsonSchema(schema)


Bandwidth = Annotated[float, *_quantity(units.parse_bandwidth, "400 Gb/s", "1 B/s", "1 EB/s")]
Bytes = Annotated[float, *_quantity(units.parse_bytes, "25 MiB", "1 B", "1 EB")]
BytesOrZero = Annotated[float, *_quantity(units.parse_bytes, "0 B", "0 B", "1 EB")]
Time = Annotated[float, *_quantity(units.parse_time, "5 us", "0.001 ps", "10000 days")]
TimeOrZero = Annotated[float, *_quantity(units.parse_time, "0 us", "0 s", "10000 days")]
FlopPerSecond = Annotated[float, *_quantity(units.parse_flop_per_s, "989 TFLOP/s", "1 FLOP/s", "1000 EFLOP/s")]
Tokens = Annotated[
    float,
    BeforeValidator(_Quantity(units.parse_count, "1", "1e18")),
    WithJsonSchema({"type": ["string", "number"], "examples": ["15T"], "description": "a number, such as '15T'"}),
]
Dollars = Annotated[float, *_quantity(units.parse_dollars, "$1.2M", "$0.01", "$1000000B")]
Price = Annotated[float, *_quantity(units.parse_price, "$2.50/h", "$0.000001/h", "$1000000/h")]


def _share(value: Any) -> float:
    number = units.parse_fraction(value)
    if not 1e-6 <= number <= 1:
        raise UnitError("must lie above 0 (0.0001% or more) and at most 100%")
    return number


def _share_or_zero(value: Any) -> float:
    number = units.parse_fraction(value)
    if not 0 <= number <= 1:
        raise UnitError("must lie between 0% and 100%")
    return number


def _ratio(value: Any) -> float:
    number = units.parse_fraction(value)
    if not number >= 0:
        raise UnitError("must not be negative")
    return number


_SHARE_SCHEMA = WithJsonSchema({"type": ["string", "number"], "examples": ["10%"]})
Share = Annotated[float, BeforeValidator(_share), _SHARE_SCHEMA]
ShareOrZero = Annotated[float, BeforeValidator(_share_or_zero), _SHARE_SCHEMA]
Ratio = Annotated[float, BeforeValidator(_ratio), _SHARE_SCHEMA]

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


# A YAML list becomes a tuple; its items stay strict.
Items = Annotated[tuple[ItemT, ...], Field(strict=False)]


def errors_at(
    title: str, *problems: tuple[tuple[str | int, ...], str], also: ValidationError | None = None
) -> Exception:
    """A ValidationError with a message at each given place below the model that raises it, added to ``also``.

    An empty message says that a required key is missing there. pydantic prefixes the place of the model.
    """
    details = [
        InitErrorDetails(
            type=PydanticCustomError("problem", "{text}", {"text": message})
            if message
            else PydanticCustomError("missing", "missing key"),
            loc=place,
            input=None,
        )
        for place, message in problems
    ]
    for error in also.errors(include_url=False) if also else ():
        kind: Any = error["type"]  # kept as they are: the type, the place and the context are what gets read
        custom = PydanticCustomError(kind, "{text}", {**error.get("ctx", {}), "text": error["msg"]})
        details.append(InitErrorDetails(type=custom, loc=error["loc"], input=error["input"]))
    return ValidationError.from_exception_data(title, details)
