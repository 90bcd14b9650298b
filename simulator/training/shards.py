"""Which part of the model one rank holds and runs: degrees of tensor, context and expert parallelism, as plain numbers.

``transformer`` builds the operations of one rank's shard from an Architecture, a Batch and these. Each dimension has a
module: ``training.tensor``, ``training.context``, ``training.experts``. Pipeline stages are cut from the result later.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model_parallel_spec import Zipf
from simulator.parallel_spec import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """tp, cp, ep, etp: degrees. sequence_parallel: whether norms and dropout share the sequence over tp. async_tp:
    whether what tp sends runs in pieces beside the products. cp_method: ring, all_gather or ulysses. cp_balanced:
    whether causal attention is equal work on all ranks of cp.

    expert_load: tokens of each expert, in any unit; zipf: exponent and seed of loads that fall as a power; even where
    neither is given. capacity_factor: rows that an expert has at most over the mean, None for as many as come.
    deduplicate: whether a token goes to each node once, expert_nodes: to how many at most; node_size: ranks of a node.
    """

    tp: int = 1
    sequence_parallel: bool = False
    async_tp: bool = False
    cp: int = 1
    cp_method: str = "ring"
    cp_balanced: bool = True
    ep: int = 1
    etp: int = 1
    expert_load: tuple[float, ...] = ()
    zipf: tuple[float, int] | None = None
    capacity_factor: float | None = None
    deduplicate: bool = False
    expert_nodes: int | None = None
    node_size: int = 1


WHOLE = Shards()


def shards_of(parallel: Parallel, node_size: int = 1) -> Shards:
    """The part of the model that one rank has, as a scenario asks for it, on nodes of so many ranks (which only its
    messages depend on, and those only where tokens are deduplicated)."""
    load = parallel.expert_load
    return Shards(
        tp=parallel.tp, sequence_parallel=parallel.shares_sequence, async_tp=parallel.async_tp, cp=parallel.cp,
        cp_method=parallel.cp_method, cp_balanced=parallel.cp_balanced, ep=parallel.ep, etp=parallel.expert_tp,
        expert_load=load if isinstance(load, tuple) else (),
        zipf=(load.zipf, load.seed) if isinstance(load, Zipf) else None, capacity_factor=parallel.capacity_factor,
        deduplicate=parallel.deduplicate, expert_nodes=parallel.expert_nodes, node_size=node_size,
    )  # fmt: skip
