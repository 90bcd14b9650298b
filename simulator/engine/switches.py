"""Switches that take part in a collective: which port of the network a transfer from or to one crosses.

A switch is the NVSwitch that the ranks of a node (or NVLink domain) hang on. What a rank sends to it crosses the rank's
port upwards, once per message of software; what it sends to a rank crosses that rank's port downwards and pays the
link's latency only, since no software runs in a switch. A multicast is one transfer per receiver, each on its own port.
"""

from __future__ import annotations

import numpy as np

from simulator.errors import UnsupportedError
from simulator.network.graph import Network
from simulator.network.routes import Routes
from simulator.schedule import Ints


def ports_up(routes: Routes, gpus: Ints, ranks: Ints, switches: Ints) -> Ints:
    """Link from each rank up to the switch that it exchanges data with, (m,).

    gpus: (num_ranks,) where ranks sit. ranks, switches: (m,) both ends of each transfer. Raises UnsupportedError
    where a rank has no NVSwitch, or where the ranks of one switch do not all hang on the same.
    """
    ports = routes.ports()
    links, held = ports.link[gpus[ranks]], ports.switch[gpus[ranks]]
    if bool((links < 0).any()):
        raise UnsupportedError(
            f"'{routes.name}': its GPUs hang on no NVSwitch, so nothing can be added or multicast in a switch; "
            "NVLS runs inside NVLink domains such as a DGX H100 or B200, or a GB200 rack"
        )
    order = np.argsort(switches, kind="stable")
    same = switches[order][1:] == switches[order][:-1]
    if bool((same & (held[order][1:] != held[order][:-1])).any()):
        raise UnsupportedError(
            f"'{routes.name}': the ranks of one switch of the schedule sit on several NVSwitches; in-switch "
            "collectives need groups made of equally many ranks of each NVLink domain, in order"
        )
    return links


def on_nvswitches(network: Network, gpus: Ints) -> bool:
    """Whether every gpu hangs on an NVSwitch."""
    roles = network.graph.nodes(data="role")
    return all(any(roles[n] == "nvswitch" for n in network.graph.successors(network.gpus[g])) for g in gpus.tolist())
