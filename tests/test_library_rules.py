"""A library profile that cannot be used is refused when it is read, at its line and key, with the nearest name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from simulator import shipped
from simulator.collective_rows import make_field, rows_of
from simulator.collectives import ALGORITHMS, OPERATIONS
from simulator.errors import ScenarioError
from simulator.library import AlphaBetaLibrary, Operation
from simulator.library_rules import ALGORITHMS as NAMED
from simulator.library_rules import IN_PLACE_OF
from simulator.load import load_library, load_scenario, load_topology
from simulator.network.builders import build_network
from simulator.yaml_document import read_document

NCCL = shipped.library_file("nccl").read_text(encoding="utf-8")
TOPOLOGY = shipped.topology_file("dgx-h100").read_text(encoding="utf-8").replace("library: nccl\n", "")


def test_the_rules_name_the_operations_and_algorithms_that_there_are() -> None:
    assert set(NAMED) == set(OPERATIONS) == set(get_args(Operation))
    assert {(op, name) for op, names in NAMED.items() for name in names} == set(ALGORITHMS)


def complaint(folder: Path, block: str) -> tuple[str, int]:
    """What a topology file with this ``library`` says, without its place, and the line of the block that it names."""
    path, head = folder / "topo.yaml", TOPOLOGY + "library:\n"
    path.write_text(head + "".join(f"  {line}\n" for line in block.splitlines()), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_topology(str(path))
    (only,) = str(caught.value).splitlines()
    place, _, said = only.partition(": ")
    assert place.startswith(f"{path}:")
    return said, int(place.rpartition(":")[2]) - head.count("\n")


CALIBRATED = "model: calibrated\nname: ours\nbase: ncll\ntopology: dgx-h100\ncorrections: {}\nsource: own runs"


@pytest.mark.parametrize(
    ("block", "line", "said"),
    [
        ("name: x\nmodel: nccll", 2, "library.model: unknown model 'nccll'; accepted: alpha_beta, nccl, calibrated"),
        ("name: x\nmesage_overhead: 1 us", 2, "library.mesage_overhead: unknown key 'mesage_overhead'; accepted: mod"),
        ("name: x\nmesage_overhead: 1 us", 2, "did you mean 'message_overhead'?"),
        (CALIBRATED, 3, "library.base: no library 'ncll' is shipped"), (CALIBRATED, 3, "did you mean 'nccl'?"),
        ("algorithms:\n  allreduce: ring", 2, "library.algorithms.allreduce: unknown operation 'allreduce'; accepted"),
        ("algorithms:\n  allreduce: ring", 2, "did you mean 'all_reduce'?"),
        ("algorithms:\n  all_reduce: rign", 2, "library.algorithms.all_reduce: unknown algorithm 'rign' of all_reduce"),
        ("algorithms:\n  all_reduce: rign", 2, "did you mean 'ring'?"),
        ("algorithms:\n  all_reduce: pairwise", 2, "unknown algorithm 'pairwise' of all_reduce; accepted: ring, tree"),
        ("runs_as:\n  all_reduce: broadcast", 2, "'broadcast' does not do all that all_reduce does; nothing stands in"),
        ("runs_as:\n  reduce_scatter: allreduce", 2, "'allreduce' is no operation; accepted: all_reduce; did you mean"),
        ("runs_as:\n  reduce_scater: all_reduce", 2, "unknown operation 'reduce_scater'"),
        ("algorithms: {reduce_scatter: pat}\nruns_as: {reduce_scatter: all_reduce}", 1,
         "unknown algorithm 'pat' of all_reduce, which runs_as gives for reduce_scatter"),
        ("runs_as:\n  gather: all_gather", 2, "say which algorithm of all_gather runs, under algorithms.gather"),
    ],
)  # fmt: skip
def test_a_wrong_library_in_a_topology_file_is_named_at_its_line(
    block: str, line: int, said: str, tmp_path: Path
) -> None:
    told, at = complaint(tmp_path, block)
    assert said in told
    assert at == line


@pytest.mark.parametrize("op", IN_PLACE_OF)
def test_every_stand_in_that_is_accepted_runs(op: str) -> None:
    for run in IN_PLACE_OF[op]:
        named = next(name for name in NAMED[run] if name != "nvls")
        library = AlphaBetaLibrary(runs_as={op: run}, algorithms={op: named})
        network = build_network(load_topology("dgx-h100").model_copy(update={"library": library}), nodes=2)
        own = rows_of(make_field(run, 16, network, [named]), [1e6])[0]
        assert rows_of(make_field(op, 16, network, ["auto"]), [1e6])[0].time_s == pytest.approx(own.time_s)


def test_a_calibrated_library_may_be_written_in_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    block = "".join(f"    {line}\n" for line in CALIBRATED.splitlines())
    text = f"cluster:\n  topology: dgx-h100\n  library:\n{block}collective: {{op: all_reduce, size: 1 MB}}\n"
    path.write_text(text.replace("ncll", "nccl"), encoding="utf-8")
    assert load_scenario(path).cluster.spec.library.name == "ours"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"s\.yaml:6: cluster\.library\.base: no library 'ncll' is shipped"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("at", "key", "said"),
    [
        ("choice.latency.base", "ring rign", "unknown algorithm 'rign'; accepted: ring, double_tree, nvls"),
        ("choice.latency.base", "ring rign", "did you mean 'ring'?"),
        ("choice.latency.net", "ring", "missing key"),
        ("choice.latency.base", "nvls", "missing key"),
        ("choice.latency.nvlink", "nvls_tree", "missing key"),
        ("choice.latency.pcie", "double_tree", "missing key"),
        ("choice.latency.net", "pat", "missing key"),
        ("choice.ll_multi_node", "other", "missing key"),
        ("choice.net_overhead", "other", "missing key"),
        ("choice.tree_correction", "double_tree duble_tree", "unknown algorithm 'duble_tree'; accepted: ring"),
        ("choice.caps.hopper", "nvls_tree", "missing key"),
        ("choice.corrected_on_x86", "nvls_tree nvlstree", "did you mean 'nvls_tree'?"),
        ("measured.generations.hopper.base", "p2p p2q", "unknown algorithm 'p2q'; accepted: ring"),
        ("measured.fabrics.infiniband.ramps", "LL128 LL12", "did you mean 'LL128'?"),
    ],
)
def test_a_constant_that_is_missing_or_misspelt_is_refused(at: str, key: str, said: str, tmp_path: Path) -> None:
    """Else the first machine that needs it would end in a KeyError. ``key``: the one that goes, and what comes."""
    old, _, new = key.partition(" ")

    def change(block: dict[str, Any]) -> None:
        value = block.pop(old)
        block.update({new: value} if new else {})

    told = refused(at, change, tmp_path)
    assert f": {at}.{new or old}: " in told
    assert said in told


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        ("choice.ll_multi_node.intel", "ada", "'ada' has no row; there are volta, ampere"),
        ("choice.tree_correction.double_tree", [[1.0], [1.0]], "must hold a list for each of LL, LL128 and Simple"),
        ("choice.tree_correction.double_tree", [[1.0], [], [1.0]], "must hold at least 1 items"),
        ("choice.caps.volta.net_speeds", [], "must hold at least 1 items"),
    ],
)
def test_a_belief_that_cannot_be_used_is_refused(at: str, value: object, said: str, tmp_path: Path) -> None:
    block, _, key = at.rpartition(".")
    told = refused(block, lambda held: held.update({key: value}), tmp_path)
    assert f": {at}" in told
    assert said in told


def test_every_generation_that_is_measured_has_beliefs_of_its_own_or_of_its_family(tmp_path: Path) -> None:
    told = refused("choice.family", lambda held: held.pop("turing"), tmp_path)
    assert "choice.caps: no row for 'turing', which 'measured' knows; add it, or name another under choice" in told


def refused(at: str, change: Callable[[dict[str, Any]], object], folder: Path) -> str:
    """The one line about NCCL's profile with its block ``at`` changed."""
    profile = json.loads(json.dumps(read_document(NCCL).value))  # so that anchors share no block
    block = profile
    for key in at.split("."):
        block = block[key]
    change(block)
    path = folder / "mine.yaml"
    path.write_text(json.dumps(profile), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_library(str(path))
    (only,) = str(caught.value).splitlines()
    assert only.startswith(f"{path}:1: ")
    return only
