"""A model over several hosts of the lab: what a job says of groups, stages and who trains the same part. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from simulator.errors import ScenarioError, UnsupportedError
from simulator.mesh import make_mesh
from simulator.pipelines import PIPELINES, pipeline_schedule
from simulator.pipelines.cutting import even_layers
from simulator.scenario import Scenario

#: Schedules whose backward is whole: a layer that sleeps does so once.
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "looped-bfs")
AXES = ("tp", "cp", "ep")
#: Beside stages torch.distributed.pipelining knows DistributedDataParallel and FSDP; FSDP blocks over gloo.
IN_PIPELINES = (("ddp", "torch"),)


def spread(scenario: Scenario, num_ranks: int, layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the job of a scenario says besides, where a replica takes several ranks or layers send to others.

    layers: of the model, written out. Raises ScenarioError, UnsupportedError and what ``make_mesh`` raises.
    """
    parallel = scenario.parallel
    if not parallel.splits_model:
        return {}
    _check(scenario)
    mesh = make_mesh(
        num_ranks, tp=parallel.tp, cp=parallel.cp, pp=parallel.pp, ep=parallel.ep, etp=parallel.expert_tp,
        order=parallel.order,
    )  # fmt: skip
    parts = mesh.groups("dp", "cp")
    told: dict[str, Any] = {
        "kind": "together", "parts": [{"ranks": list(ranks)} for ranks in parts],
        "groups": {axis: [list(ranks) for ranks in mesh.groups(axis)] for axis in AXES if mesh.size(axis) > 1},
    }  # fmt: skip
    if len(parts[0]) == 1:
        if parallel.strategy != "ddp":
            message = "each rank has a part of the model of its own, so there is nothing to shard; accepted: ddp"
            raise UnsupportedError(scenario.describe(("parallel", "strategy"), message))
        told |= {"strategy": "alone", "options": {}}
    if mesh.pp > 1:
        told["pipeline"] = _pipeline(scenario, mesh.groups("pp"), len(layers))
    return told


def _pipeline(scenario: Scenario, lines: Sequence[Sequence[int]], layers: int) -> dict[str, Any]:
    parallel = scenario.parallel
    assert scenario.train is not None
    schedule = pipeline_schedule(parallel.schedule_name, parallel.pp, scenario.train.grad_accumulation, parallel.chunks)
    if schedule.name not in SCHEDULES:
        message = f"a sleeping layer's backward is whole; accepted in the lab: {', '.join(SCHEDULES)}"
        raise UnsupportedError(scenario.describe(("parallel", "schedule"), message))
    sizes = parallel.stages or even_layers(layers, schedule.num_stages)
    ends = (0, *accumulate(sizes))
    return {
        "schedule": PIPELINES[schedule.name].torch_name, "lines": [list(line) for line in lines],
        "stages": [list(range(first, end)) for first, end in pairwise(ends)],
    }  # fmt: skip


def _check(scenario: Scenario) -> None:
    """Raises for what torch's schedules and sleeping layers do not do."""
    parallel = scenario.parallel
    key = (parallel.strategy, parallel.implemented_by)
    if parallel.strategy == "hsdp" or (parallel.pp > 1 and key not in IN_PIPELINES):
        accepted = "ddp (torch)" if parallel.pp > 1 else "any that the lab runs but hsdp"
        message = f"{key[0]} ({key[1]}) beside ranks that share a model; accepted in the lab: {accepted}"
        raise UnsupportedError(scenario.describe(("parallel", "strategy"), message))
    if parallel.pp > 1 and parallel.overlap != "bucketed":
        message = "beside stages the lab runs DistributedDataParallel; accepted: bucketed"
        raise UnsupportedError(scenario.describe(("parallel", "overlap"), message))
    if parallel.overlap_p2p is not None:
        raise ScenarioError(scenario.describe(
            ("parallel", "overlap_p2p"), "torch's schedules settle who waits for what is sent; accepted: left out"
        ))  # fmt: skip
    if parallel.embedding_as_layer:
        raise ScenarioError(scenario.describe(
            ("parallel", "embedding_as_layer"), "measured layers have no embedding; accepted: false"
        ))  # fmt: skip
