"""Sweeps in tests: a small scenario, and rows as text that two runs can be compared by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from simulator.sweeps.points import Row, Sweep
from simulator.sweeps.rows import simulate_point

#: Points of this one take a few milliseconds each.
STEP = """\
cluster: {topology: dgx-h100, nodes: 2}
model:
  layers: [{name: l, params: 1000000, forward: 1 ms, backward: 2 ms, repeat: 4}]
  dtype: fp32
parallel: {strategy: ddp, bucket_cap: 1 MiB}
train: {micro_batch: 1}
"""
SHIPPED = "ddp-llama-1b-16xh100"


def lines(path: str | Path) -> list[Row]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def plain(rows: Sequence[Row]) -> list[str]:
    """Rows as text, without the wall time, in an order of their own."""
    return sorted(json.dumps({k: v for k, v in row.items() if k != "seconds"}) for row in rows)


def expected(sweep: Sweep) -> list[str]:
    """The rows of an uninterrupted sweep, computed here, one after the other."""
    return plain([json.loads(json.dumps(simulate_point(sweep.base, point))) for point in sweep.points])
