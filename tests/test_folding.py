"""Groups that are alike are simulated once: the same coflow as simulating each, and none that differ are one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import graph, link, played, uniform
from strategies import collectives, tree_networks

from simulator.collectives import ALGORITHMS
from simulator.engine import maker
from simulator.engine.coflow import Coflow
from simulator.engine.folding import Folded
from simulator.engine.maker import CoflowMaker
from simulator.network.graph import Network

Groups = tuple[tuple[int, ...], ...]


def groups_of(gpus: np.ndarray) -> Groups:
    return tuple(tuple(group) for group in gpus.tolist())


def simulated(network: Network, op: str, algorithm: str, groups: Groups, *, folding: bool = True) -> tuple[Coflow, int]:
    """The coflow and how many simulations it took; without folding every group is a class of its own."""
    fold, play, played = maker.fold, maker.simulate_collective, []

    def each_by_itself(*args: Any) -> Folded:
        return fold(*args)._replace(like=np.arange(len(args[-1])))

    def counted(*args: Any, **options: Any) -> Any:
        played.append(args)
        return play(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maker, "simulate_collective", counted)
        if not folding:
            patch.setattr(maker, "fold", each_by_itself)
        return CoflowMaker(network).coflow(op, algorithm, 3e7, groups), len(played)


def assert_folding_changes_nothing(network: Network, op: str, algorithm: str, groups: Groups) -> int:
    folded, few = simulated(network, op, algorithm, groups)
    each, all_of_them = simulated(network, op, algorithm, groups, folding=False)
    assert folded.latency_s == pytest.approx(each.latency_s, rel=1e-9, abs=1e-15)
    assert folded.work_s == pytest.approx(each.work_s, rel=1e-9)
    assert folded.cost.alone_s == pytest.approx(each.cost.alone_s, rel=1e-9)
    np.testing.assert_allclose(folded.link_bytes, each.link_bytes, rtol=1e-9)
    assert all_of_them == len(groups)
    return few


AXES = {
    "tensor parallel": lambda p: np.arange(p).reshape(-1, 8),
    "data parallel, a rail each": lambda p: np.arange(p).reshape(-1, 8).T,
    "shards of two nodes": lambda p: np.arange(p).reshape(-1, 16),
    "replicas": lambda p: np.arange(p).reshape(-1, 16).T,
}


@pytest.mark.slow
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("op", "algorithm"), sorted(ALGORITHMS))
def test_folding_changes_nothing_on_a_cluster(op: str, algorithm: str, axis: str) -> None:
    network = played("dgx-h100", nodes=8)
    assert assert_folding_changes_nothing(network, op, algorithm, groups_of(AXES[axis](64))) == 1


@given(st.data())
@settings(max_examples=60)
def test_folding_changes_nothing_on_any_tree(data: st.DataObject) -> None:
    """Any algorithm, groups of any ranks in any order: some alike, most not."""
    network = data.draw(tree_networks())
    size = data.draw(st.sampled_from([d for d in range(1, network.num_gpus + 1) if network.num_gpus % d == 0]))
    gpus = np.array(data.draw(st.permutations(range(network.num_gpus)))).reshape(-1, size)
    assert_folding_changes_nothing(network, *data.draw(collectives), groups_of(gpus))


def test_a_slow_port_is_a_class_of_its_own() -> None:
    network = played("dgx-h100", nodes=8)
    rates = network.capacity_bytes_per_s.copy()
    rates[link(network, "node3.gpu5", "node3.nvswitch")] /= 3
    slow = replace(network, capacity_bytes_per_s=rates)
    groups = groups_of(np.arange(64).reshape(-1, 8))
    assert assert_folding_changes_nothing(slow, "all_reduce", "ring", groups) == 2
    assert simulated(slow, "all_reduce", "ring", groups)[0].cost.alone_s > 2 * (
        simulated(network, "all_reduce", "ring", groups)[0].cost.alone_s
    )


def test_a_longer_way_is_a_class_of_its_own() -> None:
    cables = [(f"gpu{i}", "switch", 1e9, 1e-3 if i == 3 else 1e-6) for i in range(4)]
    assert assert_folding_changes_nothing(graph(cables), "all_reduce", "ring", ((0, 1), (2, 3))) == 2


def test_meeting_on_a_link_is_a_class_of_its_own() -> None:
    """Every route is port, uplink, fast downlink, fast port; but 4 and 5 share their uplink, 1 and 2 do not."""
    leaf_of = {0: "a", 1: "b", 2: "c", 3: "d", 4: "e", 5: "e"}
    cables = [(f"gpu{i}", f"leaf{leaf}", 1e10 if i % 3 == 0 else 1e9, 1e-6) for i, leaf in leaf_of.items()]
    cables += [(f"leaf{leaf}", "core", 1e10 if leaf in "ad" else 1e9, 1e-6) for leaf in "abcde"]
    assert assert_folding_changes_nothing(graph(cables), "gather", "direct", ((0, 1, 2), (3, 4, 5))) == 2


def test_as_many_simulations_as_there_are_classes_however_many_groups() -> None:
    for p in (64, 512):
        coflow_, count = simulated(uniform(p), "all_gather", "ring", groups_of(np.arange(p).reshape(-1, 4)))
        assert count == 1
        assert coflow_.link_bytes.sum() == pytest.approx(p * 2 * 3 / 4 * 3e7)
