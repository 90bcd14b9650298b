"""A group of ranks as a communication library sees it: counts and kinds, no graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.library import Cpu, Fabric, Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """``num_nodes`` counts NVLink domains with a rank in them (a node, or the rack of an NVL72).

    ranks_per_node: mean over the nodes, as NCCL takes it. link: what joins the ranks of a node. nics: NICs that the
    ranks of one node use; nic_bytes_per_s the nominal rate of one. gpu_bytes_per_s: nominal rate of one GPU's links
    inside the node. even: every node holds equally many ranks, which are neighbours.
    """

    num_ranks: int
    num_nodes: int
    ranks_per_node: float
    link: Literal["nvlink", "pcie"]
    nvswitch: bool
    nics: int
    nic_bytes_per_s: float
    gpu_bytes_per_s: float
    generation: Generation
    fabric: Fabric
    cpu: Cpu = "other"
    even: bool = True

    @property
    def tier(self) -> int:
        """Index of a cap: one node, two nodes, more."""
        return min(self.num_nodes, 3) - 1
