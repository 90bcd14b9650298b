"""Ranks and coordinates: the groups of Megatron-LM and torchtitan, and products that cannot be."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ScenarioError
from simulator.mesh import make_mesh


def test_groups_are_those_that_megatron_documents_for_16_gpus() -> None:
    """megatron/core/parallel_state.py, docstring of ``initialize_model_parallel``: tp 2, pp 4 on g0 .. g15."""
    mesh = make_mesh(16, tp=2, pp=4)
    assert mesh.groups("dp") == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))
    assert mesh.groups("tp") == tuple((rank, rank + 1) for rank in range(0, 16, 2))
    assert mesh.groups("pp") == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))


def test_tp_pp_dp_mapping_puts_stages_beside_each_other() -> None:
    """Megatron-LM ``--use-tp-pp-dp-mapping``: order tp-cp-ep-pp-dp, so a replica has neighbours in rank."""
    mesh = make_mesh(16, tp=2, pp=4, order="tp-cp-ep-pp-dp")
    assert mesh.groups("pp")[0] == (0, 2, 4, 6)
    assert mesh.groups("dp")[0] == (0, 8)


def test_default_order_is_the_device_mesh_of_torchtitan() -> None:
    """torchtitan/distributed/parallel_dims.py: mesh [pp, dp, cp, tp], C order over ranks."""
    mesh = make_mesh(48, tp=2, cp=2, pp=3)
    ranks = np.arange(48).reshape(3, 4, 2, 2)
    for axis, place in (("pp", 0), ("dp", 1), ("cp", 2), ("tp", 3)):
        rows = np.moveaxis(ranks, place, -1).reshape(-1, ranks.shape[place]).tolist()
        assert set(mesh.groups(axis)) == {tuple(row) for row in rows}


def test_experts_have_a_grid_of_their_own() -> None:
    """Megatron-LM, ``expert_decoder_rank_generator``: etp x ep x edp over the ranks of tp x cp x dp."""
    mesh = make_mesh(32, tp=4, pp=2, ep=8)
    assert mesh.edp == 2
    assert mesh.groups("ep")[0] == tuple(range(8))
    assert mesh.groups("edp")[0] == (0, 8)
    assert make_mesh(32, tp=4, pp=2, ep=2, etp=4).groups("ep")[0] == (0, 4)


def _ending_in_pp(order: str) -> str:
    return "-".join([*(name for name in order.split("-") if name != "pp"), "pp"])


sizes = st.tuples(*[st.sampled_from([1, 2, 3, 4]) for _ in range(4)])
orders = st.permutations(["tp", "cp", "ep", "dp", "pp"]).map("-".join)


@given(sizes, orders)
def test_every_axis_cuts_all_ranks_into_equal_groups(degrees: tuple[int, int, int, int], order: str) -> None:
    tp, cp, dp, pp = degrees
    mesh = make_mesh(tp * cp * dp * pp, tp=tp, cp=cp, pp=pp, ep=dp, order=_ending_in_pp(order))
    for axes in (("tp",), ("cp",), ("dp",), ("pp",), ("ep",), ("edp",), ("dp", "cp"), ("tp", "pp")):
        groups = mesh.groups(*axes)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.num_ranks))
        assert {len(group) for group in groups} == {mesh.size(*axes)}


@given(sizes, orders)
def test_coordinates_tell_ranks_apart_and_agree_with_groups(degrees: tuple[int, int, int, int], order: str) -> None:
    tp, cp, dp, pp = degrees
    mesh = make_mesh(tp * cp * dp * pp, tp=tp, cp=cp, pp=pp, order=order)
    places = [mesh.coordinates(rank) for rank in range(mesh.num_ranks)]
    assert len({(p["tp"], p["cp"], p["dp"], p["pp"]) for p in places}) == mesh.num_ranks
    for axis in ("tp", "cp", "dp", "pp"):
        assert mesh.along(axis) == tuple(place[axis] for place in places)
        for group in mesh.groups(axis):
            assert [places[rank][axis] for rank in group] == list(range(mesh.size(axis)))


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ({"tp": 6}, "parallel.tp: tp 6 = 6 ranks of a replica do not divide the 32 ranks; possible: tp 1, 2, 4 or 8; "
         "or 30 or 36 ranks"),
        ({"tp": 8, "pp": 3}, "parallel.tp: tp 8 x pp 3 = 24 ranks of a replica do not divide the 32 ranks; possible: "
         "pp 1, 2 or 4; or 24 or 48 ranks"),
        ({"ep": 3}, "parallel.ep: ep 3 does not divide the 32 ranks of a pipeline stage (tp 1 x cp 1 x dp 32); "
         "possible: 1, 2, 4 or 8"),
        ({"ep": 4, "pp": 2, "order": "tp-cp-ep-pp-dp"}, "parallel.order: with 'tp-cp-ep-pp-dp' the stages of the "
         "pipeline are other ranks for experts (etp 1 x ep 4) than for the rest (tp 1 x cp 1); possible: an order that "
         "ends in pp, as Megatron-LM asks for"),
    ],
)  # fmt: skip
def test_impossible_products_are_refused_with_the_nearest_possible(degrees: dict[str, int], told: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{re.escape(told)}$"):
        make_mesh(32, **degrees)
