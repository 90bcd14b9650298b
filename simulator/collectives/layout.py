"""What an algorithm may know of where its ranks are: integers only, never a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Pieces that a pipelined buffer is cut into. K pieces over d hops take ``(d + K - 1)(a + n / (K b))``, least at
#: K = sqrt((d - 1) n / (a b)) (``bounds.best_pieces``): 5 for 1 MiB, 77 for 256 MiB at d = 12, a = 10 us, b = 50 GB/s.
#: 16 is at most 34 % slower than the best over that range and 1 % at 8 MiB.
DEFAULT_PIECES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Places of the ranks of one collective.

    num_ranks: how many ranks take part, numbered 0 .. num_ranks - 1.
    root: the rank that a rooted operation starts from or ends at.
    ranks_per_node: ranks of one node are neighbours; None when nodes do not matter.
    channels: parallel rings, each leaving a node by its own NIC.
    torus_shape: length of each torus axis (row-major rank order), product = num_ranks; None off a torus.
    torus_wrap: which axes join their ends; None when all do.
    node_sizes: ranks of each node where nodes hold unequal numbers of them, neighbours again; else None.
    doors: local ranks by which channels may enter and leave a node, where some ranks lack a NIC; None: all may.
    meshed: every two ranks of a node (or of all, without nodes) have a link of their own.
    pieces: pieces that pipelined algorithms cut what a channel carries into, at least 1.
    """

    num_ranks: int
    root: int = 0
    ranks_per_node: int | None = None
    channels: int = 1
    torus_shape: tuple[int, ...] | None = None
    torus_wrap: tuple[bool, ...] | None = None
    pieces: int = DEFAULT_PIECES
    meshed: bool = False
    node_sizes: tuple[int, ...] | None = None
    doors: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        assert self.num_ranks >= 1, "a collective needs a rank"
        assert 0 <= self.root < self.num_ranks, "the root must be one of the ranks"
        assert self.torus_shape is None or math.prod(self.torus_shape) == self.num_ranks
        assert self.torus_wrap is None or len(self.torus_wrap) == len(self.torus_shape or ())
        assert self.pieces >= 1, "a buffer is at least one piece"
        assert self.node_sizes is None or sum(self.node_sizes) == self.num_ranks

    @property
    def whole_nodes(self) -> bool:
        """Whether nodes matter and all hold equally many ranks."""
        return self.ranks_per_node is not None and self.num_ranks % self.ranks_per_node == 0

    def heads(self, smallest: int) -> list[int]:
        """Local rank by which each channel enters a node: spread over those that may, of the smallest node's ranks."""
        doors = self.doors or tuple(range(smallest))
        stride = max(1, len(doors) // self.channels)
        return [doors[channel * stride % len(doors)] for channel in range(self.channels)]

    @property
    def grid(self) -> tuple[int, int]:
        """(nodes, ranks of each): rank ``k * ranks + l`` is local rank l of node k. Without whole nodes, one node."""
        per_node = self.ranks_per_node if self.whole_nodes else None
        return (self.num_ranks // per_node, per_node) if per_node else (1, self.num_ranks)
