"""Which ranks share one copy of the states under HSDP: those of a node, unless the scenario says how many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.answer import cluster_network
from simulator.errors import ScenarioError
from simulator.load import load_scenario
from simulator.plan import Plan
from simulator.planner import make_job

WIRE = {"bandwidth": "800 Mb/s", "latency": "25 us", "source": "a test"}
LAYER = {"name": "layer", "params": 1000, "forward": "1 ms", "backward": "2 ms", "repeat": 2}


def planned(tmp_path: Path, hosts: list[int], **parallel: Any) -> Plan:
    """GPUs on one switch, each on the host of that number."""
    names = [f"gpu{number}" for number in range(len(hosts))]
    gpus = [{"name": name, "kind": "gpu", "host": host} for name, host in zip(names, hosts, strict=True)]
    topology = {
        "name": "mine", "title": "a test", "kind": "explicit", "library": "nccl", "wires": {"host": WIRE},
        "nodes": [*gpus, {"name": "switch", "kind": "switch"}],
        "links": [{"ends": [name, "switch"], "wire": "host"} for name in names],
    }  # fmt: skip
    scenario = {
        "cluster": {"topology": topology, "library": "textbook"}, "model": {"layers": [LAYER]},
        "parallel": {"strategy": "hsdp", **parallel}, "train": {"micro_batch": 1},
    }  # fmt: skip
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    loaded = load_scenario(path)
    return make_job(loaded, cluster_network(loaded)).step


def test_shards_are_in_a_node_and_replicas_across(tmp_path: Path) -> None:
    plan = planned(tmp_path, [0, 0, 0, 1, 1, 1])
    assert plan.axes == {"shard": ((0, 1, 2), (3, 4, 5)), "replicate": ((0, 3), (1, 4), (2, 5))}


def test_nodes_that_differ_have_no_size_in_common(tmp_path: Path) -> None:
    """Four and two GPUs are not two nodes of three: the groups would cut a node in two without a word."""
    with pytest.raises(ScenarioError, match=r"shard_size: 1 .*1 where nodes differ.*accepted: 2, 3, 6"):
        planned(tmp_path, [0, 0, 0, 0, 1, 1])
    plan = planned(tmp_path, [0, 0, 0, 0, 1, 1], shard_size=2)
    assert plan.axes["shard"] == ((0, 1), (2, 3), (4, 5))
