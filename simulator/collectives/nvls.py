"""Collectives that add and multicast inside the switch: NVLS (NVLink SHARP), and the NVLS tree over several nodes.

Rank i of a node owns a part. All ranks of the node push that part to the switch, which adds and delivers the sum to
the owner (multimem.ld_reduce); the owner pushes the result back, and the switch multicasts it to all of the node
(multimem.st; PTX ISA, Klenk et al., "An in-network architecture for accelerating shared-memory multiprocessor
collectives", ISCA 2020). The owner's own copy travels too, as it does on the hardware. Bytes on the link of a rank,
one node of p ranks, each way: all-reduce ``(p+1)/p n``; reduce-scatter out ``n``, in ``n/p``; all-gather the reverse.

The pieces of a part follow each other, so both directions of a link are in use at once. With one rank per node there
is nothing to add in a switch, and none takes part.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from simulator.collectives.double_tree import Tree, trees
from simulator.collectives.hierarchical import across, across_chunks
from simulator.collectives.layout import Layout
from simulator.collectives.pipeline import Edges, edges, joined, pipelined
from simulator.schedule import Ints, Phase, Schedule, slice_padding


def all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """One node: through the switch and back, overlapped. Several: in the switch, rings across per rail, and back."""
    nodes, _ = layout.grid
    if nodes == 1:
        return _through_trees("nvls", layout, size_bytes)
    phases = _reduced(layout) + _gathered(layout)
    return _sliced("all_reduce", layout, size_bytes, phases)


def reduce_scatter(layout: Layout, size_bytes: float) -> Schedule:
    """Added in the node's switch, then round the nodes on every rail; rank r ends with slice r."""
    return _sliced("reduce_scatter", layout, size_bytes, _reduced(layout))


def all_gather(layout: Layout, size_bytes: float) -> Schedule:
    """Round the nodes on every rail, then multicast by the node's switch; rank r starts with slice r."""
    return _sliced("all_gather", layout, size_bytes, _gathered(layout))


def tree_all_reduce(layout: Layout, size_bytes: float) -> Schedule:
    """NVLS tree: added in the node's switch, over two binary trees of the nodes on every rail, multicast in the node.

    Bytes of a NIC, each way, with one NIC per rank of a node: at most ``2 n / g`` (see ``double_tree``).
    """
    return _through_trees("nvls_tree", layout, size_bytes)


def _switches(layout: Layout) -> int:
    nodes, g = layout.grid
    return nodes if g > 1 else 0


def _pieces(layout: Layout) -> int:
    """Of a slice: one where no switch pipelines them."""
    return layout.pieces if _switches(layout) else 1


def _switch_of(layout: Layout) -> Ints:
    """The switch of each rank's node, shape (num_ranks,)."""
    _, g = layout.grid
    ranks = np.arange(layout.num_ranks, dtype=np.int64)
    return layout.num_ranks + ranks // g


# ------------------------------------------------------------------------------- slices, and rings across the nodes


def _reduced(layout: Layout) -> tuple[Phase, ...]:
    """Slice r summed on rank r: in the switch for the local rank of the same rail, then round the nodes."""
    (nodes, g), p = layout.grid, layout.num_ranks
    ranks, switch = np.arange(p, dtype=np.int64), _switch_of(layout)
    phases: tuple[Phase, ...] = ()
    if g > 1:
        push = edges(ranks, switch, 0, 0, count=p, reduce=True)
        deliver = edges(switch, ranks, 1, ranks % g, count=nodes, stride=g, reduce=False)
        phases = pipelined(joined([push, deliver]), layout.pieces)
    return phases + _round_the_nodes(nodes, g, 1, _pieces(layout), reduce=True)


