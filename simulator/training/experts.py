"""Expert parallelism: which experts one rank of ``ep`` holds, how many rows they get, and what tokens travel.

Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py (``MoEAlltoAllTokenDispatcher``); DeepSeek-V3,
arXiv:2412.19437, section 3.2.2; DeepEP. A rank holds E / ep experts of width f / etp, and every router. For each layer
and micro-batch, with T tokens on the rank (a tp-th under sequence parallelism), k experts a token and e bytes:

* dispatch: an all-to-all of ``T k h e`` bytes a rank, of which ``(ep - 1) / ep`` leave it, one of ``4 T k`` for the
  fp32 probabilities, and an all-gather of the counts, 8 bytes for each expert and rank;
* combine: an all-to-all of ``T k h e``; both, and the probabilities' gradients, go the other way in backward: four
  large ones in all;
* with etp > 1 rows are gathered over ``etp`` before the experts and reduce-scattered after them, both ways.

Uneven load: all ranks wait for the busiest, so its rows and bytes are those of each. ``capacity_factor`` c: every
expert has c times the mean, padded or dropped (GShard, arXiv:2006.16668, section 2.2).

``deduplicate``: a token crosses to each node once, and reaches its experts there over the node's own links, as DeepEP's
kernels send it; where ep is inside one node, to each rank once. The all-to-all then carries ``T D h e``, D the expected
number of nodes (ranks) of a token: of it ``(N - 1) / N`` crosses between N nodes, as much as DeepEP sends over RDMA.
What is passed on inside the node runs beside that on faster links and is left out: right while a node's links are
``k / D`` times as fast (DeepSeek-V3 counts 3.2 experts a node for NVLink over InfiniBand). Without ``deduplicate`` a
limit of nodes changes nothing that is sent: k copies, on each node as many.

Limits: all layers have the same loads. With etp the probabilities, 2 / h of the rows' bytes, are not gathered over it.
The sort of what a rank receives by its experts is not counted, nor the wait for counts on the host (dropless).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, comb

import numpy as np

from simulator.errors import ScenarioError
from simulator.training.architecture import Architecture, Experts
from simulator.training.batch import Batch
from simulator.training.operations import Exchange, Operation, ParameterTensor
from simulator.training.shards import Shards

AXIS, WIDTH_AXIS = "ep", "etp"
#: Bytes of a probability (fp32) and of a count of tokens (int64).
PROBABILITY_BYTES, COUNT_BYTES = 4.0, 8.0


def is_expert(tensor: ParameterTensor) -> bool:
    """Whether a tensor holds routed experts, weights or biases: its gradient is reduced over ``edp``, not dp x cp.

    By the name that all families give it (transformers 5: ``mlp.experts.gate_up_proj``); shared experts have another.
    """
    return ".experts." in tensor.name


def check_experts(arch: Architecture, shards: Shards) -> None:
    """Raises ScenarioError for keys of experts where there are none, and for loads of other experts."""
    experts, name = arch.experts, arch.name
    if experts is None:
        if shards.expert_load or shards.zipf or shards.capacity_factor:
            key = "capacity_factor" if shards.capacity_factor else "expert_load"
            raise ScenarioError(f"parallel.{key}: {name} has no experts; leave it out")
        return
    count = experts.routed or experts.count
    if shards.expert_load and len(shards.expert_load) != count:
        raise ScenarioError(
            f"parallel.expert_load: has {len(shards.expert_load)} numbers; {name} has {count} experts, one number each"
        )
    loads(count, shards)


def local_experts(experts: Experts, shards: Shards, name: str) -> Experts:
    """The experts of one rank. Raises ScenarioError for an ep or etp that does not divide."""
    if experts.count % shards.ep:
        accepted = ", ".join(str(n) for n in range(1, experts.count + 1) if experts.count % n == 0)
        raise ScenarioError(
            f"parallel.ep: {shards.ep} does not divide the {experts.count} experts of {name}; accepted: {accepted}"
        )
    if experts.intermediate_size % shards.etp:
        raise ScenarioError(
            f"parallel.etp: {shards.etp} does not divide the {experts.intermediate_size} columns of an expert of {name}"
        )
    return replace(
        experts, count=experts.count // shards.ep, intermediate_size=experts.intermediate_size // shards.etp,
        routed=experts.count,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------- load


def loads(count: int, shards: Shards) -> tuple[float, ...]:
    """Tokens of each expert over the mean."""
    if shards.expert_load:
        given: Sequence[float] = shards.expert_load
    elif shards.zipf is not None:
        exponent, seed = shards.zipf
        falling = np.arange(1, count + 1, dtype=np.float64) ** -exponent
        given = np.random.default_rng(seed).permutation(falling).tolist()
    else:
        return (1.0,) * count
    mean = sum(given) / count
    if not mean:
        raise ScenarioError("parallel.expert_load: all are 0; at least one expert has to have tokens")
    return tuple(load / mean for load in given)


def busiest_load(count: int, shards: Shards) -> float:
    """Rows of the rank of ``ep`` with the most, over the mean; what is beyond an expert's capacity is dropped."""
    each, size = loads(count, shards), count // shards.ep
    if shards.capacity_factor is not None:
        return shards.capacity_factor
    return max(sum(each[first : first + size]) for first in range(0, count, size)) / size


