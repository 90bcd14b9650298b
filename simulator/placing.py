"""Where ``simulator collective`` puts its ranks: a network of the size asked for, its faults, placement and groups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from simulator.errors import NetworkError, ScenarioError, UnitError
from simulator.fault import Fault
from simulator.network.faults import with_faults
from simulator.network.graph import Ints, Network
from simulator.network.placement import place_ranks, split
from simulator.network.sizing import network_for
from simulator.spans_of_values import rank_counts
from simulator.topology import TopologySpec
from simulator.units import parse_fraction

#: Nodes that ``--nodes`` may name.
MAX_NODES = 999_999


class Placed(NamedTuple):
    """``groups`` (num_groups, p): the GPU of each rank of each group."""

    p: int
    network: Network
    groups: Ints


class Asked(NamedTuple):
    """The flags about places, as text; empty or None where not given."""

    ranks: str
    nodes: str
    gpus_per_node: int | None
    groups: str
    faults: Sequence[str]


def words(nodes: str, gpus_per_node: int | None, faults: Sequence[str]) -> str:
    """What placement and faults change about a network, to go behind its name; nothing where none is given."""
    said = [
        f"nodes {nodes}" if nodes else "",
        f"{gpus_per_node} GPU{'s' if gpus_per_node > 1 else ''} of each node" if gpus_per_node else "",
        f"faults: {', '.join(faults)}" if faults else "",
    ]
    return "".join(f"; {part}" for part in said if part)


def places(spec: TopologySpec, asked: Asked) -> list[Placed]:
    """One network per number of ranks. Raises ScenarioError and NetworkError naming the flag."""
    counts = rank_counts(asked.ranks, "-p") if asked.ranks else [None]
    nodes, size_by = _nodes(asked.nodes), _groups(asked.groups)
    faults = [_fault(text) for text in asked.faults]
    return [_placed(spec, asked, count, nodes, size_by, faults) for count in counts]


def _placed(
    spec: TopologySpec, asked: Asked, count: int | None, nodes: int | list[int] | None,
    size_by: tuple[int, str] | None, faults: Sequence[Fault],
) -> Placed:  # fmt: skip
    try:
        network = network_for(spec, count, nodes=nodes, gpus_per_node=asked.gpus_per_node)
        network = with_faults(network, faults, [f"--fault '{text}'" for text in asked.faults])
        gpus = place_ranks(network, ranks=count, nodes=nodes, gpus_per_node=asked.gpus_per_node)
        size, by = size_by or (gpus.size, "block")
        return Placed(size, network, split(network, gpus, size, by))
    except NetworkError as error:
        raise NetworkError(_as_flag(str(error), asked)) from None


def _as_flag(message: str, asked: Asked) -> str:
    """``nodes: 9: ...`` as ``--nodes: 9: ...``, ``ranks:`` as ``-p:``; nodes that nobody gave follow from ``-p``."""
    if message.startswith("nodes:") and not asked.nodes:
        return f"-p: '{asked.ranks}' takes {message.removeprefix('nodes: ').replace(':', ' nodes:', 1)}"
    flags = {
        "nodes:": "--nodes:", "gpus_per_node:": "--gpus-per-node:", "groups:": "--groups:", "ranks:": "-p:",
        "faults:": "--fault:",
    }  # fmt: skip
    key = next((key for key in flags if message.startswith(key)), "")
    return flags.get(key, "") + message.removeprefix(key)


def _nodes(text: str) -> int | list[int] | None:
    """``4`` is a number of nodes, ``0,1,32-35`` says which, in that order."""
    if not text:
        return None
    if any(len(number.lstrip("0")) > 6 for number in re.findall(r"\d+", text)):
        raise ScenarioError(f"--nodes: '{text}': too many; a cluster holds at most {MAX_NODES:,} nodes")
    if re.fullmatch(r"\d+", text.strip()):
        return int(text)
    return [node for part in text.split(",") for node in _span(part.strip(), text)]


def _span(part: str, text: str) -> Iterator[int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
    if found is None:
        raise ScenarioError(
            f"--nodes: '{text}': expected how many nodes, such as 4, or which, such as 0,1,32,33 or 0-3,32-35"
        )
    low, high = int(found[1]), int(found[2] or found[1])
    if low > high:
        raise ScenarioError(f"--nodes: '{text}': '{part}' runs backwards; write {high}-{low}")
    yield from range(low, high + 1)


def _groups(text: str) -> tuple[int, str] | None:
    """``4`` or ``4:rail``: the size of a group, and which ranks make one."""
    if not text:
        return None
    size, _, by = text.partition(":")
    if not re.fullmatch(r"[1-9]\d{0,6}", size.strip()):
        raise ScenarioError(f"--groups: '{text}': expected the ranks of a group, and how to take them: 4 or 4:rail")
    return int(size), by.strip() or "block"


def _fault(text: str) -> Fault:
    """``WHERE=SHARE`` or ``WHERE=removed``; WHERE is node2, node2/nic, node1.nic3, or two ends joined by '--'."""
    where, _, what = (part.strip() for part in text.rpartition("="))
    place, _, tier = (part.strip() for part in where.partition("/"))
    if not place or not what:
        raise ScenarioError(
            f"--fault: '{text}': expected WHERE=SHARE or WHERE=removed, such as node2=50%, node2/nic=50%, "
            "node1.nic3=removed or node0.gpu0--node0.gpu1=removed"
        )
    given: dict[str, Any] = {"tier": tier} if tier else {}
    node = re.fullmatch(r"node ?(\d{1,6})", place)
    if node:
        given["node"] = int(node[1])
    elif "--" in place:
        given["link"] = tuple(end.strip() for end in place.split("--", 1))
    else:
        given["part"] = place
    if what == "removed":
        if node and not tier:
            raise ScenarioError(f"--fault: '{text}': leave a node out with --nodes; {where}/TIER removes its links")
        return Fault(**given, removed=True)
    try:
        share = parse_fraction(what)
    except UnitError as error:
        raise ScenarioError(f"--fault: '{text}': {error}; or 'removed'") from None
    if not 1e-6 <= share <= 1:
        raise ScenarioError(f"--fault: '{text}': the share that is left must lie above 0 and at most 100%")
    return Fault(**given, bandwidth=share)
