"""Ranks <-> coordinates: which rank stands where in the dimensions of parallelism, and the groups of each.

Two grids over the same ranks, as in Megatron-LM (megatron/core/parallel_state.py, ``RankGenerator``): the dense one of
tp, cp, dp and pp, and that of the experts, etp, ep, edp and pp, whose etp x ep x edp are the ranks of tp x cp x dp.
Both follow one order, fastest dimension first; in the experts' grid etp stands where tp does, edp where dp does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from simulator.errors import ScenarioError

Groups = tuple[tuple[int, ...], ...]
DENSE = ("tp", "cp", "dp", "pp")
EXPERT = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
#: How many nearest possible numbers an error tells.
_NEAREST = 4


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Degrees of all dimensions. order: dimensions, fastest first. ``make_mesh`` checks that they fit."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    order: tuple[str, ...] = ("tp", "cp", "ep", "dp", "pp")

    @property
    def num_ranks(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Copies of each expert in a stage of the pipeline."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def ranks_of_replica(self) -> int:
        """Ranks that work on the same samples."""
        return self.tp * self.cp * self.pp

    def size(self, *axes: str) -> int:
        """Ranks of a group of the axis, or of axes taken together."""
        return prod(int(getattr(self, axis)) for axis in axes)

    def groups(self, *axes: str) -> Groups:
        """All groups of an axis, or of axes taken together (``"dp", "cp"``): ranks that differ in nothing else.

        Groups stand in the order of their first ranks; in each, ranks ascend.
        """
        grid, dimensions = self._grid_of(axes)
        kept = [d for d in dimensions if d not in axes]
        moved = np.moveaxis(grid, [dimensions.index(d) for d in kept], range(len(kept)))
        rows = np.sort(moved.reshape(-1, self.size(*axes)), axis=1)
        return tuple(tuple(row) for row in rows[np.argsort(rows[:, 0])].tolist())

    def with_mirrored(self, groups: Groups) -> Groups:
        """Groups that do not cross stages, each joined with the one at the mirrored place of the pipeline."""
        place = self.along("pp")
        lines = {rank: line for line in self.groups("pp") for rank in line}
        return tuple(
            tuple(sorted((*group, *(lines[rank][-1 - place[rank]] for rank in group))))
            for group in groups if place[group[0]] < self.pp - 1 - place[group[0]]
        )  # fmt: skip

    def coordinates(self, rank: int) -> Mapping[str, int]:
        """The place of a rank in each dimension; in those of the experts where they are shared."""
        found: dict[str, int] = {}
        for grid, dimensions in (self._expert, self._dense) if self.shares_experts else (self._dense,):
            place = np.argwhere(grid == rank)[0].tolist()
            found.update(zip(dimensions, place, strict=True))
        return found

    @property
    def shares_experts(self) -> bool:
        """Whether experts are spread otherwise than the rest of the model."""
        return self.ep * self.etp > 1

    def along(self, axis: str) -> tuple[int, ...]:
        """Of each rank the place in one dimension."""
        grid, dimensions = self._grid_of((axis,))
        places = np.empty(self.num_ranks, dtype=np.int64)
        shape = [1] * grid.ndim
        shape[dimensions.index(axis)] = -1
        places[grid.ravel()] = np.broadcast_to(np.arange(self.size(axis)).reshape(shape), grid.shape).ravel()
        return tuple(places.tolist())

    @property
    def agrees_on_stages(self) -> bool:
        """Whether both grids give the same stages of the pipeline (asserted in ``initialize_model_parallel``)."""
        (dense, names), (expert, others) = self._dense, self._expert
        rows = [np.moveaxis(g, d.index("pp"), 0).reshape(self.pp, -1) for g, d in ((dense, names), (expert, others))]
        return all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(*rows, strict=True))

    def _grid_of(self, axes: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
        return self._expert if {"ep", "etp", "edp"} & set(axes) else self._dense

    @cached_property
    def _dense(self) -> tuple[np.ndarray, tuple[str, ...]]:
        return self._made(tuple(axis for axis in self.order if axis in DENSE))

    @cached_property
    def _expert(self) -> tuple[np.ndarray, tuple[str, ...]]:
        return self._made(tuple(EXPERT[axis] for axis in self.order if axis in EXPERT))

    def _made(self, fastest_first: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
        """Ranks by place; the slowest dimension is the array's first."""
        dimensions = fastest_first[::-1]
        return np.arange(self.num_ranks).reshape([self.size(d) for d in dimensions]), dimensions


def make_mesh(
    num_ranks: int, *, tp: int = 1, cp: int = 1, pp: int = 1, ep: int = 1, etp: int = 1,
    order: str = "tp-cp-ep-dp-pp",
) -> Mesh:  # fmt: skip
    """The mesh of a job; dp takes what the other degrees leave.

    Raises ScenarioError, naming the key, for degrees whose product does not divide the ranks, with those that do.
    """
    degrees = {"tp": tp, "cp": cp, "pp": pp}
    replica = prod(degrees.values())
    if num_ranks % replica:
        told = " x ".join(f"{name} {size}" for name, size in degrees.items() if size > 1)
        key = next(name for name, size in degrees.items() if size > 1)
        others = {name: _possible(num_ranks, replica // size, size) for name, size in degrees.items() if size > 1}
        possible = "; ".join(f"{name} {_words(sizes)}" for name, sizes in others.items() if sizes)
        ranks = sorted({max(1, num_ranks // replica) * replica, (num_ranks // replica + 1) * replica})
        raise ScenarioError(
            f"parallel.{key}: {told} = {replica} ranks of a replica do not divide the {num_ranks:,} ranks; possible: "
            f"{possible + '; or ' if possible else ''}{_words(ranks)} ranks"
        )
    dp = num_ranks // replica
    shared = tp * cp * dp
    if shared % (ep * etp):
        found = _words(_possible(shared, etp, ep)) or "none"
        told = f"ep {ep}" + (f" x etp {etp}" if etp > 1 else "")
        raise ScenarioError(
            f"parallel.ep: {told} does not divide the {shared:,} ranks of a pipeline stage "
            f"(tp {tp} x cp {cp} x dp {dp}); possible: {found}"
        )
    mesh = Mesh(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, order=tuple(order.split("-")))
    if mesh.shares_experts and pp > 1 and not mesh.agrees_on_stages:
        raise ScenarioError(
            f"parallel.order: with '{order}' the stages of the pipeline are other ranks for experts (etp {etp} x ep "
            f"{ep}) than for the rest (tp {tp} x cp {cp}); possible: an order that ends in pp, as Megatron-LM asks for"
        )
    return mesh


def _possible(num_ranks: int, others: int, wanted: int) -> list[int]:
    """Degrees near ``wanted`` whose product with the others divides the ranks."""
    if num_ranks % others:
        return []
    rest = num_ranks // others
    divisors = [n for n in range(1, rest + 1) if rest % n == 0]
    return sorted(sorted(divisors, key=lambda n: (abs(n - wanted), n))[:_NEAREST])


def _words(numbers: list[int]) -> str:
    told = [f"{n:,}" for n in numbers]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} or {told[-1]}" if told else ""