def dropped_share(count: int, shards: Shards) -> float:
    """Share of all choices that finds its expert full; 0 without a capacity."""
    if shards.capacity_factor is None:
        return 0.0
    return sum(max(0.0, load - shards.capacity_factor) for load in loads(count, shards)) / count


# ---------------------------------------------------------------------------------------------------------------- nodes


def nodes_of_token(count: int, top_k: int, nodes: int, limit: int | None = None) -> float:
    """How many nodes the experts of a token are on, on average, where all choices are equally likely.

    ``n (1 - C(E - E/N, k) / C(E, k))`` over n nodes of E experts in all; with a limit of M nodes the experts of M nodes
    take their place (arXiv:2412.19437, section 2.1.2: M nodes are picked first). There the nodes with the best experts
    are picked, which then lie more evenly: with independent scores DeepSeek-V3's 8 of 256 are on 3.95 nodes, not 3.62.
    """
    most = min(nodes, limit or nodes)
    held = count // nodes
    among = held * most
    return most * (1.0 - comb(max(0, among - held), top_k) / comb(among, top_k)) if among >= top_k else float(most)


def sends_per_token(experts: Experts, shards: Shards) -> float:
    """Copies of a token that cross between ranks: one for each expert, or for each node (each rank, inside one node).

    Where nodes have unequal parts of the experts, as if they were equal, with at most one copy for each expert.
    """
    if not shards.deduplicate:
        return float(experts.top_k)
    total, nodes = experts.routed or experts.count, num_nodes(shards)
    if nodes == 1:
        return nodes_of_token(total, experts.top_k, shards.ep)
    return min(float(experts.top_k), nodes_of_token(total, experts.top_k, nodes, shards.expert_nodes))


def num_nodes(shards: Shards) -> int:
    """Nodes that the ranks of one set of experts are on."""
    return ceil(shards.ep * shards.etp / shards.node_size)


def bytes_across_nodes(experts: Experts, shards: Shards, row_bytes: float) -> float:
    """What one rank sends to other nodes for one token in one dispatch or combine. row_bytes: of a token, h e."""
    nodes = num_nodes(shards)
    return sends_per_token(experts, shards) * row_bytes * (nodes - 1) / nodes if nodes > 1 else 0.0


def bytes_inside_nodes(experts: Experts, shards: Shards, row_bytes: float) -> float:
    """What one rank sends to other ranks of its node for one token in one dispatch or combine, its own and, with
    ``deduplicate``, what it passes on: one row for each rank of a node that has an expert of the token.
    """
    total, nodes, k = experts.routed or experts.count, num_nodes(shards), experts.top_k
    size = shards.ep // nodes
    if not shards.deduplicate:
        return k * row_bytes * (size - 1) / shards.ep
    limit = shards.expert_nodes * size if shards.expert_nodes else None
    return nodes_of_token(total, k, shards.ep, limit) * row_bytes * (size - 1) / size


