"""Quantities: text with a unit in, SI floats out, and back for reports. The only unit conversion here.

SI inside: seconds, bytes, bytes per second, FLOP, FLOP per second, US dollars per hour. ``b`` is bits
and ``B`` is bytes; ``G`` is 1e9 and ``Gi`` is 2**30. A bare number is refused where a unit is needed.
"""

from __future__ import annotations

import math
import re

from simulator.errors import UnitError

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_COUNT = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}
_PREFIX = {**_SI, **_BINARY}
# Divisors, so that '5 us' is the float nearest to 5e-6.
_PER_SECOND = {"ps": 1e12, "ns": 1e9, "us": 1e6, "µs": 1e6, "μs": 1e6, "ms": 1e3}
_SECONDS = {
    "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "hr": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*\Z", re.DOTALL)
_DATA_UNIT = re.compile(r"([KMGTPE]i|[kKMGTPE]|)(b|B|bit|bits|bytes?|Bytes?)\Z")
_RATE_SUFFIX = re.compile(r"(.*?)(/s|ps|/sec)\Z")
_FLOP_UNIT = re.compile(r"([kKMGTPE]?)(?:FLOPS|FLOP/s|FLOPs/s|FLOPs|flops|flop/s)\Z")
_FLOP_COUNT_UNIT = re.compile(r"([kKMGTPE]?)(?:FLOP|FLOPs|flop)\Z")
_PRICE = re.compile(r"\s*\$\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*/\s*(h|hr|hour|s|min|d|day)\s*\Z")
_DOLLARS = re.compile(r"\s*\$\s*(\d[\d_,]*\.?\d*)\s*([kMBT]?)\s*\Z")
_PRICE_PER = {"h": 1.0, "hr": 1.0, "hour": 1.0, "min": 60.0, "s": 3600.0, "d": 1 / 24, "day": 1 / 24}


