"""Max-min fair sharing against textbook cases, an exact reference in rational numbers, and its defining laws."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import flows

from simulator.engine.fairshare import max_min, solo


def rates(capacity: list[float], routes: list[list[int]]) -> np.ndarray:
    """``max_min`` on routes of any length: filled up with a link of infinite capacity."""
    wide = max(len(route) for route in routes)
    filled = [route + [len(capacity)] * (wide - len(route)) for route in routes]
    return max_min(np.array(filled, dtype=np.int64), np.append(capacity, np.inf))


def reference(capacity: list[float], routes: list[list[int]]) -> list[float]:
    """Progressive filling in exact fractions, one link at a time, written apart from the engine's."""
    left = {link: Fraction(c) for link, c in enumerate(capacity)}
    rate: dict[int, Fraction] = {}
    while len(rate) < len(routes):
        open_on = {link: [f for f, route in enumerate(routes) if f not in rate and link in route] for link in left}
        shares = {link: left[link] / len(users) for link, users in open_on.items() if users}
        fullest = min(shares, key=lambda link: shares[link])
        for flow in open_on[fullest]:
            rate[flow] = shares[fullest]
            for link in routes[flow]:
                left[link] -= shares[fullest]
    return [float(rate[flow]) for flow in range(len(routes))]


def loads(capacity: list[float], routes: list[list[int]], given: np.ndarray) -> np.ndarray:
    load = np.zeros(len(capacity))
    for route, rate in zip(routes, given, strict=True):
        load[route] += rate
    return load


def test_alone_a_flow_gets_its_slowest_link() -> None:
    assert rates([8.0, 2.0, 4.0], [[0, 1, 2]]).tolist() == [2.0]
    assert solo(np.array([[0, 1, 2]]), np.array([8.0, 2.0, 4.0])).tolist() == [2.0]


def test_two_flows_on_one_link_halve_it() -> None:
    assert rates([10.0], [[0], [0]]).tolist() == [5.0, 5.0]


def test_what_one_flow_cannot_use_the_other_gets() -> None:
    """The first is held at 2 by its own link, so the second gets the remaining 8 of the shared one."""
    assert rates([10.0, 2.0], [[0, 1], [0]]).tolist() == [2.0, 8.0]


def test_the_parking_lot() -> None:
    """One flow over n links of capacity 1, one more on each link: everyone gets one half."""
    assert rates([1.0] * 5, [[0, 1, 2, 3, 4], [0], [1], [2], [3], [4]]).tolist() == [0.5] * 6


def test_the_flow_on_two_links_is_held_by_the_busier_one() -> None:
    """Three flows on the first link get a third each; the one that is only on the second gets what is left there."""
    assert rates([1.0, 1.0], [[0], [0], [0, 1], [1]]) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3], rel=1e-15)


def test_shares_that_differ_by_rounding_are_one_bottleneck() -> None:
    """0.1 + 0.2 is not 0.3 in floats: both links still fill in one round, with the same share."""
    shared = rates([0.3, 0.1 + 0.2], [[0], [0], [1], [1]])
    assert set(shared.tolist()) == {0.15}


@given(flows())
def test_rates_equal_those_of_exact_arithmetic(system: tuple[list[float], list[list[int]]]) -> None:
    np.testing.assert_allclose(rates(*system), reference(*system), rtol=1e-9)


@given(flows())
def test_no_link_is_above_its_capacity(system: tuple[list[float], list[list[int]]]) -> None:
    capacity, routes = system
    assert (loads(capacity, routes, rates(*system)) <= np.array(capacity) * (1 + 1e-9)).all()


@given(flows())
def test_every_flow_crosses_a_full_link_on_which_no_flow_is_faster(
    system: tuple[list[float], list[list[int]]],
) -> None:
    """The definition of max-min fairness: a flow can only gain at the cost of one that has no more than it."""
    capacity, routes = system
    given_rates = rates(*system)
    full = loads(capacity, routes, given_rates) >= np.array(capacity) * (1 - 1e-9)
    for route, rate in zip(routes, given_rates, strict=True):
        fastest = [max(r for r, other in zip(given_rates, routes, strict=True) if link in other) for link in route]
        assert any(full[link] and rate >= top * (1 - 1e-9) for link, top in zip(route, fastest, strict=True))


@given(flows(), st.sampled_from([0.5, 2.0, 1024.0]))
def test_rates_scale_with_capacities(system: tuple[list[float], list[list[int]]], factor: float) -> None:
    capacity, routes = system
    np.testing.assert_array_equal(rates([c * factor for c in capacity], routes), rates(*system) * factor)


@given(flows(), st.randoms(use_true_random=False))
def test_the_order_of_flows_changes_nothing(system: tuple[list[float], list[list[int]]], random: st.DataObject) -> None:
    capacity, routes = system
    order = list(range(len(routes)))
    random.shuffle(order)
    turned = rates(capacity, [routes[i] for i in order])
    np.testing.assert_allclose(turned, rates(*system)[order], rtol=1e-12)
