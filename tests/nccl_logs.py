"""Logs as nccl-tests prints them, made from numbers. Formats: NVIDIA/nccl-tests src/util.cu, older src/common.cu."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from simulator.collectives.busbw import bus_factor

#: (size in bytes, time in us)
Point = tuple[int, float]
PROGRAMS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "send_recv": "sendrecv",
}  # fmt: skip
GROUP = ("time", "algbw", "busbw", "#wrong")


def number(value: float, width: int) -> str:
    """As nccl-tests' getFloatStr: two decimals while they fit, then one, then none."""
    for decimals, most in ((2, width - 3), (1, width - 2)):
        if value < 10.0**most:
            return f"{value:{width}.{decimals}f}"
    return f"{value:{width}.0f}"


def rates(op: str, ranks: int, size: int, time_us: float) -> tuple[float, float]:
    """(algbw, busbw) in GB/s."""
    algbw = size / time_us / 1e3
    return algbw, algbw * bus_factor(op, ranks)


def devices(ranks: int, per_node: int, *, old: bool = False) -> list[str]:
    group = "" if old else " Group  0"
    return [
        f"#  Rank {rank:2d}{group} Pid {1000 + rank:6d} on {f'node{rank // per_node}':>10s} "
        f"device {rank % per_node:2d} [0000:{rank % per_node:02x}:00] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]


def text_log(
    op: str,
    ranks: int,
    points: Sequence[Point],
    *,
    per_node: int = 8,
    named: bool = True,
    listed: bool = True,
    columns: Sequence[str] = ("redop", "root"),
    group: Sequence[str] = GROUP,
    extra: Sequence[tuple[str, str]] = (),
    label: str = "",
    wrong: str = "0",
) -> str:
    """A whole log. columns: between ``type`` and the times; extra: (header, value) of columns after the last group."""
    before = {"redop": "sum", "root": "-1"}
    lines = [f"# Collective test starting: {PROGRAMS[op]}_perf"] if named else []
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20", "#"]
    lines += ["# Using devices", *devices(ranks, per_node, old="#wrong" not in group)] if listed else []
    head = ["size", "count", "type", *columns, *group, *group, *(name for name, _ in extra)]
    lines += ["#", "#    out-of-place    in-place", "#  " + "  ".join(head)]
    for size, time_us in points:
        algbw, busbw = rates(op, ranks, size, time_us)
        half = [number(time_us, 7), number(algbw, 6), number(busbw, 6), wrong]
        cells = [f"{size:12d}", f"{size // 4:12d}", "float", *(before[name] for name in columns), *half, *half]
        lines.append("  ".join([*cells, *(value for _, value in extra)]))
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0", "#"]
    return "\n".join(label + line for line in lines) + "\n"


def json_log(op: str, ranks: int, points: Sequence[Point], *, per_node: int = 8) -> str:
    """What ``-J`` writes: one process per rank."""
    held: list[dict[str, Any]] = []
    for size, time_us in points:
        algbw, busbw = rates(op, ranks, size, time_us)
        half = {"time": time_us, "alg_bw": algbw, "bus_bw": busbw, "nwrong": 0.0}
        held.append({
            "size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": half,
            "in_place": half | {"nwrong": None}, "actual_iterations": 20, "experiment_name": "x",
        })  # fmt: skip
    value = {
        "version": 1,
        "start_time": "2025-09-01 10:00:00",
        "args": [f"./build/{PROGRAMS[op]}_perf", "-b", "8"],
        "env": ["PATH=/bin"],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1, "ngpus": 1, "parallel_init": "false",
            "devices": [
                {"rank": rank, "group": 0, "pid": 1, "hostname": f"node{rank // per_node}", "device": rank % per_node,
                 "device_hex": "0000:00:00", "device_info": "NVIDIA H100 80GB HBM3"}
                for rank in range(ranks)
            ],
        },
        "results": held,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"},
        "errors": [],
        "end_time": "2025-09-01 10:00:09",
    }  # fmt: skip
    return json.dumps(value)