def _split(text: object, expected: str) -> tuple[float, str]:
    """Split ``"400 Gb/s"`` into ``(400.0, "Gb/s")``; refuse what is not a finite number with a unit."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise UnitError(f"has no unit; expected {expected}")
    match = _NUMBER.match(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError(f"expected {expected}")
    value = float(match[1].replace("_", ""))
    if not math.isfinite(value):
        raise UnitError(f"must be a finite number; expected {expected}")
    if not match[2]:
        raise UnitError(f"has no unit; expected {expected}")
    return value, match[2]


def _data_factor(unit: str) -> tuple[float, bool] | None:
    """Factor to bytes and whether the unit counted bits; ``None`` when it is no unit of data."""
    match = _DATA_UNIT.match(unit)
    if match is None:
        return None
    bits = match[2] in {"b", "bit", "bits"}
    return _PREFIX[match[1]] / (8.0 if bits else 1.0), bits


def parse_bandwidth(text: object) -> float:
    """``"400 Gb/s"`` -> ``5e10`` bytes per second. ``Gbps`` and ``GBps`` are read too. Raises UnitError."""
    expected = "a rate such as '400 Gb/s' (bits) or '50 GB/s' (bytes)"
    value, unit = _split(text, expected)
    rate = _RATE_SUFFIX.match(unit)
    factor = _data_factor(rate[1].strip()) if rate else None
    if factor is None:
        raise UnitError(f"unit '{unit}' is not a rate; expected {expected}")
    return value * factor[0]


def parse_bytes(text: object) -> float:
    """``"25 MiB"`` -> ``26214400.0``. Bits are refused: sizes are in bytes. Raises UnitError."""
    expected = "a size such as '25 MiB', '80 GB' or '512 B'"
    value, unit = _split(text, expected)
    factor = _data_factor(unit)
    if factor is None:
        raise UnitError(f"unit '{unit}' is not a size; expected {expected}")
    if factor[1]:
        raise UnitError(f"'{unit}' counts bits; a size is in bytes: expected {expected}")
    return value * factor[0]


def parse_message_size(text: object) -> float:
    """A size as nccl-tests writes it: ``"8"`` bytes, ``"1K"``, ``"8M"``, ``"1G"`` binary, or with a unit."""
    if isinstance(text, str | int) and not isinstance(text, bool):
        match = re.fullmatch(r"\s*(\d+)\s*([KMGkmg]?)\s*", str(text))
        if match:
            return float(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2].lower()]
    try:
        return parse_bytes(text)
    except UnitError as error:
        raise UnitError(f"{error}, or nccl-tests' '1K', '8M', '1G' (binary) or a plain count of bytes") from None


def parse_time(text: object) -> float:
    """``"5 us"`` -> ``5e-06`` seconds. Raises UnitError."""
    expected = "a time such as '5 us', '1.2 ms' or '3 s'"
    value, unit = _split(text, expected)
    if unit not in _SECONDS and unit not in _PER_SECOND:
        raise UnitError(f"unit '{unit}' is not a time; expected {expected}")
    return value / _PER_SECOND[unit] if unit in _PER_SECOND else value * _SECONDS[unit]


def parse_flop_per_s(text: object) -> float:
    """``"989 TFLOP/s"`` (or ``TFLOPS``) -> ``9.89e14``. Raises UnitError."""
    expected = "a compute rate such as '989 TFLOP/s'"
    value, unit = _split(text, expected)
    match = _FLOP_UNIT.match(unit)
    if match is None:
        raise UnitError(f"unit '{unit}' is not a compute rate; expected {expected}")
    return value * _SI[match[1]]


def parse_flop(text: object) -> float:
    """``"1.2 GFLOP"`` -> ``1.2e9`` floating-point operations. Raises UnitError."""
    expected = "an amount of work such as '1.2 GFLOP'"
    value, unit = _split(text, expected)
    match = _FLOP_COUNT_UNIT.match(unit)
    if match is None:
        raise UnitError(f"unit '{unit}' is not an amount of work; expected {expected}")
    return value * _SI[match[1]]


def parse_fraction(text: object) -> float:
    """``"10%"`` -> ``0.1``; a bare number is read as a fraction. Raises UnitError."""
    expected = "a share such as '10%' or 0.1"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UnitError(f"expected {expected}")
    match = _NUMBER.match(text if isinstance(text, str) else f"{text:.17g}")
    if match is None or match[2] not in {"", "%"}:
        raise UnitError(f"expected {expected}")
    value = float(match[1].replace("_", "")) / (100.0 if match[2] == "%" else 1.0)
    if not math.isfinite(value):
        raise UnitError(f"must be a finite number; expected {expected}")
    return value


def parse_count(text: object) -> float:
    """``"15T"`` -> ``1.5e13``; ``k``, ``M``, ``B`` (or ``G``) and ``T`` are powers of a thousand. Raises UnitError."""
    expected = "a number of tokens such as '15T', '300B' or 4_000_000"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UnitError(f"expected {expected}")
    match = _NUMBER.match(text if isinstance(text, str) else f"{text:.17g}")
    if match is None or match[2] not in _COUNT:
        raise UnitError(f"expected {expected}")
    value = float(match[1].replace("_", "")) * _COUNT[match[2]]
    if not math.isfinite(value):
        raise UnitError(f"must be a finite number; expected {expected}")
    return value


def parse_price(text: object) -> float:
    """``"$2.50/h"`` -> ``2.5`` US dollars per hour. Raises UnitError."""
    match = _PRICE.match(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError("expected a price such as '$2.50/h'")
    value = float(match[1]) * _PRICE_PER[match[2]]
    if not math.isfinite(value):
        raise UnitError("must be a finite number; expected a price such as '$2.50/h'")
    return value


def parse_dollars(text: object) -> float:
    """``"$1.2M"`` -> ``1.2e6`` US dollars; ``"$250,000"`` is read too. Raises UnitError."""
    match = _DOLLARS.match(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError("expected an amount such as '$250' or '$1.2M'")
    return parse_count(match[1].replace(",", "") + match[2])


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    if value == 0:
        return f"0 {steps[-1][1]}"
    if not math.isfinite(value):
        return f"{value} {steps[-1][1]}"
    for factor, name in steps:
        if abs(_rounded(value / factor, digits)) >= 1:
            return f"{_significant(value / factor, digits)} {name}"
    factor, name = steps[-1]
    return f"{_significant(value / factor, digits)} {name}"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _significant(value: float, digits: int) -> str:
    rounded = _rounded(value, digits)
    if rounded == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded)) + 1e-12))
    return f"{value:,.{decimals}f}"


def format_time(value_s: float, digits: int = 4) -> str:
    """``0.00123`` -> ``"1.230 ms"``."""
    return _scaled(value_s, ((86400.0, "d"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")), digits)


def format_bytes(value_bytes: float, digits: int = 4) -> str:
    """Decimal, as data sheets and wires count: ``2.5e9`` -> ``"2.500 GB"``."""
    return _scaled(value_bytes, ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")), digits)


def format_gib(value_bytes: float, digits: int = 3) -> str:
    """Binary, as memory is counted: ``2**31`` -> ``"2.00 GiB"``."""
    steps = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
    return _scaled(value_bytes, steps, digits)


def format_bandwidth(value_bytes_per_s: float, digits: int = 4) -> str:
    """``5e10`` -> ``"50.00 GB/s"``."""
    return format_bytes(value_bytes_per_s, digits) + "/s"


def format_flop_per_s(value: float, digits: int = 4) -> str:
    """``9.89e14`` -> ``"989.0 TFLOP/s"``."""
    steps: tuple[tuple[float, str], ...] = (
        (1e15, "PFLOP/s"),
        (1e12, "TFLOP/s"),
        (1e9, "GFLOP/s"),
        (1e6, "MFLOP/s"),
        (1.0, "FLOP/s"),
    )
    if 1e15 <= abs(value) < 1e16:  # accelerators are quoted in TFLOP/s even above 1,000
        steps = steps[1:]
    return _scaled(value, steps, digits)


def format_count(value: float, digits: int = 3) -> str:
    """``1.5e13`` -> ``"15.0T"``, as model sizes and tokens are told."""
    return _scaled(value, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, "")), digits).replace(" ", "")


def format_dollars(value: float, digits: int = 3) -> str:
    """``1234.5`` -> ``"$1,230"``; ``0.00123`` -> ``"$0.00123"``."""
    return f"${_significant(value, digits)}"


def format_percent(share: float, digits: int = 1) -> str:
    """``0.1234`` -> ``"12.3 %"``."""
    return f"{100 * share:.{digits}f} %"
