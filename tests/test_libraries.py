"""Communication libraries as profiles: shipped ones, a user's own, and what they change in a timed collective."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator import shipped
from simulator.collective_rows import Field, make_field, rows_of
from simulator.errors import ScenarioError, UnsupportedError
from simulator.library import NcclLibrary
from simulator.load import load_library, load_scenario, load_topology, with_library
from simulator.network.graph import Network
from simulator.network.sizing import network_for

MIB, GIB = 2**20, 2**30


def network(topology: str, ranks: int, library: str) -> Network:
    spec = load_topology(topology).model_copy(update={"library": load_library(library)})
    return network_for(spec, ranks)


def field(op: str, topology: str, ranks: int, library: str, *algorithms: str, fidelity: str = "auto") -> Field:
    return make_field(op, ranks, network(topology, ranks, library), algorithms or ("auto",), fidelity=fidelity)


@pytest.mark.parametrize("name", shipped.names("library"))
def test_every_shipped_library_loads_and_says_where_its_numbers_come_from(name: str) -> None:
    library = load_library(name)
    assert library.name == name
    assert len(library.source) > 20


def test_the_textbook_adds_nothing() -> None:
    library = load_library("textbook")
    assert library.message_overhead == library.collective_launch == 0.0


def test_gloo_performs_a_reduce_scatter_by_an_all_reduce() -> None:
    """PyTorch 2.13 ProcessGroupGloo.cpp: clone the input, all-reduce it, copy out the slice."""
    times = {
        op: rows_of(field(op, "workstations-10gbe", 4, "gloo"), [8.0 * MIB])[0].time_s
        for op in ("all_reduce", "reduce_scatter", "all_gather")
    }
    assert times["reduce_scatter"] == times["all_reduce"]
    assert times["all_gather"] < 0.6 * times["all_reduce"]


def test_gloo_broadcasts_down_a_binomial_tree_to_all_children_at_once() -> None:
    """gloo's broadcast.cc. Ranks 1 and 2 share the root's link, then rank 1 sends to rank 3: three times the message.
    Measured on 4 hosts of 400 Mbit/s: 250.9 ms for 4 MB, whose message takes 83.5 ms.
    """
    row = rows_of(field("broadcast", "workstations-10gbe", 4, "gloo"), [64.0 * MIB])[0]
    assert row.algorithm == "eager_tree"
    rate = 1.25e9 * 0.94  # of a 10 Gb/s card, see the topology
    assert row.time_s == pytest.approx(3 * 64 * MIB / rate, rel=0.01)


def test_a_library_with_a_cost_model_prices_what_it_has_and_plays_what_it_has_not() -> None:
    rows = rows_of(field("all_reduce", "dgx-h100", 8, "nccl", "ring", "nvls", "naive"), [1.0 * GIB])
    assert {row.algorithm: row.fidelity for row in rows} == {"ring": "library", "nvls": "library", "naive": "vector"}
    assert [row.algorithm for row in rows if row.picked] == ["nvls"]


def test_priced_times_follow_the_links() -> None:
    """A ring over two nodes whose NICs run at half speed takes twice as long where bytes set the time."""
    made = field("all_reduce", "dgx-h100", 16, "nccl", "ring")
    slow = make_field("all_reduce", 16, slower(made.wires.network), ["ring"])
    whole, half = (rows_of(one, [4.0 * GIB])[0].time_s for one in (made, slow))
    assert half / whole == pytest.approx(2, rel=0.05)


def slower(fast: Network) -> Network:
    """The network with every NIC at half its rate."""
    from dataclasses import replace

    nic = np.array([fast.graph.edges[pair]["tier"] == "nic" for pair in fast.link_names])
    return replace(fast, capacity_bytes_per_s=np.where(nic, 0.5, 1.0) * fast.capacity_bytes_per_s)


def test_hierarchical_is_priced_as_the_library_calls_that_a_user_would_make() -> None:
    """Reduce-scatter in the node, all-reduce on each rail, all-gather in the node: the sum of the three calls."""
    made = field("all_reduce", "dgx-h100", 32, "nccl", "hierarchical")
    assert made.composite is not None
    stages = [pricer.picked(GIB * share) for pricer, share in made.composite.stages]
    assert [pricer.op for pricer, _ in made.composite.stages] == ["reduce_scatter", "all_reduce", "all_gather"]
    assert made.composite.stages[1][1] == 1 / 8
    row = rows_of(made, [1.0 * GIB])[0]
    assert row.fidelity == "library"
    assert row.time_s == pytest.approx(sum(one.cost.time_s for one in stages), rel=1e-12)


def test_an_engine_that_is_asked_for_plays_the_messages() -> None:
    row = rows_of(field("all_reduce", "dgx-h100", 8, "nccl", "ring", fidelity="message"), [1.0 * MIB])[0]
    assert row.fidelity == "message"
    assert row.believed_s is None


def test_the_cost_model_can_be_insisted_on_and_says_what_it_lacks() -> None:
    with pytest.raises(UnsupportedError, match="nccl has no naive for all_reduce; it has ring"):
        field("all_reduce", "dgx-h100", 8, "nccl", "ring", "naive", fidelity="library")
    with pytest.raises(UnsupportedError, match="textbook has no cost model"):
        field("all_reduce", "uniform", 8, "textbook", "ring", fidelity="library")


def test_one_rank_is_never_priced() -> None:
    row = rows_of(field("all_reduce", "dgx-h100", 1, "nccl"), [1.0 * MIB])[0]
    assert (row.busbw_bytes_per_s, row.wire_bytes_per_rank) == (0.0, 0.0)
    assert row.time_s == load_library("nccl").collective_launch


CALIBRATED = """\
model: calibrated
name: ours
base: nccl
topology: dgx-h100
corrections:
  all_reduce: {one_node: [[1 KiB, 3], [1 MiB, 2], [1 GiB, 1]]}