def _gathered(layout: Layout) -> tuple[Phase, ...]:
    """Slice r of rank r on everyone: round the nodes, then by the switch from the local rank of each rail."""
    (nodes, g), p = layout.grid, layout.num_ranks
    ranks, switch = np.arange(p, dtype=np.int64), _switch_of(layout)
    phases = _round_the_nodes(nodes, g, 0, _pieces(layout), reduce=False)
    if g > 1:
        push = edges(ranks, switch, 0, ranks % g, count=nodes, stride=g, reduce=False)
        multicast = edges(switch, ranks, 1, 0, count=p, reduce=False)
        phases += pipelined(joined([push, multicast]), layout.pieces)
    return phases


def _round_the_nodes(nodes: int, g: int, lag: int, pieces: int, *, reduce: bool) -> tuple[Phase, ...]:
    rails = across(nodes, g, pieces)
    if rails is None:
        return ()
    moves = partial(across_chunks, nodes, g, lag, pieces)
    return (Phase(pattern=rails, steps=nodes - 1, moves=moves, reduce=reduce),)


def _sliced(op: str, layout: Layout, size_bytes: float, phases: tuple[Phase, ...]) -> Schedule:
    padding = 0.0 if op == "all_reduce" else slice_padding(size_bytes, layout.num_ranks)
    num_chunks = layout.num_ranks * _pieces(layout)
    return Schedule(
        op=op, algorithm="nvls", num_ranks=layout.num_ranks, root=0, size_bytes=size_bytes, padding_bytes=padding,
        num_chunks=num_chunks, chunk_bytes=(size_bytes + padding) / num_chunks, phases=phases,
        num_switches=_switches(layout),
    )  # fmt: skip


# ------------------------------------------------------------------------------------- trees across the nodes


def _through_trees(algorithm: str, layout: Layout, size_bytes: float) -> Schedule:
    """Piece k: pushed in step k, delivered in k + 1, up and down the trees, pushed back and multicast."""
    nodes, g = layout.grid
    both = trees(nodes, 2 if g > 1 else 0)
    parts = [edge for number, tree in enumerate(both) for edge in _over_the_nodes(tree, g, number, len(both))]
    if g > 1:
        parts += [edge for number, tree in enumerate(both) for edge in _in_the_node(layout, tree, number, len(both))]
    num_chunks = g * len(both) * layout.pieces
    return Schedule(
        op="all_reduce", algorithm=algorithm, num_ranks=layout.num_ranks, root=0, size_bytes=size_bytes,
        padding_bytes=0.0, num_chunks=num_chunks, chunk_bytes=size_bytes / num_chunks,
        phases=pipelined(joined(parts), layout.pieces), num_switches=_switches(layout),
    )  # fmt: skip


def _over_the_nodes(tree: Tree, g: int, number: int, count: int) -> list[Edges]:
    """The tree on all rails at once: local rank l of every node carries part l, half of it on each tree."""
    local = np.arange(g, dtype=np.int64)
    child, parent = ((nodes[:, None] * g + local).ravel() for nodes in (tree.child, tree.parent))
    group = np.tile(local * count + number, len(tree.child))
    return [
        edges(child, parent, np.repeat(tree.up[1:], g), group, reduce=True),
        edges(parent, child, np.repeat(tree.down[1:], g), group, reduce=False),
    ]


def _in_the_node(layout: Layout, tree: Tree, number: int, count: int) -> list[Edges]:
    """Between ranks and switches: every rank's data to the switch, the owner's sum to it and back, sums to all."""
    _, g = layout.grid
    ranks, switch = np.arange(layout.num_ranks, dtype=np.int64), _switch_of(layout)
    own = ranks % g * count + number
    arrives = np.empty(len(tree.node), dtype=np.int64)
    arrives[tree.node] = tree.down
    back = arrives[ranks // g] + 1
    return [
        edges(ranks, switch, 0, number, count=g, stride=count, reduce=True),
        edges(switch, ranks, 1, own, reduce=False),
        edges(ranks, switch, back, own, reduce=False),
        edges(switch, ranks, back + 1, number, count=g, stride=count, reduce=False),
    ]
