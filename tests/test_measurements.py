"""Published tables as rows of (operation, ranks, size, time), and what is said about errors against them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simulator import shipped
from simulator.collectives import ALGORITHMS
from simulator.collectives.busbw import bus_factor
from simulator.load import load_topology
from simulator.measurements import tables as tables_module
from simulator.measurements.accuracy import BANDS, P90_FACTOR, Compared, accuracy, band_of, by_group, held_out
from simulator.measurements.tables import Measured, published, source_of

FOLDER = Path(tables_module.__file__).parent
TABLES: dict[str, dict[str, Any]] = {
    table["id"]: table
    for table in yaml.safe_load((FOLDER / "nccl_tests.yaml").read_text(encoding="utf-8"))["tables"]
}  # fmt: skip
ROWS = published().rows


def rows_of(table: str) -> list[Measured]:
    return [row for row in ROWS if row.table == table]


def test_every_row_of_every_table_is_either_used_or_left_out_with_a_reason() -> None:
    """76 tables; a table with two measured columns, or with NVLS on and off, counts twice."""
    assert len(TABLES) == 76
    twice = {"stas00-b200-1n-vs-4n-allreduce", "rocm9409-mi350x-2n-allreduce", "stas00-h200-1n-nvls-by-gpus",
             "stas00-b200-1n-nvls-by-gpus"}  # fmt: skip
    for name, table in TABLES.items():
        out = [item for item in published().left_out if item.table == name]
        assert len(rows_of(name)) + sum(item.rows for item in out) == len(table["rows"]) * (2 if name in twice else 1)
        assert all(item.reason for item in out)


def test_only_healthy_tables_are_compared() -> None:
    assert {TABLES[row.table]["status"] for row in ROWS} == {"healthy"}
    unhealthy = [name for name, table in TABLES.items() if table["status"] != "healthy"]
    assert len(unhealthy) == 19
    for name in unhealthy:
        (item,) = [item for item in published().left_out if item.table == name]
        assert item.reason.startswith(TABLES[name]["status"])


@pytest.mark.parametrize("name", sorted({row.table for row in ROWS if TABLES[row.table]["kind"] == "nccl_tests"}))
def test_printed_bus_bandwidths_agree_with_the_ranks_and_the_operation_that_a_table_is_given(name: str) -> None:
    """busbw = size / time x factor(op, ranks) to half of its last printed digit, and to the digits of the time."""
    for row, (size, time_us, _, busbw) in zip(rows_of(name), TABLES[name]["rows"], strict=True):
        assert (row.size_bytes, row.time_s) == (size, pytest.approx(time_us * 1e-6))
        wanted = row.size_bytes * bus_factor(row.op, row.ranks) / row.time_s / 1e9
        assert busbw == pytest.approx(wanted, rel=2e-3, abs=0.006)


@pytest.mark.parametrize("row", {(row.table, row.nodes): row for row in ROWS}.values(), ids=lambda row: row.table)
def test_a_table_is_placed_on_as_many_nodes_and_ranks_as_it_states(row: Measured) -> None:
    system = TABLES[row.table]["system"]
    if isinstance(system["nodes"], int):
        assert row.nodes == system["nodes"]
    if isinstance(system["ranks"], int):
        assert row.ranks == system["ranks"]
    elif TABLES[row.table]["kind"] != "vendor_peak":
        assert row.gpus_per_node <= system["gpus_per_node"]
    assert row.gpus_per_node <= load_topology(row.topology).gpus_per_node  # type: ignore[attr-defined]
    assert row.topology in shipped.names("topology")


def test_forced_algorithms_exist() -> None:
    assert {(row.op, row.algorithm) for row in ROWS if row.algorithm} <= set(ALGORITHMS)


def test_a_bandwidth_without_a_time_gives_one() -> None:
    """16 GiB over 32 B200 at busbw 381.8 GB/s: 2^34 x 2 x 31/32 / 381.8e9 = 87.18 ms."""
    last = [row for row in rows_of("stas00-b200-1n-vs-4n-allreduce") if row.nodes == 4][-1]
    assert last.time_s == pytest.approx(2**34 * 2 * 31 / 32 / 381.8e9)
    assert last.time_s == pytest.approx(87.18e-3, rel=1e-4)
    assert rows_of("vtrain-a100-1n-2gpu-allreduce")[0].time_s == pytest.approx(44.21e-6)


def test_rounding_is_carried_and_fewer_than_two_digits_are_left_out() -> None:
    """Azure's A100: 0.04 and 0.08 GB/s are one digit; 0.17 is known to 0.005 / 0.17 = 2.9 %."""
    (out,) = [item for item in published().left_out if item.table == "azure-guide-a100-1n-allreduce"]
    assert out.rows == 2
    first = rows_of("azure-guide-a100-1n-allreduce")[0]
    assert (first.size_bytes, first.rounding) == (4096, pytest.approx(0.005 / 0.17))
    assert max(row.rounding for row in ROWS) <= 0.05


