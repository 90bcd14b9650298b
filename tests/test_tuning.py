"""NCCL's choice, reproduced from its cost model, and the measured time of what it chose.

The vectors are NCCL 2.30.7's own predictions (NVIDIA/nccl@5067397 src/graph/tuning.cc), worked out from its source;
the one for 2 x 8 ranks is what NCCL prints in its log (NVIDIA/nccl issue 1453).
"""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.library import PROTOCOLS, Choice, NcclLibrary
from simulator.load import load_library
from simulator.tuning.belief import believed_s, graph_of, protocols_of
from simulator.tuning.choice import MEASURED, MODEL, TUNER, chosen_by, fastest, native, options, picked
from simulator.tuning.latency import INDEX
from simulator.tuning.measured import measured_cost, on_log_scale
from simulator.tuning.shape import Shape

KIB, MIB, GIB = 2**10, 2**20, 2**30


def nccl() -> NcclLibrary:
    library = load_library("nccl")
    assert isinstance(library, NcclLibrary)
    return library


def choice() -> Choice:
    found = nccl().choice
    assert found is not None
    return found


def shape(nodes: int, per_node: int, **changes: object) -> Shape:
    """Nodes of H100 with a 400 Gb/s InfiniBand card per GPU, as a DGX H100."""
    h100 = Shape(
        num_ranks=nodes * per_node, num_nodes=nodes, ranks_per_node=per_node, link="nvlink", nvswitch=True,
        nics=per_node, nic_bytes_per_s=50e9, gpu_bytes_per_s=450e9, generation="hopper", fabric="infiniband",
    )  # fmt: skip
    return replace(h100, **changes)  # type: ignore[arg-type]


def believed(op: str, size: float, where: Shape) -> tuple[str, str, float]:
    """(algorithm, protocol, microseconds) with the least time by NCCL's model."""
    ways = [
        (believed_s(op, algorithm, protocol, size, where, choice()) * 1e6, algorithm, protocol)
        for algorithm in native(op, where, nccl())
        for protocol in protocols_of(algorithm, PROTOCOLS)
    ]
    time, algorithm, protocol = min(ways)
    return algorithm, protocol, time


@pytest.mark.parametrize(
    ("op", "size", "where", "algorithm", "protocol", "microseconds"),
    [
        ("all_reduce", 64 * KIB, shape(1, 8), "ring", "LL", 15.8),
        ("all_reduce", 1 * MIB, shape(1, 8), "ring", "LL", 28.0),
        ("all_reduce", 2 * MIB, shape(1, 8), "nvls", "Simple", 32.7),
        ("all_reduce", 1 * GIB, shape(1, 8), "nvls", "Simple", 3973),
        ("all_gather", 1 * GIB, shape(1, 8), "ring", "Simple", 2642),
        ("all_reduce", 1 * KIB, shape(4, 8), "double_tree", "LL", 35.3),
        ("all_reduce", 2 * MIB, shape(4, 8), "double_tree", "LL128", 95.6),
        ("all_reduce", 256 * MIB, shape(4, 8), "nvls_tree", "Simple", 1537),
        ("all_reduce", 1 * GIB, shape(4, 8), "ring", "Simple", 5814),
        ("all_reduce", 128, shape(2, 8), "double_tree", "LL", 25.2),
    ],
)
def test_nccl_picks_and_expects_what_its_source_says(
    op: str, size: float, where: Shape, algorithm: str, protocol: str, microseconds: float
) -> None:
    found = believed(op, size, where)
    assert found[:2] == (algorithm, protocol)
    assert found[2] == pytest.approx(microseconds, rel=2e-3)  # as printed, three digits