fits: []
source: our own runs
"""


def test_a_calibrated_library_multiplies_its_base(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(CALIBRATED)
    ours = load_library(str(path))
    assert isinstance(ours, NcclLibrary)
    assert ours.name == "ours"
    sizes = [1024.0, 1.0 * MIB, 32.0 * MIB, 1.0 * GIB, 4.0 * GIB]
    base, mine = (rows_of(field("all_reduce", "dgx-h100", 8, name, "ring"), sizes) for name in ("nccl", str(path)))
    factors = [b.time_s / a.time_s for a, b in zip(base, mine, strict=True)]
    assert factors == pytest.approx([3, 2, 1.5, 1, 1], rel=1e-12)  # 32 MiB is half way from 1 MiB to 1 GiB


def test_factors_of_one_node_say_nothing_about_several(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(CALIBRATED)
    sizes = [1024.0, 1.0 * MIB, 1.0 * GIB]
    base, mine = (rows_of(field("all_reduce", "dgx-h100", 16, name), sizes) for name in ("nccl", str(path)))
    assert [row.time_s for row in mine] == [row.time_s for row in base]


@pytest.mark.parametrize(("ranks", "span"), [(8, "one_node"), (16, "several_nodes"), (64, "several_nodes")])
def test_no_factor_takes_a_time_below_what_the_links_need(ranks: int, span: str, tmp_path: Path) -> None:
    """A tenth of the base's time: small messages take it, large ones stop at their bytes over the busiest link."""
    path = tmp_path / "ours.yaml"
    tenth = f"{{{span}: [[1 KiB, 0.1]]}}"
    path.write_text(CALIBRATED.replace("{one_node: [[1 KiB, 3], [1 MiB, 2], [1 GiB, 1]]}", tenth))
    sizes = [1024.0, 1.0 * GIB, 8.0 * GIB]
    priced = field("all_reduce", "dgx-h100", ranks, str(path), "ring")
    base, mine = (rows_of(one, sizes) for one in (field("all_reduce", "dgx-h100", ranks, "nccl", "ring"), priced))
    assert priced.pricer is not None
    assert mine[0].time_s == pytest.approx(0.1 * base[0].time_s, rel=1e-12)
    for row in mine[1:]:
        assert row.time_s == pytest.approx(priced.pricer.link_s("ring", row.size_bytes), rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("base: nccl", "base: ncll"),
            "base: no library 'ncll' is shipped; shipped: gloo, nccl, rccl, textbook, xla-tpu",
        ),
        (("base: nccl", "base: gloo"), "base: 'gloo' has no cost model to correct"),
        (
            ("model: calibrated", "model: calibrate"),
            "model: unknown model 'calibrate'; accepted: alpha_beta, nccl, calib",
        ),
        (("[1 MiB, 2]", "[1 MiB, 0]"), "corrections.all_reduce.one_node"),
        (("one_node", "one_nod"), "corrections.all_reduce.one_nod"),
        (("fits: []", "fit: []"), "fit"),
    ],
)
def test_a_bad_library_file_is_one_clear_error(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(CALIBRATED.replace(*change))
    with pytest.raises(ScenarioError) as error:
        load_library(str(path))
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}:")


def test_a_scenario_may_name_another_library_than_its_topology() -> None:
    given = ["cluster.library=textbook"]
    assert load_scenario("ddp-llama-1b-16xh100", given).cluster.spec.library.name == "textbook"
    with pytest.raises(ScenarioError, match="did you mean 'nccl'"):
        load_scenario("ddp-llama-1b-16xh100", ["cluster.library=ncc"])


RCCL = shipped.library_file("rccl").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("        double_tree: [0.6 us, 1.25 us, 4 us]\n", ""),
            "measured.generations.cdna3.nvlink.double_tree: missing key",
        ),
        (("        p2p: *netring\n", ""), "measured.fabrics.roce.ramps.p2p: missing key"),
        (("[[1 us, 10%], [4 us, 20%]", "[[4 us, 10%], [4 us, 20%]"), "ramps.LL: the times of its points must rise"),
        (
            ("[[1 us, 10%], [4 us, 20%], [20 us, 50%]]", "[[1 us, 10%], [4 us, 50%], [20 us, 50%]]"),
            "more bytes must not",
        ),
        (("{cdna2: cdna3}", "{cdna2: hopper}"), "measured.family.cdna2: 'hopper' has no row; there are cdna3"),
        (("ll_cap: 80 GB/s", "ll_cap: 80"), "ll_cap"),
    ],
)
def test_a_library_that_lacks_a_constant_is_refused_with_its_place(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    """Else the first collective that needs it would fail, long after the file was read."""
    assert change[0] in RCCL
    path = tmp_path / "mine.yaml"
    path.write_text(RCCL.replace(*change))
    with pytest.raises(ScenarioError) as error:
        load_library(str(path))
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}:")


def test_gloo_is_refused_where_the_links_are_not_its_way() -> None:
    """It goes through the hosts and TCP: on NVLink it would be given hundreds of GB/s."""
    with pytest.raises(ScenarioError, match="library=gloo: 'gloo' runs over ethernet, through the hosts; the links of"):
        load_scenario("ddp-llama-1b-16xh100", ["cluster.library=gloo"])
    gloo = load_library("gloo")
    assert with_library(load_topology("workstations-10gbe"), gloo).library == gloo
    assert with_library(load_topology("uniform"), gloo).library == gloo
