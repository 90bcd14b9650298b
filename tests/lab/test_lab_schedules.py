"""Schedules played by real processes over links of known rates take the time that the simulator says, within 5 %.

From two numbers of a ping-pong (alpha and payload rate; two more across the uplink), with nothing fitted to the runs.
Flat: 5 hosts at 400 Mbit/s. Two-level: 3 + 3 hosts at 800 Mbit/s, an uplink of 200 Mbit/s. gloo, torch 2.13.
"""

from __future__ import annotations

import importlib.util

import pytest
from measured import LARGER, TOLERANCE, Found, measured, simulated
from playing import Played

from simulator.collectives.layout import Layout
from simulator.lab.fabric import flat, two_level
from simulator.lab.model import stated_rate

pytestmark = [
    pytest.mark.lab, pytest.mark.slow, pytest.mark.usefixtures("lab_here"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'clustersim[real]'"),
]  # fmt: skip

FLAT, TWO_LEVEL = flat(5, 400e6), two_level(3, 800e6, 200e6)
RING, TREE, HALVING = ("all_reduce", "ring"), ("all_reduce", "tree"), ("all_reduce", "halving_doubling")
HIERARCHICAL, DIRECT, PAIRWISE = ("all_reduce", "hierarchical"), ("all_to_all", "direct"), ("all_to_all", "pairwise")
#: Those that pipeline or pack: at 1 MB their messages are small, and handling them on two cores shows, up to 6 %.
OTHERS = (
    ("all_reduce", "double_tree"), ("all_to_all", "bruck"), ("reduce_scatter", "pat"), ("all_gather", "pat"),
)  # fmt: skip
RAIL = ("all_to_all", "rail")
#: Three senders to one host, whose own link is the narrow one.
GATHER = ("gather", "direct")
FOUR, SIX = (0, 1, 3, 4), (0, 1, 2, 3, 4, 5)


def case(what: tuple[str, str], ranks: tuple[int, ...], per_node: int | None, size: float) -> Played:
    """In four pieces where it is pipelined: 4 MB over two trees are then pieces of 500 kB."""
    layout = Layout(num_ranks=len(ranks), ranks_per_node=per_node, pieces=4)
    return Played(op=what[0], algorithm=what[1], layout=layout, least_bytes=size, ranks=ranks)


FLAT_CASES = [
    *(case(what, tuple(range(p)), None, size)
      for p in (3, 4, 5) for what in (RING, TREE, HALVING, PAIRWISE) for size in (1e6, 4e6)),
    *(case(DIRECT, tuple(range(p)), None, size) for p, size in ((3, 1e6), (4, 1e6), (3, 4e6), (4, 4e6), (5, 4e6))),
    *(case(HIERARCHICAL, (0, 1, 2, 3), 2, size) for size in (1e6, 4e6)),
    *(case(what, tuple(range(p)), None, 4e6) for p in (3, 4, 5) for what in OTHERS),
    case(RAIL, (0, 1, 2, 3), 2, 4e6),
    case(GATHER, (0, 1, 2, 3), None, 4e6),
    *(case(what, (0, 1, 2, 3), None, 8e6) for what in (RING, DIRECT)),
]  # fmt: skip
#: Not on six hosts: what fills all their links at once, which are more bytes than two cores move.
TWO_LEVEL_CASES = [
    *(case(what, ranks, len(ranks) // 2, size)
      for ranks in (FOUR, SIX) for what in (RING, TREE, HALVING, PAIRWISE) for size in (1e6, 4e6)),
    *(case(what, FOUR, 2, size) for what in (HIERARCHICAL, DIRECT) for size in (1e6, 4e6)),
    *(case(what, ranks, len(ranks) // 2, 4e6) for ranks in (FOUR, SIX) for what in OTHERS),
    case(RAIL, FOUR, 2, 4e6), case(DIRECT, SIX, 3, 4e6), case(HIERARCHICAL, FOUR, 2, 8e6), case(RING, SIX, 3, 8e6),
]  # fmt: skip
#: Two groups with members on both sides, so that both cross the uplink at once.
ONE, OTHER = (0, 1, 3), (2, 4, 5)
TOGETHER = [
    (case(RING, ONE, None, size), case(what, OTHER, None, other))
    for what, size, other in (
        (RING, 1e6, 1e6), (RING, 4e6, 4e6), (RING, 4e6, 2e6), (PAIRWISE, 4e6, 4e6), (DIRECT, 2e6, 4e6),
        (TREE, 4e6, 2e6),
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def on_flat(tmp_path_factory: pytest.TempPathFactory, lab_here: None) -> Found:
    return measured(FLAT, [(played,) for played in FLAT_CASES], tmp_path_factory.mktemp("flat"))


@pytest.fixture(scope="module")
def on_two_level(tmp_path_factory: pytest.TempPathFactory, lab_here: None) -> Found:
    jobs = [(played,) for played in TWO_LEVEL_CASES] + TOGETHER
    return measured(TWO_LEVEL, jobs, tmp_path_factory.mktemp("two-level"))


def needs_real_time(found: Found) -> None:
    """Exact times need programs that run as soon as they can; data is checked all the same."""
    assert found.right
    if not found.real_time:
        pytest.skip("needs the right to run programs in real time (SCHED_RR)")


def holds(played: Played, found: Found) -> None:
    needs_real_time(found)
    assert simulated(found.network, (played,)) == pytest.approx(found.times_s[(played,)], rel=TOLERANCE)


@pytest.mark.parametrize("played", FLAT_CASES, ids=str)
def test_flat(played: Played, on_flat: Found) -> None:
    holds(played, on_flat)


@pytest.mark.parametrize("played", TWO_LEVEL_CASES, ids=str)
def test_two_level(played: Played, on_two_level: Found) -> None:
    holds(played, on_two_level)


@pytest.mark.parametrize("parts", TOGETHER, ids=lambda parts: "+".join(map(str, parts)))
def test_two_collectives_at_once_share_the_uplink_max_min(parts: tuple[Played, Played], on_two_level: Found) -> None:
    needs_real_time(on_two_level)
    real_s = on_two_level.times_s[parts]
    assert simulated(on_two_level.network, parts) == pytest.approx(real_s, rel=TOLERANCE)
    alone_s = [simulated(on_two_level.network, (part,))[0] for part in parts]
    assert min(real / alone for real, alone in zip(real_s, alone_s, strict=True)) > 1.2, "they do disturb each other"


def test_links_have_the_rates_that_were_asked_for(on_flat: Found, on_two_level: Found) -> None:
    assert on_flat.near.bytes_per_s == pytest.approx(stated_rate(400e6), rel=0.02)
    assert on_two_level.near.bytes_per_s == pytest.approx(stated_rate(800e6), rel=0.02)
    assert on_two_level.across is not None
    assert on_two_level.across.bytes_per_s == pytest.approx(stated_rate(200e6), rel=0.02)


def test_gloo_sends_both_ways_at_once_between_two_ranks_only_if_receives_are_posted_first(on_flat: Found) -> None:
    """A pair of ranks has one connection. The receiver's notice lets the sender's data go; posted after a send it may
    stand behind that send's data, and the other direction waits for all of it. So our ranks post receives first, and
    exchanges between two ranks (halving and doubling, a ring of two) run at full rate both ways, as simulated.
    """
    needs_real_time(on_flat)
    one_way_s = on_flat.near.alpha_s + LARGER / on_flat.near.bytes_per_s
    assert on_flat.crossed.irecv_first == pytest.approx(one_way_s, rel=TOLERANCE)
    assert on_flat.crossed.isend_first > 1.8 * one_way_s