@pytest.mark.parametrize(
    ("generation", "gpu_gb_per_s", "channels", "gb_per_s"),
    [("ampere", 300, 12, 20), ("hopper", 450, 12, 30), ("hopper", 200, 8, 20), ("blackwell", 900, 16, 45)],
)
def test_the_search_finds_the_channels_that_nccl_logs_show(
    generation: str, gpu_gb_per_s: float, channels: int, gb_per_s: float
) -> None:
    """A100 12 x 20, H100 12 x 30, B200 16 x 45 GB/s; an H800 has 8 links and 8 channels of 20."""
    found = graph_of(shape(1, 8, generation=generation, gpu_bytes_per_s=gpu_gb_per_s * 1e9), choice())
    assert (found.channels, found.channel_bytes_per_s) == (channels, gb_per_s * 1e9)


def test_a_node_has_one_channel_per_nic_at_the_nics_speed() -> None:
    found = graph_of(shape(4, 8), choice())
    assert (found.channels, found.channel_bytes_per_s, found.bus_bytes_per_s) == (8, 48e9, 384e9)


def test_nvls_pays_off_from_five_gpus_up_as_measured_on_h200() -> None:
    """8 GiB on 4 to 8 H200: ring with 4, NVLS from 5 (stas00/ml-engineering network/README.md, NCCL 2.27.7)."""
    picks = {n: believed("all_reduce", 8 * GIB, shape(1, n))[0] for n in (4, 5, 6, 7, 8)}
    assert picks == {4: "ring", 5: "nvls", 6: "nvls", 7: "nvls", 8: "nvls"}


def test_what_is_legal() -> None:
    """Broadcast and reduce: ring; NVLS needs NVSwitch and Hopper; its tree several nodes; PAT one rank per node."""
    library = nccl()
    assert native("broadcast", shape(4, 8), library) == native("reduce", shape(1, 8), library) == ("ring",)
    assert native("all_reduce", shape(1, 8), library) == ("ring", "double_tree", "nvls")
    assert native("all_reduce", shape(4, 8), library) == ("ring", "double_tree", "nvls_tree")
    assert native("all_reduce", shape(1, 8, generation="ampere"), library) == ("ring", "double_tree")
    assert native("all_reduce", shape(1, 8, nvswitch=False), library) == ("ring", "double_tree")
    assert native("all_gather", shape(8, 1), library) == ("ring", "pat")
    assert native("reduce_scatter", shape(4, 8), library) == ("ring",)
    assert native("all_to_all", shape(4, 8), library) == ("direct",)


def test_nvls_and_pat_move_data_with_simple_only() -> None:
    assert protocols_of("nvls", PROTOCOLS) == protocols_of("pat", PROTOCOLS) == ("Simple",)
    assert protocols_of("ring", ("LL", "Simple")) == ("LL", "Simple")


def needs(op: str, size: float, where: Shape) -> dict[str, float]:
    """Seconds at full rate with which a made-up network would carry each algorithm."""
    return dict.fromkeys(native(op, where, nccl()), size / 200000000000.0)


def test_what_runs_and_what_would_be_fastest_are_two_questions() -> None:
    where, library = shape(4, 8), nccl()
    found = options("all_reduce", 2 * MIB, needs("all_reduce", 2 * MIB, where), where, library)
    run, best = picked(found, where, library), fastest(found)
    assert (run.algorithm, run.protocol) == ("double_tree", "LL128")
    assert best.cost.time_s < run.cost.time_s
    assert run.believed_s == min(one.believed_s for one in found if one.believed_s is not None)


def test_a_tuner_plugin_overrides_the_library() -> None:
    """AWS ships one for EFA, where only Simple runs (aws-ofi-nccl)."""
    where, library = shape(4, 8, fabric="efa"), nccl()
    found = options("all_reduce", 2 * MIB, needs("all_reduce", 2 * MIB, where), where, library)
    assert {one.protocol for one in found} == {"Simple"}
    assert picked(found, where, library) == fastest(found)
    assert [chosen_by(w, library) for w in (where, shape(4, 8), shape(1, 8, fabric="efa"))] == [TUNER, MODEL, MODEL]


