"""Real steps of models that stand on several hosts take the time that the simulator says, within 8 %, and run what it
plans, in its order: tensor parallelism (column and row), pipelines of ``torch.distributed.pipelining``, the all-to-all
of experts, ring attention, and two of them together.

Layers sleep; what they send is real, on gloo over shaped links, and so are torch's schedules and stages, forward and
backward by autograd. Nothing is fitted, see ``test_lab_training``. One thing is changed in torch: of sends and receives
that begin together the receives come first (``simulator.lab.real_pipeline``).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest
from training import Case, Found, layer, misordered, ran

from simulator.lab.fabric import flat, two_level

pytestmark = [
    pytest.mark.lab, pytest.mark.slow, pytest.mark.usefixtures("lab_here"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'clustersim[real]'"),
]  # fmt: skip

#: All, and most of them.
MOST, USUAL, USUAL_SHARE = 0.08, 0.04, 0.8
SIZE = 640_000


def sends(axis: str, op: str, when: str, size: int = SIZE, **more: int) -> dict[str, Any]:
    return {"axis": axis, "op": op, "size": f"{size} B", "when": when, **more}


def row(count: int, forward_ms: int, *exchanges: dict[str, Any], output: int = 0) -> tuple[dict[str, Any], ...]:
    """Equal layers of a scenario."""
    more = {"exchanges": list(exchanges)} if exchanges else {}
    told = {"output": f"{output} B"} if output else {}
    return tuple({**layer(f"layer.{k}", 1000, forward_ms, 2 * forward_ms), **more, **told} for k in range(count))


def ring(ranks: int, size: int) -> Sequence[dict[str, Any]]:
    """Of ring attention: keys and values go round forward; backward they go again, and their gradients."""
    return (
        sends("cp", "send_recv", "beside forward", size, count=ranks - 1, pieces=ranks),
        sends("cp", "send_recv", "beside input", size, count=2 * (ranks - 1)),
    )


#: Megatron-LM's f and g: a sum after the row-parallel product, and one of the column-parallel product's input gradient
#: beside that of its weights.
COLUMN_AND_ROW = (sends("tp", "all_reduce", "after forward"), sends("tp", "all_reduce", "beside weights"))
#: Its sequence parallelism.
SEQUENCE = (
    sends("tp", "all_gather", "before forward"), sends("tp", "reduce_scatter", "after forward"),
    sends("tp", "all_gather", "before backward"), sends("tp", "all_gather", "beside input"),
    sends("tp", "reduce_scatter", "beside weights"),
)  # fmt: skip
EXPERTS = tuple(
    sends("ep", "all_to_all", when) for when in ("before forward", "after forward", "before backward", "after backward")
)
FOUR, EIGHT = row(4, 20, output=SIZE), row(8, 10, output=SIZE)
#: Stages that take one, two and four times as long.
UNEVEN = tuple(
    {**one, **layer(f"layer.{k}", 1000, ms, 2 * ms)}
    for k, (one, ms) in enumerate(zip(FOUR, (10, 20, 40, 10), strict=True))
)
INTERLEAVED = {"schedule": "interleaved-1f1b", "chunks": 2}
CASES = {
    "tp": Case(row(4, 20, *COLUMN_AND_ROW), {"tp": 4}),
    "tp beside dp": Case(row(4, 20, *COLUMN_AND_ROW), {"tp": 2}, 2),
    "sp": Case(row(3, 20, *SEQUENCE), {"tp": 4}),
    "1f1b": Case(FOUR, {"pp": 4}, 6),
    "1f1b, uneven": Case(UNEVEN, {"pp": 4}, 4),
    "1f1b beside dp": Case(FOUR, {"pp": 2}, 4),
    "gpipe": Case(FOUR, {"pp": 4, "schedule": "gpipe"}, 4),
    "interleaved": Case(EIGHT, {"pp": 4, **INTERLEAVED}, 8),
    "interleaved beside dp": Case(EIGHT, {"pp": 2, **INTERLEAVED}, 4),
    "looped": Case(EIGHT, {"pp": 4, "schedule": "looped-bfs", "chunks": 2}, 4),
    "ep": Case(row(3, 20, *EXPERTS), {"ep": 4}),
    "cp, hidden": Case(row(2, 40, *ring(4, SIZE // 2)), {"cp": 4}),
    "cp, exposed": Case(row(2, 40, *ring(4, 2 * SIZE)), {"cp": 4}),
    "tp in a pipeline": Case(row(4, 20, *COLUMN_AND_ROW, output=SIZE), {"tp": 2, "pp": 2}, 4),
}  # fmt: skip
#: Ring attention of hosts of both sides: two of its four messages cross the uplink, one each way. Tensor parallelism
#: inside a side, gradients across: both use the hosts' links at once.
LARGE = tuple({**one, "params": 250_000} for one in row(4, 20, *COLUMN_AND_ROW))
ACROSS = {
    "cp across": Case(row(2, 40, *ring(4, SIZE)), {"cp": 4}),
    "tp inside, dp across": Case(LARGE, {"tp": 2, "bucket_cap": "1 MiB"}),
}
WHERE = {"flat": (flat(4, 400e6), CASES), "two-level": (two_level(2, 800e6, 200e6), ACROSS)}
ALL = [(fabric, name) for fabric, (_, cases) in WHERE.items() for name in cases]


@pytest.fixture(scope="module")
def found(lab_here: None) -> dict[str, Found]:
    return {name: ran(fabric, cases, traced=True) for name, (fabric, cases) in WHERE.items()}


def needs_real_time(told: Found) -> None:
    if not told.real_time:
        pytest.skip("needs the right to run programs in real time (SCHED_RR)")


@pytest.mark.parametrize(("fabric", "name"), ALL, ids=lambda value: str(value).replace(" ", "-"))
def test_no_step_is_further_off_than_8_percent(fabric: str, name: str, found: dict[str, Found]) -> None:
    needs_real_time(found[fabric])
    assert abs(found[fabric].error(name)) <= MOST, found[fabric].said()


def test_four_of_five_steps_are_within_4_percent(found: dict[str, Found]) -> None:
    for told in found.values():
        needs_real_time(told)
    errors = [abs(found[fabric].error(name)) for fabric, name in ALL]
    within = sum(error <= USUAL for error in errors) / len(errors)
    assert within >= USUAL_SHARE, "\n".join(told.said() for told in found.values())


@pytest.mark.parametrize(("fabric", "name"), ALL, ids=lambda value: str(value).replace(" ", "-"))
def test_each_rank_runs_and_sends_what_is_planned_in_that_order(
    fabric: str, name: str, found: dict[str, Found]
) -> None:
    assert found[fabric].unlike[name] == []


def test_the_faster_schedule_is_the_one_that_is_simulated_faster(found: dict[str, Found]) -> None:
    needs_real_time(found["flat"])
    assert misordered(found["flat"], ["interleaved", "looped"], 0.02) == []
    assert misordered(found["flat"], ["cp, hidden", "cp, exposed"], 0.02) == []


def test_what_the_real_steps_show(found: dict[str, Found]) -> None:
    """A ring hides what takes less than attention on a chunk, and not what takes more."""
    needs_real_time(found["flat"])
    real = found["flat"].real_s
    sleeps_s = 2 * 0.12
    assert real["cp, hidden"] < 1.15 * sleeps_s
    assert real["cp, exposed"] > 2 * sleeps_s
