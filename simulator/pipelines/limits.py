"""Which numbers of ranks, micro-batches and chunks a schedule can take, and which are the nearest possible ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

from simulator.pipelines.claims import Shape
from simulator.pipelines.one_way import rounds

#: Says why a shape is impossible; empty where it is possible.
Rule = Callable[[Shape], str]


def one_chunk(shape: Shape) -> str:
    """For schedules that know one stage on a rank."""
    return "" if shape.v == 1 else f"a rank has one chunk, not {shape.v}"


def two_chunks(shape: Shape) -> str:
    """For stages that go down the ranks and up again."""
    return "" if shape.v == 2 else f"a rank has the two chunks of a V, not {shape.v}"


def equal_rounds(shape: Shape) -> str:
    """Interleaved schedules take micro-batches in floor(m / p) rounds, which must be of one size."""
    count = rounds(shape.p, shape.m)
    if shape.m % count == 0:
        return ""
    return f"{shape.m} micro-batches come in {count} rounds of at least one for each rank, which must be equal"


def two_for_each_rank(shape: Shape) -> str:
    """Where micro-batches of both directions must fill every rank at once."""
    least = 2 * shape.p
    return "" if shape.m >= least else f"needs at least two micro-batches for each rank, {least}"


def two_ways(shape: Shape) -> str:
    """Two models in opposite directions: even numbers of both."""
    odd = [f"{name} {value}" for name, value in (("ranks", shape.p), ("micro-batches", shape.m)) if value % 2]
    return f"halves of both go each way, so they must be even, not {' and '.join(odd)}" if odd else ""


def why_not(rules: Sequence[Rule], shape: Shape) -> str:
    """All reasons why a shape is impossible; empty where it is possible."""
    return "; ".join(reason for rule in rules if (reason := rule(shape)))


def nearest(rules: Sequence[Rule], shape: Shape) -> str:
    """The possible numbers next to an impossible shape, in words: one number changed where that is enough, else all."""
    alone = [words for name in ("m", "v", "p") if (words := _alone(rules, shape, name))]
    if alone:
        return "; or ".join(alone)
    near = [one for one in _around(shape) if not why_not(rules, one)]
    return str(min(near, key=lambda one: _distance(shape, one))) if near else "none near"


def _alone(rules: Sequence[Rule], shape: Shape, name: str) -> str:
    """``m=4 or 6``: the next below and above that would do with the other numbers as they are."""
    value = getattr(shape, name)

    def first(values: Iterable[int]) -> list[int]:
        return list(islice((v for v in values if not why_not(rules, replace(shape, **{name: v}))), 1))

    found = first(range(value - 1, 0, -1)) + first(range(value + 1, value + 2 * shape.p + 2))
    return f"{_WORDS[name]} {' or '.join(map(str, found))}" if found else ""


def _around(shape: Shape) -> Iterator[Shape]:
    for p, v in product(range(max(1, shape.p - 1), shape.p + 2), sorted({1, 2, shape.v})):
        for m in range(max(1, shape.m - 2 * p), shape.m + 2 * p + 1):
            yield Shape(p, m, v)


def _distance(one: Shape, other: Shape) -> tuple[int, int, int]:
    return abs(one.v - other.v), abs(one.p - other.p), abs(one.m - other.m)


_WORDS = {"p": "ranks", "m": "micro-batches", "v": "chunks"}