def test_rccl_picks_the_least_measured_time_since_its_model_is_not_known() -> None:
    library = load_library("rccl")
    assert isinstance(library, NcclLibrary)
    where = shape(1, 8, generation="cdna3", nvswitch=False, fabric="roce")
    found = options("all_reduce", MIB, {"ring": 1e-5, "double_tree": 1e-5}, where, library)
    assert chosen_by(where, library) == MEASURED
    assert picked(found, where, library) == fastest(found)


def test_protocols_can_be_limited_as_nccl_proto_does() -> None:
    library = nccl().model_copy(update={"protocols": ("LL", "Simple")})
    found = options("all_reduce", MIB, needs("all_reduce", MIB, shape(1, 8)), shape(1, 8), library)
    assert {one.protocol for one in found} == {"LL", "Simple"}


@given(st.floats(1e-7, 10.0))
def test_a_ramp_is_linear_in_the_logarithm_and_flat_outside(seconds: float) -> None:
    ramp = ((1e-5, 0.2), (1e-3, 0.8))
    expected = 0.2 + 0.6 * min(max(log(seconds / 1e-5) / log(100), 0.0), 1.0)
    assert on_log_scale(ramp, seconds) == pytest.approx(expected)


@given(st.integers(3, 34), st.sampled_from([(1, 8), (2, 8), (16, 8), (8, 1)]))
def test_measured_time_grows_with_the_message_for_a_given_way(log_size: int, where: tuple[int, int]) -> None:
    """Twice the bytes never take less, whatever way the library takes: ramps rise slower than bytes."""
    at, measured = shape(*where), nccl().measured
    for algorithm in native("all_reduce", at, nccl()):
        for protocol in protocols_of(algorithm, PROTOCOLS):
            times = [
                measured_cost("all_reduce", algorithm, protocol, size, size / 200e9, at, measured).time_s
                for size in (2.0**log_size, 2.0 ** (log_size + 1))
            ]
            assert times[0] <= times[1], (algorithm, protocol)


def test_a_slower_link_slows_the_transfer_and_not_the_latency() -> None:
    at, measured = shape(4, 8), nccl().measured
    fast, slow = (measured_cost("all_reduce", "ring", "Simple", GIB, link_s, at, measured) for link_s in (5e-3, 10e-3))
    assert slow.latency_s == fast.latency_s
    assert slow.transfer_s == pytest.approx(2 * fast.transfer_s, rel=0.02)


def test_ll_is_limited_by_the_gpu_on_fast_links() -> None:
    """Half of LL's bytes are flags, and a node's LL never runs above 141 GB/s of bus bandwidth on Hopper."""
    at, measured = shape(1, 8), nccl().measured
    cost = measured_cost("all_reduce", "ring", "LL", 64 * MIB, 1e-9, at, measured)
    assert cost.transfer_s >= 64 * MIB * 14 / 8 / 141e9


def test_every_generation_and_fabric_of_the_profiles_can_be_priced() -> None:
    """No algorithm that a profile allows lacks a constant."""
    for name in ("nccl", "rccl"):
        library = load_library(name)
        assert isinstance(library, NcclLibrary)
        for generation in [*library.measured.generations, *library.measured.family]:
            for fabric in library.measured.fabrics:
                for nodes, per_node in ((1, 2), (1, 8), (2, 8), (5, 4), (8, 1)):
                    for link in ("nvlink", "pcie"):
                        at = shape(nodes, per_node, generation=generation, fabric=fabric, link=link,
                                   nvswitch=link == "nvlink")  # fmt: skip
                        for op in (
                            "all_reduce",
                            "all_gather",
                            "reduce_scatter",
                            "broadcast",
                            "all_to_all",
                            "send_recv",
                        ):
                            link_s = dict.fromkeys(native(op, at, library), 0.0001)
                            assert all(one.cost.time_s > 0 for one in options(op, MIB, link_s, at, library))


def test_every_protocol_has_its_place() -> None:
    assert [INDEX[name] for name in PROTOCOLS] == [0, 1, 2]
