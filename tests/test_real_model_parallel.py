"""Random models over 4 real ranks run, send and receive what is planned, in that order: on gloo, on loopback.

Layers that sleep for microseconds, with real parameters, under DistributedDataParallel where several ranks hold the
same part. What they exchange is real, and so are stages and schedules of ``torch.distributed.pipelining`` 2.13; times
are the lab's matter (tests/lab/test_lab_model_parallel.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_steps import needs_torch, ranks
from unlike import unlike

from simulator.answer import StepAnswer, answer_step
from simulator.lab.fabric import flat
from simulator.lab.model import Way, topology_of
from simulator.lab.training_job import training_job
from simulator.library import AlphaBetaLibrary
from simulator.load import load_library
from simulator.scenario import Scenario

pytestmark = [pytest.mark.slow, needs_torch]

WORLD = 4
WHEN = ("before forward", "beside forward", "after forward", "before backward", "beside input", "beside weights",
        "after backward")  # fmt: skip
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
#: pp, tp, schedule, chunks, micro-batches.
PIPELINES = [
    (4, 1, "1f1b", 1, 4), (4, 1, "1f1b", 1, 6), (4, 1, "gpipe", 1, 5), (2, 2, "1f1b", 1, 4), (2, 1, "1f1b", 1, 3),
    (2, 1, "interleaved-1f1b", 2, 4), (4, 1, "interleaved-1f1b", 2, 8), (2, 2, "interleaved-1f1b", 3, 4),
    (4, 1, "looped-bfs", 2, 4), (2, 1, "looped-bfs", 3, 3), (2, 1, "gpipe", 1, 2),
]  # fmt: skip
MESHES = [{"tp": 4}, {"tp": 2}, {"cp": 4}, {"cp": 2}, {"ep": 4}, {"ep": 2}, {"tp": 2, "cp": 2}, {"tp": 2, "ep": 2}]


def scenario(layers: list[dict[str, Any]], parallel: dict[str, Any], micro_batches: int) -> Scenario:
    gloo = load_library("gloo")
    assert isinstance(gloo, AlphaBetaLibrary)
    near = Way(alpha_s=1e-5, bytes_per_s=1e9)
    topology = topology_of(flat(WORLD, 1e9), near, None, gloo.model_copy(update={"fabrics": ()}))
    return Scenario.model_validate({
        "cluster": {"topology": topology}, "model": {"layers": layers}, "parallel": parallel,
        "train": {"micro_batch": 1, "precision": "fp32", "optimizer": "sgd", "grad_accumulation": micro_batches},
    })  # fmt: skip


def differences(asked: Scenario) -> list[str]:
    job = {**training_job(asked, WORLD, 1, 1), "trace": True, "optimizer": "sgd"}
    answers = ranks(WORLD).run(job)
    for answer in answers:
        assert answer["values"] == pytest.approx([answer["expected"]]), "gradients are not those of all micro-batches"
    simulated: StepAnswer = answer_step(asked, with_startup=False)
    return unlike(simulated, job, answers)


def layer(number: int, params: int, exchanges: list[dict[str, Any]], output: int) -> dict[str, Any]:
    told = {"name": f"l{number}", "params": params, "forward": "10 us", "backward": "20 us", "output": f"{output} B"}
    return {**told, "exchanges": exchanges} if exchanges else told


@st.composite
def exchanges(draw: st.DrawFn, axes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Up to three of a layer, each at a moment of its own, since several beside one thing have no order; sizes that
    groups of 2 and 4 share out evenly.
    """
    found = []
    for when in draw(st.lists(st.sampled_from(WHEN), max_size=3, unique=True)) if axes else ():
        one = {"axis": draw(st.sampled_from(axes)), "op": draw(st.sampled_from(OPS)), "when": when,
               "size": f"{16 * draw(st.integers(1, 500))} B", "count": draw(st.integers(1, 3))}  # fmt: skip
        found.append({**one, "pieces": draw(st.integers(1, 3))} if when == "beside forward" else one)
    return found


@settings(max_examples=25)
@given(data=st.data(), mesh=st.sampled_from(MESHES), micro_batches=st.integers(1, 3), cap=st.sampled_from([400, 4000]))
def test_what_layers_exchange_is_what_is_planned(
    data: st.DataObject, mesh: dict[str, int], micro_batches: int, cap: int
) -> None:
    count = data.draw(st.integers(1, 4))
    layers = [
        layer(k, data.draw(st.integers(1, 300)), data.draw(exchanges(tuple(mesh))), 0) for k in range(count)
    ]  # fmt: skip
    parallel = {"strategy": "ddp", **mesh, "bucket_cap": f"{cap} B"}
    if max(mesh.get("tp", 1) * mesh.get("cp", 1), 1) == WORLD and "ep" not in mesh and "cp" not in mesh:
        parallel.pop("bucket_cap")
    assert differences(scenario(layers, parallel, micro_batches)) == []


@settings(max_examples=25)
@given(data=st.data(), shape=st.sampled_from(PIPELINES), cap=st.sampled_from([400, 4000]))
def test_pipelines_send_what_is_planned(data: st.DataObject, shape: tuple[int, int, str, int, int], cap: int) -> None:
    """With tp all layers exchange one thing forward and one backward: a stage's equal exchanges are one task."""
    pp, tp, schedule, chunks, micro_batches = shape
    sizes = data.draw(st.lists(st.integers(1, 2), min_size=pp * chunks, max_size=pp * chunks))
    sent = data.draw(exchanges(("tp",))) if tp > 1 else []
    sent = [next((e for e in sent if e["when"].endswith("forward") == ahead), {}) for ahead in (True, False)]
    layers = [
        layer(k, data.draw(st.integers(1, 300)), [one for one in sent if one], 4 * data.draw(st.integers(1, 500)))
        for k in range(sum(sizes))
    ]
    parallel = {"strategy": "ddp", "pp": pp, "tp": tp, "schedule": schedule, "chunks": chunks, "stages": sizes,
                "bucket_cap": f"{cap} B"}  # fmt: skip
    assert differences(scenario(layers, parallel, micro_batches)) == []
