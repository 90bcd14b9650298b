"""Laws of every algorithm for any ranks, nodes, channels and pieces: right data, its formula's bytes, none twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, torus_shapes

from simulator.collectives import ALGORITHMS, make_schedule
from simulator.collectives.check import check, check_data, steps
from simulator.collectives.layout import Layout
from simulator.collectives.promise import promise
from simulator.schedule import Schedule

TABLE = sorted(ALGORITHMS)
every_algorithm = st.sampled_from(TABLE)


@st.composite
def layouts(draw: st.DrawFn, max_ranks: int = 20) -> Layout:
    """Nodes even, uneven or unknown; any root, 1 to 4 channels, 1 to 6 pieces; torus or mesh or neither."""
    nodes, per_node = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    p = min(nodes * per_node, max_ranks)
    shape = draw(st.sampled_from([None, *torus_shapes(p)]))
    wrap = None if shape is None else draw(st.none() | st.tuples(*(st.booleans() for _ in shape)))
    return Layout(
        num_ranks=p, root=draw(st.integers(0, p - 1)), ranks_per_node=draw(st.none() | st.just(per_node)),
        channels=draw(st.integers(1, 4)), torus_shape=shape, torus_wrap=wrap, pieces=draw(st.integers(1, 6)),
        meshed=draw(st.booleans()),
    )  # fmt: skip


@given(every_algorithm, layouts(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(400))
def test_everyone_ends_with_what_was_promised(collective: tuple[str, str], layout: Layout, seed: int) -> None:
    schedule = make_schedule(*collective, layout, 1000.0)
    check(schedule)
    shape = (schedule.num_ranks, schedule.num_chunks, 2)
    check_data(schedule, np.random.default_rng(seed).integers(-1000, 1000, shape).astype(np.float64))


# ---------------------------------------------------------------------------------------------------------- bytes


def beyond(p: int) -> tuple[int, int]:
    """(largest power of two that is at most p, ranks beyond it)."""
    power = 1 << (p.bit_length() - 1)
    return power, p - power


def set_bits(p: int) -> int:
    return sum(map(int.bit_count, range(p)))


def folded(p: int) -> float:
    """Rabenseifner's fold, in buffers: each pair exchanges halves and moves one of them once more."""
    _, extra = beyond(p)
    return extra * (1 + (p - p // 2) / p)


def once(p: int, n: int, g: int) -> float:
    return p - 1


def twice(p: int, n: int, g: int) -> float:
    return 2 * (p - 1)


def slices(p: int, n: int, g: int) -> float:
    return (p - 1) / p


def scattered(p: int, n: int, g: int) -> float:
    return (g - 1) / g + (n - 1) + n * (g - 1)


#: Bytes that all p ranks on n nodes of g together send, over the size; for any p > 1. From the papers or by counting.
SENT: dict[tuple[str, str], Callable[[int, int, int], float]] = {
    **{("all_reduce", a): twice for a in ("ring", "tree", "double_tree", "hierarchical", "direct", "torus", "naive")},
    **{("reduce_scatter", a): once for a in ("ring", "hierarchical", "pat", "direct", "torus")},
    **{("all_gather", a): once for a in ("ring", "hierarchical", "pat", "direct", "torus")},
    **{(op, a): once for op in ("broadcast", "reduce") for a in ("ring", "tree", "naive")},
    ("broadcast", "eager_tree"): once,
    **{(op, "hierarchical"): scattered for op in ("broadcast", "reduce")},
    **{(op, a): slices for op in ("scatter", "gather") for a in ("direct", "naive")},
    **{(op, "tree"): lambda p, n, g: set_bits(p) / p for op in ("scatter", "gather")},
    ("all_reduce", "halving_doubling"): lambda p, n, g: folded(p) + 2 * (beyond(p)[0] - 1) + beyond(p)[1],
    ("reduce_scatter", "halving_doubling"): lambda p, n, g: folded(p) + beyond(p)[0] - 1 + beyond(p)[1] / p,
    ("all_gather", "halving_doubling"): lambda p, n, g: beyond(p)[1] + beyond(p)[0] - 1,
    ("reduce_scatter", "naive"): lambda p, n, g: (p - 1) * (1 + 1 / p),
    ("all_gather", "naive"): lambda p, n, g: (p - 1) * (1 + 1 / p),
    ("all_to_all", "naive"): twice,
    ("all_to_all", "direct"): once,
    ("all_to_all", "pairwise"): once,
    ("all_to_all", "rail"): lambda p, n, g: (g - 1) * n + (n - 1) * g,
    ("all_to_all", "bruck"): lambda p, n, g: set_bits(p),
    ("send_recv", "direct"): lambda p, n, g: p,
    ("all_reduce", "nvls"): lambda p, n, g: 2 * (p - 1) if g == 1 else p + 2 * (n - 1) + n,
    ("reduce_scatter", "nvls"): lambda p, n, g: p - 1 if g == 1 else p + n - 1,
    ("all_gather", "nvls"): lambda p, n, g: p - 1 if g == 1 else n - 1 + n,
    ("all_reduce", "nvls_tree"): lambda p, n, g: 2 * (p - 1) if g == 1 else p + 2 * (n - 1) + n,
}
#: The same for what they receive, where switches take part; without switches it is what is sent.
RECEIVED: dict[tuple[str, str], Callable[[int, int, int], float]] = {
    ("reduce_scatter", "nvls"): lambda p, n, g: n + n - 1,
    ("all_gather", "nvls"): lambda p, n, g: n - 1 + p,
}
#: Where every rank sends as much as every other.
BALANCED = {
    *((op, a) for op in ("all_reduce", "reduce_scatter", "all_gather") for a in ("ring", "hierarchical", "direct")),
    *((op, "nvls") for op in ("all_reduce", "reduce_scatter", "all_gather")),
    ("reduce_scatter", "pat"), ("all_gather", "pat"), ("send_recv", "direct"),
    *(("all_to_all", a) for a in ("direct", "pairwise", "rail", "bruck")),
}  # fmt: skip


def test_every_algorithm_has_a_formula_for_its_bytes() -> None:
    assert sorted(SENT) == TABLE


@given(every_algorithm, layouts())
@settings(max_examples=examples(300))
def test_bytes_are_those_of_the_formula(collective: tuple[str, str], layout: Layout) -> None:
    p, size = layout.num_ranks, 60.0 * layout.num_ranks
    schedule = make_schedule(*collective, layout, size)
    sent, received = schedule.sent_bytes(), schedule.received_bytes()
    if p == 1:
        assert not sent.any()
        assert not received.any()
        return
    expected = SENT[collective](p, *layout.grid)
    assert sent.sum() == pytest.approx(expected * size, rel=1e-12)
    arrived = RECEIVED.get(collective) if schedule.num_switches else None
    assert received.sum() == pytest.approx((arrived(p, *layout.grid) if arrived else expected) * size, rel=1e-12)
    if collective in BALANCED:
        np.testing.assert_allclose(sent, expected * size / p, rtol=1e-12)


@given(every_algorithm, layouts(), st.floats(0, 1e6), st.integers(0, 2**40))
def test_a_resized_schedule_is_the_schedule_of_that_size(
    collective: tuple[str, str], layout: Layout, first: float, then: int
) -> None:
    resized = make_schedule(*collective, layout, first).resized(float(then))
    made = make_schedule(*collective, layout, float(then))
    for name in ("size_bytes", "padding_bytes", "chunk_bytes", "num_chunks", "num_switches", "num_steps", "root"):
        assert getattr(resized, name) == getattr(made, name), name
    np.testing.assert_array_equal(resized.sent_bytes(), made.sent_bytes())


# ------------------------------------------------------------------------------------------------- nothing twice

#: Through the root, which sends back what it was given; in the switch, where the owner's own copy travels too; and
#: van de Geijn's broadcast, whose all-gather brings the root what it scattered.
GIVES_BACK = {*((op, a) for op, a in TABLE if a in ("naive", "nvls")), ("broadcast", "hierarchical")}
COPIES = {"broadcast", "scatter", "gather", "all_gather", "all_to_all", "send_recv"}
COPYING = [key for key in TABLE if key[0] in COPIES and key not in GIVES_BACK]
#: Both fold pairs or nodes first, and a folded sum is sent on.
SENDS_SUMS_ON = {"halving_doubling", "nvls"}


@given(st.sampled_from(COPYING), layouts())
@settings(max_examples=examples(200))
def test_nobody_receives_what_he_holds_already(collective: tuple[str, str], layout: Layout) -> None:
    schedule = make_schedule(*collective, layout, 1000.0)
    held = promise(schedule).start.copy()
    for src, dst, chunk, _ in steps(schedule):
        assert held[src, chunk].all()
        assert not held[dst, chunk].any()
        held[dst, chunk] = True
        assert len(set(zip(dst.tolist(), chunk.tolist(), strict=True))) == len(dst)


REDUCING = [key for key in TABLE if key[0] in {"reduce", "reduce_scatter"} and key[1] not in SENDS_SUMS_ON]


@given(st.sampled_from(REDUCING), layouts())
@settings(max_examples=examples(200))
def test_nobody_adds_his_share_of_a_chunk_twice(collective: tuple[str, str], layout: Layout) -> None:
    schedule = make_schedule(*collective, layout, 1000.0)
    added: set[tuple[int, int]] = set()
    for src, _, chunk, reduce in steps(schedule):
        now = list(zip(src[reduce].tolist(), chunk[reduce].tolist(), strict=True))
        assert len(now) == len(set(now))
        assert not added & set(now)
        added.update(now)


def pieces_of(schedule: Schedule) -> set[int]:
    """Chunks that move at all."""
    return {int(c) for _, _, chunk, _ in steps(schedule) for c in chunk}


@given(every_algorithm, layouts())
@settings(max_examples=examples(100))
def test_every_chunk_moves_unless_it_is_a_block_for_its_own_rank(collective: tuple[str, str], layout: Layout) -> None:
    schedule = make_schedule(*collective, layout, 1000.0)
    p = schedule.num_ranks
    if p == 1:
        assert not schedule.phases
        return
    stays: set[int] = set()
    if schedule.op == "all_to_all" and schedule.algorithm != "naive":
        stays = {r * p + r for r in range(p)}
    if schedule.op in ("scatter", "gather"):
        stays = {schedule.root}
    if schedule.op in ("broadcast", "reduce") and schedule.algorithm == "hierarchical":
        nodes, per_node = layout.grid
        stays = {layout.root % per_node} if per_node > 1 and nodes == 1 else set()
    assert set(range(schedule.num_chunks)) - pieces_of(schedule) <= stays