# ------------------------------------------------------------------------------------------------------------- messages


def with_exchanges(operations: Sequence[Operation], arch: Architecture, batch: Batch) -> list[Operation]:
    """Router, dispatch, experts, combine of one layer with what they send. batch: of the rank's own tokens."""
    shards, experts = batch.shards, arch.experts
    assert experts is not None, "only layers with experts come here"
    if shards.ep == shards.etp == 1:
        return list(operations)
    load = busiest_load(experts.routed or experts.count, shards)
    row = float(batch.tokens * arch.hidden_size * batch.precision.compute_bytes)
    crossing, rows = load * sends_per_token(experts, shards) * row, load * experts.top_k * row
    found = []
    for operation in operations:
        part = operation.name.rpartition(".mlp.")[2]
        extra: tuple[Exchange, ...] = ()
        if part == "dispatch":
            extra = _in_order(_dispatch(crossing, load, experts, batch), _gathers(rows, shards, forward=True))
        elif part == "combine":
            extra = _in_order(_combine(crossing, shards), _gathers(rows, shards, forward=False))
        found.append(replace(operation, exchanges=(*operation.exchanges, *extra)))
    return found


def _in_order(over_ranks: tuple[Exchange, ...], over_width: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    """The gathers and scatters of etp are next to the experts: the last on the way there, the first on the way back."""
    toward = ("after forward", "after backward")
    there = (*(e for e in over_ranks if e.when in toward), *(e for e in over_width if e.when in toward))
    back = (*(e for e in over_width if e.when not in toward), *(e for e in over_ranks if e.when not in toward))
    return (*back, *there)


def _dispatch(size: float, load: float, experts: Experts, batch: Batch) -> tuple[Exchange, ...]:
    if batch.shards.ep == 1:
        return ()
    chances = load * PROBABILITY_BYTES * batch.tokens * experts.top_k
    counts = COUNT_BYTES * (experts.routed or experts.count) * batch.shards.ep
    return (
        Exchange(axis=AXIS, op="all_gather", size_bytes=counts, when="before forward", purpose="counts of tokens"),
        Exchange(axis=AXIS, op="all_to_all", size_bytes=chances, when="after forward", purpose="probabilities"),
        Exchange(axis=AXIS, op="all_to_all", size_bytes=size, when="after forward", purpose="tokens to experts"),
        Exchange(
            axis=AXIS, op="all_to_all", size_bytes=size, when="before backward", purpose="gradients from experts"
        ),
        Exchange(
            axis=AXIS, op="all_to_all", size_bytes=chances, when="before backward", purpose="gradients of probabilities"
        ),
    )  # fmt: skip


def _combine(size: float, shards: Shards) -> tuple[Exchange, ...]:
    if shards.ep == 1:
        return ()
    return (
        Exchange(axis=AXIS, op="all_to_all", size_bytes=size, when="before forward", purpose="results of experts"),
        Exchange(axis=AXIS, op="all_to_all", size_bytes=size, when="after backward", purpose="gradients to experts"),
    )  # fmt: skip


def _gathers(rows: float, shards: Shards, *, forward: bool) -> tuple[Exchange, ...]:
    """Experts cut over etp see the rows of all its ranks."""
    if shards.etp == 1:
        return ()
    size = rows * shards.etp
    first, second = ("after forward", "before backward") if forward else ("before forward", "after backward")
    ops = ("all_gather", "reduce_scatter") if forward else ("reduce_scatter", "all_gather")
    return tuple(
        Exchange(axis=WIDTH_AXIS, op=op, size_bytes=size, when=when, purpose="rows of experts")
        for op, when in zip(ops, (first, second), strict=True)
    )  # fmt: skip
