"""Groups whose nodes hold unequal numbers of ranks, such as 12 GPUs on nodes of 8: right data, and all NICs in use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import shipped

from simulator.collective_rows import make_field, rows_of
from simulator.collectives import ALGORITHMS, make_schedule
from simulator.collectives.check import check, check_data
from simulator.collectives.layout import Layout
from simulator.engine.layouts import layout_of
from simulator.engine.wires import make_wires
from simulator.tuning.place import shape_of

TABLE = sorted(ALGORITHMS)


@given(
    st.sampled_from(TABLE), st.lists(st.integers(1, 5), min_size=2, max_size=5), st.integers(1, 4), st.integers(1, 4),
)  # fmt: skip
def test_everyone_ends_with_what_was_promised(
    collective: tuple[str, str], sizes: list[int], channels: int, pieces: int
) -> None:
    layout = Layout(
        num_ranks=sum(sizes), node_sizes=tuple(sizes), channels=channels, pieces=pieces, root=sum(sizes) - 1
    )
    schedule = make_schedule(*collective, layout, 1000.0)
    check(schedule)
    check_data(schedule, np.random.default_rng(0).integers(-99, 99, (sum(sizes), schedule.num_chunks, 2)).astype(float))


@pytest.mark.parametrize("algorithm", ["ring", "double_tree"])
def test_twelve_ranks_on_nodes_of_eight_use_four_nics_of_each(algorithm: str) -> None:
    """The node with four ranks has four NICs in use; each carries a fourth of what crosses between the nodes."""
    network = shipped("dgx-h100", nodes=2)
    gpus = np.arange(12, dtype=np.int64)
    layout = layout_of(network, gpus)
    assert (layout.node_sizes, layout.channels) == ((8, 4), 4)
    schedule = make_schedule("all_reduce", algorithm, layout, 1.0)
    carried = make_wires(network, gpus).link_chunks(schedule)[:-1] * schedule.chunk_bytes
    ports = {i for i, (a, b) in enumerate(network.link_names) if a.startswith("node1.nic") and "leaf" in b}
    out = [carried[i] for i in sorted(ports) if carried[i]]
    crossing = 2 * 11 / 12 if algorithm == "ring" else 1.0  # two trees: half the buffer up one, half down the other
    assert out == pytest.approx([crossing / 4] * 4)


def test_a_library_prices_what_it_can_run_on_uneven_nodes() -> None:
    """In-switch reduction needs equally many ranks on each node; ring and tree run anyhow."""
    network = shipped("dgx-h100", nodes=2)
    shape = shape_of(network, np.arange(12))
    assert shape is not None
    assert (shape.even, shape.num_nodes, shape.ranks_per_node) == (False, 2, 6)
    rows = rows_of(make_field("all_reduce", 12, network, ["auto"]), [2.0**10, 2.0**30])
    assert {row.algorithm for row in rows} == {"ring", "double_tree"}
    assert all(row.fidelity == "library" for row in rows)
