"""Double binary tree all-reduce: two complementary trees over the nodes, a chain in each node, pipelined.

Each tree carries half the buffer up to its root and down again, both ways at once. A node that is inside one tree
is a leaf of the other, so no node sends or receives more than 2 n bytes, as with a ring, but the way is ``log2 N``
long (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
Computing 2009; NCCL since 2.4). The trees are NCCL's: its graph/trees.cc numbers a binary tree by the lowest set bit;
the second tree is the first mirrored for an even number of nodes, shifted by one for an odd number.

Cost on a uniform network with K pieces, each rank a node of its own: at most ``(K + D - 1)(a + 2 n / (K b))``, where
D, the hops from the deepest leaf up and down again, is at most ``2 ceil(log2 p)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.collectives.layout import Layout
from simulator.collectives.pipeline import Edges, edges, joined, pipelined
from simulator.schedule import Ints, Schedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tree:
    """A binary tree over nodes, and when piece 0 passes each of its edges. Arrays are (num_nodes,), the root first.

    node: which node stands at each place of the tree. above: the place of its parent, -1 for the root. up, down: the
    steps that move piece 0 from it to its parent, and the sum from its parent to it; the root, which has the sum once
    its last child's piece is in, counts as having been sent it in the step before it sends it down.
    """

    node: Ints
    above: Ints
    up: Ints
    down: Ints

    @property
    def child(self) -> Ints:
        """The node below every edge, (num_nodes - 1,)."""
        return self.node[1:]

    @property
    def parent(self) -> Ints:
        """The node above every edge, (num_nodes - 1,)."""
        return self.node[self.above[1:]]


def trees(num_nodes: int, ready: int) -> tuple[Tree, ...]:
    """Both trees over ``num_nodes`` nodes, whose own piece 0 is ready to go up in step ``ready``; one for one node."""
    place = np.arange(num_nodes, dtype=np.int64)
    above = parents(num_nodes)
    leaves, arrives = _steps(above, ready)
    second = (place + 1) % num_nodes if num_nodes % 2 else num_nodes - 1 - place
    return tuple(
        Tree(node=node, above=above, up=leaves, down=arrives)
        for node in ((place, second) if num_nodes > 1 else (place,))
    )


def parents(num_nodes: int) -> Ints:
    """Parent of every place of NCCL's binary tree (graph/trees.cc), -1 for its root, place 0. Shape (num_nodes,)."""
    place = np.arange(num_nodes, dtype=np.int64)
    bit = place & -place
    above = (place ^ bit) | (bit << 1)
    above = np.where(above < num_nodes, above, place ^ bit)
    above[0] = -1
    return above


def _steps(above: Ints, ready: int) -> tuple[Ints, Ints]:
    """For every place: the step in which piece 0 goes up from it, and that in which its sum comes down to it.

    A parent has a higher lowest bit than its children, so one pass per bit goes from the leaves to the root.
    """
    place = np.arange(len(above), dtype=np.int64)
    bits = [1 << k for k in range((len(above) - 1).bit_length())]
    levels = [place[(place & -place) == bit] for bit in bits]
    leaves = np.full(len(above), ready, dtype=np.int64)
    for level in levels:
        np.maximum.at(leaves, above[level], leaves[level] + 1)
    arrives = np.full(len(above), leaves[0] - 1, dtype=np.int64)
    for level in reversed(levels):
        arrives[level] = arrives[above[level]] + 1
    return leaves, arrives


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """Channel c enters and leaves a node at the local rank of its NIC; without whole nodes every rank is a node."""
    sizes = _node_sizes(layout)
    both = trees(len(sizes), int(sizes.max()) - 1)
    parts = []
    for channel, head in enumerate(layout.heads(int(sizes.min()))):
        for number, tree in enumerate(both):
            parts += _tree_edges(tree, sizes, head, channel * len(both) + number)
    num_chunks = layout.channels * len(both) * layout.pieces
    return Schedule(
        op="all_reduce", algorithm="double_tree", num_ranks=layout.num_ranks, root=0, size_bytes=size_bytes,
        padding_bytes=0.0, num_chunks=num_chunks, chunk_bytes=size_bytes / num_chunks,
        phases=pipelined(joined(parts), layout.pieces),
    )  # fmt: skip


def _node_sizes(layout: Layout) -> Ints:
    """Ranks of each node; every rank is a node where nodes do not matter."""
    if layout.node_sizes is not None:
        return np.array(layout.node_sizes, dtype=np.int64)
    nodes, g = layout.grid if layout.whole_nodes else (layout.num_ranks, 1)
    return np.full(nodes, g, dtype=np.int64)


def _tree_edges(tree: Tree, sizes: Ints, head: int, group: int) -> list[Edges]:
    """One tree of one channel: along each node's chain to its head, from head to head, and all the way back.

    sizes: (num_nodes,). head: local rank by which the tree enters a node, on every node the same, so the same rail.
    """
    starts = np.cumsum(sizes) - sizes

    def rank(node: Ints, hop: Ints | int) -> Ints:
        return starts[node] + (head + hop) % sizes[node]

    deepest = int(sizes.max())
    hops = np.tile(np.arange(1, deepest), (len(sizes), 1))
    nodes = np.repeat(tree.node[:, None], deepest - 1, axis=1)
    inside = hops < sizes[nodes]
    node, hop = nodes[inside], hops[inside]
    near, far = rank(node, hop - 1), rank(node, hop)
    child, parent = rank(tree.child, 0), rank(tree.parent, 0)
    arrives = np.repeat(tree.down[:, None], deepest - 1, axis=1)[inside]
    return [
        edges(far, near, deepest - 1 - hop, group, reduce=True),
        edges(child, parent, tree.up[1:], group, reduce=True),
        edges(parent, child, tree.down[1:], group, reduce=False),
        edges(near, far, arrives + hop, group, reduce=False),
    ]
