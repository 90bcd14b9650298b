"""Groups of an axis by how their ranks lie in nodes: a library prices, and chooses for, each kind by itself.

A pair of stages inside a rack and one that leaves it are two kinds; two pairs that leave it are one.
"""

from __future__ import annotations

import numpy as np

from simulator.schedule import Ints

Groups = tuple[tuple[int, ...], ...]


def by_placing(domain_of_gpu: Ints, groups: Groups) -> tuple[Groups, ...]:
    """``groups`` (gpu numbers, equally many each) by kind, in the order in which kinds first come.

    domain_of_gpu: (num_gpus,) the scale-up domain of each GPU. Groups are of a kind where rank for rank both are in
    the domain of the rank before, or both are not, and both are in as many domains.
    """
    if len(groups) == 1:
        return (groups,)
    domains = domain_of_gpu[np.array(groups, dtype=np.int64)]
    leaves = domains[:, 1:] != domains[:, :-1]
    if not leaves.any() or (domains.shape[1] == 2 and leaves.all()):
        return (groups,)
    in_order = np.sort(domains, axis=1)
    counts = (in_order[:, 1:] != in_order[:, :-1]).sum(axis=1)
    kinds: dict[bytes, list[tuple[int, ...]]] = {}
    for group, where, count in zip(groups, leaves, counts.tolist(), strict=True):
        kinds.setdefault(where.tobytes() + int(count).to_bytes(4, "little"), []).append(group)
    return tuple(tuple(members) for members in kinds.values())
