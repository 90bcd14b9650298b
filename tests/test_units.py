"""Quantities: what is read, what is refused, and that b is never B."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator import fields, units
from simulator.errors import UnitError

Parser = Callable[[object], float]
POSITIVE = st.floats(min_value=1e-6, max_value=1e6, allow_nan=False)
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (units.parse_bandwidth, "400 Gb/s", 50e9),
        (units.parse_bandwidth, "400Gbps", 50e9),
        (units.parse_bandwidth, "400 Gbit/s", 50e9),
        (units.parse_bandwidth, "50 GB/s", 50e9),
        (units.parse_bandwidth, "50GBps", 50e9),
        (units.parse_bandwidth, "50 GiB/s", 50 * 2**30),
        (units.parse_bandwidth, "1 Gib/s", 2**30 / 8),
        (units.parse_bandwidth, "8 bps", 1.0),
        (units.parse_bytes, "25 MiB", 25 * 2**20),
        (units.parse_bytes, "25 MB", 25e6),
        (units.parse_bytes, "1_000 B", 1000.0),
        (units.parse_bytes, "2 EiB", 2.0**61),
        (units.parse_time, "5 us", 5e-6),
        (units.parse_time, "5µs", 5e-6),
        (units.parse_time, "1.5e3 ns", 1.5e-6),
        (units.parse_time, "2 h", 7200.0),
        (units.parse_flop_per_s, "989 TFLOP/s", 989e12),
        (units.parse_flop_per_s, "312 TFLOPS", 312e12),
        (units.parse_flop, "1.2 GFLOP", 1.2e9),
        (units.parse_fraction, "10%", 0.1),
        (units.parse_fraction, "10 %", 0.1),
        (units.parse_fraction, 0.1, 0.1),
        (units.parse_fraction, 1, 1.0),
        (units.parse_price, "$2.50/h", 2.5),
        (units.parse_price, "$60/day", 2.5),
        (units.parse_message_size, "8", 8.0),
        (units.parse_message_size, 8, 8.0),
        (units.parse_message_size, "1K", 1024.0),
        (units.parse_message_size, "1G", 2.0**30),
        (units.parse_message_size, "1 GB", 1e9),
    ],
)
def test_quantity_reads_as(parse: Parser, text: object, expected: float) -> None:
    assert parse(text) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (units.parse_bandwidth, 400, "has no unit"),
        (units.parse_bandwidth, 50e9, "has no unit"),
        pytest.param(units.parse_bandwidth, 10**5000, "has no unit", id="huge"),
        (units.parse_bandwidth, "400", "has no unit"),
        (units.parse_bandwidth, "400 Gb", "not a rate"),
        (units.parse_bandwidth, "400 gb/s", "not a rate"),
        (units.parse_bandwidth, "5 ps", "not a rate"),
        (units.parse_bandwidth, True, "expected a rate"),
        (units.parse_bandwidth, None, "expected a rate"),
        (units.parse_bandwidth, "fast", "expected a rate"),
        (units.parse_bandwidth, "nan GB/s", "expected a rate"),
        (units.parse_bandwidth, "1e999 GB/s", "finite"),
        (units.parse_bytes, "25 Mb", "counts bits"),
        (units.parse_bytes, "25 Mbit", "counts bits"),
        (units.parse_bytes, "25 mB", "not a size"),
        (units.parse_bytes, "25 kiB", "not a size"),
        (units.parse_bytes, "25 MB/s", "not a size"),
        (units.parse_bytes, "25 M", "not a size"),
        (units.parse_bytes, ["25 MB"], "expected a size"),
        (units.parse_time, "5", "has no unit"),
        (units.parse_time, "5 m", "not a time"),
        (units.parse_time, "5 GB", "not a time"),
        (units.parse_flop_per_s, "989 TFLOP", "not a compute rate"),
        (units.parse_flop_per_s, "989 TB/s", "not a compute rate"),
        (units.parse_flop, "1 TFLOP/s", "not an amount of work"),
        (units.parse_fraction, "10 percent", "expected a share"),
        (units.parse_fraction, True, "expected a share"),
        (units.parse_fraction, math.inf, "expected a share"),
        (units.parse_price, "2.50/h", "expected a price"),
        (units.parse_price, "$1.2.3/h", "expected a price"),
        (units.parse_price, "$1e999/h", "finite"),
        (units.parse_message_size, "8Q", "nccl-tests"),
        (units.parse_message_size, "-8", "nccl-tests"),
    ],
)
def test_quantity_is_refused_with_what_is_accepted(parse: Parser, text: object, said: str) -> None:
    with pytest.raises(UnitError, match=said):
        parse(text)


@given(POSITIVE, st.sampled_from(sorted(PREFIXES)))
def test_b_is_an_eighth_of_B_under_every_prefix(value: float, prefix: str) -> None:  # noqa: N802
    bits = units.parse_bandwidth(f"{value!r} {prefix}b/s")
    assert units.parse_bandwidth(f"{value!r} {prefix}B/s") == pytest.approx(8 * bits, rel=1e-12)
    assert units.parse_bytes(f"{value!r} {prefix}B") == pytest.approx(value * PREFIXES[prefix], rel=1e-12)


@given(st.text(max_size=30))
def test_any_text_is_a_finite_number_or_a_unit_error(text: str) -> None:
    parsers: list[Parser] = [
        units.parse_bandwidth, units.parse_bytes, units.parse_time, units.parse_flop_per_s,
        units.parse_flop, units.parse_fraction, units.parse_price, units.parse_message_size,
    ]  # fmt: skip
    for parse in parsers:
        with suppress(UnitError):
            assert math.isfinite(parse(text))


@given(
    st.floats(min_value=1e-3, max_value=1e3),
    st.sampled_from(["ps", "B/s", "kb/s", "GiB", "Ei", "kiB", "EiB", "us", "TFLOP", "TFLOPS", "%", "x", "/s", "Gbps"]),
)
def test_any_number_with_any_unit_is_read_or_a_unit_error(value: float, unit: str) -> None:
    for parse in (units.parse_bandwidth, units.parse_bytes, units.parse_time, units.parse_flop_per_s, units.parse_flop):
        with suppress(UnitError):
            assert parse(f"{value!r} {unit}") > 0


@given(st.floats(min_value=1e-9, max_value=80000.0))
def test_formatted_time_reads_back_to_its_four_digits(value_s: float) -> None:
    text = units.format_time(value_s)
    assert units.parse_time(text.replace(",", "")) == pytest.approx(value_s, rel=5.1e-4)


@given(st.floats(min_value=1.0, max_value=1e17))
def test_formatted_bytes_read_back_to_their_digits(value: float) -> None:
    assert units.parse_bytes(units.format_bytes(value).replace(",", "")) == pytest.approx(value, rel=5.1e-4)
    assert units.parse_bytes(units.format_gib(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)
    assert units.parse_bandwidth(units.format_bandwidth(value).replace(",", "")) == pytest.approx(value, rel=5.1e-4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_time(0.00123), "1.230 ms"),
        (units.format_time(0.0), "0 ns"),
        (units.format_time(0.99999), "1.000 s"),
        (units.format_time(1e-9 * 999.999), "1.000 us"),
        (units.format_time(math.inf), "inf ns"),
        (units.format_bytes(2.5e9), "2.500 GB"),
        (units.format_bytes(999.96e6), "1.000 GB"),
        (units.format_gib(2.0**31), "2.00 GiB"),
        (units.format_bandwidth(5e10), "50.00 GB/s"),
        (units.format_flop_per_s(1.9789e15), "1,979 TFLOP/s"),
        (units.format_percent(0.1234), "12.3 %"),
    ],
)
def test_format_shows_four_digits_in_the_unit_people_use(text: str, expected: str) -> None:
    assert text == expected


class Quantities(fields.Frozen):
    """One field of each kind."""

    rate: fields.Bandwidth = 1.0
    size: fields.Bytes = 1.0
    some: fields.BytesOrZero = 0.0
    wait: fields.TimeOrZero = 0.0
    span: fields.Time = 1.0
    share: fields.Share = 1.0
    part: fields.ShareOrZero = 0.0
    count: fields.Count = 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rate": "0 GB/s"}, "greater than zero"),
        ({"rate": "-1 GB/s"}, "greater than zero"),
        ({"rate": "1.0e30 GB/s"}, "between 1 B/s and 1 EB/s"),
        ({"rate": 50}, "has no unit"),
        ({"size": "0 B"}, "greater than zero"),
        ({"size": "0.5 B"}, "between 1 B"),
        ({"some": "-1 B"}, "must not be negative"),
        ({"wait": "-1 us"}, "must not be negative"),
        ({"span": "0 s"}, "greater than zero"),
        ({"share": "0%"}, "above 0"),
        ({"share": "101%"}, "at most 100%"),
        ({"part": "-1%"}, "between 0% and 100%"),
        ({"count": True}, "valid integer"),
        ({"count": 4.0}, "valid integer"),
        ({"count": 0}, "greater than or equal to 1"),
        ({"count": 1_000_001}, "less than or equal to 1000000"),
        ({"counts": 1}, "not permitted"),
    ],
)
def test_field_refuses_what_makes_no_sense(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Quantities.model_validate(values)


def test_zero_is_fine_where_it_means_something() -> None:
    held = Quantities.model_validate({"some": "0 B", "wait": "0 us", "part": "0%", "share": "100%"})
    assert (held.some, held.wait, held.part, held.share) == (0.0, 0.0, 0.0, 1.0)
