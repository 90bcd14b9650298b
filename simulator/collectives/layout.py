"""What an algorithm may know of where its ranks are: integers only, never a network."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Places of the ranks of one collective.

    num_ranks: how many ranks take part, numbered 0 .. num_ranks - 1.
    root: the rank that a rooted operation starts from or ends at.
    ranks_per_node: ranks of one node are neighbours; None when nodes do not matter.
    channels: parallel rings, each leaving a node by its own NIC.
    torus_shape: length of each torus axis (row-major rank order), product = num_ranks; None off a torus.
    """

    num_ranks: int
    root: int = 0
    ranks_per_node: int | None = None
    channels: int = 1
    torus_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        assert self.num_ranks >= 1, "a collective needs a rank"
        assert 0 <= self.root < self.num_ranks, "the root must be one of the ranks"
        assert self.torus_shape is None or math.prod(self.torus_shape) == self.num_ranks
