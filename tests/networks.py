"""Networks for tests: the shipped topologies in other sizes, the textbook's uniform one, and graphs written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from simulator.engine.wires import Wires, make_wires
from simulator.library import AlphaBetaLibrary
from simulator.load import load_topology
from simulator.network.builders import build_network
from simulator.network.graph import Cable, Network, Place, Wire, assemble

#: alpha and beta of the lectures' example, and of the shipped ``uniform`` topology.
ALPHA_S, BETA_BYTES_PER_S = 5e-6, 50e9


@cache
def shipped(name: str, **size: Any) -> Network:
    """A shipped topology; ``size`` as ``build_network`` takes it (nodes, gpus_per_node, shape)."""
    return build_network(load_topology(name), **size)


#: What a library without a cost model of its own might add: schedules are played message by message.
PLAYED = AlphaBetaLibrary.model_validate({"message_overhead": "1 us", "collective_launch": "20 us", "source": "a test"})


@cache
def played(name: str, **size: Any) -> Network:
    """A shipped topology whose library prices nothing, so that every collective is played."""
    return replace(shipped(name, **size), library=PLAYED)


@cache
def uniform(num_ranks: int, alpha_s: float = ALPHA_S, bytes_per_s: float = BETA_BYTES_PER_S) -> Network:
    """Every pair of ranks alike: a message of n bytes takes ``alpha_s + n / bytes_per_s``."""
    spec = load_topology("uniform").model_copy(update={"alpha": alpha_s, "bandwidth": bytes_per_s})
    return build_network(spec, nodes=num_ranks)


def graph(cables: Sequence[tuple[str, str, float, float]]) -> Network:
    """A network from (end, end, bytes/s, latency in s), each both ways. Names that start with 'gpu' are GPUs."""
    names = dict.fromkeys(end for a, b, _, _ in cables for end in (a, b))
    gpus = sorted((name for name in names if name.startswith("gpu")), key=lambda name: int(name[3:]))
    switches = [name for name in names if not name.startswith("gpu")]
    places = [Place(name, "gpu", "gpu", 0, node) for node, name in enumerate(gpus)]
    places += [Place(name, "switch", "switch", 1) for name in switches]
    wires = [Cable(a, b, Wire("test", rate, rate, latency_s, "a test")) for a, b, rate, latency_s in cables]
    return assemble(
        name="graph", kind="explicit", routing="shortest", places=places, cables=wires, library=AlphaBetaLibrary()
    )  # fmt: skip


def wired(network: Network, gpus: Sequence[int] | None = None) -> Wires:
    """The network as the engines read it; rank r sits on gpu ``gpus[r]``, by default on gpu r."""
    return make_wires(network, np.arange(network.num_gpus) if gpus is None else np.array(gpus, dtype=np.int64))


def link(network: Network, a: str, b: str) -> int:
    """Number of the link from ``a`` to ``b``."""
    return network.link_names.index((a, b))


def faster(network: Network, factor: float) -> Network:
    """The same network with every bandwidth multiplied."""
    return replace(network, capacity_bytes_per_s=network.capacity_bytes_per_s * factor)


def without_latency(network: Network) -> Network:
    """The same network where only bytes take time."""
    return replace(
        network, latency_s=np.zeros_like(network.latency_s), library=AlphaBetaLibrary()
    )  # fmt: skip
