"""A network as integers, which is all that routing functions see."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.network.graph import Ints, Network


class Wiring(NamedTuple):
    """A network as integers, for the routing functions."""

    gpu: Ints  # (num_gpus,) place of each GPU
    tail: Ints  # (num_links,)
    head: Ints  # (num_links,)
    level: Ints  # (num_places,)
    inside: np.ndarray  # (num_places,) bool: part of a host
    is_gpu: np.ndarray  # (num_places,) bool
    host: Ints  # (num_gpus,) host of each GPU
    domain: Ints  # (num_gpus,) scale-up domain of each GPU
    pxn: bool  # whether a message to another rail changes rails inside its host
    shape: tuple[int, ...]
    wrap: tuple[bool, ...]


Router = Callable[[Ints, Ints], Ints]
"""(src (m,), dst (m,)) -> (m, longest) link ids, padded with -1 anywhere in the row."""


def wiring(network: Network) -> Wiring:
    """Number the places and links of ``network``."""
    nodes = network.graph.nodes
    index = {name: i for i, name in enumerate(nodes)}
    ends = np.array([(index[a], index[b]) for a, b in network.link_names], dtype=np.int64).reshape(-1, 2)
    data = [attributes for _, attributes in nodes(data=True)]
    return Wiring(
        gpu=np.array([index[name] for name in network.gpus], dtype=np.int64),
        tail=ends[:, 0], head=ends[:, 1],
        level=np.array([d["level"] for d in data], dtype=np.int64),
        inside=np.array([d["node"] is not None for d in data]),
        is_gpu=np.array([d["kind"] == "gpu" for d in data]),
        host=network.node_of_gpu, domain=network.domain_of_gpu, pxn=network.pxn,
        shape=network.torus_shape or (), wrap=network.torus_wrap or (),
    )  # fmt: skip


def mix(src: Ints, dst: Ints) -> Ints:
    """A stable hash of a pair, (m,) non-negative int64. The finaliser is splitmix64's (Steele et al., OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        x = (src.astype(np.uint64) << np.uint64(32)) ^ dst.astype(np.uint64)
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