def test_alltoall_is_ours_with_the_buffer_of_one_rank() -> None:
    """SimuMax: 8 GiB a rank over 8 H100 in 21.73 ms is algbw 395 GB/s, busbw 346."""
    row = rows_of("simumax-h100-1n-alltoall-bf16")[-1]
    assert (row.op, row.size_bytes, row.ranks) == ("all_to_all", 2**33, 8)


def test_rows_of_one_table_can_be_other_operations_and_algorithms() -> None:
    rows = rows_of("stas00-h200-1n-collectives-16g")
    assert [(row.op, row.algorithm) for row in rows] == [
        ("all_reduce", None), ("all_reduce", "ring"), ("all_gather", None), ("reduce_scatter", None),
    ]  # fmt: skip
    assert {row.size_bytes for row in rows} == {2**34}
    forced = [row.algorithm for row in rows_of("stas00-h200-4n-allreduce-4g")]
    assert forced == [None, "ring", "nvls_tree"]
    by_ranks = rows_of("stas00-h200-1n-nvls-by-gpus")
    assert [row.ranks for row in by_ranks] == [4, 5, 6, 7, 8] * 2
    assert {row.algorithm for row in by_ranks[5:]} == {"ring"}


def test_a_plateau_of_unknown_size_is_marked_and_kept_apart() -> None:
    assert {row.table for row in ROWS if row.peak} == {"nvidia-gtc25-s72583-allreduce", "nvidia-gtc25-s72583-alltoall"}


def test_every_table_names_its_source() -> None:
    for table in TABLES.values():
        assert len(source_of(table)) > 10
        assert table["provenance"]


# ---- errors ----------------------------------------------------------------------------------------------------------


def compared(error: float, size_bytes: float = 2**20) -> Compared:
    row = replace(ROWS[0], time_s=1e-3, size_bytes=size_bytes)
    return Compared(measured=row, time_s=1e-3 * (1 + error), algorithm="ring", protocol="simple")


def test_median_p90_bias_and_worst_are_those_of_the_relative_error() -> None:
    errors = [-0.5, -0.1, 0.0, 0.2, 0.3]
    found = accuracy(("x",), BANDS[1], [compared(e) for e in errors])
    assert (found.rows, found.median, found.bias) == (5, pytest.approx(0.2), pytest.approx(0.0))
    assert found.p90 == pytest.approx(np.percentile(np.abs(errors), 90))
    assert found.worst.error == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("size", "band", "target"),
    [(8, "< 1 MiB", 0.35), (2**20 - 1, "< 1 MiB", 0.35), (2**20, "1-64 MiB", 0.2), (2**26 - 1, "1-64 MiB", 0.2),
     (2**26, ">= 64 MiB", 0.1), (2**40, ">= 64 MiB", 0.1)],
)  # fmt: skip
def test_bands_start_at_their_lower_bound_and_have_the_stated_targets(size: int, band: str, target: float) -> None:
    assert (band_of(size).name, band_of(size).target) == (band, target)


def test_a_target_needs_both_the_median_and_twice_it_at_p90() -> None:
    assert P90_FACTOR == 2
    assert accuracy(("x",), BANDS[2], [compared(0.09)] * 9 + [compared(0.5)]).met  # p90 = 0.09 + 0.1 x 0.41
    assert not accuracy(("x",), BANDS[2], [compared(0.101)] * 3).met
    assert not accuracy(("x",), BANDS[2], [compared(0.0)] * 8 + [compared(0.21)] * 2).met


def test_groups_keep_fitted_and_held_out_rows_apart() -> None:
    fitted = replace(compared(0.0), measured=replace(ROWS[0], constants="share of NVLink"))
    held = replace(compared(0.0), measured=replace(ROWS[0], constants=""))
    found = by_group([fitted, held, held], held_out)
    assert [(a.group, a.rows) for a in found] == [(("constants were read off these",), 1), (("held out",), 2)]
